package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// core is one decision without a wire: match a descriptor, take from a lease.
type core struct {
	domain   *config.Domain
	limiter  *local.Limiter
	entries  []config.Entry
	key      []byte
	asks     []ratelimit.Ask
	verdicts []ratelimit.Verdict
}

func newCore(tb testing.TB) *core {
	rules, _, problems := config.Parse([]config.Text{{Name: "bench", Data: []byte(costRules)}},
		config.Options{Coordination: ratelimit.DefaultCoordination()})
	if problems != nil {
		tb.Fatal(problems)
	}
	return &core{
		domain: rules.Domain("bench"), limiter: local.New(1_500_000, 1, time.Unix(1_800_000_000, 0)),
		entries: []config.Entry{{Key: "generic_key", Value: "api"}, {Key: "api_key"}},
		key:     make([]byte, 0, 256), asks: make([]ratelimit.Ask, 1), verdicts: make([]ratelimit.Verdict, 1),
	}
}

func (c *core) decide(value string) {
	c.entries[1].Value = value
	rule, key := c.domain.Match(c.entries, c.key)
	c.asks[0] = ratelimit.Ask{Rule: rule, Key: key, Cost: 1}
	c.limiter.Decide(context.Background(), 1, c.asks, c.verdicts)
}

// BenchmarkDecision is match and take over that many tracked keys. uniform takes each equally often, so that
// nearly every take misses the processor's caches. zipf takes them like traffic (s = 1.1).
func BenchmarkDecision(b *testing.B) {
	for _, n := range []int{1, 1000, 1_000_000} {
		for _, skew := range []string{"uniform", "zipf"} {
			if n == 1 && skew == "zipf" {
				continue
			}
			b.Run(fmt.Sprintf("keys=%d/%s", n, skew), func(b *testing.B) {
				c := newCore(b)
				for i := range n {
					c.decide(fmt.Sprintf("key-%08d", i))
				}
				order := orderOf(n, skew)
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					c.decide(order[i])
					if i++; i == len(order) {
						i = 0
					}
				}
			})
		}
	}
}

// BenchmarkMetrics is a decision with and without what is counted of it: the
// rule's counters, its source, and the histogram of latencies.
func BenchmarkMetrics(b *testing.B) {
	latency := metrics.NewLatency(time.Second)
	var sources [len(ratelimit.Sources)]atomic.Uint64
	for _, counted := range []bool{false, true} {
		b.Run(fmt.Sprintf("counted=%t", counted), func(b *testing.B) {
			c := newCore(b)
			c.decide("key")
			b.ReportAllocs()
			for b.Loop() {
				c.decide("key")
				if counted {
					a, v := c.asks[0], c.verdicts[0]
					a.Rule.Counters.Count(a, v, 80, false)
					sources[v.Source].Add(1)
					latency.Observe(1e-5)
				}
			}
		})
	}
}

func orderOf(n int, skew string) []string {
	rnd := rand.New(rand.NewPCG(1, 2))
	next := func() uint64 { return rnd.Uint64N(uint64(n)) }
	if skew == "zipf" {
		next = rand.NewZipf(rnd, 1.1, 1, uint64(n-1)).Uint64
	}
	order := make([]string, 1<<20)
	for i := range order {
		order[i] = fmt.Sprintf("key-%08d", next())
	}
	return order
}

// BenchmarkMemory is one dependent read at random in as much memory as a
// million leases take: the least that a decision on a cold key can cost here.
func BenchmarkMemory(b *testing.B) {
	words := make([]uint64, 256<<20/8)
	for i := range words {
		words[i] = uint64(i)
	}
	at := uint64(1)
	for b.Loop() {
		at = at*6364136223846793005 + 1442695040888963407
		at += words[at>>20%uint64(len(words))]
	}
}
