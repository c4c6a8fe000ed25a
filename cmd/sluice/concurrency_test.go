package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const mostSlots, slotSeconds = 32, 6

var slotRules = fmt.Sprintf(`domain: d
coordination: {mode: routing, on_store_failure: closed, store_deadline: 1s}
descriptors:
  - {key: slots, rate_limit: {concurrency: %d, hold_ttl: %ds}}
  - {key: slots, value: local, coordination: {on_store_failure: local, store_deadline: 100ms}, rate_limit: {concurrency: 9, hold_ttl: 1m}}
  - {key: tokens, rate_limit: {unit: day, requests_per_unit: 1000}}
`, mostSlots, slotSeconds)

// crowd are clients of one key, of which each asks any node until it is admitted, is served, and ends at any node.
type crowd struct {
	*fleet
	value   string
	nodes   atomic.Int64 // that are asked: the first ones
	in      atomic.Int64
	most    atomic.Int64
	served  atomic.Int64
	clients []atomic.Int64 // how often each was served
	owners  int64          // that the key may have had
}

func (c *crowd) run(length time.Duration) {
	var all sync.WaitGroup
	began := time.Now()
	for i := range c.clients {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			node := func() int { return random.IntN(int(c.nodes.Load())) }
			for time.Since(began) < length || !c.usesTheLimit() && time.Since(began) < 10*length { // a busy machine takes longer
				hold, ok := c.holds(node(), "slots", c.value, 1)
				if !ok {
					time.Sleep(time.Duration(random.IntN(4000)) * time.Microsecond)
					continue
				}
				n := c.in.Add(1)
				for was := c.most.Load(); n > was && !c.most.CompareAndSwap(was, n); was = c.most.Load() {
				}
				time.Sleep(time.Duration(random.IntN(120)) * time.Millisecond)
				c.in.Add(-1)
				c.served.Add(1)
				c.clients[i].Add(1)
				switch random.IntN(40) {
				case 0: // its Envoy has died
				case 1:
					_ = c.settles(node(), "slots", c.value, hold, 1)
					_ = c.settles(node(), "slots", c.value, hold, 1)
				default:
					_ = c.settles(node(), "slots", c.value, hold, 1)
				}
			}
		})
	}
	all.Wait()
}

// whole holds every slot of the key, and no more, within the time that a lost one takes to come back.
func (c *crowd) whole() {
	c.Helper()
	var held []string
	giveBack := func() {
		for _, hold := range held {
			if err := c.settles(0, "slots", c.value, hold, 1); err != nil {
				c.Error(err)
			}
		}
		held = nil
	}
	// While it waits for slots that were lost, its own must not end.
	for slow := true; slow; {
		giveBack()
		began := time.Now()
		c.fleet.nodes[0].eventually("all slots are free again", func() bool {
			if hold, ok := c.holds(0, "slots", c.value, 1); ok {
				held = append(held, hold)
			}
			return len(held) == mostSlots
		})
		slow = time.Since(began) > slotSeconds*time.Second/2
	}
	for i := range int(c.nodes.Load()) {
		if _, ok := c.holds(i, "slots", c.value, 1); ok {
			c.Errorf("node %d admits one more than %d", i, mostSlots)
		}
	}
	giveBack()
}

func (c *crowd) usesTheLimit() bool { return c.most.Load() >= mostSlots/2 && c.served.Load() >= 100 }

func (c *crowd) report() {
	c.Helper()
	least, most := int64(1<<60), int64(0)
	for i := range c.clients {
		n := c.clients[i].Load()
		least, most = min(least, n), max(most, n)
	}
	c.Logf("at most %d of %d at once, %d were served; a client %d to %d times", c.most.Load(), mostSlots, c.served.Load(),
		least, most)
	if c.most.Load() > mostSlots*c.owners {
		c.Errorf("%d at once, must be at most %d", c.most.Load(), mostSlots*c.owners)
	}
	if !c.usesTheLimit() {
		c.Errorf("at most %d at once, and %d in all: the limit is not used", c.most.Load(), c.served.Load())
	}
}

func newCrowd(f *fleet, value string, clients int) *crowd {
	c := &crowd{fleet: f, value: value, clients: make([]atomic.Int64, clients), owners: 1}
	c.nodes.Store(int64(len(f.nodes)))
	return c
}

// At most the limit is in flight on three nodes, on each store, while requests end at other nodes, twice or
// never, and a node is killed. Lost slots return within hold_ttl.
func TestAtMostSoManyAtOnce(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, server storeServer) {
		f := newFleet(t, 3, setup{rules: slotRules, store: server})
		c := newCrowd(f, "x", 64)
		killed := time.AfterFunc(1500*time.Millisecond, func() {
			c.nodes.Store(2)
			f.nodes[2].Signal(syscall.SIGKILL)
		})
		defer killed.Stop()
		c.run(3 * time.Second)
		c.report()
		c.whole()
	})
}

// While a ring gets a store node by node, owners with it decide on slots that nodes without it ask for. They have no use
// for accounts, and the log says why.
func TestARingGetsAStore(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, setup{rules: slotRules, ring: 3})
	f.store = aRedis(t)
	owner := f.join()
	f.untilWhole()
	for i := range 50 {
		if _, ok := f.holds(0, "slots", fmt.Sprint(i), 1); !ok {
			t.Errorf("key %d is refused", i)
		}
		f.askFor(1, "tokens", fmt.Sprint(i))
	}
	f.nodes[1].Signal(syscall.SIGTERM)
	owner.eventually("the log has the reason", func() bool {
		return strings.Contains(owner.log(), "the same STORE_URL or REDIS_URL")
	})
}

// In mode routing without a store, at most the limit is in flight for each owner that a key has had: one node joins, and
// another leaves. When all requests have ended, it is the limit again.
func TestSlotsWhileOwnersChange(t *testing.T) {
	t.Parallel()
	r := newFleet(t, 3, setup{rules: slotRules, ring: 4})
	var all sync.WaitGroup
	var crowds []*crowd
	for i := range 4 {
		c := newCrowd(r, fmt.Sprint(i), 50)
		c.owners = 3
		c.nodes.Store(2) // the third leaves
		crowds = append(crowds, c)
		all.Go(func() { c.run(4 * time.Second) })
	}
	r.nodes[0].eventually("requests are served", func() bool { return crowds[0].served.Load() > 20 })
	r.join().untilHealthy()
	r.nodes[2].Signal(syscall.SIGTERM)
	all.Wait()
	for _, c := range crowds {
		c.report()
		c.whole()
	}
}

// While the store does not answer, each node has its part; it goes on as before when the store answers again, and slots
// that were given back meanwhile are free.
func TestSlotsInAnOutage(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, setup{rules: slotRules, store: aRedis(t)})
	var held []string
	for i := range 9 {
		hold, ok := f.holds(i%3, "slots", "local", 1)
		if !ok {
			t.Fatalf("request %d is refused", i)
		}
		held = append(held, hold)
	}
	f.nodes[0].eventually("node 0 has seen all", func() bool { return f.nodes[0].seen() == 3 })
	f.redis.Signal(syscall.SIGSTOP)
	admitted := 0
	for range 40 {
		if _, ok := f.holds(0, "slots", "local", 1); ok {
			admitted++
		}
	}
	if admitted != 3 {
		t.Errorf("node 0 of 3 admits %d of 9 in an outage, must be 3", admitted)
	}
	for _, hold := range held {
		if err := f.settles(1, "slots", "local", hold, 1); err != nil {
			t.Error(err)
		}
	}
	f.redis.Signal(syscall.SIGCONT)
	again := 0
	f.nodes[1].eventually("what was given back in the outage is free", func() bool {
		if _, ok := f.holds(1, "slots", "local", 1); ok {
			again++
		}
		return again == 9
	})
	f.redis.Do("REPLICAOF", "127.0.0.1", "1") // as after a failover that nodes did not see
	f.nodes[2].eventually("the log says why on_store_failure decides", func() bool {
		_, _ = f.holds(2, "slots", "x", 1)
		return strings.Contains(f.nodes[2].log(), "the server is a replica")
	})
}
