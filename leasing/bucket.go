package leasing

import (
	"math/bits"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The arithmetic of a token_bucket's account: whole micro-tokens, nothing lost
// to rounding. Why it is this strict: docs/protocol.md, section 4.1, and docs/adr/0001.

// refill adds what elapsed brings, without rounding: what does not make a
// whole micro-token is carried over.
func (a *account) refill(elapsed ledgerTime, l *ratelimit.Limit) {
	seconds := uint64(l.Period() / time.Second)
	full := a.brim(l)
	hi, lo := bits.Mul64(uint64(elapsed), uint64(l.Requests))
	lo, overflow := bits.Add64(lo, uint64(a.carry), 0)
	hi += overflow
	if hi >= seconds { // more than 2^64 micro-tokens
		a.level, a.carry = full, 0
		return
	}
	added, rest := bits.Div64(hi, lo, seconds)
	if added >= uint64(full) || a.level+int64(added) >= full {
		a.level, a.carry = full, 0
		return
	}
	a.level += int64(added)
	a.carry = int64(rest)
}

// gone is what a bucket does not take back from a holder that says it received
// only so much. Refills were no longer held back for it, so that it may have
// been refilled already: what an expired lease had not spent, and what was
// granted to be spent at once.
func (a *account) gone(r *record, received tokens) tokens {
	var n tokens
	if a.now >= r.expires {
		n = r.outstanding()
	}
	if r.direct {
		n += max(0, r.granted+r.inflight-received)
	}
	return n
}

// pour adds n tokens to a bucket, or takes them, as far as it has them.
func (a *account) pour(n tokens, l *ratelimit.Limit) {
	n = max(n, -tokens(a.level/micro))
	a.level += int64(min(n, l.Burst)) * micro
	a.level = min(a.level, a.brim(l))
}

// brim is the highest level that leaves room for what live leases may spend.
func (a *account) brim(l *ratelimit.Limit) int64 {
	return max(0, int64(l.Burst)-int64(a.liveOutstanding())) * micro
}

func (a *account) liveOutstanding() tokens {
	var sum tokens
	a.each(func(r *record) {
		if r.window == a.window && !r.closed && a.now < r.expires {
			sum += r.outstanding()
		}
	})
	return sum
}

// nextExpiry is when the next lease that holds something expires.
func (a *account) nextExpiry() ledgerTime {
	next := ledgerTime(1<<63 - 1)
	a.each(func(r *record) {
		if a.now < r.expires && r.outstanding() > 0 {
			next = min(next, r.expires)
		}
	})
	return next
}

// timeToLevel is how long the bucket takes to reach level, rounded up.
func (a *account) timeToLevel(level int64, l *ratelimit.Limit) time.Duration {
	missing := level - a.level
	if missing <= 0 || l.Requests == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(missing), uint64(l.Period()/time.Second))
	lo, borrow := bits.Sub64(lo, uint64(a.carry), 0)
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
