package rls

import (
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// With any number of keys over their limit, the cache keeps its size, and the last key.
func TestLocalCacheIsBounded(t *testing.T) {
	cache := NewLocalCache(1)
	const keys = leastCacheSize / cacheKeySize
	for i := range uint64(4 * keys) {
		cache.remember(i, ratelimit.Instant(1_000_000+i))
	}
	if s := cache.Stats(); s.Entries != keys || s.Evacuated != 3*keys {
		t.Errorf("%+v, want %d entries and %d forgotten", s, keys, 3*keys)
	}
	if !cache.lookUp(1, 4*keys-1, true) {
		t.Error("the last key is forgotten")
	}
}
