package main

import (
	"bytes"
	"context"
	"encoding/json"
	goflag "flag"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/audit"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// Three nodes on one store. Each limit holds, in modes leasing and approx, and the nodes see each other until one ends.
func TestFleetsAdmitTheLimit(t *testing.T) {
	t.Parallel()
	const rules = `domain: d
coordination: {on_store_failure: closed, store_deadline: 200ms, check_timeout: 200ms}
descriptors:
  - {key: five, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: thousand, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: bucket, algorithm: token_bucket, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: drift, coordination: {mode: approx, drift_budget: 40, max_nodes: 4}, rate_limit: {unit: year, requests_per_unit: 1000}}
`
	eachStore(t, func(t *testing.T, server storeServer) {
		f := newFleet(t, 3, setup{rules: rules, store: server})
		for _, c := range []struct {
			key              string
			limit, over, few int
		}{
			{"five", 5, 0, 0},
			{"thousand", 1000, 0, 30},
			{"bucket", 100, 0, 5},
			{"sliding", 1000, 0, 30},
			{"drift", 1000, 40, 30},
		} {
			got := int(f.loadUntil(int64(c.limit-c.few), c.key, 12, c.limit*3/2/12+20, 0, 1, 2))
			// What the store granted too late comes back, and refusals may have been charged it meanwhile.
			if got > c.limit+c.over || got < c.limit-c.few-f.fallbacks() {
				t.Errorf("%s: admitted %d of %d", c.key, got, c.limit)
			}
		}
		if n := f.failed.Load(); n > 0 {
			t.Errorf("%d calls failed", n)
		}
		first := f.nodes[0]
		first.eventually("the nodes know of each other", func() bool { return first.seen() == 3 })
		f.nodes[2].Signal(syscall.SIGTERM)
		first.eventually("the node that has ended is gone", func() bool { return first.seen() == 2 })
		if _, text := first.get(first.debug + "/stats"); strings.Contains(text, "redis_pool") != (f.redis != nil) {
			t.Errorf("the statistics of a Redis' pool:\n%s", text)
		}
	})
}

// The store is killed and comes back (a Redis empty): leases are spent, each policy decides about keys without one, and
// nodes use the store within the declared time. Their admissions in between are charged. Then it is stopped, as by a
// disk that hangs. No call fails, none waits long, and closed rules admit no more than was leased.
func TestFleetStoreFaults(t *testing.T) {
	t.Parallel()
	const rules = `domain: d
coordination: {store_deadline: 100ms, max_nodes: 2, on_deny: refund, on_store_failure: closed}
descriptors:
  - {key: leased, rate_limit: {unit: year, requests_per_unit: 20000}}
  - {key: open, coordination: {on_store_failure: open}, rate_limit: {unit: year, requests_per_unit: 200}}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: local, coordination: {on_store_failure: local}, rate_limit: {unit: year, requests_per_unit: 14}}
  - {key: after, rate_limit: {unit: year, requests_per_unit: 1000}}
`
	eachStore(t, func(t *testing.T, server storeServer) {
		f := newFleet(t, 2, setup{rules: rules, store: server})
		for _, n := range f.nodes { // local divides by the nodes that were seen
			n.eventually("it has seen both nodes", func() bool { return n.seen() == 2 })
		}
		leased := f.load("leased", 4, 200, 0, 1)
		f.slowest.Store(0)
		server.Kill()
		for spent := false; !spent; {
			got := f.load("leased", 4, 50, 0, 1)
			leased += got
			spent = got == 0
		}
		for key, want := range map[string]int64{"open": 40, "closed": 0, "local": 14} {
			if got := f.load(key, 4, 10, 0, 1); got != want {
				t.Errorf("%s: without the store %d of 40 were admitted, want %d", key, got, want)
			}
		}
		server.Run()
		back := time.Now()
		for _, n := range f.nodes {
			n.eventually("the store is used again", func() bool { return n.admits(1, "after", "x") })
		}
		took, most := time.Since(back), leasing.FoundWithin+time.Second // and what a call takes on a busy machine
		if f.redis != nil {
			most += 2 * time.Second // it has lost its data
		}
		if t.Logf("used %v after the store came back", took.Round(time.Millisecond)); took > most {
			t.Errorf("the store was used %v after it came back, want %v at most", took, most)
		}
		before := f.fallbacks()
		got := int(f.loadUntil(155, "open", 6, 50, 0, 1))
		if late := f.fallbacks() - before; got > 160+late || got < 155 {
			t.Errorf("%d of 160 were admitted after an outage with 40, and %d were late", got, late)
		}
		server.Signal(syscall.SIGSTOP)
		leased += f.load("leased", 4, 50, 0, 1)
		f.load("closed", 2, 2, 0, 1) // keys without a lease wait until the deadline
		server.Signal(syscall.SIGCONT)
		if n := f.failed.Load(); n > 0 || leased > 20_000 {
			t.Errorf("%d calls failed, and %d of 20000 were admitted", n, leased)
		}
		for _, want := range []string{"deadline", "breaker"} {
			if f.total(`sluice_fallback_decisions_total{reason="`+want+`"}`) == 0 {
				t.Errorf("no decision was counted as %s", want)
			}
		}
		// A decision waits 100 ms for the store; the rest is this machine.
		if slow := time.Duration(f.slowest.Load()); slow > time.Second {
			t.Errorf("a call took %v", slow)
		}
	})
}

// Exact from any entry node, for limits from 1 to 1,000,000: never more, and less only by admissions of owners
// whose answers this machine has delayed for 15 ms. The owner takes such a request back, but refused ones after
// it are charged before. Of a hot key, two nodes may also have a rest that is less than a request.
func TestRoutingIsExact(t *testing.T) {
	const rules = `domain: d
coordination: {mode: routing, on_store_failure: closed}
descriptors:
  - {key: one, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: ten, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: thousand, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: million, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - {key: bucket, algorithm: token_bucket, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: year, requests_per_unit: 100}}
`
	withAndWithout(t, func(t *testing.T, store storeServer) {
		f := newFleet(t, 3, setup{rules: rules, store: store, ring: 3})
		late := func() int { return f.fallbacks() + f.total(`sluice_peer_asks_total{kind="leased_instead"}`) }
		for key, limit := range map[string]int{"one": 1, "ten": 10, "thousand": 1000, "million": 1_000_000, "bucket": 100, "sliding": 100} {
			f.hits = max(1, limit/10_000)
			before := late()
			got := int(f.load(key, 12, limit/f.hits*3/2/12+20, 0, 1, 2))
			delayed := (late() - before) * f.hits
			// The rest in hand of each node can be less than a request, and a refusal's charge uses it up.
			least := limit - delayed - len(f.nodes)*(f.hits-1)
			got += int(f.loadUntil(int64(least-got), key, 0, 0, 0, 1, 2))
			if got > limit || got < least {
				t.Errorf("%s: admitted %d of %d, and %d were answered late", key, got, limit, delayed)
			}
			t.Logf("%s: admitted %d of %d, and %d were answered late", key, got, limit, delayed)
		}
		if n := f.failed.Load(); n > 0 {
			t.Errorf("%d calls failed", n)
		}
	})
}

// However late Redis is, and however many nodes there are, each rule goes over
// by its drift budget at most; what was over is what the nodes' metrics say.
func TestApproxStaysWithinItsBudget(t *testing.T) {
	t.Parallel()
	const rules = `domain: d
coordination: {mode: approx, on_store_failure: closed, max_nodes: 3}
descriptors:
  - {key: half, coordination: {drift_budget: 0.5%}, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: one, coordination: {drift_budget: 1%}, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: five, coordination: {drift_budget: 5%}, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: large, coordination: {drift_budget: 1%}, rate_limit: {unit: year, requests_per_unit: 100000}}
`
	for _, c := range []struct {
		nodes int
		delay time.Duration
	}{{1, 0}, {3, 0}, {3, 50 * time.Millisecond}, {6, 50 * time.Millisecond}} {
		t.Run(fmt.Sprintf("%d nodes, %v", c.nodes, c.delay), func(t *testing.T) {
			t.Parallel()
			server := newFarStore(t, aRedis(t))
			f := newFleet(t, c.nodes, setup{rules: rules, store: server})
			// seats are how many nodes have each drift seat; -1 is that of nodes without one.
			seats := func() map[int]int {
				all := map[int]int{}
				for _, n := range f.nodes {
					all[n.metric("sluice_drift_seat")]++
				}
				return all
			}
			f.nodes[0].eventually("there are three drift seats", func() bool { return c.nodes-seats()[-1] == min(c.nodes, 3) })
			server.proxy.Delay(c.delay)
			all := make([]int, c.nodes)
			for i := range all {
				all[i] = i
			}
			for _, r := range []struct {
				key                 string
				limit, budget, hits int
			}{{"half", 1000, 5, 1}, {"one", 10_000, 100, 4}, {"five", 10_000, 500, 10}, {"large", 100_000, 1000, 100}} {
				f.hits = r.hits
				// A denial of several hits drains what is left: tokens spent and not admitted. And what refusals were
				// charged, before others had given back what they had, is gone: more on a busy machine.
				least := r.limit - (r.hits-1)*c.nodes - r.limit/10
				got := int(f.loadUntil(int64(least), r.key, 20, r.limit/r.hits*3/2/20, all...)) // all cold at once
				got += int(f.load(r.key, 20, 30, all...))                                       // more than there is
				over := max(0, got-r.limit)
				t.Logf("%s: admitted %d of %d, with a budget of %d", r.key, got, r.limit, r.budget)
				if over > r.budget || got < least {
					t.Errorf("%s: admitted %d of %d, with a budget of %d", r.key, got, r.limit, r.budget)
				}
				// Exact, but where this machine kept an answer for longer than check_timeout.
				if c.delay == 0 && c.nodes == 1 && over > r.hits*f.total(`sluice_decision_sources_total{source="drift"}`) {
					t.Errorf("%s: one node with a prompt store admitted %d of %d", r.key, got, r.limit)
				}
				rule := `{domain="d",rule="` + r.key + `",mode="approx"}`
				counted := func() int { return f.total("sluice_over_admitted_tokens_total" + rule) }
				lost := f.total(`sluice_store_operations_total{result="failed"}`) // what a busy machine has lost is not counted
				f.nodes[0].eventually("metrics say what was over", func() bool {
					// Drift that found no room is counted, also where refusals were charged what others gave back.
					return (counted() >= over || lost > 0) && counted() <= r.budget
				})
				beyond := f.total("sluice_windows_beyond_bound_total" + rule)
				if beyond != metrics.Flag(counted() > r.budget) {
					t.Errorf("%s: %d over of %d, and %d windows beyond their bound", r.key, counted(), r.budget, beyond)
				}
			}
			for seat, n := range seats() {
				if seat >= 0 && n > 1 {
					t.Errorf("%d nodes have seat %d", n, seat)
				}
			}
			for _, n := range f.nodes {
				seat := n.metric("sluice_drift_seat")
				_, health := n.get(n.http + "/healthcheck")
				if said := strings.Contains(health, "no drift seat"); said != (seat < 0) {
					t.Errorf("seat %d, and the health check says %q", seat, health)
				}
			}
		})
	}
}

var oldBinary = goflag.String("old-binary", "", "nodes of the release before, in TestRollingUpgrade; none: of this one (make upgrade FROM=commit)")

// Nodes of two releases share one Redis while a fleet is upgraded node by node, and while it is rolled back.
// Each continues from the records of the other, and together they admit the limits, under each algorithm.
func TestRollingUpgrade(t *testing.T) {
	const rules = `domain: d
descriptors:
  - {key: fixed, coordination: {on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 6000}}
  - {key: sliding, algorithm: sliding_window, coordination: {on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 3000}}
  - {key: bucket, algorithm: token_bucket, coordination: {on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 3000}}
  - {key: eager, coordination: {on_store_failure: closed, reclaim: eager}, rate_limit: {unit: year, requests_per_unit: 3000}}
  - {key: drift, coordination: {mode: approx, drift_budget: 1%, max_nodes: 4, on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 3000}}
`
	f := newFleet(t, 0, setup{rules: rules, store: aRedis(t)})
	joins := func(program string) {
		f.program = program
		f.join().untilHealthy()
	}
	limits := map[string]int64{"fixed": 6000, "sliding": 3000, "bucket": 3000, "eager": 3000, "drift": 3000}
	budgets := map[string]int64{"drift": 30}
	admitted := map[string]int64{}
	stage := func(part int64, nodes ...int) {
		t.Helper()
		const callers = 8
		for key, limit := range limits {
			admitted[key] += f.load(key, callers, int(limit/part/callers), nodes...)
			if admitted[key] > limit+budgets[key] {
				t.Errorf("with nodes %v, %s: %d admitted, of %d and %d beyond", nodes, key, admitted[key], limit, budgets[key])
			}
		}
	}
	joins(*oldBinary)
	joins(*oldBinary)
	stage(5, 0, 1)
	joins("")
	stage(5, 0, 1, 2)
	f.nodes[0].ends(syscall.SIGTERM)
	joins("")
	stage(5, 1, 2, 3)
	f.nodes[1].ends(syscall.SIGTERM)
	stage(5, 2, 3)
	joins(*oldBinary) // rolled back
	stage(5, 2, 3, 4)
	f.nodes[2].ends(syscall.SIGTERM)
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

// The bound of a reply is that of every connection, of whatever type of Redis; what it names is said where it is reached.
func TestHostileRepliesOfEveryType(t *testing.T) {
	l := listens(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("$99999999999\r\n"))
			t.Cleanup(func() { c.Close() })
		}
	}()
	addr := l.Addr().String()
	for name, flags := range map[string]store.Redis{
		"single":   {URL: addr, Type: "SINGLE"},
		"cluster":  {URL: addr + "," + addr, Type: "CLUSTER"},
		"sentinel": {URL: "m," + addr, Type: "SENTINEL"},
	} {
		t.Run(name, func(t *testing.T) {
			var pool metrics.Pool
			flags.PoolSize, flags.Timeout = 2, time.Second
			there, err := store.Open(store.Options{Flags: store.Flags{Redis: flags}, Pool: &pool})
			if err != nil {
				t.Fatal(err)
			}
			defer there.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			advice := ""
			_ = there.Start(ctx, func() { t.Error("it has answered") }, func(err error) {
				advice = there.Advise(err)
				cancel()
			})
			if pool.Refused.Load() == 0 {
				t.Error("no connection was refused")
			} else if name == "single" && !strings.Contains(advice, "more than 4194304 bytes") {
				t.Errorf("the advice is %q", advice)
			}
		})
	}
}

// Late replies of the store, and keys without a place, are in the log at once, and then once a minute.
func TestLateRepliesAreLogged(t *testing.T) {
	var log bytes.Buffer
	w := outageWatch{log: slog.New(slog.NewTextHandler(&log, nil))}
	var s ratelimit.LimiterStats
	for range 130 { // looks, one a second
		s.Fallbacks[ratelimit.FallbackDeadline] += 2
		s.Fallbacks[ratelimit.FallbackTableFull]++ // which is the same count
		s.Overflow++
		w.look(s, false)
	}
	for text, n := range map[string]int{
		"later than store_deadline: on_store_failure decided\" decisions=2\n": 1, "decisions=120\n": 2,
		"the table of keys is full": 3, "decisions_without_a_place=60": 2,
	} {
		if got := strings.Count(log.String(), text); got != n {
			t.Errorf("%q is there %d times, want %d:\n%s", text, got, n, &log)
		}
	}
}

// hall is the registry of a store.
type hall struct {
	store.Store
	all  []store.Registration
	gone []string // nodes that were taken out
}

func (c *hall) Register(_ context.Context, node, text string) ([]store.Registration, error) {
	if text == "" {
		c.gone = append(c.gone, node)
	}
	return c.all, nil
}

// A node that crashed stays in the list, as silent, and counts no longer after a minute. A process at its address
// replaces it. The console shows the first thousand nodes. Budgets for outages and leases are divided by all.
func TestNodesAreCounted(t *testing.T) {
	said := func(debug string, ago time.Duration) store.Registration {
		return store.Registration{Node: debug + ago.String(), Text: fmt.Sprintf(`{"debug": %q, "every": 2000000000}`, debug), Ago: ago}
	}
	c := &hall{all: []store.Registration{
		said("here:6070", 0), said("there:6070", time.Second), said("hung:6070", time.Minute/2), said("dead:6070", 3*time.Hour), said("here:6070", 4*time.Hour),
	}}
	r := newRegistry(c, 1)
	r.register(t.Context(), "here:6070", "{}")
	var silent []string
	nodes := r.all().Nodes
	for _, n := range nodes {
		if n.Silent {
			silent = append(silent, n.Debug)
		}
	}
	if n := r.count(); n != 3 || len(nodes) != 4 || strings.Join(silent, " ") != "dead:6070 hung:6070" {
		t.Errorf("%d nodes count, %d are listed, and silent are %v", n, len(nodes), silent)
	}
	if strings.Join(c.gone, " ") != "here:60704h0m0s" {
		t.Errorf("taken out: %v", c.gone)
	}
	c.all = nil
	for i := range 2 * mostNodes {
		c.all = append(c.all, store.Registration{Node: fmt.Sprint(i), Text: "{}"})
	}
	r.register(t.Context(), "here:6070", "{}")
	if n, shown := r.count(), len(r.all().Nodes); n != 2*mostNodes || shown != mostNodes {
		t.Errorf("of %d nodes, %d count and %d are shown", 2*mostNodes, n, shown)
	}
}

// In an outage, each node shows what its policy admits of the worst key, and what is declared. It names the busiest
// keys. What all nodes show together is no less than what was admitted.
func TestOutageShowsItsHighestWindow(t *testing.T) {
	t.Parallel()
	const rules = "domain: d\ndescriptors: [{key: local, coordination: {on_store_failure: local, max_nodes: 3}, rate_limit: {unit: day, requests_per_unit: 90}}]\n"
	f := newFleet(t, 3, setup{rules: rules, store: aRedis(t)})
	admitted := int(f.load("local", 1, 60, 0, 1, 2))
	f.redis.Signal(syscall.SIGSTOP)
	admitted += int(f.load("local", 1, 400, 0, 1, 2))
	used, alone := 0, f.total("sluice_worst_key_by_policy_tokens")
	for _, n := range f.nodes {
		_, text := n.get(n.debug + "/console/state")
		var s struct {
			Rules []struct {
				Highest  int `json:"highest_window"`
				Declared int `json:"declared_in_outage"`
			}
			Hottest []struct{ Account string }
		}
		if err := json.Unmarshal([]byte(text), &s); err != nil || len(s.Rules) != 1 || len(s.Hottest) != 1 {
			t.Fatalf("%v: %s", err, text)
		}
		if r := s.Rules[0]; r.Highest > r.Declared || r.Highest < 60 || !strings.Contains(s.Hottest[0].Account, "local=x") {
			t.Errorf("%+v", s)
		}
		used = max(used, n.metric("sluice_window_used_tokens"))
	}
	if used+alone < admitted || admitted <= 90 || alone == 0 {
		t.Errorf("%d of 90 were admitted; %d are shown as used, and %d as admitted by policy", admitted, used, alone)
	}
}

// 50 clients peek, and charge 5,000 of 10,000 when they are done. The record says how much was used, how much of it
// beyond the limit, and that it was charged after the fact; also of nodes that were killed.
func TestAuditOfCharges(t *testing.T) {
	const limit, cost, clients = 10_000, 5000, 50
	const rules = `domain: d
coordination: {audit: true, on_store_failure: closed, on_deny: charge}
descriptors:
  - {key: fixed, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: bucket, algorithm: token_bucket, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: quiet, coordination: {audit: false}, rate_limit: {unit: year, requests_per_unit: 10000}}
`
	f := newFleet(t, 0, setup{rules: patient(rules), store: aRedis(t)})
	var files []string
	for i := range 3 {
		files = append(files, filepath.Join(t.TempDir(), fmt.Sprint(i)))
		f.join("AUDIT_FILE=" + files[i])
	}
	f.untilWhole()
	for _, of := range []string{"fixed", "sliding", "bucket", "quiet"} {
		for i := range clients {
			if !f.nodes[i%3].admits(0, of, "k") {
				t.Errorf("%s: client %d is refused, and nothing was used", of, i)
			}
		}
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() { f.nodes[i%3].admits(cost, of, "k") })
		}
		all.Wait()
		if f.nodes[0].admits(0, of, "k") {
			t.Errorf("%s: %d are used of %d, and a peek passes", of, clients*cost, limit)
		}
	}
	// replayed are the windows that sluice audit prints, by their rules; none if it fails.
	replayed := func() map[string]audit.Window {
		code, out, _ := runLine(append([]string{"audit", "--json"}, files...)...)
		all := map[string]audit.Window{}
		for line := range strings.Lines(out) {
			var w struct {
				audit.Window
				Held bool `json:"held"`
			}
			if err := json.Unmarshal([]byte(line), &w); err != nil || !w.Held || code != 0 {
				return nil
			}
			all[strings.TrimPrefix(w.Rule, "d.")] = w.Window
		}
		return all
	}
	f.nodes[0].eventually("what is refused is told now and then", func() bool {
		w := replayed()
		decided := func(of string) ratelimit.Tokens { return w[of].Admitted + w[of].Refused }
		return min(w["fixed"].Spent, w["sliding"].Spent, w["bucket"].Taken) >= clients*cost &&
			min(decided("fixed"), decided("sliding"), decided("bucket")) >= clients*cost
	})
	for _, p := range f.nodes {
		p.ends(syscall.SIGKILL)
	}
	windows := replayed()
	if len(windows) != 3 {
		t.Errorf("%d windows", len(windows))
	}
	for _, of := range []string{"fixed", "sliding", "bucket"} {
		w := windows[of]
		t.Logf("%s: %+v", of, w.Totals)
		// What the nodes had in hand when they were killed may have been used, too.
		inHand, spent := w.Taken-clients*cost, w.Spent
		if of == "bucket" {
			spent = w.Taken // what is granted for a request that waits is not reported again
		}
		if inHand < 0 || inHand > limit/10 || spent != clients*cost || w.Beyond != w.Sum-limit {
			t.Errorf("%s: %+v", of, w.Totals)
		}
		if w.Admitted+w.Refused != clients*cost || w.Admitted > limit || w.RefusedCharged != w.Refused {
			t.Errorf("%s: of %d tokens, %+v", of, clients*cost, w.Decided)
		}
		if w.Debt != w.Beyond || w.Charged < w.Beyond || w.Beyond < clients*cost-limit || w.Over != 0 || w.Limit != limit || w.Holders < 3 {
			t.Errorf("%s: %+v", of, w)
		}
	}
	code, out, errs := runLine(append([]string{"audit", "--rule=fixed", "--events"}, files...)...)
	for _, want := range []string{
		fmt.Sprintf("Charged after the fact beyond the limits: %d.", windows["fixed"].Debt), `"kind":"draw"`, `"kind":"charge"`, `"kind":"refused"`, "held",
	} {
		if code != 0 || !strings.Contains(out, want) || strings.Contains(out, "sliding") {
			t.Errorf("%q is not in: %d %s\n%s", want, code, errs, out)
		}
	}
}
