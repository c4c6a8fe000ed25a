package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What a node holds when it crashes is stranded until the window ends: at most a
// twentieth of the limit, beyond two seconds of its demand, for leases of plenty are
// no larger. Demand is one and a half times the limits, so that all that is stranded is
// missed by somebody.
//
//	go test -count=1 -v -run CrashStrands ./bench/sim
func TestCrashStrandsATwentieth(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow} {
		for _, nodes := range []int{3, 10} {
			for _, at := range []time.Duration{time.Second, 10 * time.Second, 25 * time.Second} {
				t.Run(fmt.Sprintf("%v, %d nodes, at %v", algorithm, nodes, at), func(t *testing.T) {
					const keys, rate, limit = 20, 3000, 6000
					r := &ratelimit.Rule{
						Domain: "d", Path: "k", Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{},
						Limit: ratelimit.Limit{Algorithm: algorithm, Unit: ratelimit.Minute, Requests: limit},
					}
					result, err := Run(Options{
						Seed: 1, Nodes: nodes, Rule: r, Load: load.Load{Rate: rate, Keys: keys, Length: 60 * time.Second},
						Faults: []Fault{{At: at, Kind: Crash, Node: 1}},
						Net:    Net{Trip: Delay{Least: 500 * time.Microsecond, Tail: 500 * time.Microsecond}},
					})
					if err != nil || result.Violation != nil {
						t.Fatal(err, result.Violation)
					}
					most := ratelimit.Tokens(keys*limit/20 + 2*rate/nodes)
					t.Logf("%d under of %d, at most %d; %d over", result.Under, keys*limit, most, result.Over)
					if result.Under > most || result.Over > 0 {
						t.Errorf("%d under, more than %d, and %d over", result.Under, most, result.Over)
					}
				})
			}
		}
	}
}
