package keytable

import (
	"testing"

	"github.com/cespare/xxhash/v2"
)

// A table has as many locks as it is large, up to 256, and none for fewer than a thousand keys.
func TestShardsForSoManyKeys(t *testing.T) {
	for keys, want := range map[int]int{
		0: 1, 1: 1, 2047: 1, 2048: 2, 4095: 2, 4096: 4, 1 << 18: 256, 1<<18 - 1: 128, 1 << 30: 256,
	} {
		if got := ShardCount(keys); got != want {
			t.Errorf("%d keys are in %d shards, and not in %d", keys, got, want)
		}
	}
}

// A key's shard goes by the first bits of its hash: shards follow one another, and none is left out. Each has room
// for its part of the hashes, and together they have room for the limit.
func TestShardOfAKey(t *testing.T) {
	for _, limit := range []int{1, 10, 100, 1 << 12, 1_000_000, 1 << 20} {
		s, shares := NewSharding(limit)
		counts := make([]int, len(shares))
		last := uint8(0)
		for i := range 1 << shardBits {
			shard := s.ShardOf(ID{High: uint64(i) << (64 - shardBits), Low: ^uint64(0)})
			if shard < last || int(shard) >= len(shares) {
				t.Fatalf("of %d shards, %d follows %d", len(shares), shard, last)
			}
			last = shard
			counts[shard]++
		}
		sum := 0
		for shard, n := range counts {
			sum += shares[shard]
			if want := limit * n >> shardBits; n == 0 || shares[shard] < want || shares[shard] > want+1 {
				t.Errorf("shard %d of %d has %d of %d hashes, and room for %d of %d keys",
					shard, len(shares), n, 1<<shardBits, shares[shard], limit)
			}
		}
		if sum != limit {
			t.Errorf("shards of %d keys have room for %d", limit, sum)
		}
	}
	a, _ := NewSharding(1)
	b, _ := NewSharding(1)
	if a.Hash.ID([]byte("k")) == b.Hash.ID([]byte("k")) {
		t.Error("clients know where their keys are")
	}
}

// A hasher of its own puts keys elsewhere than any other does, in both halves of their ID, and always
// in the same place. The zero hasher is the same everywhere, and yet tells keys apart by either half.
func TestHashers(t *testing.T) {
	k := []byte("key")
	a, b := NewHasher(), NewHasher()
	if a.Of(k) == b.Of(k) || a.ID(k).High == b.ID(k).High || a.ID(k).Low == b.ID(k).Low || a.ID(k).High == a.ID(k).Low {
		t.Error("two hashers are the same, or two halves")
	}
	if again := a; again.Of(k) != a.Of(k) || again.ID(k) != a.ID(k) {
		t.Error("a hasher puts a key elsewhere the second time")
	}
	var zero Hasher
	if zero.Of(k) != xxhash.Sum64(k) || zero.ID(k).Low != xxhash.Sum64(k) {
		t.Error("simulations play otherwise elsewhere")
	}
	shards, places, tags := map[uint64]bool{}, map[uint32]bool{}, map[uint64]bool{}
	for i := range 4096 {
		id := zero.ID([]byte{byte(i), byte(i >> 8)})
		shards[id.High>>(64-shardBits)], places[id.prefix()], tags[id.Low] = true, true, true
	}
	// Of 4096 that are thrown into as many places, 63 % of the places have one.
	if n := len(shards); n < 2500 || n > 2700 || len(places) != 4096 || len(tags) != 4096 {
		t.Errorf("%d shards, %d places and %d tags for 4096 keys", n, len(places), len(tags))
	}
}
