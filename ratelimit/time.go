package ratelimit

import "time"

// Instant is a point on one process's monotonic clock, in nanoseconds from an
// origin of that process's choosing. Instants of two processes do not compare.
// The zero Instant is before every instant a clock returns.
type Instant int64

// Add returns the instant d later, or the last one there is.
func (t Instant) Add(d time.Duration) Instant {
	sum := t + Instant(d)
	if d > 0 && sum < t {
		return Instant(1<<63 - 1)
	}
	return sum
}

// Sub returns how much later t is than u.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// LedgerTime is a point on a ledger's clock, in microseconds since the Unix
// epoch. Windows are cut by it and fences are drawn from it.
type LedgerTime int64

// Add returns the time d later, without fractions of a microsecond.
func (t LedgerTime) Add(d time.Duration) LedgerTime { return t + LedgerTime(d/time.Microsecond) }

// Sub returns how much later t is than u.
func (t LedgerTime) Sub(u LedgerTime) time.Duration { return time.Duration(t-u) * time.Microsecond }

// Clock returns the node's instant now. It is called once a request.
type Clock func() Instant
