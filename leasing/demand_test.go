package leasing_test

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/sim"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Fleets in the simulator, whose books hold every invariant: of what an exact limiter admits for the same demand, they
// admit a share, and wait for a share of it at most.
func TestFleetsServeTheirDemand(t *testing.T) {
	fifteen := fixed(600, ratelimit.Second)
	fifteen.Multiplier = 15
	slow := fields{"on_deny": "refund", "on_store_failure": "closed", "store_deadline": "1s"}
	for _, row := range []struct {
		what   string
		limit  ratelimit.Limit
		f      fields
		trip   time.Duration
		rate   float64 // requests a second, for twenty seconds
		faults []sim.Fault
		least  float64 // of what an exact limiter admits
		waits  float64 // at most, of all requests
	}{
		{"three times the refill", bucketOf(10, 20, ratelimit.Second), fields{"on_deny": "refund"}, time.Millisecond, 30, nil, 0.9, 1},
		{"three times a sliding window", limitOf(ratelimit.SlidingWindow, 10, ratelimit.Second), fields{"on_deny": "refund"}, time.Millisecond, 30, nil, 0.9, 1},
		{"a token in each window", fixed(1, ratelimit.Second), nil, time.Millisecond, 6, nil, 0.95, 1},
		{"a bucket at 2 ms", bucketOf(100, 100, ratelimit.Second), slow, 2 * time.Millisecond, 80, nil, 0.95, 1},
		{"a bucket at 40 ms", bucketOf(100, 100, ratelimit.Second), slow, 40 * time.Millisecond, 80, nil, 0.95, 1},
		{"a bucket at 160 ms", bucketOf(100, 100, ratelimit.Second), slow, 160 * time.Millisecond, 80, nil, 0.95, 1},
		{"a bucket at 240 ms", bucketOf(100, 100, ratelimit.Second), slow, 240 * time.Millisecond, 80, nil, 0.95, 1},
		{
			"a warm key of a slow store", fixed(100_000_000, ratelimit.Year), fields{"on_store_failure": "closed"}, time.Millisecond, 500,
			[]sim.Fault{{At: 2 * time.Second, Kind: sim.Slow, For: 50 * time.Millisecond}}, 1, 0.001,
		},
		{
			"a window in which the store fails", fifteen, fields{"on_store_failure": "local", "on_deny": "refund"}, time.Millisecond, 77,
			[]sim.Fault{{At: 6 * time.Second, Kind: sim.Down, For: 9 * time.Second}}, 0.9, 1,
		},
	} {
		for _, nodes := range []int{1, 3} {
			r, err := sim.Run(sim.Options{
				Seed: 1, Nodes: nodes, Rule: ruleOf(t, row.limit, row.f), Check: true, Faults: row.faults,
				Net:  sim.Net{Trip: sim.Delay{Least: row.trip}},
				Load: load.Load{Rate: row.rate, Keys: 1, Length: 20 * time.Second},
			})
			if err != nil || r.Violation != nil {
				t.Fatal(row.what, err, r.Violation)
			}
			served := float64(r.Admitted) / float64(r.Admitted+r.Under)
			if waits := float64(r.Waited) / float64(r.Requests); served < row.least || waits > row.waits || r.Over > row.limit.Capacity()/10 {
				t.Errorf("%s, %d nodes: %d are admitted, which is %.3f of what there is; %d beyond; %.4f of the requests wait",
					row.what, nodes, r.Admitted, served, r.Over, waits)
			}
		}
	}
}
