package keytable

import (
	"hash/maphash"
	"math"

	"github.com/cespare/xxhash/v2"
)

// Sharding divides keys by their hashes, for concurrent access: each shard has its own table under its own lock.
//
// The shares of shards differ by up to a factor of two, so that their tables grow at different times: equal shards
// would all be full at once.
type Sharding struct {
	Hash  Hasher
	which [1 << shardBits]uint8 // the shard of a key, by the first bits of its hash
}

// shardBits is the number of hash bits that select a key's shard.
const shardBits = 12

// NewSharding is for maxKeys keys. It also returns the maximum of each shard.
func NewSharding(maxKeys int) (s Sharding, shares []int) {
	s.Hash = NewHasher()
	n := ShardCount(maxKeys)
	shares = make([]int, n)
	ends := shardEnds(n)
	for shard, from, before := 0, 0, 0; shard < n; shard++ {
		for i := from; i < ends[shard]; i++ {
			s.which[i] = uint8(shard)
		}
		upTo := maxKeys * ends[shard] >> shardBits
		shares[shard] = upTo - before
		from, before = ends[shard], upTo
	}
	return s, shares
}

// ShardOf is the number of a key's shard.
func (s *Sharding) ShardOf(id ID) uint8 { return s.which[id.High>>(64-shardBits)] }

// shardEnds divides the values of shardBits bits into n shards: the last is about twice as large as the first.
func shardEnds(n int) []int {
	ends, sum, total := make([]int, n), 0.0, 0.0
	for i := range n {
		total += math.Exp2(float64(i) / float64(n))
	}
	for i := range n {
		sum += math.Exp2(float64(i) / float64(n))
		ends[i] = int(math.Round(sum / total * (1 << shardBits)))
	}
	return ends
}

// ShardCount is the number of locks for a map of n keys: a power of two, with shards large enough for random
// differences.
func ShardCount(n int) int {
	shards := 1
	for shards < 256 && n/(2*shards) >= 1024 {
		shards *= 2
	}
	return shards
}

// Hasher hashes keys, differently in each process: clients choose keys, and must not be able to choose their places.
// The zero hasher is the same in all processes, for simulations.
type Hasher struct {
	seed, second maphash.Seed
	keyed        bool
}

// NewHasher makes one with its own secret.
func NewHasher() Hasher { return Hasher{maphash.MakeSeed(), maphash.MakeSeed(), true} }

// Of returns 64 bits. It does not allocate.
func (h Hasher) Of(key []byte) uint64 {
	if !h.keyed {
		return xxhash.Sum64(key)
	}
	return maphash.Bytes(h.seed, key)
}

// ID returns 128 bits: two hashes with separate seeds. It replaces the key, so two keys with the same ID would share
// a budget. By chance, that takes some 2^64 keys. On purpose, it takes the seeds.
func (h Hasher) ID(key []byte) ID {
	if !h.keyed {
		low := xxhash.Sum64(key)
		high := (low ^ low>>29) * 0xbf58476d1ce4e5b9 // the bits that separate shards and places
		return ID{High: high ^ high>>32, Low: low}
	}
	return ID{High: maphash.Bytes(h.seed, key), Low: maphash.Bytes(h.second, key)}
}
