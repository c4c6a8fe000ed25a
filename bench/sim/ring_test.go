package sim

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Nodes of a ring without a store come and go in good order, all the time: no
// key goes over, and next to no decision is made without its owner.
func TestRingComesAndGoes(t *testing.T) {
	t.Parallel()
	for algorithm := range ratelimit.RateAlgorithms() {
		for seed := range uint64(2) {
			l := ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Minute, Requests: 40, Burst: 40}
			o := Options{
				Seed: seed, Nodes: 3, Rule: declaring(t, l, map[string]string{"mode": "routing", "on_store_failure": "closed"}), Storeless: true, HotRate: []float64{1e9, 5}[seed%2], Check: true,
				Load: load.Load{Rate: 600, Keys: 200, Skew: 1.1, Length: 60 * time.Second, Cost: 1},
				Net:  Net{Trip: Delay{Least: time.Millisecond}, Hop: Delay{Least: 500 * time.Microsecond, Tail: 500 * time.Microsecond}},
			}
			for i := range 16 {
				kind := []FaultKind{Join, Leave, Restart}[i%3]
				o.Faults = append(o.Faults, Fault{At: time.Duration(2+3*i) * time.Second, Kind: kind, Node: (i + int(seed)) % 4})
			}
			got := played(t, o)
			if got.Over > 0 || got.Sources["fallback"] > got.Requests/1000 || got.Sources["owner"] == 0 {
				t.Errorf("%s, seed %d: %d over, %v", ratelimit.Algorithms[algorithm], seed, got.Over, got.Sources)
			}
		}
	}
}
