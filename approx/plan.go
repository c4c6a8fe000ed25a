package approx

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A share is the rule's drift budget divided by max_nodes. When either changes, nodes read the new rules one
// after the other. For a while some divide by the old number and some by the new one: ten nodes spend a tenth
// each, and an eleventh spends all. A node may therefore use a new share only in windows that began when
// every tenant of a seat had the new rules, by the ledger of seats. In others it uses the least of those that
// were in force.

// Plan says how the rules of one configuration divide their drift budgets. It is immutable. The zero Plan has no rules
// that drift. Nodes compare plans by their ids, and never send the plans themselves.
type Plan struct {
	id     uint64 // the same for the same rules
	Seats  int    // how many there are: 0, if no rule needs one
	shares map[ruleID]division
}

type ruleID struct{ domain, path string }

// division is how one rule's budget is divided.
type division struct {
	budget ratelimit.Share
	nodes  int
}

// share is a node's part for a limit, and the seats below this number have one.
func (d division) share(limit ratelimit.Tokens) (ratelimit.Tokens, int) {
	return d.budget.Of(limit) / ratelimit.Tokens(d.nodes), d.nodes
}

// overridePath stands for limits that requests bring along.
const overridePath = "(request override)"

// NewPlan makes the plan of rules; those that do not drift do not count.
// Their domain defaults are given as rules with Override.
func NewPlan(rules []*ratelimit.Rule) Plan {
	p := Plan{shares: map[ruleID]division{}}
	for _, r := range rules {
		if r.Coordination.Mode.Spec().Drifts && !r.Unlimited {
			p.shares[idOf(r)] = divisionOf(r)
			if !r.Override { // requests that bring limits along are no reason to have seats
				p.Seats = max(p.Seats, r.Coordination.MaxNodes)
			}
		}
	}
	ids := make([]ruleID, 0, len(p.shares))
	for id := range p.shares {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b ruleID) int {
		return cmp.Or(cmp.Compare(a.domain, b.domain), cmp.Compare(a.path, b.path))
	})
	h := xxhash.New()
	for _, id := range ids {
		d := p.shares[id]
		fmt.Fprintf(h, "%q %q %d %d %d\n", id.domain, id.path, d.budget.Tokens, d.budget.PPM, d.nodes)
	}
	p.id = h.Sum64() | 1 // 0 is a node that does not tell
	return p
}

func idOf(r *ratelimit.Rule) ruleID {
	if r.Override {
		return ruleID{r.Domain, overridePath}
	}
	return ruleID{r.Domain, r.Path}
}

func divisionOf(r *ratelimit.Rule) division {
	return division{r.Coordination.DriftBudget, r.Coordination.MaxNodes}
}

// agreement is a plan that all tenants had, in all windows that began at since or later, until the next agreement. With
// since never, this node has applied under the plan, and the others may agree on it at any time.
type agreement struct {
	plan    Plan
	since   ratelimit.LedgerTime
	reached ratelimit.Instant
}

// mostAgreements is how many are remembered: in windows that began before the
// first of them there is no share.
const mostAgreements = 8

// never is a since that no window has reached.
const never = ratelimit.LedgerTime(math.MaxInt64)

// withAgreement adds an agreement to those before, if it is another. The one before stays: windows that began under it
// go on.
func withAgreement(before []agreement, p Plan, since ratelimit.LedgerTime, now ratelimit.Instant) []agreement {
	if n := len(before); n > 0 && before[n-1].plan.id == p.id {
		if before[n-1].since != never || since == never {
			return before
		}
		before = before[:n-1]
	}
	after := append(slices.Clone(before), agreement{plan: p, since: since, reached: now})
	return after[max(0, len(after)-mostAgreements):]
}

// shareUnder is the smallest share of a rule, and the fewest seats, in a window that began at begins. It counts its own
// division, and all that may have been in force. A bucket has no new window: usage under an older division counts until
// the rate has repaid it. It goes back from the newest agreement to the one that was in force when the window began.
func shareUnder(
	all []agreement, now ratelimit.Instant, rule *ratelimit.Rule, begins ratelimit.LedgerTime,
) (ratelimit.Tokens, int) {
	limit := rule.Limit.Capacity()
	share, seats := divisionOf(rule).share(limit)
	for i := len(all) - 1; i >= 0; i-- {
		a := &all[i]
		d, ok := a.plan.shares[idOf(rule)]
		if !ok {
			return 0, 0 // other nodes may lack the rule, or have another form of it
		}
		s, n := d.share(limit)
		share, seats = min(share, s), min(seats, n)
		alone := a.since <= begins
		if rule.Limit.Algorithm == ratelimit.TokenBucket {
			alone = a.since == 0 || a.since != never && now.Sub(a.reached) >= rule.Limit.Refill(rule.Limit.Burst)
		}
		if alone {
			return share, seats
		}
	}
	return 0, 0 // the divisions in force when the window began are unknown
}
