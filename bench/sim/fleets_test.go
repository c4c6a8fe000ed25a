package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// With a prompt store and no fault every mode admits the limit, and one node all of it. Only mode approx admits more: in
// each window a request of each node at most, and none where there is one node.
func TestPlainFleetsAreExact(t *testing.T) {
	t.Parallel()
	const windows = 3
	for _, mode := range ratelimit.ModeNames() {
		for _, nodes := range []int{1, 3} {
			o := Options{
				Seed: 1, Nodes: nodes, Rule: declaring(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 3000}, map[string]string{"mode": mode}),
				Load: load.Load{Rate: 1000, Keys: 1, Length: windows * time.Minute}, Check: true,
				Net: Net{Trip: Delay{Least: 500 * time.Microsecond}, Hop: Delay{Least: 200 * time.Microsecond}},
			}
			r := played(t, o)
			most, least := ratelimit.Tokens(0), ratelimit.Tokens(windows*3000)
			if nodes > 1 {
				least -= 20
			}
			if o.Rule.Drifts() && nodes > 1 {
				most = ratelimit.Tokens(nodes)
			}
			if r.Over > most || r.Admitted < least {
				t.Errorf("%s, %d nodes: %d over, %d of 9000 admitted", mode, nodes, r.Over, r.Admitted)
			}
		}
	}
}

// Ordinary traffic has a few hot keys and many quiet ones. In each mode it needs at most that many
// claims for 1,000 decisions, of which that many are no draws. At most that part of the demand is
// refused while the limit has room.
//
//	go test -count=1 -v -run Economy ./bench/sim
func TestEconomyOfClaims(t *testing.T) {
	t.Parallel()
	// Mode approx does not wait for a recall for longer than its check_timeout.
	// A refusal is charged although others have tokens in hand: the rest of its window is refused that much earlier.
	early := map[string]float64{"leasing": 0.006, "routing": 0.006, "approx": 0.011}
	type most struct{ claims, scripts float64 } // scripts: no draws, which cost Redis several times as much
	for _, row := range []struct {
		unit             ratelimit.Unit
		requests         ratelimit.Tokens
		keys             int
		skew             float64
		leasing, routing most // approx is as leasing, and played once
	}{
		{ratelimit.Minute, 60, 5000, 1.1, most{345, 43}, most{262, 21}},
		{ratelimit.Hour, 1000, 5000, 1.1, most{205, 11}, most{130, 5}},
		{ratelimit.Day, 1_000_000, 5000, 1.1, most{195, 1}, most{115, 1}},
		{ratelimit.Minute, 10, 50_000, 0, most{1100, 1}, most{1100, 1}},
		{ratelimit.Second, 100, 50, 1.1, most{320, 41}, most{183, 30}},
		{ratelimit.Day, 1_000_000, 5, 1.1, most{1, 1}, most{1, 1}},
	} {
		for mode, early := range early {
			if mode == "approx" && row.requests != 60 {
				continue
			}
			l, most := ratelimit.Limit{Unit: row.unit, Multiplier: 1, Requests: row.requests}, row.leasing
			if mode == "routing" {
				most = row.routing
			}
			r := played(t, Options{
				Seed: 1, Nodes: 3, Rule: declaring(t, l, map[string]string{"mode": mode}), Net: near,
				Load: load.Load{Rate: 1500, Keys: row.keys, Skew: row.skew, Length: 20 * time.Second},
			})
			claims, scripts := r.ClaimsPerThousand(), 1000*float64(r.Claims-r.Draws)/float64(r.Requests)
			name := fmt.Sprintf("%v, %d keys, %s", &l, row.keys, mode)
			t.Logf("%s: %.1f claims for 1,000 decisions, %.1f of them no draws, %d recalls; %d over, %d of %d refused too early; waited %v (p99.9)",
				name, claims, scripts, r.Recalls, r.Over, r.Early, r.Offered, r.P999)
			if claims > most.claims || scripts > most.scripts {
				t.Errorf("%s: %.1f claims for 1,000 decisions, %.1f of them no draws, more than %v", name, claims, scripts, most)
			}
			if float64(r.Early) > early*float64(r.Offered) || mode != "approx" && r.Over > 0 {
				t.Errorf("%s: %d refused too early, %d over", name, r.Early, r.Over)
			}
		}
	}
}

// Few tokens among many nodes: each of 30 and of 100 nodes gets a few requests a second for a key,
// or fewer. Unspent tokens of some are missing at others, and recalls move them: the whole limit is
// admitted.
func TestManyNodesShareFewTokens(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{30, 100} {
		for _, limit := range []ratelimit.Limit{
			{Unit: ratelimit.Second, Multiplier: 1, Requests: 100},
			{Unit: ratelimit.Minute, Multiplier: 1, Requests: 600},
		} {
			r := played(t, Options{
				Seed: 1, Nodes: nodes, Rule: declaring(t, limit, map[string]string{"mode": "leasing"}), Net: near,
				Load: load.Load{Rate: 3000, Keys: 100, Skew: 1.1, Length: 10 * time.Second},
			})
			if r.Over > 0 || r.Early*50 > r.Offered || r.Under*1000 > r.Admitted {
				t.Errorf("%d nodes, %v: %d over; %d of %d refused too early, %d under of %d",
					nodes, &limit, r.Over, r.Early, r.Offered, r.Under, r.Admitted)
			}
		}
	}
}

// A fault of the network outlasts a process, and ends for the next one in its place. A node that crashes and starts
// again while it is cut off asks the store when that is over.
func TestRestartInAFaultOfTheNetwork(t *testing.T) {
	t.Parallel()
	for _, kind := range []FaultKind{Cut, Deaf, Late} {
		r := played(t, Options{
			Seed: 1, Nodes: 1, Rule: declaring(t, ratelimit.Limit{Unit: ratelimit.Second, Multiplier: 1, Requests: 100}),
			Net: near, Load: load.Load{Rate: 200, Keys: 1, Length: 10 * time.Second}, Points: 10, Check: true,
			Faults: []Fault{
				{At: time.Second, Kind: kind, For: 4 * time.Second}, {At: 2 * time.Second, Kind: Crash}, {At: 2500 * time.Millisecond, Kind: Restart},
			},
		})
		if local := r.Sources["fallback"]; local < 200 || local > 1000 || r.Timeline[9].Admitted != 100 {
			t.Errorf("%v: %d of %d decisions without the store: %+v", kind, local, r.Requests, r.Timeline)
		}
	}
}

// An owner that crashes, or stops, causes neither more admissions nor fewer: the account is in the
// store, and a node whose owner does not answer leases from it. Demand is one and a half times the
// limits, and the policy is the default, local, which would admit up to max_nodes shares.
//
//	go test -count=1 -v -run OwnerIsGone ./bench/sim
func TestOwnerIsGone(t *testing.T) {
	t.Parallel()
	for _, kind := range []FaultKind{Crash, Pause, Part} {
		l := ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: 1000}
		r := played(t, Options{
			Seed: 1, Nodes: 10, Rule: declaring(t, l, map[string]string{"mode": "routing"}), Net: near, Start: 5 * time.Second,
			Load:   load.Load{Rate: 1000, Keys: 20, Length: 30 * time.Second},
			Faults: []Fault{{At: 5 * time.Second, Kind: kind, Node: 3, For: 10 * time.Second}},
		})
		// What a crashed owner held is stranded: a lease of each of its keys.
		if most := r.Admitted / 50; r.Over > 0 || r.Under > most {
			t.Errorf("%v: %d over, %d of %d under, more than %d; by %v", kind, r.Over, r.Under, r.Admitted, most, r.Sources)
		}
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
				Seed: seed, Nodes: 3, Rule: declaring(t, l, map[string]string{"mode": "routing", "on_store_failure": "closed"}),
				Storeless: true, HotRate: []float64{1e9, 5}[seed%2], Check: true, Net: near,
				Load: load.Load{Rate: 600, Keys: 200, Skew: 1.1, Length: 60 * time.Second, Cost: 1},
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

// regionsOf are three regions of two nodes, far from their store, with a rule of an algorithm.
func regionsOf(t *testing.T, algorithm ratelimit.Algorithm, trip time.Duration) Options {
	t.Helper()
	l := ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: 6000, Burst: 6000, Algorithm: algorithm}
	rule := declaring(t, l, map[string]string{"mode": "routing", "on_store_failure": "closed"})
	rule.Coordination.StoreDeadline, rule.Coordination.OnDeny = 5*trip, algorithm.OnDeny()
	return Options{
		Seed: 1, Nodes: 6, Regions: 3, Rule: rule, Check: true,
		Load: load.Load{Rate: 150, Keys: 1, Length: 3 * time.Minute},
		Net:  Net{Trip: Delay{Least: trip, Tail: time.Millisecond}, Hop: near.Hop, Skew: 20e-6},
	}
}

// Demand of one and a half times a limit gets nearly all of it, and nothing beyond, at each distance. It comes from all
// regions, or goes from one to the next every 20 seconds.
func TestRegionsReachTheLimit(t *testing.T) {
	var moving strings.Builder
	for i := range 180 * 150 {
		at := float64(i) / 150
		fmt.Fprintf(&moving, "%.6f,k,1,%d\n", at, int(at)/20%3+3*(i%2)) // nodes of a region are three apart
	}
	moves, err := load.ReadRecorded(strings.NewReader(moving.String()))
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range ratelimit.RateAlgorithms() {
		for _, trip := range []time.Duration{80 * time.Millisecond, 150 * time.Millisecond} {
			for _, moves := range []*load.Recorded{nil, moves} {
				o := regionsOf(t, ratelimit.Algorithm(i), trip)
				if moves != nil {
					o.Recorded, o.Load = moves, moves.Load()
				}
				r := played(t, o)
				most := o.Rule.Limit.Requests * 3 // windows
				if r.Over != 0 || r.Under > most/50 {
					t.Errorf("%s at %v, moving %v: %d over, %d fewer than an exact limiter admits, of %d", name, trip, moves != nil, r.Over, r.Under, most)
				}
			}
		}
	}
}

// A key that all regions use costs the far store few messages. Its requests wait no longer than in one region, except for
// the first of a window.
func TestRegionsAskSeldom(t *testing.T) {
	o := regionsOf(t, ratelimit.FixedWindow, 80*time.Millisecond)
	o.Load.Rate = 90
	r := played(t, o)
	const windows = 4 // also the first and the last, of which a part is played
	if each := r.Claims / 3 / windows; each > 20 || r.Under != 0 || r.P99 > 2*time.Millisecond {
		t.Errorf("%d messages of a region in a window, %d refused, p99 %v", each, r.Under, r.P99)
	}
}

// The first request of a key waits for one trip, and around a turn of the window for a few.
func TestFirstRequestsOfARegion(t *testing.T) {
	o := regionsOf(t, ratelimit.FixedWindow, 80*time.Millisecond)
	trip := &o.Net.Trip
	trip.Tail = 0
	o.Load = load.Load{Rate: 200, Keys: 1_000_000, Length: 20 * time.Second}
	for _, o.Start = range []time.Duration{0, 50 * time.Second} { // the second is across a turn
		r := played(t, o)
		if o.Start == 0 && r.P99 > trip.Least+5*time.Millisecond || r.Longest > 4*trip.Least || r.Refused > 0 {
			t.Errorf("from %v on: p99 %v, longest %v, %d refused", o.Start, r.P99, r.Longest, r.Refused)
		}
	}
}

// A region that is cut off across a turn of the window admits its leases and its policy's part. When it is back, the
// store has all of it.
func TestRegionIsCutOff(t *testing.T) {
	for _, policy := range []ratelimit.FailurePolicy{ratelimit.FailClosed, ratelimit.FailLocal} {
		o := regionsOf(t, ratelimit.FixedWindow, 80*time.Millisecond)
		o.Rule.Coordination.OnStoreFailure = policy
		for _, node := range []int{1, 4} {
			o.Faults = append(o.Faults, Fault{At: 50 * time.Second, Kind: Cut, Node: node, For: 30 * time.Second})
		}
		if r := played(t, o); r.Settled == 0 || policy == ratelimit.FailClosed && r.Over != 0 {
			t.Errorf("%v: %d totals were compared at the end, %d over; a policy that refuses admits none", policy, r.Settled, r.Over)
		}
	}
}

// Who allows nothing over is not told to drift; who cannot wait is.
func TestRecommendations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		over ratelimit.Share
		wait time.Duration
		want string
	}{
		{ratelimit.Share{}, 15 * time.Millisecond, "it is never over the limit"},
		{ratelimit.Share{PPM: 50_000}, 15 * time.Millisecond, "Use "},
		{ratelimit.Share{}, time.Microsecond, "Nothing keeps within 1µs"},
	} {
		q := Question{
			Limit: ratelimit.Limit{Unit: ratelimit.Second, Requests: 500}, Coordination: ratelimit.DefaultCoordination(),
			Nodes: 3, Seed: 1, MaxOver: c.over, MaxWait: c.wait,
			Load: load.Load{Rate: 1500, Keys: 2, Length: 8 * time.Second},
			Net:  Net{Trip: Delay{Least: 4 * time.Millisecond}, Hop: Delay{Least: time.Millisecond}},
		}
		a, err := WhatIf(t.Context(), q, unseen)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(a.Reasons, " "); !strings.Contains(got, c.want) {
			t.Errorf("over %v, wait %v: %s", c.over, c.wait, got)
		}
		if eager := &a.Choices[2]; eager.Name != "leasing, eager" || eager.Declared != 3*25 {
			t.Errorf("%s is said to be at most %d over, and three silent nodes may have 25 each", eager.Name, eager.Declared)
		}
		if best := &a.Choices[a.Best]; best.Declared > c.over.Of(500) {
			t.Errorf("%s may be %d over, and %d are allowed", best.Name, best.Declared, c.over.Of(500))
		}
		strict, leasing := a.Choices[0].Plain, a.Choices[1].Plain
		if strict.ClaimsPerThousand() < 3*leasing.ClaimsPerThousand() {
			t.Errorf("strict took %.1f claims, leasing %.1f", strict.ClaimsPerThousand(), leasing.ClaimsPerThousand())
		}
		for _, choice := range a.Choices {
			if choice.Plain.Violation != nil || choice.Bad.Violation != nil {
				t.Errorf("%s: %v %v", choice.Name, choice.Plain.Violation, choice.Bad.Violation)
			}
		}
		if table := a.Table(500); len(table.Rows) != len(a.Choices) || !strings.HasPrefix(table.Rows[a.Best].Cells[0], "* ") {
			t.Errorf("the table does not mark %s: %v", a.Choices[a.Best].Name, table.Rows)
		}
	}
}
