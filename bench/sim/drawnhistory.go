package sim

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// strainsTills reports whether a history is one of drawn's, one in twenty.
func (o *Options) strainsTills() bool { return o.Seed%20 == 19 }

// drawn makes a history that strains draws. Demand is close to the limit, and the limit is no multiple of a
// draw. Windows turn often. The limit changes node by node, several times in a window. Small
// tables drop keys with draws. Answers are lost, nodes leave and return, and in some the ledger's clock is set.
func (h *historian) drawn() {
	r := h.o.Rule
	c := &r.Coordination
	if c.Mode.Spec().Owned {
		c.Mode = pick(h, ratelimit.Leasing, ratelimit.Leasing, ratelimit.Approx)
	}
	c.OnStoreFailure, c.Reclaim, c.Audit = ratelimit.FailClosed, ratelimit.ReclaimSafe, false
	c.Lease.Fixed = 0
	r.Limit = ratelimit.Limit{
		Unit: ratelimit.Second, Multiplier: uint32(3 + h.IntN(10)), Requests: pick(h, ratelimit.Tokens(20), 40, 100, 1000) + ratelimit.Tokens(h.IntN(40)),
	}
	period := r.Limit.Period()
	h.o.Start = time.Duration(h.Int64N(int64(period)))
	h.o.Nodes, h.o.Second, h.o.Mix, h.o.Storeless = 2+h.IntN(4), nil, Mix{}, false
	h.o.Table = pick(h, 0, 0, 0, 1, 2)

	l := &h.o.Load
	l.Keys, l.Cost, l.Length = 1+h.IntN(4), pick(h, 1, 1, 3), 3*period+time.Duration(h.Int64N(int64(period)))
	rate := float64(r.Limit.Requests) / period.Seconds() * float64(l.Keys) / float64(l.Cost) * (0.5 + 2*h.Float64())
	l.Rate = max(2, min(rate, mostRequests/l.Length.Seconds()))

	h.o.Changes = nil
	if h.chance(0.5) {
		h.relimit()
	}
	h.o.Faults = nil
	kinds := []FaultKind{Deaf, Deaf, Late, Late, Cut, Leave, Leave, Join, Crash, Restart, Restart, Pause, Suspend}
	if h.chance(0.25) {
		kinds = append(kinds, Ahead, Back, Back)
	}
	for range h.IntN(8) {
		f := Fault{
			At: time.Duration(h.Int64N(int64(l.Length))), Kind: pick(h, kinds...), Node: h.IntN(h.o.Nodes + 1),
			For: time.Duration(h.Int64N(int64(pick(h, 100*time.Millisecond, time.Second, period)))),
		}
		if f.Kind == Back || f.Kind == Ahead {
			f.For = time.Duration(h.Int64N(int64(3 * period)))
		}
		h.o.Faults = append(h.o.Faults, f)
	}
}

// relimit changes only the limit, node by node, a few times: at any time, or shortly before a window ends, when
// the next one is claimed early.
func (h *historian) relimit() {
	rule := h.o.Rule
	at := time.Duration(0)
	for range 1 + h.IntN(4) {
		at += time.Duration(h.Int64N(int64(h.o.Load.Length / 2)))
		if period := rule.Limit.Period(); h.chance(0.5) {
			at += period - (at+h.o.Start)%period - 1 - time.Duration(h.Int64N(int64(min(2*time.Second, period-(at+h.o.Start)%period))))
		}
		if at >= h.o.Load.Length {
			return
		}
		next := *rule
		n := next.Limit.Requests
		next.Limit.Requests = max(20, pick(h, n-1, n+1, n-n/10, n+n/10, n/2, n*2))
		rule = &next
		h.o.Changes = append(h.o.Changes, Change{At: at, Rule: rule, What: "limit", Spread: time.Duration(h.Int64N(int64(8 * time.Second)))})
	}
}
