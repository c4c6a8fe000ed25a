package keytable

import (
	"hash/maphash"

	"github.com/cespare/xxhash/v2"
)

// Hasher hashes keys, differently in each process: clients choose keys, and
// must not be able to choose their places. The zero hasher is the same in all
// processes, for simulations.
type Hasher struct {
	seed, second maphash.Seed
	keyed        bool
}

// NewHasher makes one with a secret of its own.
func NewHasher() Hasher { return Hasher{maphash.MakeSeed(), maphash.MakeSeed(), true} }

// Of is of 64 bits. It does not allocate.
func (h Hasher) Of(key []byte) uint64 {
	if !h.keyed {
		return xxhash.Sum64(key)
	}
	return maphash.Bytes(h.seed, key)
}

// ID is of 128 bits: two hashes with seeds of their own. Where it stands for the key
// itself, two keys that had the same would share a budget. It would take some 2^64
// keys for that to happen by chance, and the seeds to make it happen.
func (h Hasher) ID(key []byte) ID {
	if !h.keyed {
		low := xxhash.Sum64(key)
		high := (low ^ low>>29) * 0xbf58476d1ce4e5b9 // the bits that tell shards and places apart
		return ID{High: high ^ high>>32, Low: low}
	}
	return ID{High: maphash.Bytes(h.seed, key), Low: maphash.Bytes(h.second, key)}
}
