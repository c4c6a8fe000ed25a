package sim

import (
	"math/rand/v2"
)

// parts makes one history in five use a ledger of several parts, like a Redis Cluster. Each part has its own
// accounts, epoch and clock, and fails, loses data and fails over alone. It draws its own random number, so
// that other histories stay the same.
func (h *historian) parts() {
	if own := rand.New(rand.NewPCG(h.o.Seed, 0x9a27)); own.IntN(5) == 0 && !h.o.Rule.Coordination.Mode.Spec().Owned {
		h.o.Parts = 2 + own.IntN(3)
	}
}
