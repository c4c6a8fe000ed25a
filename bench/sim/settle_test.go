package sim

import (
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// In these histories a third of the requests return the excess of other requests' holds, at other
// nodes. Wires lose and double messages, nodes crash and stores lose data. Admissions stay within
// their bound, and in the end the ledger equals the bookings of nodes.
func TestHistoriesThatSettle(t *testing.T) {
	histories := uint64(400)
	if testing.Short() {
		histories = 60
	}
	released, modes := ratelimit.Tokens(0), map[ratelimit.Mode]int{}
	for seed := range histories {
		o := History(seed)
		o.Mix.Settles, o.Mix.Honest = 0.3, true
		r, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Violation != nil {
			t.Errorf("seed %d: %+v", seed, r.Violation)
		}
		released += r.Released
		if r.Released > 0 {
			modes[o.Rule.Coordination.Mode]++
		}
	}
	t.Logf("%d histories gave back %d tokens; by mode: %v", histories, released, modes)
	if len(modes) != len(ratelimit.ModeNames()) {
		t.Errorf("only histories of %v gave something back", modes)
	}
}
