package metrics

import (
	"runtime"
	"sync/atomic"
)

// Pool counts the connections of the clients of one Redis. The zero Pool is ready, and safe for concurrent use.
type Pool struct {
	Open    atomic.Int64
	Made    atomic.Uint64
	Closed  atomic.Uint64 // by this node
	Refused atomic.Uint64 // of Closed: for the sizes that the server announced
}

// refused is 0 of no pool.
func (p *Pool) refused() uint64 {
	if p == nil {
		return 0
	}
	return p.Refused.Load()
}

// Loads count how often something that changes on disk was read again.
type Loads struct{ Attempts, Failures atomic.Uint64 }

// Gauges gives each gauge under envoyproxy/ratelimit's statsd name: of the local cache, of the connections to Redis,
// and of the Go runtime. There are some thirty. Reading those of the runtime stops the process for some microseconds.
func (c Collector) Gauges(each func(name string, value uint64)) {
	cache := c.LocalCache.Stats()
	each("ratelimit.localcache.hitCount", cache.Hits)
	each("ratelimit.localcache.missCount", cache.Misses)
	each("ratelimit.localcache.lookupCount", cache.Lookups())
	each("ratelimit.localcache.entryCount", cache.Entries)
	each("ratelimit.localcache.expiredCount", cache.Expired)
	each("ratelimit.localcache.evacuateCount", cache.Evacuated)
	each("ratelimit.localcache.overwriteCount", 0)    // what is remembered is not found over anew
	each("ratelimit.localcache.averageAccessTime", 0) // there is no cache to reach
	if p := c.Pool; p != nil {
		each("ratelimit.redis_pool.cx_active", uint64(max(0, p.Open.Load())))
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	for name, value := range map[string]uint64{
		"alloc": m.Alloc, "sys": m.Sys, "heapAlloc": m.HeapAlloc, "heapSys": m.HeapSys, "heapIdle": m.HeapIdle,
		"heapInuse": m.HeapInuse, "heapReleased": m.HeapReleased, "heapObjects": m.HeapObjects, "nextGC": m.NextGC,
		"lastGC": m.LastGC, "gcCPUPercent": uint64(100 * m.GCCPUFraction),
		"numGoroutine": uint64(runtime.NumGoroutine()),
	} {
		each("ratelimit.go."+name, value)
	}
}

// counters gives the counters that belong to the gauges.
func (c Collector) counters(each func(name string, n uint64)) {
	if p := c.Pool; p != nil {
		each("ratelimit.redis_pool.cx_total", p.Made.Load())
		each("ratelimit.redis_pool.cx_local_close", p.Closed.Load())
	}
	if l := c.Certificates; l != nil {
		each("certs.load_attempts", l.Attempts.Load())
		each("certs.load_failures", l.Failures.Load())
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	each("ratelimit.go.totalAlloc", m.TotalAlloc)
	each("ratelimit.go.lookups", m.Lookups)
	each("ratelimit.go.mallocs", m.Mallocs)
	each("ratelimit.go.frees", m.Frees)
	each("ratelimit.go.pauseTotalNs", m.PauseTotalNs)
	each("ratelimit.go.numGC", uint64(m.NumGC))
}
