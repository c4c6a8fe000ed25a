package leasing

import (
	"context"
	"fmt"
	"math/rand/v2"
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
	ledger, err := account.NewRedis(client, "", func() bool { return !c.used.Load() })
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

// commands is how many commands Redis has executed.
func (c *onRedis) commands() int64 {
	c.Helper()
	client := c.store.Client()
	defer client.Close()
	var n int64
	info := client.InfoMap(context.Background(), "stats").Val()
	if _, err := fmt.Sscan(info["Stats"]["total_commands_processed"], &n); err != nil {
		c.Fatal(err)
	}
	return n
}

// Completions of a language model: a client peeks, and charges what it has used when it is done. What is used is at most
// the limit, and what was in flight when it was reached; from then on everything is refused, at all nodes.
func TestPostPaidCharges(t *testing.T) {
	const limit, cost, clients = 10_000, 5000, 50
	for _, l := range []ratelimit.Limit{
		{Unit: ratelimit.Year, Requests: limit},
		{Unit: ratelimit.Year, Requests: limit, Algorithm: ratelimit.SlidingWindow},
		{Unit: ratelimit.Year, Requests: 1, Burst: limit, Algorithm: ratelimit.TokenBucket},
	} {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			c := newOnRedis(t, 3, l)
			var used, inFlight, most, passed atomic.Int64
			var all sync.WaitGroup
			for i := range clients {
				all.Go(func() {
					r := rand.New(rand.NewPCG(uint64(i), 1))
					for range 20 {
						if c.ask(r.IntN(3), "k", ratelimit.Peek, 0).OverLimit {
							continue
						}
						passed.Add(1)
						if n := inFlight.Add(1); n > most.Load() {
							most.Store(n)
						}
						time.Sleep(20 * time.Millisecond) // the completion
						c.ask(r.IntN(3), "k", ratelimit.Spend, cost)
						used.Add(cost)
						inFlight.Add(-1)
					}
				})
			}
			all.Wait()
			for i := range 3 {
				if v := c.ask(i, "k", ratelimit.Peek, 0); !v.OverLimit {
					t.Errorf("node %d admits a peek, and %d of %d are used", i, used.Load(), limit)
				}
				if v := c.ask(i, "k", ratelimit.Spend, 1); !v.OverLimit {
					t.Errorf("node %d admits 1, and %d of %d are used", i, used.Load(), limit)
				}
			}
			t.Logf("%d passed, %d used of %d, at most %d in flight", passed.Load(), used.Load(), limit, most.Load())
			if used.Load() > limit+most.Load()*cost {
				t.Errorf("%d were used, of %d and at most %d in flight", used.Load(), limit, most.Load())
			}
		})
	}
}

// At most so many at once: each takes one, and gives it back at any node. There are never more, and none gets lost.
func TestSlotsAtOnce(t *testing.T) {
	const limit, clients = 10, 64
	c := newOnRedis(t, 3, ratelimit.Limit{Unit: ratelimit.Year, Requests: limit})
	c.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	var inside, most, entered atomic.Int64
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			for range 15 {
				if c.ask(r.IntN(3), "k", ratelimit.Spend, 1).OverLimit {
					continue
				}
				entered.Add(1)
				if n := inside.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(time.Millisecond)
				inside.Add(-1)
				c.ask(r.IntN(3), "k", ratelimit.Refund, 1)
			}
		})
	}
	all.Wait()
	t.Logf("%d entered, at most %d of %d at once", entered.Load(), most.Load(), limit)
	if most.Load() > limit || entered.Load() < 2*limit {
		t.Errorf("%d entered, %d at once of %d", entered.Load(), most.Load(), limit)
	}
	got := 0
	for end := time.Now().Add(5 * time.Second); got < limit && time.Now().Before(end); {
		if !c.ask(got%3, "k", ratelimit.Spend, 1).OverLimit {
			got++
		}
	}
	if got < limit || !c.ask(0, "k", ratelimit.Spend, 1).OverLimit {
		t.Errorf("%d slots are left of %d", got, limit)
	}
}

// All nodes together admit the limit from a real Redis, of each algorithm, and Redis is asked seldom for a key with
// plenty.
func TestFleetOnRedis(t *testing.T) {
	for _, l := range []ratelimit.Limit{
		{Unit: ratelimit.Year, Requests: 1000},
		{Unit: ratelimit.Year, Requests: 1000, Algorithm: ratelimit.SlidingWindow},
		{Unit: ratelimit.Year, Requests: 1, Burst: 1000, Algorithm: ratelimit.TokenBucket},
	} {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			c := newOnRedis(t, 3, l)
			c.rule.Coordination.OnDeny = ratelimit.DenyRefunds
			before := c.commands()
			var admitted atomic.Int64
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					for j := range 200 {
						if v := c.ask((i+j)%3, "k", ratelimit.Spend, 1); !v.OverLimit {
							admitted.Add(1)
						}
					}
				})
			}
			all.Wait()
			t.Logf("%d of 1000 admitted, %d commands for 1600 requests", admitted.Load(), c.commands()-before)
			if got := admitted.Load(); got > 1000 || got < 990 {
				t.Errorf("%d of 1000 were admitted", got)
			}
		})
	}
}

// An idle bucket that is full expires at the ledger. Its earlier holder does not report a loss, and it is full.
func TestFullBucketIsForgotten(t *testing.T) {
	c := newOnRedis(t, 2, ratelimit.Limit{Unit: ratelimit.Second, Requests: 1000, Burst: 10, Algorithm: ratelimit.TokenBucket})
	client := c.store.Client()
	defer client.Close()
	name := "{" + KeyName([]byte("k")) + "}0"
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

// Windows turn: each admits at most its limit, and late reports arrive.
func TestWindowsTurn(t *testing.T) {
	const limit = 40
	c := newOnRedis(t, 3, ratelimit.Limit{Unit: ratelimit.Second, Requests: limit})
	admitted := map[ratelimit.Window]tokens{}
	asked := 0
	for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); asked++ {
		if v := c.ask(asked%3, "k", ratelimit.Spend, 1); !v.OverLimit {
			admitted[v.Window]++
		}
	}
	for w, n := range admitted {
		if n > limit {
			t.Errorf("window %d: %d of %d are admitted", w, n, limit)
		}
	}
	if len(admitted) < 3 {
		t.Errorf("%d windows, of which there were at least three", len(admitted))
	}
	c.end()
	for i, f := range c.nodes {
		if n := f.stats.unreported.Load(); n > 0 {
			t.Errorf("node %d: %d windows were not told to their end", i, n)
		}
		if n := f.Stats().Missing; n > 0 {
			t.Errorf("node %d: %d accounts are taken for lost", i, n)
		}
	}
}
