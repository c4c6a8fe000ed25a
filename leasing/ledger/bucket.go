package ledger

import (
	"math/bits"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The arithmetic of a token_bucket's account: whole micro-tokens, nothing lost
// to rounding. Why it is this strict: docs/protocol.md, section 4.1, and docs/adr/0001.

// refill adds what elapsed brings.
func (a *Account) refill(elapsed ledgerTime, l *ratelimit.Limit) {
	a.level, a.carry = Refilled(a.level, a.carry, elapsed, a.brim(l), l)
}

// Refilled is a level, and what is carried over, after elapsed: up to full, and
// without rounding. What does not make a whole micro-token is carried over.
func Refilled(level, carry int64, elapsed ledgerTime, full int64, l *ratelimit.Limit) (int64, int64) {
	seconds := uint64(l.Period() / time.Second)
	// Microseconds times requests may exceed 64 bits: the product is held in 128.
	hi, lo := bits.Mul64(uint64(elapsed), uint64(l.Requests))
	lo, overflow := bits.Add64(lo, uint64(carry), 0)
	hi += overflow
	if hi >= seconds { // more than 2^64 micro-tokens
		return full, 0
	}
	added, rest := bits.Div64(hi, lo, seconds)
	// A full bucket carries nothing over: a refill that does not fit is lost.
	if added >= uint64(full) || level+int64(added) >= full {
		return full, 0
	}
	return level + int64(added), int64(rest)
}

// overfull tells whether a claim comes too late to keep what its lease has: the lease
// has expired, the bucket was refilled since, and that is leased to others. Together
// they could spend more than the bucket holds.
func (a *Account) overfull(r *record, c *ratelimit.Claim) bool {
	kept := c.Granted - c.Spent - c.Returned
	return kept > 0 && a.now >= r.expires && kept+a.liveOutstanding() > c.Limit.Burst
}

// gone is what a bucket does not take back from a holder that says it received
// only so much. Refills were no longer held back for it, so that it may have
// been refilled already: what an expired lease had not spent, and what was
// granted to be spent at once.
func (a *Account) gone(r *record, received tokens) tokens {
	var n tokens
	if a.now >= r.expires {
		n = r.outstanding()
	}
	// Such a grant held back no refill from the first instant on (see outstanding): what was not
	// received of it may have been refilled already.
	if r.direct {
		n += max(0, r.granted+r.inflight-received)
	}
	return n
}

// pour adds n tokens to a bucket, or takes them, as far as it has them.
func (a *Account) pour(n tokens, l *ratelimit.Limit) {
	// A report may take more than there is, after a loss of data. The level stays at 0 or above; a
	// bucket that owed would refuse everybody until it had paid (docs/protocol.md, section 4.1).
	n = max(n, -tokens(a.level/Micro))
	a.level += int64(min(n, l.Burst)) * Micro
	a.level = min(a.level, a.brim(l))
}

// brim is the highest level that leaves room for what live leases may spend.
func (a *Account) brim(l *ratelimit.Limit) int64 {
	return max(0, int64(l.Burst)-int64(a.liveOutstanding())) * Micro
}

func (a *Account) liveOutstanding() tokens {
	var sum tokens
	a.each(func(r *record) {
		if r.window == a.window && a.now < r.expires {
			sum += r.outstanding()
		}
	})
	return sum
}

// nextExpiry is when the next lease that holds something expires.
func (a *Account) nextExpiry() ledgerTime {
	next := ledgerTime(1<<63 - 1)
	a.each(func(r *record) {
		if a.now < r.expires && r.outstanding() > 0 {
			next = min(next, r.expires)
		}
	})
	return next
}

// timeToLevel is how long the bucket takes to reach level.
func (a *Account) timeToLevel(level int64, l *ratelimit.Limit) time.Duration {
	return TimeToLevel(level, a.level, a.carry, l)
}

// TimeToLevel is how long a bucket that has a level, and carries something over, takes
// to reach another one, rounded up.
func TimeToLevel(level, has, carry int64, l *ratelimit.Limit) time.Duration {
	missing := level - has
	if missing <= 0 || l.Requests == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(missing), uint64(l.Period()/time.Second))
	lo, borrow := bits.Sub64(lo, uint64(carry), 0)
	hi -= borrow
	if hi >= uint64(l.Requests) {
		return time.Duration(1<<63 - 1)
	}
	us, rest := bits.Div64(hi, lo, uint64(l.Requests))
	if rest > 0 {
		us++
	}
	if us > uint64(1<<63-1)/1000 {
		return time.Duration(1<<63 - 1)
	}
	return time.Duration(us) * time.Microsecond
}

// IsBucket tells a bucket's window, which is the time at which it began, from
// the number of a window: there are less than 2^40 seconds.
func IsBucket(w window) bool { return w > 1<<40 }
