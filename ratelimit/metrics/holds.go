package metrics

import (
	"strconv"

	"github.com/sluice-gate/sluice/ratelimit"
)

// holdCounts are what the holds of rules with the same labels said.
type holdCounts struct {
	some                             bool // there are counters
	taken, takenSum                  uint64
	settled, cost                    uint64
	charged, released, debt, percent uint64
	results                          [len(ratelimit.SettledNames)]uint64
	ratios                           [len(ratelimit.HoldRatios) + 1]uint64
}

func (n *holdCounts) add(c *ratelimit.HoldCounters) {
	if c == nil {
		return
	}
	n.some = true
	n.taken += c.Taken.Load()
	n.takenSum += c.TakenSum.Load()
	n.settled += c.SettledSum.Load()
	n.cost += c.CostSum.Load()
	n.charged += c.Charged.Load()
	n.released += c.Released.Load()
	n.debt += c.Debt.Load()
	n.percent += c.RatioSum.Load()
	for i := range n.results {
		n.results[i] += c.Results[i].Load()
	}
	for i := range n.ratios {
		n.ratios[i] += c.Ratios[i].Load()
	}
}

// The metrics of rules that hold.
var holdMetrics = []struct {
	name, help string
	of         func(*holdCounts) uint64
}{
	{"sluice_holds_total", "Requests that hold an estimate.", func(n *holdCounts) uint64 { return n.taken }},
	{
		"sluice_hold_tokens_total", "Tokens that requests hold. Less sluice_hold_settled_tokens_total, " +
			"summed over nodes: what is held now, and what was held and never settled.",
		func(n *holdCounts) uint64 { return n.takenSum },
	},
	{
		"sluice_hold_settled_tokens_total", "Tokens of holds that were settled here by their cost.",
		func(n *holdCounts) uint64 { return n.settled },
	},
	{
		"sluice_hold_cost_tokens_total", "Costs of the holds that were settled here, in tokens.",
		func(n *holdCounts) uint64 { return n.cost },
	},
	{
		"sluice_hold_charged_tokens_total", "Tokens of costs above their holds, as booked here.",
		func(n *holdCounts) uint64 { return n.charged },
	},
	{
		"sluice_hold_released_tokens_total", "Tokens of holds above their costs, as given back here.",
		func(n *holdCounts) uint64 { return n.released },
	},
	{
		"sluice_hold_debt_tokens_total", "Tokens of costs above their holds that the limit had no room for, as " +
			"far as this node knew.", func(n *holdCounts) uint64 { return n.debt },
	},
}

// writeHolds writes the metrics of rules that hold.
func writeHolds(rules []ruleRow, head func(name, kind, help string), line func(name, labels string, n int64)) {
	for _, m := range holdMetrics {
		head(m.name, "counter", m.help)
		for i := range rules {
			if h := &rules[i].holds; h.some {
				line(m.name, rules[i].labels, int64(m.of(h)))
			}
		}
	}
	head("sluice_holds_settled_total", "counter", "What became of holds: settled by their cost; unknown: they "+
		"ended without one; late: their window had ended; refused as forged, expired, foreign or replayed; left_out: "+
		"there was no room.")
	for i := range rules {
		if h := &rules[i].holds; h.some {
			for j, n := range h.results {
				line("sluice_holds_settled_total", rules[i].labels+`,result="`+ratelimit.SettledNames[j]+`"`, int64(n))
			}
		}
	}
	const ratio = "sluice_hold_cost_percent"
	head(ratio, "histogram", "Costs, in percent of what was held.")
	for i := range rules {
		h := &rules[i].holds
		if !h.some {
			continue
		}
		sum := uint64(0)
		for j, n := range h.ratios {
			sum += n
			le := "+Inf"
			if j < len(ratelimit.HoldRatios) {
				le = strconv.FormatUint(ratelimit.HoldRatios[j], 10)
			}
			line(ratio+"_bucket", rules[i].labels+`,le="`+le+`"`, int64(sum))
		}
		line(ratio+"_sum", rules[i].labels, int64(h.percent))
		line(ratio+"_count", rules[i].labels, int64(sum))
	}
}
