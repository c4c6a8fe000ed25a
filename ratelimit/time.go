package ratelimit

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

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

// Sub returns how much later t is than u, or the longest Duration. Times of a peer may lie centuries ahead.
func (t LedgerTime) Sub(u LedgerTime) time.Duration {
	const most = LedgerTime(math.MaxInt64 / time.Microsecond)
	return time.Duration(min(max(t-u, -most), most)) * time.Microsecond
}

// Clock returns the node's instant now. It is called a few times for each request, and must be cheap.
type Clock func() Instant

// MonotonicClock returns the process's clock: nanoseconds since this call, plus one second, so that no
// reading is the zero Instant. Unlike the system's monotonic clock, it counts while the machine is suspended.
// So a lease of ten seconds has ended when the machine wakes up after an hour. It does not count while a
// virtual machine is stopped from outside without notice. The ledger's clock shows that with its next answer
// (package leasing).
func MonotonicClock() Clock {
	start := time.Now()
	return NewClock(func() time.Duration { return time.Since(start) }, sinceBoot)
}

// checkEvery is the interval of checks for a suspension of the machine. A check costs a system call, so not
// each reading makes one. All processes are stopped before the clock that stands still, and continue after it,
// so a suspension takes longer than this by that clock. The first reading after a resume therefore checks.
const checkEvery = time.Millisecond

// NewClock returns a clock that counts with running, which is read each time and may stand still while the
// machine is suspended. It adds the lead of elapsed, which also counts meanwhile. Both count from instants of
// their own. The clock never goes back, allocates nothing and is safe for concurrent use.
func NewClock(running, elapsed func() time.Duration) Clock {
	c := &clock{running: running, elapsed: elapsed}
	before := running()
	c.base = elapsed() - before // at least its lead
	c.checked.Store(int64(before))
	return c.now
}

type clock struct {
	running, elapsed func() time.Duration
	base             time.Duration
	checked          atomic.Int64 // by running: when it last looked
	slept            atomic.Int64 // nanoseconds for which running stood still
}

// now is the time by running, plus the time for which that stood still. Several goroutines may see that a check is due,
// and each makes one.
func (c *clock) now() Instant {
	r := c.running()
	if r-time.Duration(c.checked.Load()) >= checkEvery {
		c.check(r)
	}
	return Instant(r + time.Duration(c.slept.Load()) + time.Second)
}

// check looks whether running stood still. Reading it last makes the difference
// too small rather than too large when this goroutine is stopped in between.
func (c *clock) check(r time.Duration) {
	c.checked.Store(int64(r))
	slept := int64(c.elapsed() - c.running() - c.base)
	for {
		known := c.slept.Load()
		if slept-known < int64(leastSleep) || c.slept.CompareAndSwap(known, slept) {
			return
		}
	}
}

// DurationText is a duration without the zeros that time.Duration writes: 1h, not
// 1h0m0s.
func DurationText(d time.Duration) string {
	switch {
	case d == 0:
		return "0s"
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}
