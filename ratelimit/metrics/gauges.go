package metrics

import (
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
)

// Pool counts the connections of the clients of one Redis. The zero Pool is ready, and safe for concurrent use.
type Pool struct {
	Open    atomic.Int64
	Made    atomic.Uint64 `statsd:"ratelimit.redis_pool.cx_total"`
	Closed  atomic.Uint64 `statsd:"ratelimit.redis_pool.cx_local_close"` // by this node
	Refused atomic.Uint64 // of Closed: for the sizes that the server announced
}

// refused is 0 of no pool. So the metric is there, as 0, with any store.
func (p *Pool) refused() uint64 {
	if p == nil {
		return 0
	}
	return p.Refused.Load()
}

// Loads count how often something that changes on disk was read again.
type Loads struct {
	Attempts atomic.Uint64 `statsd:"certs.load_attempts"`
	Failures atomic.Uint64 `statsd:"certs.load_failures"`
}

// Gauges gives each gauge under envoyproxy/ratelimit's statsd name: of the local cache, of the connections to Redis,
// and of the Go runtime. There are some thirty. Reading those of the runtime stops the process for some microseconds.
func (c Collector) Gauges(see func(name string, value uint64)) {
	cache := c.LocalCache.Stats()
	each(&cache, see)
	see("ratelimit.localcache.lookupCount", cache.Lookups())
	see("ratelimit.localcache.overwriteCount", 0)    // what is remembered is not found over anew
	see("ratelimit.localcache.averageAccessTime", 0) // there is no cache to reach
	if p := c.Pool; p != nil {
		see("ratelimit.redis_pool.cx_active", uint64(max(0, p.Open.Load())))
	}
	m := memory(see, "alloc sys heapAlloc heapSys heapIdle heapInuse heapReleased heapObjects nextGC lastGC")
	see("ratelimit.go.gcCPUPercent", uint64(100*m.GCCPUFraction))
	see("ratelimit.go.numGoroutine", uint64(runtime.NumGoroutine()))
}

// counters gives the counters that belong to the gauges. A nil Pool or nil Certificates leave theirs out.
func (c Collector) counters(see func(name string, n uint64)) {
	if c.Pool != nil {
		each(c.Pool, see)
	}
	if c.Certificates != nil {
		each(c.Certificates, see)
	}
	memory(see, "totalAlloc lookups mallocs frees pauseTotalNs numGC")
}

// memory gives fields of [runtime.MemStats], whose names begin with a small letter here. names are words such as
// heapAlloc, for the field HeapAlloc. It reads all of them in one stop of the process.
func memory(see func(name string, n uint64), names string) (m runtime.MemStats) {
	runtime.ReadMemStats(&m)
	of := reflect.ValueOf(&m).Elem()
	for name := range strings.FieldsSeq(names) {
		see("ratelimit.go."+name, of.FieldByName(strings.ToUpper(name[:1])+name[1:]).Uint())
	}
	return m
}
