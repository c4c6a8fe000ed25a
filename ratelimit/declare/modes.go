package declare

import (
	"fmt"

	"github.com/sluice-gate/sluice/ratelimit"
)

// modes has the effects of each mode but leasing. bounds changes those of mode leasing, of a rule with a limit above 0
// or a ceiling. doubts are remarks on valid rules.
var modes = map[ratelimit.Mode]struct {
	bounds func(r *ratelimit.Rule, nodes int, storage Storage, b Bounds) Bounds
	doubts func(r *ratelimit.Rule) []string // nil: there are none
}{
	ratelimit.Routing: {bounds: routing},
	ratelimit.Approx:  {bounds: approx, doubts: doubtApprox},
}

// routing has an owner answer. Without a store its memory has the one account of a key.
func routing(r *ratelimit.Rule, nodes int, storage Storage, b Bounds) Bounds {
	b.Wait = Wait{For: OwnersAnswer, Longest: r.Coordination.Deadline()}
	if storage == OwnMemory {
		b.Over = Over{EachOwner: r.Limit.Capacity()}
		b.OnOutage = outage(r, OwnerOutage, nodes)
		return b
	}
	b.StoreOps.Nodes = 1
	b.StoreOps.OwnerGoneEach = 1
	return b
}

// approx adds the drift budget, and the share that a request gets without waiting.
func approx(r *ratelimit.Rule, _ int, storage Storage, b Bounds) Bounds {
	if storage == OwnMemory {
		return b
	}
	c := &r.Coordination
	b.Over.Drift = c.DriftBudget.Of(r.Limit.Capacity())
	b.Over.Tokens += b.Over.Drift
	if r.DriftShare() > 0 {
		b.Wait.Drifts = true
		b.Wait.WithShare = min(c.CheckTimeout, c.Deadline())
		if c.CheckTimeout == 0 {
			b.StoreOps.Each = 1 // each request without a lease drifts at once, and sends a message of its own
		}
	}
	return b
}

// doubtApprox is about settings with which approx waits like leasing: shares below a token, and a check_timeout that is
// never over before the deadline.
func doubtApprox(r *ratelimit.Rule) (doubts []string) {
	c, limit := &r.Coordination, r.Limit.Capacity()
	if r.DriftShare() < 1 {
		doubts = append(doubts, fmt.Sprintf("drift_budget %v of %d is %d tokens, less than one for each of max_nodes "+
			"%d: the rule waits like leasing; use a budget and a limit of at least %d tokens, or lower max_nodes",
			c.DriftBudget, limit, c.DriftBudget.Of(limit), c.MaxNodes, c.MaxNodes))
	}
	if c.CheckTimeout >= c.Deadline() {
		doubts = append(doubts, fmt.Sprintf("check_timeout %v is not below the store deadline of %v: the rule waits "+
			"like leasing", c.CheckTimeout, c.Deadline()))
	}
	return doubts
}
