package main

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const holdLimit, holdSeconds, holdDrift = 20_000, 2, 600

var heldRules = fmt.Sprintf(`domain: d
coordination: {mode: routing, on_store_failure: closed, store_deadline: 1s}
descriptors:
  - {key: max, hold: {from: request}, rate_limit: {unit: second, unit_multiplier: %[2]d, requests_per_unit: %[1]d}}
  - {key: max, value: leasing, hold: {from: request}, coordination: {mode: leasing}, rate_limit: {unit: second, unit_multiplier: %[2]d, requests_per_unit: %[1]d}}
  - {key: max, value: approx, hold: {from: request}, coordination: {mode: approx, drift_budget: %[3]d}, rate_limit: {unit: second, unit_multiplier: %[2]d, requests_per_unit: %[1]d}}
  - {key: llm, hold: {amount: 900}, coordination: {mode: leasing}, rate_limit: {unit: day, requests_per_unit: 1000000}}
`, holdLimit, holdSeconds, holdDrift)

// holds has a request hold at a node; hits is the estimate, where the rule goes by it. ok is false if it was refused, or
// the node did not answer.
func (f *fleet) holds(node int, key, value string, hits int) (hold string, ok bool) {
	a, err := f.send(node, descriptor(hits, key, value))
	if err != nil || a.OverallCode == rls.RateLimitResponse_OVER_LIMIT {
		return "", false
	}
	return a.GetDynamicMetadata().GetFields()["sluice_hold"].GetStringValue(), true
}

// settles tells a node what a request has cost.
func (f *fleet) settles(node int, key, value, hold string, cost int) error {
	_, err := f.send(node, descriptor(cost, key, value, "sluice_hold", hold))
	return err
}

// heldIn is the window that a hold was charged in.
func heldIn(t testing.TB, hold string) int64 {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(hold)
	if err != nil || len(raw) < 5 || len(hold) > 96 {
		t.Errorf("hold %q: %v", hold, err)
		return 0
	}
	return int64(binary.BigEndian.Uint32(raw[1:])) / holdSeconds
}

// books are what clients used in each window.
type books struct {
	mu   sync.Mutex
	used map[int64]int // guarded by mu; of holds that were never settled, what they held
}

func (b *books) add(window int64, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used[window] += n
}

func (b *books) windows() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.used)
}

// If no request costs more than its hold, the limit holds, in any mode, with a Redis and without. Requests settle at
// other nodes, windows end in between, settlements arrive twice or never, and, with a Redis, a node is killed.
func TestHoldsAreNeverOver(t *testing.T) {
	t.Parallel()
	withAndWithout(t, func(t *testing.T, store storeServer) {
		r := newFleet(t, 3, setup{rules: heldRules, store: store, ring: 3})
		values := []string{"routing"}
		if store != nil {
			values = append(values, "leasing", "approx")
		}
		var all sync.WaitGroup
		kept := make([]books, len(values))
		var killed atomic.Bool
		for i, value := range values {
			kept[i].used = map[int64]int{}
			for client := range 16 {
				all.Go(func() { r.uses(value, client, 6*time.Second, &kept[i], &killed) })
			}
		}
		if store != nil {
			r.nodes[0].eventually("a second window has begun", func() bool { return kept[0].windows() > 1 })
			killed.Store(true)
			r.nodes[2].Signal(syscall.SIGKILL)
		}
		all.Wait()
		for i, value := range values {
			most := holdLimit
			if value == "approx" {
				most += holdDrift
			}
			over := 0
			for window, used := range kept[i].used {
				over += max(0, used-most)
				t.Logf("%s, window %d: %d of %d are used", value, window, used, holdLimit)
			}
			if over > 0 {
				t.Errorf("%s: %d are over", value, over)
			}
			if len(kept[i].used) < 3 {
				t.Errorf("%s: %d windows", value, len(kept[i].used))
			}
		}
	})
}

// uses is a client that asks any node, and settles at any other, for a while.
func (f *fleet) uses(value string, client int, length time.Duration, kept *books, killed *atomic.Bool) {
	random := rand.New(rand.NewPCG(uint64(client), 5))
	node := func() int {
		if killed.Load() {
			return random.IntN(2)
		}
		return random.IntN(3)
	}
	for end := time.Now().Add(length); time.Now().Before(end); {
		held := 100 + random.IntN(400)
		cost := min(held, 10+int(10/(0.02+random.Float64())))
		hold, ok := f.holds(node(), "max", value, held)
		if !ok {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		window := heldIn(f, hold)
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond) // the completion
		switch at := node(); random.IntN(10) {
		case 0: // it is never told
			kept.add(window, held)
		case 1:
			_ = f.settles(at, "max", value, hold, cost)
			_ = f.settles(at, "max", value, hold, 0)
			kept.add(window, cost)
		default:
			_ = f.settles(at, "max", value, hold, cost)
			kept.add(window, cost)
		}
	}
}

// A thousand requests with their settlements ask Redis a few times, where the limit is a million.
func TestHoldsAskSeldom(t *testing.T) {
	r := newFleet(t, 3, setup{rules: heldRules, store: aRedis(t), ring: 3})
	for i := range 3 { // each node has had a request for the key
		if hold, ok := r.holds(i, "llm", "x", 0); !ok || r.settles(i, "llm", "x", hold, 500) != nil {
			t.Fatal("refused")
		}
	}
	commands := func() (n int) {
		for _, c := range []string{"evalsha", "eval", "exec"} { // draws of a trip are a transaction
			n += r.redis.Commands(c)
		}
		return n
	}
	before := commands()
	random := rand.New(rand.NewPCG(1, 2))
	var all sync.WaitGroup
	work := make(chan [3]int)
	for range 16 {
		all.Go(func() {
			for w := range work {
				hold, ok := r.holds(w[0], "llm", "x", 0)
				if !ok {
					t.Error("refused")
					continue
				}
				time.Sleep(10 * time.Millisecond)
				_ = r.settles(w[1], "llm", "x", hold, w[2])
			}
		})
	}
	for range 1000 {
		work <- [3]int{random.IntN(3), random.IntN(3), int(50 / (0.05 + random.Float64()))}
	}
	close(work)
	all.Wait()
	n := commands() - before
	t.Logf("1,000 requests and their settlements: %d commands of Redis", n)
	if n > 50 {
		t.Errorf("%d commands of Redis, must be at most 50", n)
	}
}

// Keys are exchanged while requests are in flight: a new key is named second at all nodes, then first, and then the old
// one is taken away. What was held before a step is settled after it, at another node.
func TestHoldKeysAreRotated(t *testing.T) {
	file := t.TempDir() + "/keys"
	const a, b = "first-key-of-the-fleet", "second-key-of-the-fleet"
	writeFile(t, file, a)
	r := newFleet(t, 3, setup{rules: heldRules, store: aRedis(t), ring: 3, env: []string{"HOLD_KEYS=@" + file, "LOG_LEVEL=info"}})
	hold := func() string {
		t.Helper()
		hold, ok := r.holds(0, "llm", "x", 0)
		if !ok || hold == "" {
			t.Fatalf("hold %q, admitted %v", hold, ok)
		}
		return hold
	}
	settled := func(result string) (n int) {
		for _, s := range r.nodes {
			n += s.sum("sluice_holds_settled_total", `"`+result+`"`)
		}
		return n
	}
	oldest := hold()
	for i, keys := range []string{a + "," + b, b + "\n" + a, b} {
		before := hold()
		writeFile(t, file+".new", keys)
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		for _, s := range r.nodes {
			s.eventually("the keys are read", func() bool { return strings.Count(s.log(), "keys of holds were read again") == i+1 })
		}
		if i == 2 {
			before = hold() // the step before is over
		}
		if err := r.settles(1, "llm", "x", before, 1); err != nil {
			t.Fatal(err)
		}
	}
	if n := settled("settled"); n != 3 {
		t.Errorf("%d holds are settled, must be 3", n)
	}
	if err := r.settles(2, "llm", "x", oldest, 1); err != nil || settled("forged") != 1 {
		t.Errorf("a hold of a key that is taken away: %v, %d are forged", err, settled("forged"))
	}
}

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
