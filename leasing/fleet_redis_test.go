package leasing

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// onRedis is some nodes on one real Redis, each with a client of its own.
type onRedis struct {
	cluster
	store *redistest.Server // nil, if it is not a single one
	run   func(*Fleet)
	all   sync.WaitGroup
	used  atomic.Bool
	size  atomic.Int32
}

func newOnRedis(t testing.TB, n int, limit ratelimit.Limit) *onRedis {
	t.Helper()
	store := redistest.Start(t)
	c := newOnClients(t, n, limit, clientOf(store.Addr))
	c.store = store
	return c
}

// clientOf connects to one server.
func clientOf(addr string) func() redis.UniversalClient {
	return func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{
			Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: 8, DialTimeout: 200 * time.Millisecond,
		})
	}
}

// newOnClients has each node come by its ledger as it likes.
func newOnClients(t testing.TB, n int, limit ratelimit.Limit, connect func() redis.UniversalClient) *onRedis {
	t.Helper()
	c := &onRedis{cluster: cluster{TB: t, clock: ratelimit.MonotonicClock()}}
	c.rule = &ratelimit.Rule{Domain: "d", Path: "p", Limit: limit, Coordination: ratelimit.DefaultCoordination()}
	c.rule.Coordination.OnStoreFailure = ratelimit.FailClosed
	c.rule.Coordination.StoreDeadline = time.Second // of a busy machine nothing is to be said here
	ctx, cancel := context.WithCancel(context.Background())
	c.run = func(f *Fleet) { c.all.Go(func() { f.Run(ctx) }) }
	c.end = func() { cancel(); c.all.Wait() }
	t.Cleanup(c.end)
	for range n {
		c.join(connect)
	}
	return c
}

// join adds a node. While there is none, an empty ledger has nothing to learn.
func (c *onRedis) join(connect func() redis.UniversalClient) {
	c.Helper()
	client := connect()
	ledger, err := account.NewRedis(client, "")
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { c.end(); client.Close() })
	c.joins(ledger, 1000)
}

// joins adds a node with a ledger, which tracks so many keys.
func (c *onRedis) joins(ledger account.Ledger, keys int) {
	f := NewFleet(ledger, account.NewHolder(), keys, c.clock, time.Now())
	f.Nodes = func() int { return int(c.size.Load()) }
	f.Peers = f.Nodes
	c.nodes = append(c.nodes, f)
	c.size.Add(1)
	c.run(f)
}

// ready waits until all nodes have answers of the ledger, and it does not learn.
func (c *onRedis) ready() {
	c.Helper()
	c.until("the ledger has not been heard of, or still learns", func() bool {
		return !slices.ContainsFunc(c.nodes, func(f *Fleet) bool { return !f.Ready() })
	})
	c.used.Store(true)
}

// until waits for a condition, for 20 s at most.
func (c *onRedis) until(otherwise string, is func() bool) {
	c.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.Fatal(otherwise)
		}
	}
}

// attempt requests tokens of a key from any limiter, and returns the time of that.
func (c *onRedis) attempt(node int, key string, cost tokens) (v verdict, took time.Duration) {
	var all [1]verdict
	began := c.clock()
	c.nodes[node].Decide(context.Background(), began, []ask{{Rule: c.rule, Key: []byte(key), Cost: cost}}, all[:])
	return all[0], c.clock().Sub(began)
}

// load has callers ask for single tokens, n in all, of keys in turn and at all nodes in turn. It returns what was
// admitted of each key, and how long each took, in order.
func (c *onRedis) load(n, callers int, pause time.Duration, keys ...string) (map[string]int, []time.Duration) {
	admitted := map[string]int{}
	var times []time.Duration
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for j := range n / callers {
				key := keys[(i+j*callers)%len(keys)]
				v, took := c.attempt((i+j)%len(c.nodes), key, 1)
				mu.Lock()
				times = append(times, took)
				if !v.OverLimit {
					admitted[key]++
				}
				mu.Unlock()
				time.Sleep(pause)
			}
		})
	}
	all.Wait()
	slices.Sort(times)
	return admitted, times
}

// An idle bucket that is full expires at the ledger. Its earlier holder does not report a loss, and it is full.
func TestFullBucketIsForgotten(t *testing.T) {
	c := newOnRedis(t, 2, ratelimit.Limit{Unit: ratelimit.Second, Requests: 1000, Burst: 10, Algorithm: ratelimit.TokenBucket})
	client := c.store.Client()
	defer client.Close()
	name := "{" + ratelimit.KeyName([]byte("k")) + "}0"
	for round := range 3 {
		for i := range 10 {
			if v := c.ask(i%2, "k", ratelimit.Spend, 1); v.OverLimit && round == 0 && i == 0 {
				t.Fatalf("round %d: token %d is refused: %+v", round, i, v)
			}
		}
		for end := time.Now().Add(5 * time.Second); client.Exists(context.Background(), name).Val() > 0; {
			if time.Now().After(end) {
				t.Fatal("the account is still there")
			}
		}
		if v := c.ask(0, "k", ratelimit.Spend, 10); v.OverLimit {
			t.Errorf("round %d: a full bucket refuses its burst: %+v", round, v)
		}
		for end := time.Now().Add(5 * time.Second); client.Exists(context.Background(), name).Val() > 0 && time.Now().Before(end); {
		}
	}
	for i, f := range c.nodes {
		if n := f.Stats().Missing; n > 0 {
			t.Errorf("node %d: %d accounts are taken for lost", i, n)
		}
	}
}
