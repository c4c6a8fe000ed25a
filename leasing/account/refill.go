package account

import (
	"math"
	"math/bits"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The arithmetic of buckets: levels in millionths of a token, without loss by rounding.

// Refilled is a level, and the rounding remainder, after that many microseconds, up to full. A full bucket has no
// remainder. A rate of n tokens in s seconds is n millionths in s microseconds. So a level grows by elapsed x requests
// / seconds, and carry is the remainder of that division, for the next refill. Without it, frequent refills of a slow
// bucket would each round to 0.
func Refilled(level, carry, elapsed, full int64, l *ratelimit.Limit) (int64, int64) {
	if level >= full {
		return full, 0
	}
	seconds := uint64(l.Period() / time.Second)
	// Microseconds times requests can exceed 64 bits: the product is computed in 128.
	hi, lo := bits.Mul64(uint64(elapsed), uint64(l.Requests))
	lo, overflow := bits.Add64(lo, uint64(carry), 0)
	hi += overflow
	if hi >= seconds { // more than 2^64 millionths
		return full, 0
	}
	added, rest := bits.Div64(hi, lo, seconds)
	if added >= uint64(full-level) {
		return full, 0
	}
	return level + int64(added), int64(rest)
}

// RefilledAfter is the time from one level with its remainder to another level, rounded up; 0 for a bucket that does
// not refill. It is the inverse of Refilled. The bounds on hi keep Div64 from a panic: more than 2^64 microseconds are
// never.
func RefilledAfter(to, level, carry int64, l *ratelimit.Limit) time.Duration {
	missing := to - level
	if missing <= 0 || l.Requests == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(missing), uint64(l.Period()/time.Second))
	lo, borrow := bits.Sub64(lo, uint64(carry), 0)
	hi -= borrow
	if hi >= uint64(l.Requests) {
		return math.MaxInt64
	}
	us, rest := bits.Div64(hi, lo, uint64(l.Requests))
	if rest > 0 {
		us++
	}
	if us > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}
