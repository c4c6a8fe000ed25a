package sim

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Rings without a store, and with one, through everything that goes wrong: no
// key goes further over its limit than docs/routing.md declares.
func TestRingHistories(t *testing.T) {
	t.Parallel()
	played, without, hot, owners, fallbacks := 0, 0, 0, int64(0), int64(0)
	for seed := *first; played < max(60, *histories/4); seed++ {
		o := History(seed)
		if o.Rule.Coordination.Mode != ratelimit.Routing {
			continue
		}
		played++
		r := play(t, seed)
		if t.Failed() {
			return
		}
		owners, fallbacks = owners+r.Sources["owner"], fallbacks+r.Sources["fallback"]
		if o.Storeless {
			without++
			if r.Sources["claim"]+r.Sources["lease"] > 0 && o.HotRate < 100 {
				hot++
			}
		}
	}
	t.Logf("%d histories, %d without a store, %d of them with hot keys; %d decisions by owners, %d without", played, without, hot, owners, fallbacks)
	if without == 0 || hot == 0 || owners == 0 {
		t.Error("not all was played")
	}
}

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
