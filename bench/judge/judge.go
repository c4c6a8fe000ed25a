// Package judge compares the admissions of a key with its limit's own definition, which has no leases, nodes
// or ledgers. It also compares them with those of an exact limiter for the same requests.
//
// Guarantee: Worst is the result of a client that counts every admission, and has the ledger's clock.
package judge

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Judge watches one key. It gets each request once, in the order of the ledger's clock. It is not safe for concurrent
// use. It has the same usage twice: as the nodes admitted, and as an exact limiter would have. Their difference is
// under-admission, and the excess of the first over the limit is over-admission.
type Judge struct {
	// Of its verdicts, and only read. Allow changes the limit.
	Limit ratelimit.Limit
	Worst ratelimit.Tokens // the most that was admitted beyond the limit at any instant
	Early ratelimit.Tokens // refused while the limit had room for the request, at any node

	got      usage            // by admissions
	ideal    usage            // by what an exact limiter would have admitted
	under    ratelimit.Tokens // less than the exact limiter, of windows that have ended
	admitted ratelimit.Tokens // in all
	exact    ratelimit.Tokens // in all, by the exact limiter
	doubt    ratelimit.Tokens // of a bucket: see Retract
}

// usage is the usage of a limit at an instant, by its definition. Windows use spent and before, and a bucket its level.
// Each operation keeps both up to date, so that it need not ask for the algorithm.
type usage struct {
	window ratelimit.LedgerTime // when it began; 0: none has
	end    ratelimit.LedgerTime
	spent  ratelimit.Tokens // in this window
	before ratelimit.Tokens // in the one before
	level  float64          // of a bucket
	at     ratelimit.LedgerTime
}

// New makes a judge of one limit.
func New(l ratelimit.Limit) *Judge {
	j := Judge{Limit: l}
	j.got.level, j.ideal.level = float64(l.Burst), float64(l.Burst)
	return &j
}

// Allow has it judge by another number of tokens from here on: while nodes have
// different limits, the largest is what may be spent.
func (j *Judge) Allow(l ratelimit.Limit) {
	if grown := l.Burst - j.Limit.Burst; j.Limit.Algorithm == ratelimit.TokenBucket && grown > 0 {
		j.got.level, j.ideal.level = j.got.level+float64(grown), j.ideal.level+float64(grown)
	}
	j.Limit.Requests, j.Limit.Burst = l.Requests, l.Burst
}

// Credit records that n tokens were given back, at most the usage. For a window, it returns the rest.
func (j *Judge) Credit(at ratelimit.LedgerTime, n ratelimit.Tokens) (unspent ratelimit.Tokens) {
	j.advance(at)
	unspent = max(0, n-j.got.spent)
	for _, u := range []*usage{&j.got, &j.ideal} {
		u.spent -= min(n, u.spent)
		u.level = min(float64(j.Limit.Burst), u.level+float64(n))
	}
	return unspent
}

// Spent is the usage in the window of an instant, without tokens that were given back.
func (j *Judge) Spent(at ratelimit.LedgerTime) ratelimit.Tokens {
	j.advance(at)
	return max(0, j.got.spent)
}

// StepBack records that the ledger's clock went back from one instant to another. The usage of the window
// that it showed then counts in the one that it shows now, and not more.
func (j *Judge) StepBack(from, at ratelimit.LedgerTime) {
	j.advance(from)
	begins, ends := j.windowAt(at)
	for _, u := range []*usage{&j.got, &j.ideal} {
		u.at = min(u.at, at)
		if u.window > begins {
			u.spent, u.before = u.spent+u.covered(from, &j.Limit), 0
			u.window, u.end = max(begins, 1), ends
		}
	}
}

// Admit records that n tokens were admitted at an instant of the ledger's clock, which must not go back. It returns how
// far beyond the limit that was. The excess includes earlier ones of the window: room is below 0 then.
func (j *Judge) Admit(at ratelimit.LedgerTime, n ratelimit.Tokens) ratelimit.Tokens {
	j.offer(at, n)
	j.advance(at)
	j.admitted += n
	over := max(0, n-j.got.room(at, &j.Limit)-j.doubt)
	if n > 0 {
		j.Worst = max(j.Worst, over)
	}
	j.got.spend(n)
	return over
}

// Refuse records that n tokens were refused.
func (j *Judge) Refuse(at ratelimit.LedgerTime, n ratelimit.Tokens) {
	j.offer(at, n)
	j.advance(at)
	if j.got.room(at, &j.Limit) >= n {
		j.Early += n
	}
}

// Retract takes back an admission at an instant, because its answer did not arrive: at most the remaining
// usage of that window, which may have been credited meanwhile. It returns the rest. It cannot compute the level
// that a bucket would have had meanwhile. From here on that much more may pass unseen.
func (j *Judge) Retract(admitted, now ratelimit.LedgerTime, n ratelimit.Tokens) (unspent ratelimit.Tokens) {
	j.advance(now)
	j.admitted -= n
	switch {
	case j.Limit.Algorithm == ratelimit.TokenBucket:
		j.doubt += n
	case admitted >= j.got.window:
		unspent = max(0, n-j.got.spent)
		j.got.spend(unspent - n)
	case admitted >= j.got.window-(j.got.end-j.got.window):
		unspent = max(0, n-j.got.before)
		j.got.before -= n - unspent
	}
	return unspent
}

// offer has the exact limiter decide, too.
func (j *Judge) offer(at ratelimit.LedgerTime, n ratelimit.Tokens) {
	j.advance(at)
	if j.ideal.room(at, &j.Limit) >= n {
		j.ideal.spend(n)
		j.exact += n
	}
}

// advance ends windows that are over at an instant.
func (j *Judge) advance(at ratelimit.LedgerTime) {
	if j.Limit.Algorithm == ratelimit.TokenBucket || at < j.got.end {
		return
	}
	j.under += max(0, j.ideal.spent-j.got.spent)
	begins, ends := j.windowAt(at)
	j.got.roll(begins, ends)
	j.ideal.roll(begins, ends)
}

// windowAt is when the window of an instant begins and ends.
func (j *Judge) windowAt(at ratelimit.LedgerTime) (begins, ends ratelimit.LedgerTime) {
	w := j.Limit.WindowAt(at)
	return j.Limit.WindowEnd(w - 1), j.Limit.WindowEnd(w)
}

// roll begins another window. The previous window counts only if it was the one just before: after a gap, it is over
// for a sliding window, too. Value 0 of window means "none", so a window that begins at 0 is noted as 1.
func (u *usage) roll(begins, ends ratelimit.LedgerTime) {
	u.before = 0
	if u.end == begins {
		u.before = u.spent
	}
	u.window, u.end, u.spent = max(begins, 1), ends, 0
}

// room is what could be spent now; below 0 when too much was. A level is a sum of fractions, so a thousandth of a token
// is allowed for rounding.
func (u *usage) room(at ratelimit.LedgerTime, l *ratelimit.Limit) ratelimit.Tokens {
	switch l.Algorithm {
	case ratelimit.TokenBucket:
		period := float64(l.Period() / time.Microsecond)
		if u.at > 0 {
			u.level = min(float64(l.Burst), u.level+float64(at-u.at)*float64(l.Requests)/period)
		}
		u.at = at
		if u.level < 0 {
			return -ratelimit.Tokens(-u.level + 0.999)
		}
		return ratelimit.Tokens(u.level + 0.001)
	default:
		return l.Requests - u.spent - u.covered(at, l)
	}
}

// covered is what counts of the window before a sliding one: the part still covered, rounded down.
func (u *usage) covered(at ratelimit.LedgerTime, l *ratelimit.Limit) ratelimit.Tokens {
	if l.Algorithm != ratelimit.SlidingWindow {
		return 0
	}
	return ratelimit.Tokens(float64(u.before) * float64(u.end-at) / float64(l.Period()/time.Microsecond))
}

func (u *usage) spend(n ratelimit.Tokens) {
	u.spent += n
	u.level -= float64(n)
}

// Room is the rest of the limit at an instant; below 0 when too much was admitted.
func (j *Judge) Room(at ratelimit.LedgerTime) ratelimit.Tokens {
	j.advance(at)
	return j.got.room(at, &j.Limit)
}

// Under is the admission of an exact limiter for the same requests until at, less the real one: for fixed
// windows window by window.
func (j *Judge) Under(at ratelimit.LedgerTime) ratelimit.Tokens {
	j.advance(at)
	if j.Limit.Algorithm == ratelimit.FixedWindow {
		return j.under + max(0, j.ideal.spent-j.got.spent)
	}
	return max(0, j.exact-j.admitted)
}
