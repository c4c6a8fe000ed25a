package leasing_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/sim"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // servers die in these tests
	// The client library dials a dead server once a second, and looks whether its pool was closed after that.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// cluster is fleets as they run: on a store in memory, in the time of a bubble (testing/synctest), or on a real one.
type cluster struct {
	testing.TB
	clock   ratelimit.Clock
	rule    *ratelimit.Rule
	nodes   []*leasing.Fleet
	ledgers []account.Ledger // of the nodes
	size    atomic.Int32
	run     func(*leasing.Fleet)
	end     func()
}

func newCluster(t testing.TB, limit ratelimit.Limit, f fields) *cluster {
	t.Helper()
	began := time.Now() // of a bubble, perhaps
	c := &cluster{TB: t, clock: func() instant { return instant(time.Since(began)) + 1 }, rule: ruleOf(t, limit, f)}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	c.run = func(f *leasing.Fleet) { all.Go(func() { f.Run(ctx) }) }
	c.end = func() { cancel(); all.Wait() }
	t.Cleanup(c.end)
	return c
}

// join adds a node with a ledger.
func (c *cluster) join(ledger account.Ledger) *leasing.Fleet {
	f := leasing.NewFleet(ledger, account.NewHolder(), 100_000, c.clock, time.Now())
	f.Nodes = func() int { return int(c.size.Load()) }
	f.Peers = f.Nodes
	c.nodes, c.ledgers = append(c.nodes, f), append(c.ledgers, ledger)
	c.size.Add(1)
	c.run(f)
	return f
}

// joinRedis adds nodes, each with a client of its own.
func (c *cluster) joinRedis(n int, connect func() redis.UniversalClient) {
	c.Helper()
	for range n {
		client := connect()
		ledger, err := account.NewRedis(client, "")
		if err != nil {
			c.Fatal(err)
		}
		c.Cleanup(func() { c.end(); client.Close() })
		c.join(ledger)
	}
}

// onRedis is a cluster of strict nodes that are ready.
func onRedis(t testing.TB, n int, limit ratelimit.Limit, connect func() redis.UniversalClient) *cluster {
	t.Helper()
	c := newCluster(t, limit, strict)
	c.joinRedis(n, connect)
	c.ready()
	return c
}

// clientOf connects to one server, and clusterOf to those of a Cluster.
func clientOf(addr string) func() redis.UniversalClient {
	return func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{
			Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: 8, DialTimeout: 200 * time.Millisecond,
		})
	}
}

func clusterOf(servers ...*redistest.Server) func() redis.UniversalClient {
	return func() redis.UniversalClient {
		addrs := make([]string, len(servers))
		for i, s := range servers {
			addrs[i] = s.Addr
		}
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: addrs, MaxRetries: -1, MaxRedirects: -1, ContextTimeoutEnabled: true, DialTimeout: 200 * time.Millisecond,
		})
	}
}

// ready waits until all nodes have answers of the ledger, and it does not learn.
func (c *cluster) ready() {
	c.Helper()
	c.until("the ledger has not been heard of, or still learns", func() bool {
		return !slices.ContainsFunc(c.nodes, func(f *leasing.Fleet) bool { return !f.Ready() })
	})
}

// until waits for a condition, for 20 s at most.
func (c *cluster) until(otherwise string, is func() bool) {
	c.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.Fatal(otherwise)
		}
	}
}

func (c *cluster) decide(node int, a ask) verdict {
	var v [1]verdict
	a.Rule = c.rule
	c.nodes[node].Decide(context.Background(), c.clock(), []ask{a}, v[:])
	return v[0]
}

// attempt requests a token, and returns whether it was admitted.
func (c *cluster) attempt(node int, key string) bool {
	return !c.decide(node, ask{Key: []byte(key), Cost: 1}).OverLimit
}

// load has callers ask for single tokens, n in all, of keys in turn and at all nodes in turn. It returns what was
// admitted of each key.
func (c *cluster) load(n, callers int, pause time.Duration, keys ...string) map[string]int {
	admitted := map[string]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for j := range n / callers {
				key := keys[(i+j*callers)%len(keys)]
				if c.attempt((i+j)%len(c.nodes), key) {
					mu.Lock()
					admitted[key]++
					mu.Unlock()
				}
				time.Sleep(pause)
			}
		})
	}
	all.Wait()
	return admitted
}

// faulty is a ledger in memory whose trips take a time, or fail.
type faulty struct {
	*account.CAS
	conns chan bool // one for each trip at a time
	takes time.Duration
	asked atomic.Int64
	fails atomic.Pointer[error] // all trips
	looks atomic.Pointer[error] // for registrations of others
	over  bool                  // its clock is so wrong that each claim is over when it arrives
}

func newFaulty(store *account.MemoryStore) *faulty {
	return &faulty{CAS: account.NewCAS(store, ""), conns: make(chan bool, 1000)}
}

// newBubbleStore is a store with the time of a bubble.
func newBubbleStore() *account.MemoryStore {
	now := func() ratelimit.LedgerTime { return ratelimit.LedgerTime(time.Now().UnixMicro()) }
	return account.NewMemory(now).MemoryStore
}

// Settle implements [account.Ledger].
func (l *faulty) Settle(
	ctx context.Context, claims []account.Claim, grants []account.Grant,
) (ratelimit.Epoch, ratelimit.LedgerTime, error) {
	select {
	case l.conns <- true:
	case <-ctx.Done():
		return ratelimit.Epoch{}, 0, ctx.Err()
	}
	defer func() { <-l.conns }()
	defer time.Sleep(l.takes / 2)
	time.Sleep(l.takes / 2)
	l.asked.Add(1)
	if err := l.fails.Load(); err != nil {
		return ratelimit.Epoch{}, 0, *err
	}
	epoch, at, err := l.CAS.Settle(ctx, claims, grants)
	for i := range grants {
		if l.over {
			grants[i] = account.Grant{Err: account.ErrOver}
		}
	}
	return epoch, at, err
}

// Over implements [account.Registrations].
func (l *faulty) Over(ctx context.Context, nodes []ratelimit.Holder) ([]ratelimit.Holder, error) {
	if err := l.looks.Load(); err != nil {
		return nil, *err
	}
	return l.CAS.Over(ctx, nodes)
}

// Register implements [account.Registrations].
func (l *faulty) Register(ctx context.Context, node ratelimit.Holder) error {
	if err := l.fails.Load(); err != nil {
		return *err
	}
	return l.CAS.Register(ctx, node)
}

// A first request of a key waits for one interval of batches and a round trip, however many senders wait for theirs.
func TestFirstRequestsLeaveWithTheNextBatch(t *testing.T) {
	for _, p := range []struct {
		trip, wait time.Duration
		mode       string
	}{
		{500 * time.Microsecond, lane.Gather, "leasing"},
		{3 * time.Millisecond, lane.Gather, "leasing"},
		{500 * time.Microsecond, 250 * time.Microsecond, "approx"}, // after check_timeout it would drift
	} {
		synctest.Test(t, func(t *testing.T) {
			f := fields{"mode": p.mode, "check_timeout": "2ms", "drift_budget": "50%", "max_nodes": "1", "store_deadline": "1s"}
			c, ledger := newCluster(t, fixed(100, ratelimit.Year), f), newFaulty(newBubbleStore())
			ledger.takes = p.trip
			c.join(ledger)
			c.attempt(0, "what time it is there")
			var asks sync.WaitGroup
			for i := range 300 {
				asks.Go(func() {
					began := c.clock()
					c.attempt(0, fmt.Sprint(i))
					if took := c.clock().Sub(began); took > p.trip+p.wait {
						t.Errorf("a round trip takes %v, and request %d took %v", p.trip, i, took)
					}
				})
				time.Sleep(900 * time.Microsecond)
			}
			asks.Wait()
		})
	}
}

// A request waits for its rule's deadline, and no longer, whether the store is slow, hangs or fails.
func TestRequestsWaitForTheirDeadline(t *testing.T) {
	for _, policy := range []string{"open", "local", "closed"} {
		synctest.Test(t, func(t *testing.T) {
			c, ledger := newCluster(t, fixed(100, ratelimit.Year), fields{"on_store_failure": policy}), newFaulty(newBubbleStore())
			c.join(ledger)
			c.attempt(0, "what time it is there")
			for i, takes := range []time.Duration{30 * time.Millisecond, 300 * time.Millisecond, time.Hour} {
				ledger.takes = takes
				began := c.clock()
				v := c.decide(0, ask{Key: fmt.Append(nil, i), Cost: 1})
				if took := c.clock().Sub(began); took > ratelimit.StoreDeadline || v.Source != ratelimit.FromFallback {
					t.Errorf("%s: a store that takes %v is waited for for %v: %+v", policy, takes, took, v)
				}
				time.Sleep(time.Second)
			}
		})
	}
}

// First requests of keys, below the capacity of a store. More flights do not serve more: they wait in the store, which
// counts as a longer round trip, which permits still more flights.
func TestFlightsDoNotRunAway(t *testing.T) {
	const requests = 6000 // 2,000 a second
	for _, p := range []struct {
		what         string
		nodes, conns int
		takes        time.Duration
		deadline     string
	}{
		{"a near store that serves one batch after the other, in 8 ms", 1, 1, 8 * time.Millisecond, "80ms"},
		{"eight nodes, and a near store that serves one batch after the other, in 1 ms", 8, 1, time.Millisecond, "80ms"},
		{"a store at 80 ms, with the default pool of 10", 1, 10, 80 * time.Millisecond, "240ms"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, fixed(100, ratelimit.Year), fields{"store_deadline": p.deadline})
			store, conns := newBubbleStore(), make(chan bool, p.conns)
			for range p.nodes {
				ledger := newFaulty(store)
				ledger.conns, ledger.takes = conns, p.takes
				c.join(ledger)
			}
			var fallbacks atomic.Int64
			var asks sync.WaitGroup
			for i := range requests {
				asks.Go(func() {
					if v := c.decide(i%p.nodes, ask{Key: fmt.Append(nil, i), Cost: 1}); v.Source == ratelimit.FromFallback {
						fallbacks.Add(1)
					}
				})
				time.Sleep(time.Second / 2000)
			}
			asks.Wait()
			if n := fallbacks.Load(); n > requests/20 {
				t.Errorf("%s: %d of %d requests are not decided by the store, which is not full", p.what, n, requests)
			}
		})
	}
}

// A node ends although what it has to tell is never accepted.
func TestNodeEndsUntold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ledger := newCluster(t, fixed(10, ratelimit.Year), nil), newFaulty(newBubbleStore())
		ledger.over = true
		c.join(ledger)
		c.attempt(0, "k")
		before := ledger.asked.Load()
		c.end()
		if n := ledger.asked.Load() - before; n > 20 {
			t.Errorf("it asked %d times before it ended", n)
		}
	})
}

// A part whose slots move while it is probed is used again as soon as it answers.
func TestProbeOfMovedSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ledger := newCluster(t, fixed(10, ratelimit.Year), nil), newFaulty(newBubbleStore())
		f := c.join(ledger)
		dead, moved := errors.New("dead"), account.ErrMoved
		ledger.fails.Store(&dead)
		for !f.Stats().BreakerOpen {
			f.Beat()
			time.Sleep(time.Millisecond)
		}
		ledger.fails.Store(&moved)
		time.Sleep(time.Second)
		f.Beat() // the probe
		time.Sleep(time.Millisecond)
		ledger.fails.Store(nil)
		f.Beat()
		time.Sleep(time.Millisecond)
		if f.Stats().BreakerOpen {
			t.Error("the part counts as dead, and answers")
		}
	})
}

// What a crashed node had in hand is free in time for one that needs it, also if a look at the store fails.
func TestFleetReclaimsAfterAnErrorOfALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, fixed(1000, ratelimit.Year), fields{"reclaim": "eager", "lease.size": "50"})
		c.rule.Coordination.OnDeny, c.rule.Coordination.OnStoreFailure = ratelimit.DenyRefunds, ratelimit.FailClosed
		store, admitted, dead := newBubbleStore(), 0, errors.New("a slow moment")
		crashes, needs := newFaulty(store), newFaulty(store)
		c.join(crashes)
		c.join(needs)
		time.Sleep(2 * time.Second)
		take := func(node, n int) {
			for range n {
				if c.attempt(node, "k") {
					admitted++
				}
			}
		}
		take(0, 10)
		crashes.fails.Store(&dead)
		for crashed := time.Now(); time.Since(crashed) < ratelimit.ReclaimedWithin; time.Sleep(20 * time.Millisecond) {
			take(1, 50)
		}
		most := 1000 + int(declare.Of(c.rule, 2, declare.SharedStore).Over.EachSilent)
		if admitted < 1000 || admitted > most {
			t.Errorf("%d of 1000 were admitted in time, at most %d may be", admitted, most)
		}
	})
}

// So is what it had in hand of many keys, of a store that is slow to answer.
func TestLeasesOfManyKeysAreReclaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 500
		f := fields{"reclaim": "eager", "lease.size": "10", "store_deadline": "1s"}
		maps.Copy(f, strict)
		c := newCluster(t, fixed(100, ratelimit.Year), f)
		store, admitted, dead := newBubbleStore(), [keys]int{}, errors.New("a slow moment")
		crashes, needs := newFaulty(store), newFaulty(store)
		needs.takes = 15 * time.Millisecond
		c.join(crashes)
		c.join(needs)
		time.Sleep(2 * time.Second)
		take := func(node, n int) {
			var all sync.WaitGroup
			for key := range admitted {
				all.Go(func() {
					for range n {
						if c.attempt(node, fmt.Sprint("k", key)) {
							admitted[key]++
						}
					}
				})
			}
			all.Wait()
		}
		take(0, 3)
		crashes.fails.Store(&dead)
		take(1, 85)
		for crashed := time.Now(); time.Since(crashed) < ratelimit.ReclaimedWithin; time.Sleep(500 * time.Millisecond) {
			take(1, 2)
		}
		most := 100 + int(declare.Of(c.rule, 2, declare.SharedStore).Over.EachSilent)
		if slices.Min(admitted[:]) < 100 || slices.Max(admitted[:]) > most {
			t.Errorf("%d to %d of 100 were admitted in time, at most %d may be",
				slices.Min(admitted[:]), slices.Max(admitted[:]), most)
		}
	})
}

// A node that ends gives back the leases of many keys within a few round trips.
func TestManyLeasesAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ledger := newCluster(t, fixed(1<<31, ratelimit.Year), fields{"store_deadline": "1s"}), newFaulty(newBubbleStore())
		ledger.takes = 80 * time.Millisecond // as of another region
		f := c.join(ledger)
		time.Sleep(time.Second)
		asks, verdicts := make([]ask, 2000), make([]verdict, 2000)
		for i := range asks {
			asks[i] = ask{Rule: c.rule, Key: fmt.Append(nil, i), Cost: 1}
		}
		f.Decide(t.Context(), c.clock(), asks, verdicts)
		began := time.Now()
		c.end()
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		w := c.rule.Limit.WindowAt(ratelimit.LedgerTime(time.Now().UnixMicro()))
		for i := range asks {
			is, err := ledger.Look(t.Context(), ratelimit.KeyName(asks[i].Key), w, &c.rule.Limit)
			if err != nil || is == nil || is.Charged != 1 {
				t.Fatalf("key %d: %+v, %v, %+v", i, is, err, verdicts[i])
			}
		}
	})
}

// Two masters of a Cluster lose their data, and one of them does not come back. That does not hold up keys of the other
// for good: almost all requests are for new keys, of which half are there.
func TestDeadPartInAYoungEpoch(t *testing.T) {
	r, err := sim.Run(sim.Options{
		Seed: 1, Nodes: 2, Rule: ruleOf(t, fixed(10, ratelimit.Hour), strict), Parts: 2, Check: true, Points: 40,
		Net:  sim.Net{Trip: sim.Delay{Least: time.Millisecond}},
		Load: load.Load{Rate: 100, Keys: 100_000, Length: 40 * time.Second},
		Faults: []sim.Fault{
			{At: 5 * time.Second, Kind: sim.Amnesia, Node: 0},
			{At: 5 * time.Second, Kind: sim.Amnesia, Node: 1},
			{At: 5600 * time.Millisecond, Kind: sim.Down, Node: 1, For: time.Hour},
		},
	})
	if err != nil || r.Violation != nil {
		t.Fatal(err, r.Violation)
	}
	for _, p := range r.Timeline {
		young := p.At < 6*time.Second+ratelimit.YoungMost+ratelimit.YoungFor+beatEvery
		if share := float64(p.Admitted) / float64(p.Offered); !young && (share < 0.3 || share > 0.7) {
			t.Errorf("in the second until %v, %d of %d are admitted", p.At, p.Admitted, p.Offered)
		}
	}
}
