package leasing

import "time"

// breaker stops calls to a dead store. The zero breaker is closed. It is not
// safe for concurrent use.
//
//	closed --breakAfter failures in a row--> open --its time--> probing
//	   ^                                      ^                   |
//	   +----------------- success ------------|------ failure ----+
type breaker struct {
	failures int
	openTill instant // until then, calls are refused
	probing  bool    // one call is out to see
	wait     time.Duration
}

const (
	breakAfter   = 3
	breakFirst   = 50 * time.Millisecond
	breakLongest = time.Second
)

// allow tells whether a call may be made now. After the open time the first
// caller is the probe.
func (b *breaker) allow(now instant) bool {
	if b.refuses(now) {
		return false
	}
	b.probing = b.open()
	return true
}

// open tells whether the store counts as dead.
func (b *breaker) open() bool { return b.failures >= breakAfter }

// refuses tells whether a call would not be allowed now.
func (b *breaker) refuses(now instant) bool {
	return b.open() && (now < b.openTill || b.probing)
}

func (b *breaker) success() { *b = breaker{} }

// failure books a failed call. jitter is from 0 to 1: nodes must not probe in
// step.
func (b *breaker) failure(now instant, jitter float64) {
	b.failures++
	b.probing = false
	if b.failures < breakAfter {
		return
	}
	b.wait = min(max(breakFirst, 2*b.wait), breakLongest)
	b.openTill = now.Add(b.wait/2 + time.Duration(jitter*float64(b.wait)))
}
