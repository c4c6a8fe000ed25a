package leasing

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A late answer is no outage. Where the ledger answers others, on_store_failure does
// not decide alone what becomes of a request that has waited for its whole time: what
// was last heard of its key in this window does.
//
//	nothing left, or not enough       refused
//	half of the limit or less left    refused: others may have spent it since
//	more                              as on_store_failure says, and charged
//	never heard of                    so, too; but only one at a time, until it is heard of
//
// So a burst that a busy machine cannot answer in time does not go over a limit by
// what each node may admit alone, and a first request on a cold key passes. The second
// and the last line are not for on_store_failure: open, which would rather admit.

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
	l := &h.lease
	cautious := alive && a.Rule.Coordination.OnStoreFailure != ratelimit.FailOpen
	if !l.Current(now, a) {
		if !cautious || h.unplaced == 0 {
			return verdict{}, false
		}
		return verdict{OverLimit: true, Source: ratelimit.FromClaim, ResetAfter: a.Rule.Limit.Period()}, true
	}
	left := max(0, l.Unspent()) + l.Available
	short := a.Cost > left
	switch {
	case short && (late || h.recalling) && now.Sub(h.heard) <= a.Rule.Coordination.Deadline():
		v := l.Deny(now, a)
		v.Source = ratelimit.FromClaim
		return v, true
	case l.Algorithm != ratelimit.FixedWindow: // what was left says nothing soon: it comes back with time
		return verdict{}, false
	case short && alive && h.heard != 0:
	case cautious && h.heard != 0 && left <= a.Rule.Limit.Capacity()/ledger.PlentyAbove:
	default:
		return verdict{}, false
	}
	// The limit may have room, so that a denial that charges (on_deny) has no say.
	return l.Report(now, verdict{OverLimit: true, Source: ratelimit.FromClaim}), true
}
