package keytable

import "testing"

// Shards are of different sizes, and have all keys between them.
func TestShardsHaveDifferentShares(t *testing.T) {
	for _, n := range []int{1, 2, 64, 256} {
		ends := shardEnds(n)
		if ends[n-1] != 1<<shardBits {
			t.Errorf("%d shards end at %d", n, ends[n-1])
		}
		for i := 1; i < n; i++ {
			if ends[i] <= ends[i-1] {
				t.Errorf("shard %d of %d is empty", i, n)
			}
		}
	}
	for _, limit := range []int{1, 10, 1 << 12, 1_000_000} {
		_, shares := NewSharding(limit)
		sum := 0
		for _, share := range shares {
			sum += share
		}
		if sum != limit {
			t.Errorf("shards of %d keys have room for %d", limit, sum)
		}
	}
}
