package leasing_test

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/sim"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Fleets in the simulator admit almost all that an exact limiter admits for the same demand, and few requests wait.
// The simulator's books check every invariant.
func TestFleetsServeTheirDemand(t *testing.T) {
	sliding := limitOf(ratelimit.SlidingWindow, 10, ratelimit.Second)
	fifteen := fixed(600, ratelimit.Second)
	fifteen.Multiplier = 15
	refill, hundred := bucketOf(10, 20, ratelimit.Second), bucketOf(100, 100, ratelimit.Second)
	patient := fields{"on_deny": "refund", "on_store_failure": "closed", "store_deadline": "1s"}
	local := fields{"on_deny": "refund", "on_store_failure": "local"}
	slow := []sim.Fault{{At: 2 * time.Second, Kind: sim.Slow, For: 50 * time.Millisecond}}
	down := []sim.Fault{{At: 6 * time.Second, Kind: sim.Down, For: 9 * time.Second}}
	for _, row := range []struct {
		what   string
		limit  ratelimit.Limit
		f      fields
		trip   time.Duration // in milliseconds
		rate   float64       // requests a second, for twenty seconds
		faults []sim.Fault
		least  float64 // of what an exact limiter admits
		waits  float64 // at most, of all requests
	}{
		{"three times the refill", refill, strict, 1, 30, nil, 0.9, 1},
		{"three times a sliding window", sliding, strict, 1, 30, nil, 0.9, 1},
		{"a token in each window", fixed(1, ratelimit.Second), nil, 1, 6, nil, 0.95, 1},
		{"a bucket at 2 ms", hundred, patient, 2, 80, nil, 0.95, 1},
		{"a bucket at 40 ms", hundred, patient, 40, 80, nil, 0.95, 1},
		{"a bucket at 160 ms", hundred, patient, 160, 80, nil, 0.95, 1},
		{"a bucket at 240 ms", hundred, patient, 240, 80, nil, 0.95, 1},
		{"a warm key of a slow store", fixed(100_000_000, ratelimit.Year), strict, 1, 500, slow, 1, 0.001},
		{"a window in which the store fails", fifteen, local, 1, 77, down, 0.9, 1},
	} {
		for _, nodes := range []int{1, 3} {
			r, err := sim.Run(sim.Options{
				Seed: 1, Nodes: nodes, Rule: ruleOf(t, row.limit, row.f), Check: true, Faults: row.faults,
				Net:  sim.Net{Trip: sim.Delay{Least: row.trip * time.Millisecond}},
				Load: load.Load{Rate: row.rate, Keys: 1, Length: 20 * time.Second},
			})
			if err != nil || r.Violation != nil {
				t.Fatal(row.what, err, r.Violation)
			}
			served, waits := float64(r.Admitted)/float64(r.Admitted+r.Under), float64(r.Waited)/float64(r.Requests)
			if served < row.least || waits > row.waits || r.Over > row.limit.Capacity()/10 {
				t.Errorf("%s, %d nodes: %d are admitted, which is %.3f of what there is; %d beyond; %.4f of the requests wait",
					row.what, nodes, r.Admitted, served, r.Over, waits)
			}
		}
	}
}

// Two masters of a Cluster lose their data, and one of them does not come back. That does not hold up keys of the other
// for good: almost all requests are for new keys, of which half are there.
func TestDeadPartInAYoungEpoch(t *testing.T) {
	r, err := sim.Run(sim.Options{
		Seed: 1, Nodes: 2, Rule: ruleOf(t, fixed(10, ratelimit.Hour), strict), Parts: 2, Check: true, Points: 40,
		Net:  sim.Net{Trip: sim.Delay{Least: time.Millisecond}},
		Load: load.Load{Rate: 100, Keys: 100_000, Length: 40 * time.Second},
		Faults: []sim.Fault{
			{At: 5 * time.Second, Kind: sim.Amnesia, Node: 0},
			{At: 5 * time.Second, Kind: sim.Amnesia, Node: 1},
			{At: 5600 * time.Millisecond, Kind: sim.Down, Node: 1, For: time.Hour},
		},
	})
	if err != nil || r.Violation != nil {
		t.Fatal(err, r.Violation)
	}
	for _, p := range r.Timeline {
		young := p.At < 6*time.Second+ratelimit.YoungMost+ratelimit.YoungFor+beatEvery
		if share := float64(p.Admitted) / float64(p.Offered); !young && (share < 0.3 || share > 0.7) {
			t.Errorf("in the second until %v, %d of %d are admitted", p.At, p.Admitted, p.Offered)
		}
	}
}
