package leasing

import (
	"hash/maphash"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
)

// hasher hashes keys, differently in each process: clients choose keys, and
// must not be able to choose their places. The zero hasher is the same in all
// processes, for simulations.
type hasher struct {
	seed, second maphash.Seed
	keyed        bool
}

func newHasher() hasher { return hasher{maphash.MakeSeed(), maphash.MakeSeed(), true} }

func (h hasher) of(key []byte) uint64 {
	if !h.keyed {
		return xxhash.Sum64(key)
	}
	return maphash.Bytes(h.seed, key)
}

// id is of 128 bits: two hashes with seeds of their own. Where it stands for the key
// itself, two keys that had the same would share a budget. It would take some 2^64
// keys for that to happen by chance, and the seeds to make it happen.
func (h hasher) id(key []byte) keytable.ID {
	if !h.keyed {
		low := xxhash.Sum64(key)
		high := (low ^ low>>29) * 0xbf58476d1ce4e5b9 // the bits that tell shards and places apart
		return keytable.ID{High: high ^ high>>32, Low: low}
	}
	return keytable.ID{High: maphash.Bytes(h.seed, key), Low: maphash.Bytes(h.second, key)}
}

// predictable makes a limiter that was not used yet do the same in every run.
func (l *Local) predictable() {
	l.tracked.hash, l.overflow.hash = hasher{}, hasher{}
}
