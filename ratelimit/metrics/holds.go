package metrics

import (
	"strconv"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The metrics of rules that hold.
var holdMetrics = []metric{
	held("sluice_holds_total", "Requests that hold an estimate.", func(h *holdCounters) count { return &h.Taken }),
	held("sluice_hold_tokens_total", "Held tokens. Less sluice_hold_settled_tokens_total, summed over nodes: the "+
		"tokens held now, and holds that no cost settled.", func(h *holdCounters) count { return &h.TakenSum }),
	held("sluice_hold_settled_tokens_total", "Tokens of holds that were settled here by their cost.",
		func(h *holdCounters) count { return &h.SettledSum }),
	held("sluice_hold_cost_tokens_total", "Costs of the holds that were settled here, in tokens.",
		func(h *holdCounters) count { return &h.CostSum }),
	held("sluice_hold_charged_tokens_total", "Tokens of costs above their holds, as booked here.",
		func(h *holdCounters) count { return &h.Charged }),
	held("sluice_hold_released_tokens_total", "Tokens of holds above their costs, as given back here.",
		func(h *holdCounters) count { return &h.Released }),
	held("sluice_hold_debt_tokens_total", "Tokens of costs above their holds that the limit had no room for, by this "+
		"node's count.", func(h *holdCounters) count { return &h.Debt }),
}

// writeHolds writes those with labels of their own.
func writeHolds(rules []ruleRow, head func(name, kind, help string), line func(name, labels string, n int64),
	fraction func(name, labels string, v float64),
) {
	head("sluice_holds_settled_total", "counter", "Results of holds: settled by their cost; unknown: they "+
		"ended without one; failed: ended with an error; late: their window had ended; refused as forged, "+
		"expired, foreign or replayed; left_out: "+
		"there was no room.")
	for i := range rules {
		if h := rules[i].sum.Held(); h != nil {
			for j := range h.Results {
				line("sluice_holds_settled_total", rules[i].labels+`,result="`+ratelimit.SettledNames[j]+`"`,
					int64(h.Results[j].Load()))
			}
		}
	}
	const ratio = "sluice_hold_cost_ratio"
	head(ratio, "histogram", "Costs as a ratio to their holds; above 1, a request cost more than it held.")
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
				le = strconv.FormatFloat(float64(ratelimit.HoldRatios[j])/100, 'g', -1, 64)
			}
			line(ratio+"_bucket", rules[i].labels+`,le="`+le+`"`, int64(sum))
		}
		fraction(ratio+"_sum", rules[i].labels, float64(h.RatioSum.Load())/100)
		line(ratio+"_count", rules[i].labels, int64(sum))
	}
}
