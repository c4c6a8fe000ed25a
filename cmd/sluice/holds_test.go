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
  - {key: five, hold: {amount: 30}, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: five, value: leasing, hold: {amount: 30}, coordination: {mode: leasing}, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: fifty, hold: {amount: 2000}, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: fifty, value: leasing, hold: {amount: 2000}, coordination: {mode: leasing}, rate_limit: {unit: year, requests_per_unit: 10000}}
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

// If no request costs more than its hold, the limit holds, in any mode, with a Redis and without. Requests
// settle at other nodes, windows end in between, settlements arrive twice or never, and, with a Redis, a node
// is killed.
func TestHoldsAreNeverOver(t *testing.T) {
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

// litellm's case: five at once on a limit of 100, that cost 30 at most, which is held; and 50 clients that cost 5,000 of
// 10,000 and hold 2,000. What is over is at most what requests in flight cost beyond what they held. Of 100 at least three
// times 23 are used: 31 are left then, which two nodes may have in parts.
func TestHoldsAtOnce(t *testing.T) {
	withAndWithout(t, func(t *testing.T, store storeServer) {
		r := newFleet(t, 3, setup{rules: heldRules, store: store, ring: 3})
		for _, c := range []struct {
			key                      string
			limit, held, cost, least int
			clients                  int
		}{{"five", 100, 30, 23, 69, 5}, {"five", 100, 30, 30, 70, 5}, {"fifty", 10_000, 2000, 5000, 10_000, 50}} {
			for _, value := range []string{"routing", "leasing"} {
				if value == "leasing" && store == nil {
					continue
				}
				if c.cost == 30 {
					value += "-again"
					if store != nil && strings.HasPrefix(value, "leasing") {
						continue // it would be another rule
					}
				}
				used, most := r.atOnce(c.clients, c.key, value, c.cost)
				bound := c.limit + most*max(0, c.cost-c.held)
				t.Logf("%s %s: %d used of %d, at most %d in flight, bound %d", c.key, value, used, c.limit, most, bound)
				if used > bound || used < c.least {
					t.Errorf("%s %s: %d are used, must be from %d to %d", c.key, value, used, c.least, bound)
				}
			}
		}
	})
}

// atOnce has clients ask in rounds until all are refused five times: a node that has refused asks again a moment later. It returns what was used, and how many were in
// flight at once, at most.
func (f *fleet) atOnce(clients int, key, value string, cost int) (used, most int) {
	for refusals := 0; refusals < 5; {
		var all sync.WaitGroup
		var inFlight atomic.Int64
		for i := range clients {
			all.Go(func() {
				if hold, ok := f.holds(i%3, key, value, 0); ok {
					inFlight.Add(1)
					time.Sleep(50 * time.Millisecond) // the completion
					if err := f.settles((i+1)%3, key, value, hold, cost); err != nil {
						f.Error(err)
					}
				}
			})
		}
		all.Wait()
		n := int(inFlight.Load())
		used, most = used+n*cost, max(most, n)
		if n == 0 {
			refusals++
			time.Sleep(200 * time.Millisecond)
		}
	}
	return used, most
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
