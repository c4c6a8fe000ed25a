package leasing

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// aliveFor is how long after its last answer the ledger is late and not gone.
const aliveFor = 250 * time.Millisecond

// alive tells whether a part of the ledger answers.
func (l *lane) alive(now instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breaker.failures == 0 && l.answered != 0 && now.Sub(l.answered) < aliveFor
}

// refusedLate refuses what has waited for its whole time, where what was heard of the
// key says so. What is not late yet, and would drift now (mode approx), is refused
// only if others were asked to give back: then there is nothing left to be exact about.
func (f *Fleet) refusedLate(now instant, a *ask, late bool) (verdict, bool) {
	alive := late && f.laneOf(f.keyName(a.Key)).alive(now)
	s, _, h := f.locked(a.Key)
	defer s.mu.Unlock()
	if h == nil || a.Kind != ratelimit.Spend {
		return verdict{}, false
	}
	return h.RefuseLate(now, a, lease.Lateness{Late: late, Alive: alive})
}
