package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The lease of a crashed node is stranded for a while: at most as declared. For leases of plenty
// that is a twentieth of the limit beyond three seconds of the node's demand. Demand is one and a
// half times the limits, so that all stranded tokens are missing. Tokens that are missing without a
// crash do not count.
//
//	go test -count=1 -v -run DeclaredUnder ./bench/sim
func TestDeclaredUnder(t *testing.T) {
	for _, fields := range coordinations {
		for algorithm := range ratelimit.RateAlgorithms() {
			l := ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Minute, Multiplier: 1, Requests: 6000, Burst: 6000}
			t.Run(fmt.Sprint(l, " ", fields), func(t *testing.T) {
				t.Parallel()
				declaredUnder(t, l, fields)
			})
		}
	}
}

func declaredUnder(t *testing.T, l ratelimit.Limit, fields map[string]string) {
	const nodes, keys, rate = 3, 3, 450
	run := func(faults ...Fault) *Result {
		return played(t, Options{
			Seed: 1, Nodes: nodes, Rule: declaring(t, l, fields), Load: load.Load{Rate: rate, Keys: keys, Length: 60 * time.Second},
			Faults: faults, Net: near,
		})
	}
	whole := run().Under
	declared := declaring(t, l, fields).Declare(nodes, ratelimit.SharedStore).Under
	const measured = 2 * rate / keys / nodes // that of few requests may be twice the mean
	most := keys * declared.Crashed.At(measured)
	if declared.Lasts < l.Period()/2 { // it is credited long before the window ends
		most = keys
	}
	for _, at := range []time.Duration{time.Second, 25 * time.Second} {
		result := run(Fault{At: at, Kind: Crash, Node: 1})
		t.Logf("crash at %v: %d under, and %d without it; at most %d more (%v)", at, result.Under, whole, most, declared)
		if result.Under > whole+most {
			t.Errorf("crash at %v: %d under, and %d without it; at most %d more", at, result.Under, whole, most)
		}
	}
}
