package rls

import (
	"hash/maphash"
	"sync"

	"github.com/sluice-gate/sluice/ratelimit"
)

// LocalCache counts the hits of envoyproxy/ratelimit's local cache of keys that are over their limit. It
// decides nothing: a key over its limit is refused without the store in any case. It tells which of the
// refusals count as over_limit_with_local_cache. It is safe for concurrent use.
//
// A look-up of a descriptor with a limit is a hit if the descriptor is refused, and was refused before in the
// same window. Any other look-up is a miss. So the refusal that first finds a key over its limit is a miss.
//
// Memory: about 40 bytes for each key, up to a fixed number of keys. Without room, any key is dropped, so that
// its next refusal is a miss.
type LocalCache struct {
	seed  maphash.Seed
	most  int // keys of a part
	parts [cacheParts]cachePart
}

// LocalCacheStats are what LocalCache has counted since it was made, under the
// names that envoyproxy/ratelimit gives the gauges.
type LocalCacheStats struct {
	Hits   uint64 `statsd:"ratelimit.localcache.hitCount"`
	Misses uint64 `statsd:"ratelimit.localcache.missCount"`
	// Entries are keys that are remembered now, also those whose windows are over.
	Entries uint64 `statsd:"ratelimit.localcache.entryCount"`
	// Expired are keys whose windows were found to be over.
	Expired uint64 `statsd:"ratelimit.localcache.expiredCount"`
	// Evacuated are keys that were dropped to make room.
	Evacuated uint64 `statsd:"ratelimit.localcache.evacuateCount"`
}

// Lookups are all hits and misses.
func (s LocalCacheStats) Lookups() uint64 { return s.Hits + s.Misses }

const (
	cacheParts = 16
	// leastCacheSize is in bytes, and the least that the cache of envoyproxy/ratelimit has.
	leastCacheSize = 512 << 10
	mostCacheSize  = 1 << 30
	// cacheKeySize is about how many bytes a key takes in the cache of envoyproxy/ratelimit. From
	// it follows how many keys that holds in so many bytes, and so how many this one has to
	// remember.
	cacheKeySize = 64
)

type cachePart struct {
	mu    sync.Mutex
	until map[uint64]ratelimit.Instant // guarded by mu: when the limit of an over key is whole again, by hash
	stats LocalCacheStats              // guarded by mu: without Entries
	// The padding keeps two parts that different processors lock out of one line of their caches.
	_ [32]byte
}

// NewLocalCache makes a cache for about as many keys as theirs holds in so many bytes (at least 512 KB, as
// there; at most 1 GB); nil for 0 bytes.
func NewLocalCache(bytes int64) *LocalCache {
	if bytes <= 0 {
		return nil
	}
	keys := min(max(bytes, leastCacheSize), mostCacheSize) / cacheKeySize
	c := &LocalCache{seed: maphash.MakeSeed(), most: int(keys / cacheParts)}
	for i := range c.parts {
		c.parts[i].until = map[uint64]ratelimit.Instant{}
	}
	return c
}

// Stats returns the counts so far; of a nil cache, none.
func (c *LocalCache) Stats() LocalCacheStats {
	var sum LocalCacheStats
	if c == nil {
		return sum
	}
	for i := range c.parts {
		p := &c.parts[i]
		p.mu.Lock()
		s, n := p.stats, len(p.until)
		p.mu.Unlock()
		sum.Hits += s.Hits
		sum.Misses += s.Misses
		sum.Entries += uint64(n)
		sum.Expired, sum.Evacuated = sum.Expired+s.Expired, sum.Evacuated+s.Evacuated
	}
	return sum
}

func (c *LocalCache) hash(key []byte) uint64 { return maphash.Bytes(c.seed, key) }

// lookUp counts a look-up, and reports whether it was a hit. over says whether the descriptor is refused now.
// If not, its key counts as below its limit.
func (c *LocalCache) lookUp(now ratelimit.Instant, hash uint64, over bool) bool {
	p := &c.parts[hash%cacheParts]
	p.mu.Lock()
	defer p.mu.Unlock()
	until, known := p.until[hash]
	if known && over && now < until {
		p.stats.Hits++
		return true
	}
	if known && now >= until {
		p.stats.Expired++
	}
	// Its window is over, or it is within its limit again: either way the next refusal is a first one.
	delete(p.until, hash)
	p.stats.Misses++
	return false
}

// remember keeps that a key is over its limit until that instant. It is called after all look-ups of a request.
func (c *LocalCache) remember(hash uint64, until ratelimit.Instant) {
	p := &c.parts[hash%cacheParts]
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.until[hash]; !known && len(p.until) >= c.most {
		for dropped := range p.until { // the first of a map's random order
			delete(p.until, dropped)
			p.stats.Evacuated++
			break
		}
	}
	p.until[hash] = until
}
