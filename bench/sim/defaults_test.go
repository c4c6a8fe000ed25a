package sim

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The cost and the benefit of each default, and of its alternatives: three nodes, 10,000 tokens in 10 s, and
// a demand of twice that. The ledger is a few milliseconds away, takes 50 ms for a while, and one node
// crashes in the third of six windows. make bench-defaults prints the table.
func TestDefaults(t *testing.T) {
	for _, c := range []struct {
		mode, field string
		values      []string
	}{
		{"leasing", "lease.size", []string{"auto", "1", "100", "2000"}},
		{"leasing", "reclaim", []string{"safe", "eager"}},
		{"approx", "drift_budget", []string{"1%", "0.1%", "5%"}},
		{"approx", "check_timeout", []string{"2ms", "0s", "10ms"}},
	} {
		for i, value := range c.values {
			what := c.field + " " + value
			if i == 0 {
				what += " (default)"
			}
			r := declaring(
				t, ratelimit.Limit{Unit: ratelimit.Second, Multiplier: 10, Requests: 10_000},
				map[string]string{"mode": c.mode, "drift_budget": "1%", "max_nodes": "3", "on_store_failure": "closed"},
				map[string]string{c.field: value},
			)
			result := played(t, Options{
				Seed: 1, Nodes: 3, Rule: r, Net: Net{Trip: Delay{Least: 3 * time.Millisecond}},
				Load: load.Load{Rate: 2000, Keys: 1, Length: 62 * time.Second},
				Faults: []Fault{
					{At: 22 * time.Second, Kind: Crash, Node: 2},
					{At: 37 * time.Second, Kind: Slow, For: 50 * time.Millisecond},
					{At: 47 * time.Second, Kind: Slow},
				},
			})
			t.Logf("%-8s %-28s %6.2f claims for 1,000 decisions, %5.2f%% waited, p99.9 %-8v %4d over, %5d under", c.mode, what,
				result.ClaimsPerThousand(), 100*float64(result.Waited)/float64(result.Requests), result.P999, result.Over, result.Under)
			if declared := r.Declare(3, ratelimit.SharedStore).Over.Tokens; result.Over > declared {
				t.Errorf("%s: %d over, declared %d", what, result.Over, declared)
			}
		}
	}
}
