package leasing

import "time"

// Breaker stops calls to a dead store. The zero Breaker is closed. It is not safe for concurrent use.
//
//	closed --breakAfter failures in a row--> open --its time--> probing
//	   ^                                      ^                   |
//	   +----------------- success ------------|------ failure ----+
type Breaker struct {
	failures int
	openTill instant // until then, calls are refused
	probing  bool    // a probe is in flight
	wait     time.Duration
}

const (
	breakAfter   = 3
	breakFirst   = 50 * time.Millisecond
	breakLongest = 250 * time.Millisecond // so that a store that is back is found within a beat
)

// FoundWithin is the maximum time until a node uses a store that answers again, plus the duration of a call. A call
// that began earlier has then failed, and the longest pauses have passed: of the breaker, and of the client of Redis,
// which dials once a second.
const FoundWithin = TimeLimit + time.Second + 3*breakLongest/2

// Allow tells whether a call may be made now. After the pause, the first caller is the probe.
func (b *Breaker) Allow(now instant) bool {
	if b.Refuses(now) {
		return false
	}
	b.probing = b.Open()
	return true
}

// Open tells whether the store counts as dead.
func (b *Breaker) Open() bool { return b.failures >= breakAfter }

// Refuses tells whether Allow would return false now.
func (b *Breaker) Refuses(now instant) bool {
	return b.Open() && (now < b.openTill || b.probing)
}

// Success books a call that was answered.
func (b *Breaker) Success() { *b = Breaker{} }

// Failure books a failed call. jitter is from 0 to 1, so that nodes do not probe at the same time.
func (b *Breaker) Failure(now instant, jitter float64) {
	b.failures++
	b.probing = false
	if b.failures < breakAfter {
		return
	}
	b.wait = min(max(breakFirst, 2*b.wait), breakLongest)
	b.openTill = now.Add(b.wait/2 + time.Duration(jitter*float64(b.wait)))
}
