package main

import (
	goflag "flag" // flag is a function here
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// storeServer is a real server of a store. It runs again with its data, but a Redis, which has none then.
type storeServer interface {
	URL() string
	Run()
	Kill()
	Signal(syscall.Signal)
}

// eachStore runs a test on each kind of store, side by side.
func eachStore(t *testing.T, test func(*testing.T, storeServer)) {
	eachKind(t, func(t *testing.T, kind string) { test(t, startStore(t, kind)) })
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
			// What the store granted too late comes back, and refusals may have been charged it meanwhile.
			if got := f.admitted.Load(); got > c.limit+c.over || got < c.limit-c.few-f.fallbacks() {
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

const routingRules = `domain: d
coordination: {mode: routing, on_store_failure: closed}
descriptors:
  - {key: one, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: ten, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: thousand, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: million, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - {key: bucket, algorithm: token_bucket, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: owes, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: owes, value: leasing, coordination: {mode: leasing}, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: owes, value: approx, coordination: {mode: approx, drift_budget: 30}, rate_limit: {unit: year, requests_per_unit: 100}}
`

// withAndWithout runs a test in memory, and with a Redis behind.
func withAndWithout(t *testing.T, test func(*testing.T, storeServer)) {
	t.Run("memory", func(t *testing.T) { test(t, nil) })
	t.Run("redis", func(t *testing.T) { test(t, aRedis(t)) })
}

// late is how many requests their owners did not answer in time so far.
func (f *fleet) late() int64 {
	total := f.fallbacks()
	for _, n := range f.nodes {
		total += int64(n.metric(`sluice_peer_asks_total{kind="leased_instead"}`))
	}
	return total
}

// Exact from any entry node, for limits from 1 to 1,000,000: never more, and less only by admissions of owners
// whose answers this machine has delayed for 15 ms. The owner takes such a request back, but refused ones after
// it are charged before. Of a hot key, two nodes may also have a rest that is less than a request.
func TestRoutingIsExact(t *testing.T) {
	withAndWithout(t, func(t *testing.T, store storeServer) {
		r := newFleet(t, 3, setup{rules: routingRules, store: store, ring: 3})
		for _, c := range []struct {
			key   string
			limit int64
		}{{"one", 1}, {"ten", 10}, {"thousand", 1000}, {"million", 1_000_000}, {"bucket", 100}, {"sliding", 100}} {
			r.admitted.Store(0)
			r.hits = uint64(max(1, c.limit/10_000))
			before := r.late()
			r.load(c.key, 12, int(c.limit)/int(r.hits)*3/2/12+20, 0, 1, 2).Wait()
			late := (r.late() - before) * int64(r.hits)
			// The rest in hand of each node can be less than a request, and a refusal's charge uses it up.
			least := c.limit - late - int64(len(r.nodes))*int64(r.hits-1)
			r.untilAdmitted(c.key, least, 0, 1, 2)
			got := r.admitted.Load()
			if got > c.limit || got < least {
				t.Errorf("%s: admitted %d of %d, and %d were answered late", c.key, got, c.limit, late)
			}
			t.Logf("%s: admitted %d of %d, and %d were answered late", c.key, got, c.limit, late)
		}
		if n := r.failed.Load(); n > 0 {
			t.Errorf("%d calls failed", n)
		}
	})
}

const approxRules = `domain: d
coordination: {mode: approx, on_store_failure: closed, max_nodes: 3}
descriptors:
  - {key: half, coordination: {drift_budget: 0.5%}, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: one, coordination: {drift_budget: 1%}, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: five, coordination: {drift_budget: 5%}, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: large, coordination: {drift_budget: 1%}, rate_limit: {unit: year, requests_per_unit: 100000}}
`

// slowStore is a Redis behind a proxy.
type slowStore struct {
	*redistest.Server
	proxy *redistest.Proxy
}

func (s slowStore) URL() string { return "redis://" + s.proxy.Addr }

// approxFleet is nodes with drift shares, behind a proxy that delays replies.
func approxFleet(t *testing.T, nodes int, delay time.Duration) *fleet {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	f := newFleet(t, nodes, setup{rules: approxRules, store: slowStore{server, proxy}})
	f.nodes[0].eventually("there are three drift seats", func() bool {
		seated := 0
		for _, n := range f.nodes {
			seated += metrics.Flag(n.metric("sluice_drift_seat") >= 0)
		}
		return seated == min(nodes, 3)
	})
	proxy.Delay(delay)
	return f
}

func (f *fleet) drift(key, name string) int64 { return f.ofRule(key, "approx", name) }

// ofRule is the sum of a metric of a rule over the nodes that run.
func (f *fleet) ofRule(key, mode, name string) (total int64) {
	for _, n := range f.nodes {
		if n.cmd.ProcessState == nil {
			total += int64(n.metric(fmt.Sprintf("sluice_%s{domain=%q,rule=%q,mode=%q}", name, "d", key, mode)))
		}
	}
	return total
}

// However late Redis is, and however many nodes there are, each rule goes over
// by its drift budget at most; what was over is what the nodes' metrics say.
func TestApproxStaysWithinItsBudget(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		nodes int
		delay time.Duration
	}{{1, 0}, {3, 0}, {3, 50 * time.Millisecond}, {10, 50 * time.Millisecond}} {
		t.Run(fmt.Sprintf("%d nodes, %v", c.nodes, c.delay), func(t *testing.T) {
			t.Parallel()
			f := approxFleet(t, c.nodes, c.delay)
			all := make([]int, c.nodes)
			for i := range all {
				all[i] = i
			}
			for _, r := range []struct {
				key           string
				limit, budget int64
				hits          uint64
			}{{"half", 1000, 5, 1}, {"one", 10_000, 100, 1}, {"five", 10_000, 500, 4}, {"large", 100_000, 1000, 40}} {
				key, limit, budget := r.key, r.limit, r.budget
				f.admitted.Store(0)
				f.hits = r.hits
				f.load(key, 20, int(limit)/int(f.hits)*3/2/20, all...).Wait() // all cold at once
				// A denial of several hits drains what is left: tokens spent and not admitted.
				drained := (int64(f.hits) - 1) * int64(c.nodes)
				// What refusals were charged, before others had given back what they had, is gone: more on a busy machine.
				early := limit / 10
				f.untilAdmitted(key, limit-drained-early, all...)
				f.load(key, 20, 30, all...).Wait() // more than there is
				got := f.admitted.Load()
				t.Logf("%d nodes, %v: admitted %d of %d, %.2f%% over; declared: %.1f%%", c.nodes, c.delay, got, limit, 100*float64(max(0, got-limit))/float64(limit), 100*float64(budget)/float64(limit))
				if got > limit+budget || got < limit-drained-early {
					t.Errorf("%s: admitted %d of %d, with a budget of %d", key, got, limit, budget)
				}
				// Exact, but where this machine kept an answer for longer than check_timeout.
				late := int64(f.hits) * int64(f.nodes[0].metric(`sluice_decision_sources_total{source="drift"}`))
				if c.delay == 0 && c.nodes == 1 && got > limit+late {
					t.Errorf("%s: one node with a prompt store admitted %d of %d", key, got, limit)
				}
				over := max(0, got-limit)
				// An answer that a busy machine has lost is not counted.
				lost := 0
				for _, n := range f.nodes {
					lost += n.metric(`sluice_store_operations_total{result="failed"}`)
				}
				f.nodes[0].eventually("metrics say what was over", func() bool {
					counted := f.drift(key, "over_admitted_tokens_total")
					// Drift that found no room is counted, also where refusals were charged what others gave back.
					return (counted >= over || lost > 0) && counted <= budget
				})
				counted := f.drift(key, "over_admitted_tokens_total")
				if beyond := f.drift(key, "windows_beyond_bound_total"); beyond != int64(metrics.Flag(counted > budget)) {
					t.Errorf("%s: %d over of %d, and %d windows beyond their bound", key, counted, budget, beyond)
				}
			}
			seats := map[int]int{}
			for _, n := range f.nodes {
				seat := n.metric("sluice_drift_seat")
				seats[seat]++
				_, health := n.get(n.http + "/healthcheck")
				if said := strings.Contains(health, "no drift seat"); said != (seat < 0) {
					t.Errorf("seat %d, and the health check says %q", seat, health)
				}
			}
			for seat, n := range seats {
				if seat >= 0 && n > 1 {
					t.Errorf("%d nodes have seat %d", n, seat)
				}
			}
		})
	}
}

var oldBinary = goflag.String("old-binary", "", "nodes of the release before, in TestRollingUpgrade; none: of this one (make upgrade FROM=commit)")

const upgradeRules = `domain: d
descriptors:
  - {key: fixed, coordination: {on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 6000}}
  - {key: sliding, algorithm: sliding_window, coordination: {on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 3000}}
  - {key: bucket, algorithm: token_bucket, coordination: {on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 3000}}
  - {key: eager, coordination: {on_store_failure: closed, reclaim: eager}, rate_limit: {unit: year, requests_per_unit: 3000}}
  - {key: drift, coordination: {mode: approx, drift_budget: 1%, max_nodes: 4, on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 3000}}
`

// Nodes of two releases share one Redis while a fleet is upgraded node by node, and while it is rolled back.
// Each continues from the records of the other, and together they admit the limits, under each algorithm.
func TestRollingUpgrade(t *testing.T) {
	f := newFleet(t, 0, setup{rules: upgradeRules, store: aRedis(t)})
	joined := func(old bool) {
		if f.program = ""; old {
			f.program = *oldBinary
		}
		f.join().untilHealthy()
	}
	left := func(node int) { f.nodes[node].ends(syscall.SIGTERM) }
	limits := map[string]int64{"fixed": 6000, "sliding": 3000, "bucket": 3000, "eager": 3000, "drift": 3000}
	budgets := map[string]int64{"drift": 30}
	admitted := map[string]int64{}
	const callers = 8
	stage := func(part int64, nodes ...int) {
		t.Helper()
		for key, limit := range limits {
			f.admitted.Store(0)
			f.load(key, callers, int(limit/part/callers), nodes...).Wait()
			if admitted[key] += f.admitted.Load(); admitted[key] > limit+budgets[key] {
				t.Errorf("with nodes %v, %s: %d admitted, of %d and %d beyond", nodes, key, admitted[key], limit, budgets[key])
			}
		}
	}
	const old, new = true, false
	joined(old)
	joined(old)
	stage(5, 0, 1)
	joined(new)
	stage(5, 0, 1, 2)
	left(0)
	joined(new)
	stage(5, 1, 2, 3)
	left(1)
	stage(5, 2, 3)
	joined(old) // rolled back
	stage(5, 2, 3, 4)
	left(2)
	stage(2, 3, 4)
	for key, limit := range limits {
		lost := limit / 100
		if key == "bucket" { // on a busy machine its lease ends before a node that leaves has given it back: a share of it each time
			lost = limit / 20
		}
		if admitted[key] < limit-lost {
			t.Errorf("%s: %d of %d were admitted: the others are lost", key, admitted[key], limit)
		}
	}
	if n := f.failed.Load(); n > 0 {
		t.Errorf("%d calls failed", n)
	}
}
