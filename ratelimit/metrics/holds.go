package metrics

import (
	"strconv"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The metrics of rules that hold.
var holdMetrics = []metric{
	{
		"sluice_holds_total", "counter", "Requests that hold an estimate.",
		holds, func(r *ruleRow) int64 { return int64(r.sum.Held().Taken.Load()) },
	},
	{
		"sluice_hold_tokens_total", "counter", "Held tokens. Less sluice_hold_settled_tokens_total, " +
			"summed over nodes: the tokens held now, and holds that no cost settled.",
		holds, func(r *ruleRow) int64 { return int64(r.sum.Held().TakenSum.Load()) },
	},
	{
		"sluice_hold_settled_tokens_total", "counter", "Tokens of holds that were settled here by their cost.",
		holds, func(r *ruleRow) int64 { return int64(r.sum.Held().SettledSum.Load()) },
	},
	{
		"sluice_hold_cost_tokens_total", "counter", "Costs of the holds that were settled here, in tokens.",
		holds, func(r *ruleRow) int64 { return int64(r.sum.Held().CostSum.Load()) },
	},
	{
		"sluice_hold_charged_tokens_total", "counter", "Tokens of costs above their holds, as booked here.",
		holds, func(r *ruleRow) int64 { return int64(r.sum.Held().Charged.Load()) },
	},
	{
		"sluice_hold_released_tokens_total", "counter", "Tokens of holds above their costs, as given back here.",
		holds, func(r *ruleRow) int64 { return int64(r.sum.Held().Released.Load()) },
	},
	{
		"sluice_hold_debt_tokens_total", "counter", "Tokens of costs above their holds that the limit had no room " +
			"for, by this node's count.", holds, func(r *ruleRow) int64 { return int64(r.sum.Held().Debt.Load()) },
	},
}

// writeHolds writes those with labels of their own.
func writeHolds(rules []ruleRow, head func(name, kind, help string), line func(name, labels string, n int64)) {
	head("sluice_holds_settled_total", "counter", "Results of holds: settled by their cost; unknown: they "+
		"ended without one; late: their window had ended; refused as forged, expired, foreign or replayed; left_out: "+
		"there was no room.")
	for i := range rules {
		if h := rules[i].sum.Held(); h != nil {
			for j := range h.Results {
				line("sluice_holds_settled_total", rules[i].labels+`,result="`+ratelimit.SettledNames[j]+`"`,
					int64(h.Results[j].Load()))
			}
		}
	}
	const ratio = "sluice_hold_cost_percent"
	head(ratio, "histogram", "Costs in percent of their holds.")
	for i := range rules {
		h := rules[i].sum.Held()
		if h == nil {
			continue
		}
		sum := uint64(0)
		for j := range h.Ratios {
			sum += h.Ratios[j].Load()
			le := "+Inf"
			if j < len(ratelimit.HoldRatios) {
				le = strconv.FormatUint(ratelimit.HoldRatios[j], 10)
			}
			line(ratio+"_bucket", rules[i].labels+`,le="`+le+`"`, int64(sum))
		}
		line(ratio+"_sum", rules[i].labels, int64(h.RatioSum.Load()))
		line(ratio+"_count", rules[i].labels, int64(sum))
	}
}
