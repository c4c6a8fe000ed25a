package lane

import (
	"errors"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Breaker stops calls to a dead store. The zero Breaker is closed. It is safe for concurrent use.
//
//	closed --breakAfter failures in a row--> open --its time--> probing
//	   ^                                      ^                   |
//	   +----------------- success ------------|------ failure ----+
type Breaker struct {
	mu       sync.Mutex
	failures int     // guarded by mu
	openTill instant // guarded by mu: until then, calls are refused
	// probing means that a probe is in flight: others are refused until it is answered. Guarded by mu.
	probing bool
	// wait is the mean of the last pause; 0: there was none since the last success. Guarded by mu.
	wait time.Duration
}

const (
	breakAfter = 3
	breakFirst = 50 * time.Millisecond
	// BreakLongest is the longest mean pause: so a store that is back is found within a beat.
	BreakLongest = 250 * time.Millisecond
)

// ErrOpen is why a message was not sent.
var ErrOpen = errors.New("the store does not answer: the breaker is open")

// Reason is why a message did not decide. Metrics and verdicts show it.
func Reason(err error) ratelimit.FallbackReason {
	if errors.Is(err, ErrOpen) {
		return ratelimit.FallbackBreaker
	}
	return ratelimit.FallbackError
}

// Allow reports whether a call may be made now. After the pause, the first caller is the probe. After true, the caller
// must call Success, Undecided or Failure, or no other call is ever allowed.
func (b *Breaker) Allow(now instant) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refusesLocked(now) {
		return false
	}
	b.probing = b.openLocked()
	return true
}

// Open reports whether the store counts as dead.
func (b *Breaker) Open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.openLocked()
}

func (b *Breaker) openLocked() bool { return b.failures >= breakAfter }

// Refuses reports whether Allow would return false now.
func (b *Breaker) Refuses(now instant) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refusesLocked(now)
}

func (b *Breaker) refusesLocked(now instant) bool {
	return b.openLocked() && (now < b.openTill || b.probing)
}

// Success books a call that was answered.
func (b *Breaker) Success() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = 0
	b.probing = false
	b.wait = 0
}

// Undecided books a call whose result says nothing of the store. If it was the probe, the next call is.
func (b *Breaker) Undecided() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
}

// Probe ends the pause: the next call is a probe. Some other sign shows that the store answers.
func (b *Breaker) Probe() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.openTill = 0
}

// Failure books a failed call. jitter is from 0 to 1, so that nodes do not probe at the same time. The pause is between
// a half and one and a half of the mean, which doubles with each failure.
func (b *Breaker) Failure(now instant, jitter float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	b.probing = false
	if b.failures < breakAfter {
		return
	}
	b.wait = min(max(breakFirst, 2*b.wait), BreakLongest)
	b.openTill = now.Add(b.wait/2 + time.Duration(jitter*float64(b.wait)))
}
