package leasing

import (
	"hash/maphash"

	"github.com/cespare/xxhash/v2"
)

// hasher hashes keys, differently in each process: clients choose keys, and
// must not be able to choose their places. The zero hasher is the same in all
// processes, for simulations.
type hasher struct {
	seed  maphash.Seed
	keyed bool
}

func newHasher() hasher { return hasher{maphash.MakeSeed(), true} }

func (h hasher) of(key []byte) uint64 {
	if !h.keyed {
		return xxhash.Sum64(key)
	}
	return maphash.Bytes(h.seed, key)
}

// predictable makes a limiter that was not used yet do the same in every run.
func (l *Local) predictable() {
	l.tracked.ledger.hash, l.overflow.ledger.hash = hasher{}, hasher{}
}
