package lease

import (
	"errors"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// How often a key is claimed, and for how long what is known of it counts.
const (
	// BackOff is the least time between claims while tokens are out elsewhere.
	BackOff = ratelimit.ClaimBackOff
	// Company is how long a claim for which nobody waits may wait for others to travel with;
	// LongCompany, one for a key that is seldom asked for, whose lease is used up.
	Company     = 20 * time.Millisecond
	LongCompany = time.Second
	// mustLast is how long what a key has must last for its claim to wait: for half of it, and then it travels.
	mustLast = 2 * Company
	// often is how many tokens a second a key is asked for that is not seldom: its lease of plenty is renewed
	// before it is used up (see soon).
	often = 4
	// IdleAfter is how long after its last use a key gives back what it has.
	IdleAfter = 2 * time.Second
	// ForgottenAfter is how long after its last use, and its window, a key is dropped
	// rather than that its table grows: what it wanted then says nothing any more.
	ForgottenAfter = time.Minute

	// A claim for requests that wait may leave them where they were: it was refused
	// as too late, its window is over, it was rejected. After so many in a row, which
	// an honest ledger needs only around the end of a window, the key is not claimed
	// for a while, and on_store_failure decides.
	MostFruitless = 5
	firstPause    = BackOff
	LongestPause  = time.Second

	// RefusalHold is how long a refusal is believed without a word from the ledger,
	// whatever time it had named: one that was wrong ends so long after the ledger
	// is right again. It costs a claim in that time, of keys that are asked for. In
	// windows of up to a minute, each answer that confirms it doubles that, mostHolds times.
	RefusalHold = 5 * time.Second
	mostHolds   = 2
)

// ErrYoung answers claims that were granted by a ledger which has just lost its
// data, by an account that looked new: what they were granted is not taken.
var ErrYoung = errors.New("the ledger's data is young, and the claim did not say so")
