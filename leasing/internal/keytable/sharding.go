package keytable

import (
	"hash/maphash"
	"math"

	"github.com/cespare/xxhash/v2"
)

// Sharding parts keys by their hashes, so that many are looked at side by side: each
// shard has a table of its own under a lock of its own.
//
// Shards have shares of the keys that differ by up to two, so that their tables grow
// one after the other: if all were as large, all would be full at once.
type Sharding struct {
	Hash  Hasher
	which [1 << shardBits]uint8 // the shard of a key, by the first bits of its hash
}

// shardBits is by how many bits of a hash a key's shard is found.
const shardBits = 12

// NewSharding is for maxKeys keys, and says how many of them each shard may have.
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

// shardEnds cuts the values of shardBits bits into n shards: the last is about twice
// as large as the first.
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

// ShardCount is how many locks a map of n keys is worth: a power of two, with
// no shard so small that chance fills it.
func ShardCount(n int) int {
	shards := 1
	for shards < 256 && n/(2*shards) >= 1024 {
		shards *= 2
	}
	return shards
}

// ShareOf is how many of total things the i-th of parts has, where all have about as many.
func ShareOf(total, i, parts int) int { return (total + parts - 1 - i) / parts }

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
