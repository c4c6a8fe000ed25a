package leasing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// redisFleet is nodes in this process, each with connections of its own to a
// real Redis, perhaps through a proxy.
type redisFleet struct {
	*testing.T
	nodes []*Fleet
	clock ratelimit.Clock
	wall  time.Time
}

func newRedisFleet(t *testing.T, nodes int, connect func() redis.UniversalClient) *redisFleet {
	t.Helper()
	r := &redisFleet{T: t, clock: ratelimit.MonotonicClock(), wall: time.Now()}
	for range nodes {
		client := connect()
		f := NewFleet(NewRedis(client, ""), NewHolder(), 10_000, r.clock, r.wall)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); f.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done; client.Close() })
		r.nodes = append(r.nodes, f)
	}
	return r
}

func single(addr string) func() redis.UniversalClient {
	return func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{
			Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, DialTimeout: time.Second,
		})
	}
}

// ask spends one token of key at a node, and says how long that took.
func (r *redisFleet) ask(node int, rule *ratelimit.Rule, key uint64) (verdict, time.Duration) {
	v := make([]verdict, 1)
	start := time.Now()
	r.nodes[node].Decide(context.Background(), r.clock(), []ask{{Rule: rule, Key: keyOf(key), Cost: 1}}, v)
	return v[0], time.Since(start)
}

// spend asks n times from several callers, and returns how many were admitted,
// and all latencies.
func (r *redisFleet) spend(rule *ratelimit.Rule, n, callers int, key func() uint64, pause time.Duration) (admitted map[uint64]int, latency []time.Duration) {
	admitted = map[uint64]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range n / callers {
				k := key()
				v, took := r.ask((i+j)%len(r.nodes), rule, k)
				mu.Lock()
				latency = append(latency, took)
				if !v.OverLimit {
					admitted[k]++
				}
				mu.Unlock()
				time.Sleep(pause)
			}
		})
	}
	wg.Wait()
	slices.Sort(latency)
	return admitted, latency
}

func one() uint64 { return 1 }

func closedRule(limit tokens) *ratelimit.Rule {
	rule := testRule(ratelimit.Limit{Unit: ratelimit.Year, Requests: limit})
	rule.Coordination.OnStoreFailure = ratelimit.FailClosed
	return rule
}

// Skewed keys, each with its own limit, per second: never over, in any second.
func TestFleetSkewedPerSecond(t *testing.T) {
	s := redistest.Start(t)
	r := newRedisFleet(t, 3, single(s.Addr))
	rule := testRule(ratelimit.Limit{Unit: ratelimit.Second, Requests: 50})
	var mu sync.Mutex
	zipf := rand.NewZipf(rand.New(rand.NewPCG(3, 4)), 1.2, 1, 50)
	next := func() uint64 { mu.Lock(); defer mu.Unlock(); return zipf.Uint64() }
	windows := map[string]int{}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for j := range 1500 {
				k := next()
				// By Redis' clock: a decision is of the second it began in, or
				// of the one it ended in, when these differ it is not counted.
				before := time.Now().Unix()
				v, _ := r.ask((i+j)%3, rule, k)
				if time.Now().Unix() == before && !v.OverLimit {
					mu.Lock()
					windows[fmt.Sprint(before, " ", k)]++
					mu.Unlock()
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	wg.Wait()
	full := 0
	for w, n := range windows {
		if n > 50 {
			t.Errorf("second and key %s admitted %d of 50", w, n)
		}
		if n >= 49 {
			full++
		}
	}
	if full == 0 {
		t.Error("no key came to its limit")
	}
}

// 50 ms on every reply: a warm key does not notice.
func TestFleetSlowRedisWarmKey(t *testing.T) {
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr)
	r := newRedisFleet(t, 2, single(p.Addr))
	rule := closedRule(100_000_000)
	r.spend(rule, 4000, 4, one, time.Millisecond)
	_, fast := r.spend(rule, 4000, 4, one, time.Millisecond)
	p.Delay(50 * time.Millisecond)
	r.spend(rule, 400, 4, one, time.Millisecond)
	admitted, slow := r.spend(rule, 4000, 4, one, time.Millisecond)
	at := func(l []time.Duration) time.Duration { return l[len(l)*99/100] }
	t.Logf("p99 %v with a prompt Redis, %v with 50 ms on every reply", at(fast), at(slow))
	if at(slow) > time.Millisecond || admitted[1] != 4000 {
		t.Errorf("p99 %v, admitted %d of 4000", at(slow), admitted[1])
	}
}

// Replies get lost, connections are cut, answers are nonsense, Redis is out of
// memory or read-only: nothing over, nobody waits longer than the deadline,
// and afterwards the whole limit is there.
func TestFleetRedisFaults(t *testing.T) {
	for name, c := range map[string]struct {
		spoil, mend func(*redistest.Server, *redistest.Proxy)
	}{
		"lost replies": {
			func(_ *redistest.Server, p *redistest.Proxy) { p.Swallow(20) },
			func(_ *redistest.Server, p *redistest.Proxy) { p.Swallow(0) },
		},
		"flapping": {
			func(_ *redistest.Server, p *redistest.Proxy) { p.Cut() },
			func(_ *redistest.Server, p *redistest.Proxy) { p.Cut() },
		},
		"refused": {
			func(_ *redistest.Server, p *redistest.Proxy) { p.Refuse(true); p.Cut() },
			func(_ *redistest.Server, p *redistest.Proxy) { p.Refuse(false) },
		},
		"slow": {
			func(_ *redistest.Server, p *redistest.Proxy) { p.Delay(50 * time.Millisecond) },
			func(_ *redistest.Server, p *redistest.Proxy) { p.Delay(0) },
		},
		"garbage": {
			func(_ *redistest.Server, p *redistest.Proxy) { p.Garbage(true) },
			func(_ *redistest.Server, p *redistest.Proxy) { p.Garbage(false); p.Cut() },
		},
		"out of memory": {
			func(s *redistest.Server, _ *redistest.Proxy) { s.Do("CONFIG", "SET", "maxmemory", "1") },
			func(s *redistest.Server, _ *redistest.Proxy) { s.Do("CONFIG", "SET", "maxmemory", "0") },
		},
		"read-only": {
			func(s *redistest.Server, _ *redistest.Proxy) {
				s.Do("CONFIG", "SET", "min-replicas-to-write", "3")
			},
			func(s *redistest.Server, _ *redistest.Proxy) {
				s.Do("CONFIG", "SET", "min-replicas-to-write", "0")
			},
		},
		"script flush": {
			func(s *redistest.Server, _ *redistest.Proxy) { s.Do("SCRIPT", "FLUSH") },
			func(s *redistest.Server, _ *redistest.Proxy) { s.Do("SCRIPT", "FLUSH") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			p := redistest.NewProxy(t, s.Addr)
			r := newRedisFleet(t, 3, single(p.Addr))
			const limit = 5000
			rule := closedRule(limit)
			before, _ := r.spend(rule, 1200, 6, one, 0)
			c.spoil(s, p)
			during, latency := r.spend(rule, 1200, 6, one, time.Millisecond)
			// The machine's own pauses come on top of the 15 ms.
			if p99 := latency[len(latency)*99/100]; p99 > ratelimit.StoreDeadline+5*time.Millisecond {
				t.Errorf("p99 %v", p99)
			}
			c.mend(s, p)
			total := before[1] + during[1]
			for end := time.Now().Add(20 * time.Second); total < limit && time.Now().Before(end); {
				after, _ := r.spend(rule, 300, 6, one, 2*time.Millisecond)
				total += after[1]
			}
			after, _ := r.spend(rule, 300, 6, one, time.Millisecond)
			if total += after[1]; total != limit {
				t.Errorf("admitted %d of %d", total, limit)
			}
		})
	}
}
