package sim

import (
	"math/rand/v2"
)

// parts has one history of five played with a ledger of several parts, as a Redis Cluster is: each has accounts, an
// epoch and a clock of its own, and fails, forgets and fails over alone. Its chance is its own: other histories are what
// they were.
func (h *historian) parts() {
	if own := rand.New(rand.NewPCG(h.o.Seed, 0x9a27)); own.IntN(5) == 0 && !h.o.Rule.Coordination.Mode.Spec().Owned {
		h.o.Parts = 2 + own.IntN(3)
	}
}
