package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// regionsOf are three regions of two nodes, far from their store, with a rule of an algorithm.
func regionsOf(algorithm ratelimit.Algorithm, trip time.Duration) Options {
	rule := &ratelimit.Rule{
		Domain: "d", Path: "key", Counters: &ratelimit.RuleCounters{}, Coordination: ratelimit.DefaultCoordination(),
		Limit: ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: 6000, Algorithm: algorithm},
	}
	if algorithm == ratelimit.TokenBucket {
		rule.Limit.Burst = 6000
	}
	c := &rule.Coordination
	c.Mode, c.OnStoreFailure, c.StoreDeadline = ratelimit.Routing, ratelimit.FailClosed, 5*trip
	c.OnDeny = algorithm.OnDeny()
	return Options{
		Seed: 1, Nodes: 6, Regions: 3, Rule: rule, Check: true, CountOps: true,
		Load: load.Load{Rate: 150, Keys: 1, Length: 3 * time.Minute},
		Net: Net{
			Trip: Delay{Least: trip, Tail: time.Millisecond}, Hop: Delay{Least: 300 * time.Microsecond, Tail: 200 * time.Microsecond},
			Skew: 20e-6,
		},
	}
}

// moving is demand for one key that goes from region to region every 20 seconds.
func moving(t *testing.T, rate float64) *load.Recorded {
	t.Helper()
	var b strings.Builder
	for i := range int(180 * rate) {
		at := float64(i) / rate
		region := int(at) / 20 % 3
		fmt.Fprintf(&b, "%.6f,k,1,%d\n", at, region+3*(i%2)) // nodes of a region are three apart
	}
	r, err := load.ReadRecorded(strings.NewReader(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Demand of one and a half times a limit gets nearly all of it, and nothing beyond, at each distance. It comes from all
// regions, or from one after the other.
func TestRegionsReachTheLimit(t *testing.T) {
	for i, name := range ratelimit.RateAlgorithms() {
		for _, trip := range []time.Duration{80 * time.Millisecond, 150 * time.Millisecond} {
			for what, moves := range map[string]*load.Recorded{"everywhere": nil, "moving": moving(t, 150)} {
				o := regionsOf(ratelimit.Algorithm(i), trip)
				if moves != nil {
					o.Recorded, o.Load = moves, moves.Load()
				}
				r := played(t, o)
				most := o.Rule.Limit.Requests * 3 // windows
				if r.Over != 0 || r.Under > most/50 {
					t.Errorf("%s at %v, demand %s: %d over, %d fewer than an exact limiter admits, of %d", name, trip, what, r.Over, r.Under, most)
				}
			}
		}
	}
}

// A key that all regions use costs the far store few messages. Its requests wait no longer than in one region, except for
// the first of a window.
func TestRegionsAskSeldom(t *testing.T) {
	o := regionsOf(ratelimit.FixedWindow, 80*time.Millisecond)
	o.Load.Rate = 90
	r := played(t, o)
	const windows = 4 // also the first and the last, of which a part is played
	if each := r.Claims / 3 / windows; each > 20 || r.Under != 0 || r.P99 > 2*time.Millisecond {
		t.Errorf("%d messages of a region in a window, %d refused, p99 %v", each, r.Under, r.P99)
	}
}

// The first request of a key waits for one trip, and around a turn of the window for a few.
func TestFirstRequestsOfARegion(t *testing.T) {
	o := regionsOf(ratelimit.FixedWindow, 80*time.Millisecond)
	o.Net.Trip.Tail = 0
	o.Load = load.Load{Rate: 200, Keys: 1_000_000, Length: 20 * time.Second}
	r := played(t, o)
	if r.P99 > o.Net.Trip.Least+5*time.Millisecond || r.Longest > 4*o.Net.Trip.Least || r.Refused > 0 {
		t.Errorf("p50 %v, p99 %v, longest %v, %d refused", r.P50, r.P99, r.Longest, r.Refused)
	}
	o.Load = load.Load{Rate: 200, Keys: 1_000_000, Length: 20 * time.Second}
	o.Start = 50 * time.Second // across a turn
	if r := played(t, o); r.Longest > 4*o.Net.Trip.Least || r.Refused > 0 {
		t.Errorf("across a turn: longest %v, %d refused", r.Longest, r.Refused)
	}
}

// A region that is cut off across a turn of the window admits its leases and its policy's part. When it is back, the
// store has all of it.
func TestRegionIsCutOff(t *testing.T) {
	for _, policy := range []ratelimit.FailurePolicy{ratelimit.FailClosed, ratelimit.FailLocal} {
		o := regionsOf(ratelimit.FixedWindow, 80*time.Millisecond)
		o.Rule.Coordination.OnStoreFailure = policy
		for _, node := range []int{1, 4} {
			o.Faults = append(o.Faults, Fault{At: 50 * time.Second, Kind: Cut, Node: node, For: 30 * time.Second})
		}
		r := played(t, o)
		if r.Settled == 0 {
			t.Errorf("%v: no total was compared at the end", policy)
		}
		if policy == ratelimit.FailClosed && r.Over != 0 {
			t.Errorf("%d over, of a policy that refuses", r.Over)
		}
	}
}
