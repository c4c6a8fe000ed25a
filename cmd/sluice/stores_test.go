package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/etcdtest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
)

// storeServer is a real server of a store. It runs again with its data, but a Redis, which has none then.
type storeServer interface {
	URL() string
	Run()
	Kill()
	Signal(syscall.Signal)
}

// eachStore runs a test on each kind of store.
func eachStore(t *testing.T, test func(*testing.T, storeServer)) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, redistest.Start(t))
	})
	for name, start := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // with the other stores
			test(t, start(t))
		})
	}
}

var databases = map[string]func(testing.TB) storeServer{
	"postgres": func(t testing.TB) storeServer { return pgtest.Start(t) },
	"etcd":     func(t testing.TB) storeServer { return etcdtest.Start(t) },
}

const storeRules = `domain: d
coordination: {on_store_failure: closed, store_deadline: 200ms, check_timeout: 200ms}
descriptors:
  - {key: five, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: thousand, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: bucket, algorithm: token_bucket, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: drift, coordination: {mode: approx, drift_budget: 40, max_nodes: 4}, rate_limit: {unit: year, requests_per_unit: 1000}}
`

// Three nodes on one store. Each limit holds, in modes leasing and approx, and the nodes see each other until one ends.
func TestFleetsAdmitTheLimit(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, server storeServer) {
		f := newFleet(t, 3, setup{rules: storeRules, store: server})
		for _, c := range []struct {
			key       string
			limit     int64
			over, few int64
		}{
			{"five", 5, 0, 0},
			{"thousand", 1000, 0, 30},
			{"bucket", 100, 0, 5},
			{"sliding", 1000, 0, 30},
			{"drift", 1000, 40, 30},
		} {
			f.admitted.Store(0)
			f.load(c.key, 12, int(c.limit)*3/2/12+20, 0, 1, 2).Wait()
			f.untilAdmitted(c.key, c.limit-c.few, 0, 1, 2)
			if got := f.admitted.Load(); got > c.limit+c.over || got < c.limit-c.few {
				t.Errorf("%s: admitted %d of %d", c.key, got, c.limit)
			}
		}
		if n := f.failed.Load(); n > 0 {
			t.Errorf("%d calls failed", n)
		}
		f.nodes[0].eventually("the nodes know of each other", func() bool { return f.nodes[0].seen() == 3 })
		f.nodes[2].Signal(syscall.SIGTERM)
		f.nodes[0].eventually("the node that has ended is gone", func() bool { return f.nodes[0].seen() == 2 })
		if _, text := f.nodes[0].get(f.nodes[0].debug + "/stats"); strings.Contains(text, "redis_pool") != (f.redis != nil) {
			t.Errorf("the statistics of a Redis' pool:\n%s", text)
		}
	})
}

const faultRules = `domain: d
coordination: {store_deadline: 100ms, max_nodes: 2, on_deny: refund, on_store_failure: closed}
descriptors:
  - {key: leased, rate_limit: {unit: year, requests_per_unit: 20000}}
  - {key: open, coordination: {on_store_failure: open}, rate_limit: {unit: year, requests_per_unit: 200}}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: local, coordination: {on_store_failure: local}, rate_limit: {unit: year, requests_per_unit: 14}}
  - {key: after, rate_limit: {unit: year, requests_per_unit: 1000}}
`

// The store is killed and comes back (a Redis empty): leases are spent, each policy decides about keys without one, and
// nodes use the store within the declared time. Their admissions in between are charged. Then it is stopped, as by a
// disk that hangs. No call fails, none waits long, and closed rules admit no more than was leased.
func TestFleetStoreFaults(t *testing.T) { eachStore(t, storeFaults) }

func storeFaults(t *testing.T, server storeServer) {
	f := newFleet(t, 2, setup{rules: faultRules, store: server})
	for _, n := range f.nodes { // local divides by the nodes that were seen
		n.eventually("it has seen both nodes", func() bool { return n.seen() == 2 })
	}
	f.load("leased", 4, 200, 0, 1).Wait()
	f.slowest.Store(0)
	server.Kill()
	f.load("leased", 4, 3000, 0, 1).Wait()
	leased := f.admitted.Load()
	for key, want := range map[string]int64{"open": 40, "closed": 0, "local": 14} {
		f.admitted.Store(0)
		f.load(key, 4, 10, 0, 1).Wait()
		if got := f.admitted.Load(); got != want {
			t.Errorf("%s: without the store %d of 40 were admitted, want %d", key, got, want)
		}
	}
	server.Run()
	f.comesBack(t)
	before := f.fallbacks()
	f.admitted.Store(40)
	f.load("open", 6, 50, 0, 1).Wait()
	f.untilAdmitted("open", 195, 0, 1)
	if got, late := f.admitted.Load(), f.fallbacks()-before; got > 200+late || got < 195 {
		t.Errorf("%d of 200 were admitted, 40 of them during the outage, and %d were late", got, late)
	}
	server.Signal(syscall.SIGSTOP)
	f.admitted.Store(leased)
	f.load("leased", 4, 200, 0, 1).Wait()
	leased = f.admitted.Load()
	f.load("closed", 2, 2, 0, 1).Wait() // keys without a lease wait until the deadline
	server.Signal(syscall.SIGCONT)
	if n := f.failed.Load(); n > 0 || leased > 20_000 {
		t.Errorf("%d calls failed, and %d of 20000 were admitted", n, leased)
	}
	for _, want := range []string{"deadline", "breaker"} {
		total := 0
		for _, n := range f.nodes {
			total += n.metric(`sluice_fallback_decisions_total{reason="` + want + `"}`)
		}
		if total == 0 {
			t.Errorf("no decision was counted as %s", want)
		}
	}
	// A decision waits 100 ms for the store; the rest is this machine.
	if slow := time.Duration(f.slowest.Load()); slow > time.Second {
		t.Errorf("a call took %v", slow)
	}
}

// comesBack waits until nodes use a store that runs again, and checks how long that takes.
func (f *fleet) comesBack(t *testing.T) {
	t.Helper()
	back := time.Now()
	for i := range f.nodes {
		for f.refuses(i, "after") && time.Since(back) < patience {
			time.Sleep(5 * time.Millisecond)
		}
	}
	took, most := time.Since(back), leasing.FoundWithin+time.Second // and what a call takes on a busy machine
	if f.redis != nil {
		most += 2 * time.Second // it has lost its data
	}
	if t.Logf("used %v after the store came back", took.Round(time.Millisecond)); took > most {
		t.Errorf("the store was used %v after it came back, want %v at most", took, most)
	}
}

// refuses reports whether a node refuses a request.
func (f *fleet) refuses(node int, key string) bool {
	before := f.admitted.Load()
	f.ask(node, key)
	return f.admitted.Load() == before
}
