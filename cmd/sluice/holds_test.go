package main

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// If no request costs more than its hold, the limit holds, in any mode, with a Redis and without. Requests settle at
// other nodes, windows end in between, settlements arrive twice or never, and, with a Redis, a node is killed.
func TestHoldsAreNeverOver(t *testing.T) {
	t.Parallel()
	const limit, drift, seconds = 20_000, 600, 2
	rules := fmt.Sprintf(`domain: d
coordination: {mode: routing, on_store_failure: closed, store_deadline: 1s}
descriptors:
  - {key: max, %[1]s}
  - {key: max, value: leasing, coordination: {mode: leasing}, %[1]s}
  - {key: max, value: approx, coordination: {mode: approx, drift_budget: %[2]d}, %[1]s}
`, fmt.Sprintf("hold: {from: request}, rate_limit: {unit: second, unit_multiplier: %d, requests_per_unit: %d}", seconds, limit), drift)
	// heldIn is the window that a hold was charged in.
	heldIn := func(hold string) int64 {
		raw, err := base64.RawURLEncoding.DecodeString(hold)
		if err != nil || len(raw) < 5 || len(hold) > 96 {
			t.Errorf("hold %q: %v", hold, err)
			return 0
		}
		return int64(binary.BigEndian.Uint32(raw[1:])) / seconds
	}
	withAndWithout(t, func(t *testing.T, store storeServer) {
		t.Parallel()
		f := newFleet(t, 3, setup{rules: rules, store: store, ring: 3})
		values := []string{"routing"}
		if store != nil {
			values = append(values, "leasing", "approx")
		}
		var mu sync.Mutex
		kept := map[string]map[int64]int{} // what was used, by value and window; of a hold that was never settled, what it held
		var nodes atomic.Int64             // that are asked
		nodes.Store(3)
		var all sync.WaitGroup
		for _, value := range values {
			kept[value] = map[int64]int{}
			for client := range 16 {
				all.Go(func() {
					random := rand.New(rand.NewPCG(uint64(client), 5))
					node := func() *sluice { return f.nodes[random.IntN(int(nodes.Load()))] }
					for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
						held := 100 + random.IntN(400)
						cost := min(held, 10+int(10/(0.02+random.Float64())))
						hold, ok := node().holds("max", value, held)
						if !ok {
							time.Sleep(5 * time.Millisecond)
							continue
						}
						time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond) // the completion
						at, fate := node(), random.IntN(10)
						if fate > 0 {
							_ = at.settles("max", value, hold, cost)
						} else { // it is never told
							cost = held
						}
						if fate == 1 {
							_ = at.settles("max", value, hold, 0)
						}
						mu.Lock()
						kept[value][heldIn(hold)] += cost
						mu.Unlock()
					}
				})
			}
		}
		if store != nil {
			f.nodes[0].eventually("a second window has begun", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(kept["routing"]) > 1
			})
			nodes.Store(2)
			f.nodes[2].Signal(syscall.SIGKILL)
		}
		all.Wait()
		for value, windows := range kept {
			most := map[string]int{"routing": limit, "leasing": limit, "approx": limit + drift}[value]
			for window, used := range windows {
				t.Logf("%s, window %d: %d of %d are used", value, window, used, limit)
				if used > most {
					t.Errorf("%s: in window %d %d are over", value, window, used-most)
				}
			}
			if len(windows) < 3 {
				t.Errorf("%s: %d windows", value, len(windows))
			}
		}
	})
}

// withAndWithout runs a test in memory, and with a Redis behind.
func withAndWithout(t *testing.T, test func(*testing.T, storeServer)) {
	t.Run("memory", func(t *testing.T) { test(t, nil) })
	t.Run("redis", func(t *testing.T) { test(t, aRedis(t)) })
}

// A thousand requests with their settlements ask Redis a few times, where the limit is a million.
func TestHoldsAskSeldom(t *testing.T) {
	const rules = `domain: d
descriptors: [{key: llm, hold: {amount: 900}, rate_limit: {unit: day, requests_per_unit: 1000000}}]
`
	f := newFleet(t, 3, setup{rules: patient(rules), store: aRedis(t)})
	requests := func(random *rand.Rand, n int) {
		for i := range n {
			hold, ok := f.nodes[i%3].holds("llm", "x", 0)
			if !ok {
				t.Error("refused")
				continue
			}
			time.Sleep(10 * time.Millisecond)
			_ = f.nodes[random.IntN(3)].settles("llm", "x", hold, int(50/(0.05+random.Float64())))
		}
	}
	commands := func() (n int) {
		for _, c := range []string{"evalsha", "eval", "exec"} { // draws of a trip are a transaction
			n += f.redis.Commands(c)
		}
		return n
	}
	requests(rand.New(rand.NewPCG(1, 2)), 3) // each node has had a request for the key
	before := commands()
	var all sync.WaitGroup
	for client := range 16 {
		all.Go(func() { requests(rand.New(rand.NewPCG(uint64(client), 2)), 63) })
	}
	all.Wait()
	n := commands() - before
	t.Logf("1,000 requests and their settlements: %d commands of Redis", n)
	if n > 50 {
		t.Errorf("%d commands of Redis, must be at most 50", n)
	}
}

const mostSlots, slotSeconds = 32, 4

var slotRules = fmt.Sprintf(`domain: d
coordination: {mode: routing, on_store_failure: closed, store_deadline: 1s}
descriptors: [{key: slots, rate_limit: {concurrency: %d, hold_ttl: %ds}}]
`, mostSlots, slotSeconds)

// crowd are clients of one key, of which each asks any node until it is admitted, is served, and ends at any node.
type crowd struct {
	*fleet
	value  string
	nodes  atomic.Int64 // that are asked: the first ones
	in     atomic.Int64
	most   atomic.Int64
	served atomic.Int64
}

func newCrowd(f *fleet, value string) *crowd {
	c := &crowd{fleet: f, value: value}
	c.nodes.Store(int64(len(f.nodes)))
	return c
}

// run judges what clients saw: at most the limit at once, for each owner that the key has had.
func (c *crowd) run(clients int, length time.Duration, owners int64) {
	c.Helper()
	usesTheLimit := func() bool { return c.most.Load() >= mostSlots/2 && c.served.Load() >= 100 }
	var all sync.WaitGroup
	began := time.Now()
	for i := range clients {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			node := func() *sluice { return c.fleet.nodes[random.IntN(int(c.nodes.Load()))] }
			for time.Since(began) < length || !usesTheLimit() && time.Since(began) < 10*length { // a busy machine takes longer
				hold, ok := node().holds("slots", c.value, 1)
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
				fate := random.IntN(40)
				if fate > 0 { // otherwise its Envoy has died
					_ = node().settles("slots", c.value, hold, 1)
				}
				if fate == 1 {
					_ = node().settles("slots", c.value, hold, 1)
				}
			}
		})
	}
	all.Wait()
	c.Logf("at most %d of %d at once, %d were served", c.most.Load(), mostSlots, c.served.Load())
	if c.most.Load() > mostSlots*owners {
		c.Errorf("%d at once, must be at most %d", c.most.Load(), mostSlots*owners)
	}
	if !usesTheLimit() {
		c.Errorf("at most %d at once, and %d in all: the limit is not used", c.most.Load(), c.served.Load())
	}
}

// whole holds every slot of the key, and no more, within the time that a lost one takes to come back.
func (c *crowd) whole() {
	c.Helper()
	first := c.fleet.nodes[0]
	var held []string
	giveBack := func() {
		for _, hold := range held {
			if err := first.settles("slots", c.value, hold, 1); err != nil {
				c.Error(err)
			}
		}
		held = nil
	}
	// While it waits for slots that were lost, its own must not end.
	for slow := true; slow; {
		giveBack()
		began := time.Now()
		first.eventually("all slots are free again", func() bool {
			if hold, ok := first.holds("slots", c.value, 1); ok {
				held = append(held, hold)
			}
			return len(held) == mostSlots
		})
		slow = time.Since(began) > slotSeconds*time.Second/2
	}
	for i := range int(c.nodes.Load()) {
		if _, ok := c.fleet.nodes[i].holds("slots", c.value, 1); ok {
			c.Errorf("node %d admits one more than %d", i, mostSlots)
		}
	}
	giveBack()
}

// At most the limit is in flight on three nodes, on each store, while requests end at other nodes, twice or
// never, and a node is killed. Lost slots return within hold_ttl.
func TestAtMostSoManyAtOnce(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, server storeServer) {
		f := newFleet(t, 3, setup{rules: slotRules, store: server})
		c := newCrowd(f, "x")
		killed := time.AfterFunc(1500*time.Millisecond, func() {
			c.nodes.Store(2)
			f.nodes[2].Signal(syscall.SIGKILL)
		})
		defer killed.Stop()
		c.run(64, 3*time.Second, 1)
		c.whole()
	})
}

// In mode routing without a store, at most the limit is in flight for each owner that a key has had: one node joins, and
// another leaves. When all requests have ended, it is the limit again.
func TestSlotsWhileOwnersChange(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, setup{rules: slotRules, ring: 4})
	var all sync.WaitGroup
	var crowds []*crowd
	for i := range 3 {
		c := newCrowd(f, fmt.Sprint(i))
		c.nodes.Store(2) // the third leaves
		crowds = append(crowds, c)
		all.Go(func() { c.run(50, 4*time.Second, 3) })
	}
	f.nodes[0].eventually("requests are served", func() bool { return crowds[0].served.Load() > 20 })
	f.join().untilHealthy()
	f.nodes[2].Signal(syscall.SIGTERM)
	all.Wait()
	for _, c := range crowds {
		all.Go(c.whole)
	}
	all.Wait()
}
