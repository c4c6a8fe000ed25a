package leasing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // servers die in these tests
	// The client library dials a dead server once a second, and looks whether its pool was closed after that.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// cluster is some nodes on one ledger in memory, in real time.
type cluster struct {
	testing.TB
	nodes  []*Fleet
	ledger *account.Memory
	rule   *ratelimit.Rule
	clock  ratelimit.Clock
	end    func()
}

func newCluster(t testing.TB, n int, limit ratelimit.Limit) *cluster {
	clock := ratelimit.MonotonicClock()
	began := time.Now()
	at := clock()
	c := &cluster{TB: t, clock: clock}
	c.ledger = account.NewMemory(func() ratelimit.LedgerTime {
		return ratelimit.LedgerTime(began.Add(clock().Sub(at)).UnixMicro())
	})
	c.rule = &ratelimit.Rule{Domain: "d", Path: "p", Limit: limit, Coordination: ratelimit.DefaultCoordination()}
	c.rule.Coordination.OnStoreFailure = ratelimit.FailClosed
	c.rule.Coordination.StoreDeadline = time.Second // of a busy machine nothing is to be said here
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range n {
		f := NewFleet(c.ledger, account.NewHolder(), 1000, clock, began)
		f.Nodes = func() int { return n }
		f.Peers = f.Nodes
		c.nodes = append(c.nodes, f)
		all.Go(func() { f.Run(ctx) })
	}
	c.ledger.OnRecall = func(h ratelimit.Holder, key string, w ratelimit.Window) {
		for _, f := range c.nodes {
			go f.Recalled(key, w)
		}
	}
	c.end = func() { cancel(); all.Wait() }
	t.Cleanup(c.end)
	return c
}

func (c *cluster) ask(node int, key string, kind ratelimit.Kind, cost tokens) ratelimit.Verdict {
	var v [1]ratelimit.Verdict
	a := []ratelimit.Ask{{Rule: c.rule, Key: []byte(key), Cost: cost, Kind: kind}}
	c.nodes[node].Decide(context.Background(), c.clock(), a, v[:])
	if v[0].Source == ratelimit.FromFallback {
		c.Errorf("node %d: the ledger did not decide: %v", node, v[0].Reason)
	}
	return v[0]
}

var hour = ratelimit.Limit{Unit: ratelimit.Year, Requests: 100}

// Charges after the fact are booked whole, wherever they arrive: from then on all nodes refuse, peeks included.
func TestChargesAreBookedWhole(t *testing.T) {
	for _, deny := range []ratelimit.OnDeny{ratelimit.DenyCharges, ratelimit.DenyRefunds} {
		c := newCluster(t, 3, ratelimit.Limit{Unit: ratelimit.Year, Requests: 10_000})
		c.rule.Coordination.OnDeny = deny
		for i := range 3 {
			if v := c.ask(i, "k", ratelimit.Peek, 0); v.OverLimit {
				t.Fatalf("node %d refuses a peek at nothing: %+v", i, v)
			}
		}
		v, denied := c.ask(0, "k", ratelimit.Spend, 5000), deny == ratelimit.DenyCharges
		if w := v.Window; denied {
			v = c.ask(1, "k", ratelimit.Spend, 10_000)
		} else {
			v = c.settle(1, "k", w, 10_000)
		}
		if v.OverLimit != denied || v.Charged+v.Debt != 10_000 {
			t.Fatalf("%v: the charge is answered %+v", deny, v)
		}
		for i := range 3 {
			if !c.ask(i, "k", ratelimit.Peek, 0).OverLimit || !c.ask(i, "k", ratelimit.Spend, 1).OverLimit {
				t.Errorf("%v: node %d admits, and 15,000 of 10,000 are used", deny, i)
			}
		}
	}
}

// What envoyproxy/ratelimit counts: a counter that charges add to, and refunds of them take from, at any node. A node
// that has refused learns a moment later of a refund elsewhere, and tells of what it refused beyond the limit.
func TestRefundsCreditAnywhere(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) { creditsAnywhere(t, seed) })
	}
}

func creditsAnywhere(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	c := newCluster(t, 3, hour)
	count, refunded := tokens(0), time.Time{}
	var did []string
	for range 20 {
		node, n := r.IntN(3), tokens(1+r.IntN(40))
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			v := c.ask(node, "k", ratelimit.Peek, 0)
			if v.OverLimit == (count > 100) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("seed %d: of 100, %d are used, and a peek at node %d is over: %v\n%v", seed, count, node, v.OverLimit, did)
			}
		}
		if r.IntN(2) == 0 {
			if n = min(n, count); n > 0 {
				c.ask(node, "k", ratelimit.Refund, n)
				count -= n
				refunded = time.Now()
				did = append(did, fmt.Sprintf("%d: refund %d", node, n))
			}
			continue
		}
		v := c.ask(node, "k", ratelimit.Spend, n)
		did = append(did, fmt.Sprintf("%d: charge %d", node, n))
		c.told()
		// A refusal that is too much is one of a node that has not learned yet of a refund elsewhere.
		if count += n; !v.OverLimit && count > 100 || v.OverLimit && count <= 100 && time.Since(refunded) > 2*time.Second {
			t.Fatalf("seed %d: of 100, %d are used, and the charge is over: %v\n%v", seed, count, v.OverLimit, did)
		}
	}
	c.end()
	if g := c.total("k"); g != count {
		t.Fatalf("seed %d: %d are used, and the ledger has %d", seed, count, g)
	}
}

// Of a new key, the ledger decides a request of any cost, and on_store_failure does not.
func TestHugeRequestsAreDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, hour)
		for i, cost := range []tokens{100, 101, ratelimit.MaxLimit + 1, ratelimit.MaxBooked, ratelimit.MaxTokens} {
			if v := c.ask(0, fmt.Sprint(i), ratelimit.Spend, cost); v.OverLimit != (cost > 100) {
				t.Errorf("%d of 100: %+v", cost, v)
			}
		}
	})
}

// A refund above the usage also credits what nodes have in hand: the limit is exceeded by no more than that.
func TestRefundAboveTheUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, hour)
		c.rule.Coordination.OnDeny = ratelimit.DenyRefunds
		c.ask(0, "k", ratelimit.Spend, 1)
		inHand := c.total("k") - 1
		c.ask(1, "k", ratelimit.Refund, 50)
		admitted := tokens(0)
		for i := range 300 {
			if v := c.ask(i%2, "k", ratelimit.Spend, 1); !v.OverLimit {
				admitted++
			}
			time.Sleep(10 * time.Millisecond)
		}
		if over := admitted - 100; inHand < 1 || over < 1 || over > inHand {
			t.Errorf("with %d in hand, the limit is exceeded by %d", inHand, over)
		}
	})
}

// A refund of more than was used resets the usage, and nothing else: the limit holds.
func TestHugeRefundsKeepTheLimit(t *testing.T) {
	for _, refunds := range [][]tokens{
		{ratelimit.MaxTokens}, {ratelimit.MaxTokens, ratelimit.MaxTokens}, {account.MostBooked + 50}, {1 << 42, 1 << 43},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 2, hour)
			c.rule.Coordination.OnDeny = ratelimit.DenyRefunds
			c.ask(0, "k", ratelimit.Spend, 10)
			var all sync.WaitGroup
			for _, n := range refunds {
				all.Go(func() { c.ask(0, "k", ratelimit.Refund, n) })
			}
			all.Wait()
			admitted := 0
			for i := range 200 {
				if v := c.ask(i%2, "k", ratelimit.Spend, 1); !v.OverLimit {
					admitted++
				}
				time.Sleep(10 * time.Millisecond)
			}
			if c.end(); admitted != 100 {
				t.Errorf("after refunds of %d, %d of 100 are admitted", refunds, admitted)
			}
		})
	}
}

// told waits until the ledger has all charges of nodes, without requests.
func (c *cluster) told() {
	c.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		unreported := false
		for _, f := range c.nodes {
			unreported = unreported || f.any(func(k *entry) bool { return k.Unreported() })
		}
		if !unreported {
			return
		}
		if time.Now().After(end) {
			c.Fatal("a key has something to tell, and does not")
		}
	}
}

// total is what the ledger has of a key when all nodes have given back what they had in hand.
func (c *cluster) total(key string) tokens {
	w := c.rule.Limit.WindowAt(ratelimit.LedgerTime(time.Now().UnixMicro()))
	grants := make([]account.Grant, 1)
	_, _, err := c.ledger.Settle(context.Background(), []account.Claim{{
		Key: ratelimit.KeyName([]byte(key)), Window: w, Limit: c.rule.Limit, Holder: 1, Seq: 1,
	}}, grants)
	if err != nil || grants[0].Err != nil {
		c.Fatal(err, grants[0].Err)
	}
	return grants[0].Sum
}
