package ratelimit

import (
	"sync/atomic"

	"github.com/sluice-gate/sluice/ratelimit/internal/quantile"
)

// Settled is what became of a hold, or of what claimed to be one.
type Settled uint8

// What may become of it.
const (
	SettledCost    Settled = iota // its cost was booked in its place
	SettledUnknown                // its end came without a cost: on_unknown decided
	SettledFailed                 // its response is an error without a cost: it was given back
	SettledLate                   // its window was over, where nothing can be booked any more
	HoldForged                    // no node of this fleet has made it, or with a key that counts no more
	HoldExpired                   // it is older than ttl, or than what this node remembers
	HoldForeign                   // it is of other budgets
	HoldReplayed                  // it was settled before
	HoldLeftOut                   // it was taken, and did not fit into what answers can carry: it stays charged
)

// SettledNames are their names in metrics, by value.
var SettledNames = [...]string{
	SettledCost: "settled", SettledUnknown: "unknown", SettledFailed: "failed", SettledLate: "late",
	HoldForged:  "forged",
	HoldExpired: "expired", HoldForeign: "foreign", HoldReplayed: "replayed", HoldLeftOut: "left_out",
}

// HoldRatios are the upper bounds of cost by hold, in percent, in HoldCounters. Above 100, the hold was too
// small.
var HoldRatios = [...]uint64{10, 25, 50, 75, 90, 100, 110, 150, 200, 500}

// HoldCounters are the statistics of a rule that holds. The zero HoldCounters are ready; all fields may be used
// concurrently.
type HoldCounters struct {
	// holds
	Taken atomic.Uint64 `metric:"sluice_holds_total"`
	// tokens of them
	TakenSum atomic.Uint64 `metric:"sluice_hold_tokens_total"`
	// tokens held by holds that were settled: of TakenSum, but perhaps of another node's
	SettledSum atomic.Uint64 `metric:"sluice_hold_settled_tokens_total"`
	// and their cost
	CostSum atomic.Uint64 `metric:"sluice_hold_cost_tokens_total"`
	// tokens of costs above their holds, as booked
	Charged atomic.Uint64 `metric:"sluice_hold_charged_tokens_total"`
	// tokens of holds above their costs, as booked
	Released atomic.Uint64 `metric:"sluice_hold_released_tokens_total"`
	// of Charged, beyond the limit by this node's count
	Debt     atomic.Uint64 `metric:"sluice_hold_debt_tokens_total"`
	Results  [len(SettledNames)]atomic.Uint64
	Ratios   [len(HoldRatios) + 1]atomic.Uint64 // settled holds, by cost in percent of the hold
	RatioSum atomic.Uint64                      // of these percent
	Costs    quantile.Costs
}

// Took counts a hold.
func (c *HoldCounters) Took(amount Tokens) {
	c.Taken.Add(1)
	c.TakenSum.Add(uint64(amount))
}

// Count counts what became of a hold.
func (c *HoldCounters) Count(what Settled) { c.Results[what].Add(1) }

// Settled counts a hold whose cost was booked in its place, as the verdict says; v is nil where both are the same.
func (c *HoldCounters) Settled(held, cost Tokens, v *Verdict) {
	c.SettledSum.Add(uint64(held))
	c.CostSum.Add(uint64(cost))
	i, percent := 0, float64(cost)*100/float64(max(1, held))
	for i < len(HoldRatios) && percent > float64(HoldRatios[i]) {
		i++
	}
	c.Ratios[i].Add(1)
	c.RatioSum.Add(uint64(min(percent, 1e9)))
	switch {
	case v == nil:
	case cost > held:
		c.Charged.Add(uint64(v.Charged + v.Debt))
		c.Debt.Add(uint64(v.Debt))
	default:
		c.Released.Add(uint64(v.Charged))
	}
}

// add adds the counts of another rule, without its learned costs.
func (c *HoldCounters) add(o *HoldCounters) {
	from := o.sums()
	for i, to := range c.sums() {
		to.Add(from[i].Load())
	}
	addAll(c.Results[:], o.Results[:])
	addAll(c.Ratios[:], o.Ratios[:])
}

// sums are the counters that only rise.
func (c *HoldCounters) sums() [8]*atomic.Uint64 {
	return [...]*atomic.Uint64{
		&c.Taken, &c.TakenSum, &c.SettledSum, &c.CostSum, &c.Charged, &c.Released, &c.Debt, &c.RatioSum,
	}
}

// Held are the counters of holds; nil: the rule has never held anything.
func (c *RuleCounters) Held() *HoldCounters { return c.holds.Load() }

// Holds are the counters of holds, and of costs. They are made with the first use.
func (c *RuleCounters) Holds() *HoldCounters {
	if h := c.holds.Load(); h != nil {
		return h
	}
	c.holds.CompareAndSwap(nil, new(HoldCounters))
	return c.holds.Load()
}
