package sim

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// An owner that crashes, or stops, causes neither more admissions nor fewer: the account is in the
// store, and a node whose owner does not answer leases from it. Demand is one and a half times the
// limits, and the policy is the default, local, which would admit up to max_nodes shares.
//
//	go test -count=1 -v -run OwnerIsGone ./bench/sim
func TestOwnerIsGone(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string][]Fault{
		"crash": {{At: 5 * time.Second, Kind: Crash, Node: 3}},
		"stop":  {{At: 5 * time.Second, Kind: Pause, Node: 3, For: 10 * time.Second}},
		"cut":   {{At: 5 * time.Second, Kind: Part, Node: 3, For: 10 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			l := ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: 3000}
			result := played(t, Options{
				Seed: 1, Nodes: 10, Rule: declaring(t, l, map[string]string{"mode": "routing"}), Net: near,
				Load: load.Load{Rate: 3000, Keys: 20, Length: 30 * time.Second}, Start: 5 * time.Second, Faults: faults,
			})
			t.Logf("%d over, %d under of %d admitted, %d refused too early, %d unanswered; by %v; %.1f claims for 1,000 decisions, waited %v (p99.9)",
				result.Over, result.Under, result.Admitted, result.Early, result.Unanswered, result.Sources, result.ClaimsPerThousand(), result.P999)
			if result.Over > 0 {
				t.Errorf("%d over a limit of %d", result.Over, l.Requests)
			}
			// What a crashed owner held is stranded: a lease of each of its keys.
			if most := result.Admitted / 50; result.Under > most {
				t.Errorf("%d of %d under, more than %d", result.Under, result.Admitted, most)
			}
		})
	}
}
