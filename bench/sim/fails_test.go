package sim

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The store fails for good in second 24 of a window whose demand is twice the limit. The admissions before, those of
// leases and those of nodes alone are at most 110 % of the limit together, because nodes continue from the sum that they
// read last. In mode routing, a node reads no sum of keys that it forwards: all is at most as declared.
func TestWindowThatFails(t *testing.T) {
	for _, rate := range []float64{102, 300} {
		for _, fields := range coordinations {
			for algorithm := range ratelimit.RateAlgorithms() {
				l := ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Minute, Multiplier: 1, Requests: 3000, Burst: 3000}
				r := declaring(t, l, fields)
				result := played(t, Options{
					Seed: 1, Nodes: 3, Rule: r, Net: near, Load: load.Load{Rate: rate, Keys: 1, Length: 60 * time.Second},
					Faults: []Fault{{At: 24 * time.Second, Kind: Down, For: 40 * time.Second}},
				})
				t.Logf("%v %v: %d over", l.Algorithm, fields, result.Over)
				if most := l.Requests / 10; r.Coordination.Mode != ratelimit.Routing && result.Over > most {
					t.Errorf("%v %v: %d over, at most %d", l, fields, result.Over, most)
				}
			}
		}
	}
}
