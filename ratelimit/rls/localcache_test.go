package rls

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The refusal that first finds a key over is a miss, each later one in its window a
// hit, a ban's too; everything else with a limit is a miss.
func TestLocalCacheCountsAsTheirs(t *testing.T) {
	cache := NewLocalCache(1)
	f := newFixture(t, Options{LocalCache: cache}, testRules)
	locally := func(path string) uint64 {
		for _, r := range f.rules().All() {
			if r.Path == path {
				return r.Counters.OverLocally.Load()
			}
		}
		t.Fatal(path)
		return 0
	}
	expect := func(when string, hits, misses, entries, expired uint64) {
		t.Helper()
		if s := cache.Stats(); s != (LocalCacheStats{Hits: hits, Misses: misses, Entries: entries, Expired: expired}) {
			t.Errorf("%s: %+v, want %d hits, %d misses, %d entries, %d expired", when, s, hits, misses, entries,
				expired)
		}
	}
	for range 5 {
		f.must(rlsRequest(desc("five=x")))
	}
	expect("within the limit", 0, 5, 0, 0)
	f.must(rlsRequest(desc("five=x"), desc("free="), desc("none=")))
	expect("first over; what has no limit is not looked up", 0, 6, 1, 0)
	f.must(rlsRequest(hits(desc("five=x"), 3)))
	expect("over again", 1, 6, 1, 0)
	if n := locally("five"); n != 3 {
		t.Errorf("%d hits are counted as of the local cache, want 3", n)
	}
	f.must(rlsRequest(desc("ban="), desc("ban=")))
	expect("a ban, twice in a request", 1, 8, 2, 0)
	f.must(rlsRequest(desc("ban=")))
	expect("a ban", 2, 8, 2, 0)
	f.now = f.now.Add(time.Hour)
	f.must(rlsRequest(desc("five=x")))
	expect("the next window", 2, 9, 1, 1)
	f.must(rlsRequest(hits(desc("five=x"), 5)))
	f.must(rlsRequest(negative(hits(desc("five=x"), 6))))
	f.must(rlsRequest(desc("five=x")))
	f.must(rlsRequest(hits(desc("five=x"), 5)))
	expect("a refund makes room: its key is over for the first time again", 2, 13, 2, 1)
}

// Without the setting nothing is counted as of a local cache.
func TestNoLocalCache(t *testing.T) {
	f := newFixture(t, Options{LocalCache: NewLocalCache(0)}, testRules)
	for range 10 {
		f.must(rlsRequest(desc("five=x"), desc("ban=")))
	}
	for _, r := range f.rules().All() {
		if n := r.Counters.OverLocally.Load(); n != 0 {
			t.Errorf("%s: %d", r.Path, n)
		}
	}
}

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

// With SpareOthers, what one descriptor refuses charges none of the others, and they
// say what is left without it; the refusing one is charged.
func TestSpareOthers(t *testing.T) {
	f := newFixture(t, Options{SpareOthers: true}, testRules)
	f.expect("OVER_LIMIT: OK 20/20 45s, OVER_LIMIT 0/0 57585s", rlsRequest(desc("twenty=x"), desc("ban=")))
	f.expect("OVER_LIMIT: OVER_LIMIT 0/5 3585s, OK 20/20 45s", rlsRequest(hits(desc("five=x"), 6), desc("twenty=x")))
	f.expect("OVER_LIMIT: OVER_LIMIT 0/5 3585s, OK 20/20 45s", rlsRequest(desc("five=x"), desc("twenty=x")))
	f.expect("OVER_LIMIT: OK 20/20 45s, OVER_LIMIT 0/0 57585s, OK 20/20 45s",
		rlsRequest(hits(desc("twenty=x"), 3), desc("ban="), hits(desc("twenty=x"), 4)))
	f.expect("OK: OK 13/20 45s", rlsRequest(hits(desc("twenty=x"), 7)))
	f.expect("OVER_LIMIT: OK 13/20 45s, OVER_LIMIT 0/0 57585s", rlsRequest(desc("twenty=x"), desc("ban=")))
	// What is refused in shadow is refused: it spares the others, as there.
	f.must(rlsRequest(desc("shadow=")))
	f.expect("OK: OK 0/1 45s, OK 13/20 45s", rlsRequest(desc("shadow="), desc("twenty=x")))
	f.expect("OK: OK 12/20 45s", rlsRequest(desc("twenty=x")))
}
