package metrics

import (
	"strconv"

	"github.com/sluice-gate/sluice/ratelimit"
)

// writeHolds writes those with labels of their own. The histogram's buckets are sums over all lower ones, as Prometheus
// has them. Ratios are stored in percent.
func writeHolds(rules []ruleRow, head func(name string), line func(name, labels string, n int64),
	fraction func(name, labels string, v float64),
) {
	head("sluice_holds_settled_total")
	for i := range rules {
		if h := rules[i].sum.Held(); h != nil {
			for j := range h.Results {
				line("sluice_holds_settled_total", rules[i].labels+`,result="`+ratelimit.SettledNames[j]+`"`,
					int64(h.Results[j].Load()))
			}
		}
	}
	const ratio = "sluice_hold_cost_ratio"
	head(ratio)
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
