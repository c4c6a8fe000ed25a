package lease

import "github.com/sluice-gate/sluice/ratelimit"

// gauges are what a rule's gauges have of one key.
type gauges struct {
	Of                         *ratelimit.RuleCounters
	Leased, Drifting, stranded tokens
}

// Set replaces what they have; of nil, by nothing.
func (g *gauges) Set(of *ratelimit.RuleCounters, leased, drifting, stranded tokens) {
	if old := g.Of; old != nil {
		old.Leased.Add(int64(-g.Leased))
		old.Drifting.Add(int64(-g.Drifting))
		old.Stranded.Add(int64(-g.stranded))
	}
	if *g = (gauges{of, leased, drifting, stranded}); of != nil {
		of.Leased.Add(int64(leased))
		of.Drifting.Add(int64(drifting))
		of.Stranded.Add(int64(stranded))
	}
}

// Gauge keeps the rule's gauges of leased, drifting and stranded tokens.
func (h *Held) Gauge() {
	if h.Rule == nil {
		return
	}
	leased := max(0, h.Lease.Unspent())
	if h.Next != nil {
		leased += max(0, h.Next.Lease.Unspent())
	}
	h.Gauges.Set(h.Rule.Counters, leased, h.Lease.Drifted(), h.stranded)
}

// begun forgets what was heard of the window before. What is unplaced is of this one.
func (h *Held) begun() {
	h.Reported, h.elsewhere, h.stranded, h.Unasked, h.holds = 0, 0, 0, h.Unplaced, 0
	h.returned, h.shut = 0, false
}

// CountBound counts a window when this claim has brought it near what its rule
// declares to over-admit, or beyond. Up to unasked of what went over was admitted
// here by on_store_failure, which the rule declares apart: a window that is beyond
// only because of that is counted apart, and how much it was is returned.
func CountBound(rule *ratelimit.Rule, g *ratelimit.Grant, unasked tokens) (byPolicy tokens) {
	if g.OverAdmitted <= 0 || rule.Counters == nil {
		return 0
	}
	grown, over := rule.Beyond(g)
	rule.Counters.OverAdmitted.Add(uint64(grown))
	byPolicy = min(grown, unasked)
	rule.Counters.OverByPolicy.Add(uint64(byPolicy))
	declared, before := rule.DeclaredOver(), over-grown
	if near := declared - declared/5; before < near && over-byPolicy >= near {
		rule.Counters.NearBound.Add(1)
	}
	switch {
	case before > declared || over <= declared:
	case over-byPolicy <= declared:
		rule.Counters.BeyondByPolicy.Add(1)
	default:
		rule.Counters.BeyondBound.Add(1)
	}
	return byPolicy
}
