package sim

import (
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Histories in which a third of the requests give back what others have held too much, at other nodes, over wires that
// lose and double messages, while nodes crash and stores lose data: what is admitted stays within its bound, and in the
// end the ledger has what nodes have booked.
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
