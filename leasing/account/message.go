package account

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

type (
	tokens  = ratelimit.Tokens
	instant = ratelimit.LedgerTime
)

// Kind says what a message does.
type Kind uint8

// The kinds.
const (
	// States states the holder's total and asks for tokens: a claim.
	States Kind = iota
	// Draws adds Want tokens to the holder's total, with nothing looked at.
	Draws
	// Leaves is the last claim of a holder that ends: its record goes, its total stays in the sum, and in nobody's
	// hand.
	Leaves
)

// Claim is a holder's message about one account. Of a draw only Key, Window, Limit, Holder and Want count.
// The zero Claim means nothing.
type Claim struct {
	Kind   Kind
	Key    string           // at the ledger
	Window ratelimit.Window // of the account; 0: of a token bucket
	Limit  ratelimit.Limit  // that the claim is judged by: the rule's, or less (drift within the limit)
	Holder ratelimit.Holder // 64 random bits: never the name of a machine
	// Seq rises with each claim of the holder on the key. A claim that is not above the last is overtaken.
	Seq uint64
	// Taken is the holder's total: what it has of the account, spent or in hand. Spent is what it has admitted and
	// charged, and may be more than Taken: what was charged without asking is booked whole. Both may be below 0, by
	// refunds of what other holders were charged.
	Taken, Spent tokens
	// Need is granted as far as it is free. Up to Want is granted beyond it, but no more in all than one Share-th of
	// what is free. A Share below 1 is 1; nodes say two for each that is alive.
	Need, Want tokens
	Share      int
	// TTL is how long the holder keeps what it has in hand, counted by the ledger from when it settles the claim: of a
	// bucket, its slot; of a window, the time after which it may be credited (Eager), and 0: never.
	TTL time.Duration
	// Learning is until when, as far as the holder knows, the ledger may have lost what was known of the account: for a
	// bucket, until one that was empty when the epoch began has filled.
	Learning instant
	// Audit is what the claim is to be on record by (AuditOf); "": it is not. A draw cannot be.
	Audit string
}

// Eager tells whether the ledger may credit what is in hand when its time is over.
func (c *Claim) Eager() bool { return c.Window != 0 && c.TTL >= time.Microsecond }

// Grant is the answer to one claim, or what a draw found.
type Grant struct {
	// Granted is new, beside the total that the claim stated; of a draw it is 0: its sender judges (Owned).
	Granted tokens
	// Total is the holder's total at the ledger after the message, and Sum that of all holders: of a sliding window,
	// with what still counts of the window before; of a bucket, its burst less its level. It may be above the limit.
	Total, Sum tokens
	// InHand is what others have taken and, as far as they have said, not spent. Of a draw it is not known: -1.
	InHand tokens
	// Cut is what of a refund was not credited, for the account would be below nothing: the holder adds it to its
	// totals, as the ledger did.
	Cut   tokens
	Fence ratelimit.Fence
	// At is the ledger's clock then, and Learning until when the account learns: it grants little, and what it
	// confirms frees no share.
	At, Learning instant
	// Missing says that the holder had more of the account than the ledger knew: it was lost, alone.
	Missing bool
	// Recalling says that others were asked to give back, for this need.
	Recalling bool
	// Override is the key's, by which the message was judged, or its removal. Of a draw, its sender judges by it. nil:
	// none.
	Override *ratelimit.Override
	// Err says that the message was not settled, or is not known to be; then nothing else is meant.
	Err error
}

// Owned is what of n tokens that a draw added lay below the limit.
func (g *Grant) Owned(n tokens, limit *ratelimit.Limit) tokens {
	return max(0, n-max(0, g.Sum-limit.Capacity()))
}

// Errors of single messages. Both are matched with errors.Is.
var (
	// ErrOvertaken answers a claim whose Seq is not above the last.
	ErrOvertaken = errors.New("a later claim of the same holder came first")
	// ErrOver answers a message for an account that is not kept any more, or not yet: nothing was booked.
	ErrOver = errors.New("the store no longer keeps the window of the claim")
	// ErrFull answers a claim on a new key when a ledger in memory holds as many accounts as it may.
	ErrFull = errors.New("the account table is full: all accounts are in use")
)

// MostBooked bounds each total of a holder, and the sum of all: what is beyond is not counted. 1,000 holders at the
// bound stay below 2^53, up to which the doubles of Redis' scripts are exact.
const MostBooked tokens = 1 << 43

// Learn is for how long an account that was lost learns, and a ledger that lost its data.
const Learn = 2 * time.Second

// Told tells whether somebody had something to tell a ledger of an epoch, which prolonged its learning: otherwise it
// began with a ledger that nobody had known, and nothing was lost.
func Told(e ratelimit.Epoch) bool { return e.Learning > e.Began.Add(Learn) }

// LearnPart is which part of the limit is granted meanwhile, in all.
const LearnPart = 20

// Ledger is the one authority over accounts. Each message is settled atomically.
//
// Settle fills grants[i] for claims[i]; the slices are the caller's again when it returns. It blocks at most until
// ctx is done. A message that was not settled by then has an Err, and may still be settled later. There may be no
// claims: then only the answer's other parts are asked for, which are the epoch of the data right after, and what time
// it was then by the ledger's clock. Neither is known, and every grant an error, if err is not nil.
type Ledger interface {
	Settle(ctx context.Context, claims []Claim, grants []Grant) (ratelimit.Epoch, ratelimit.LedgerTime, error)
}

// errClaim says that a claim means nothing. Its sender has a bug.
var errClaim = errors.New("the claim is invalid")

// check tells what is wrong with a claim, before it is sent or settled.
func check(c *Claim) error {
	bucket := c.Limit.Algorithm == ratelimit.TokenBucket
	switch {
	case c.Key == "", c.Holder == debtor, c.Kind > Leaves, bucket != (c.Window == 0),
		c.TTL < 0, c.TTL > ratelimit.MaxPeriod, c.Limit.Carries && c.Limit.Algorithm != ratelimit.FixedWindow,
		c.Limit.Algorithm >= ratelimit.Concurrency, c.Limit.Period() <= 0, c.Limit.Requests < 0,
		c.Limit.Requests > ratelimit.MaxLimit, c.Limit.Ceiling < 0, c.Limit.Ceiling > ratelimit.MaxLimit,
		c.Kind == Draws && (c.Want < 1 || c.Want > ratelimit.MaxLimit || bucket || c.Audit != ""),
		c.Kind != Draws && (c.Seq == 0 || c.Seq > 1<<52):
		return fmt.Errorf("%w: %+v", errClaim, *c)
	}
	return nil
}
