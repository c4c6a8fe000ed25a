package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/leasing/redistest/pgtest"
	"github.com/sluice-gate/sluice/ratelimit/console"
)

// limit runs sluice limit at a node, with the token.
func (s *sluice) limit(args ...string) (code int, out, errs string) {
	s.Helper()
	return runLine(append(append([]string{"limit"}, args...), "--debug", s.debug, "--token=hunter2", "--by=ops")...)
}

// may is limit, which must succeed.
func (s *sluice) may(args ...string) string {
	s.Helper()
	code, out, errs := s.limit(args...)
	if code != 0 {
		s.Fatalf("limit %v: %d %s%s\nthe log:\n%s", args, code, out, errs, s.log())
	}
	return out
}

// read is limit without --by, which commands that read do not have.
func (s *sluice) read(args ...string) (code int, out, errs string) {
	s.Helper()
	return runLine(append(append([]string{"limit"}, args...), "--debug", s.debug, "--token=hunter2")...)
}

// overridden waits until a node has an override of a key, or has none.
func (s *sluice) overridden(domain, entry string, want bool) {
	s.Helper()
	s.eventually(fmt.Sprint(entry, " has an override: ", want), func() bool {
		code, _, _ := s.read("get", domain, entry)
		return code == 0 == want
	})
}

// A limit that is set at one node counts at each node, also where it refused the key or had tokens in hand. It never
// returns earlier usage.
func TestLimitAtRunTime(t *testing.T) {
	// A refused request is charged otherwise, and a raised limit has to exceed all of them.
	rules := strings.Replace(peopleRules, "domain: d\n", "domain: d\ncoordination: {on_deny: refund, on_store_failure: closed}\n", 1)
	for name, n := range map[string]int{"fleet": 2, "alone": 1} {
		t.Run(name, func(t *testing.T) {
			with := setup{rules: rules}
			if n > 1 {
				with.store = aRedis(t)
			}
			nodes := newFleet(t, n, with).nodes
			first, last := nodes[0], nodes[len(nodes)-1]
			for _, key := range []string{"five", "sliding", "bucket"} {
				admitted := 0
				drain := func() int {
					for i := range 40 {
						if nodes[i%len(nodes)].post(key, "x") == http.StatusOK {
							admitted++
						}
					}
					return admitted
				}
				if drain() != 5 {
					t.Fatalf("%s: %d of 5 were admitted", key, admitted)
				}
				first.may("set", "12", "d", key+"=x", "--reason=more")
				want := 12
				if key == "bucket" {
					want = 5 // a bucket grows, and what is in it does not
				} else {
					last.eventually(fmt.Sprintf("%s: the raised limit counts at each node", key), func() bool { return drain() >= want })
				}
				if drain() != want {
					t.Errorf("%s: %d of %d were admitted", key, admitted, want)
				}
				last.overridden("d", key+"=x", true)
				if got := last.explained("d", key+"=x"); !strings.Contains(got, "12 per year") || !strings.Contains(got, "by an override of ") ||
					!strings.Contains(got, "(the rule has 5 per year") {
					t.Errorf("%s is explained as\n%s", key, got)
				}
				last.eventually("the console says that a hot key has an override", func() bool {
					last.post(key, "x")
					_, state := last.get(last.debug + "/console/state")
					return strings.Contains(state, `"overridden":true`)
				})
				last.may("rm", "d", key+"=x")
				first.overridden("d", key+"=x", false)
				if drain() != want {
					t.Errorf("%s: without the override %d were admitted, must be %d", key, admitted, want)
				}
			}
			first.post("five", "lower")
			last.may("set", "0", "d", "five=lower", "--expires=24h", "--reason=abuse")
			first.eventually("a banned key is refused", func() bool { return first.post("five", "lower") == http.StatusTooManyRequests })
			if got := first.post("five", "lower"); got != http.StatusTooManyRequests {
				t.Errorf("a banned key is answered %d", got)
			}
		})
	}
}

// A raised limit that refused requests have used up already helps with the next window. The command says so, and resets
// the usage with --reset.
func TestRaisedLimitThatIsUsedUp(t *testing.T) {
	for name, n := range map[string]int{"fleet": 2, "alone": 1} {
		t.Run(name, func(t *testing.T) {
			with := setup{rules: peopleRules}
			if n > 1 {
				with.store = aRedis(t)
			}
			nodes := newFleet(t, n, with).nodes
			first, last := nodes[0], nodes[n-1]
			for range 40 {
				first.post("five", "x")
			}
			if code, _, errs := last.limit("set", "30", "d", "five=x"); code != 0 || !strings.Contains(errs, "repeat the command with --reset") {
				t.Errorf("%d %s", code, errs)
			}
			if code, _, errs := last.limit("set", "300", "d", "five=x"); code != 0 || errs != "" {
				t.Errorf("a limit above the usage: %d %s", code, errs)
			}
			if code, out, errs := last.limit("set", "20", "d", "five=x", "--reset"); code != 0 || errs != "" {
				t.Errorf("%d %s %s", code, out, errs)
			}
			for i, node := range nodes {
				if got := node.post("five", "x"); got != http.StatusOK {
					t.Errorf("node %d answers %d after the reset", i, got)
				}
			}
		})
	}
}

// The commands do what the resource does: conditions, lists, and a file that goes out and in again.
func TestLimitCommands(t *testing.T) {
	s := newFleet(t, 1, setup{rules: peopleRules, store: aRedis(t), env: []string{"LOG_LEVEL=info"}}).nodes[0]
	s.may("set", "12", "d", "five=a", "--reason=why, \"so\"", "--new")
	if code, _, errs := s.limit("set", "13", "d", "five=a", "--new"); code != 1 || !strings.Contains(errs, "override that the change expects") {
		t.Errorf("--new of one that is there: %d %s", code, errs)
	}
	_, out, _ := s.read("get", "--json", "d", "five=a")
	var o console.Overridden
	if err := json.Unmarshal([]byte(out), &o); err != nil || o.By != "ops" || o.Reason != `why, "so"` || o.InForce != "12 per year" {
		t.Fatalf("get prints %s (%v)", out, err)
	}
	if code, _, errs := s.limit("set", "13", "d", "five=a", "--if-version=1"); code != 1 || !strings.Contains(errs, "override that the change expects") {
		t.Errorf("with another version: %d %s", code, errs)
	}
	s.may("set", "unlimited", "d", "five=a", "--if-version="+o.Version)
	s.may("set", "0", "d", "tier=gold", "user=b&c", "--expires=1h")
	if _, out, _ := s.read("list", "d"); !strings.Contains(out, "unlimited") || !strings.Contains(out, "tier=gold&user=b%26c") ||
		strings.Count(out, "\n") != 3 {
		t.Errorf("list prints\n%s", out)
	}
	if _, out, _ := s.read("list", "--json", "d", "--prefix=tier=g"); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"limit":0`) {
		t.Errorf("list --json prints\n%s", out)
	}
	_, exported, _ := s.read("export")
	s.may("rm", "d", "five=a")
	s.may("rm", "d", "tier=gold", "user=b&c")
	if code, _, errs := s.read("get", "d", "five=a"); code != 1 || !strings.Contains(errs, "the limit of the file is in force") {
		t.Errorf("after rm: %d %s", code, errs)
	}
	file := filepath.Join(t.TempDir(), "overrides.csv")
	writeFile(t, file, exported)
	if out := s.may("import", file); out != "2 overrides set, 0 lines refused\n" {
		t.Errorf("import prints %s", out)
	}
	if _, again, _ := s.read("export"); again == "" || strings.Count(again, "\n") != strings.Count(exported, "\n") ||
		!strings.Contains(again, ",ops,") || !strings.Contains(again, "tier=gold&user=b%26c,0,day,") {
		t.Errorf("after an import, export prints\n%s, and did\n%s", again, exported)
	}
	var many strings.Builder
	many.WriteString("domain,descriptor,limit\n")
	for i := range 2010 { // more than a page
		fmt.Fprintf(&many, "d,five=%d,7\n", i)
	}
	writeFile(t, file, many.String())
	s.may("import", file)
	if _, all, _ := s.read("export", "d"); strings.Count(all, "\n") != 1+2+2010 {
		t.Errorf("of 2012 overrides, export prints %d lines", strings.Count(all, "\n"))
	}
	for want, args := range map[string][]string{
		"must be a whole number":    {"set", "many", "d", "five=a"},
		"did you mean 'd'?":         {"set", "1", "dd", "five=a"},
		"the rule is unlimited":     {"set", "1", "d", "free=a"},
		"has no max_override":       {"set", "1", "d", "ban=a"},
		"the rule's limit is 5 per": {"set", "1", "d", "five=a", "--unit=day"},
		"no such file":              {"import", "nowhere.csv"},
		"by the clock of the store": {"set", "1", "d", "five=a", "--expires=1ns"},
	} {
		if code, _, errs := s.limit(args...); code != 1 || !strings.Contains(errs, want) || strings.Contains(errs, "hunter2") {
			t.Errorf("%v: %d %s, must be %q", args, code, errs, want)
		}
	}
	if code, _, errs := runLine("limit", "list", "--debug", s.debug, "--token=wrong"); code != 1 || !strings.Contains(errs, "ADMIN_TOKEN") {
		t.Errorf("with a wrong token: %d %s", code, errs)
	}
	if log := s.log(); !strings.Contains(log, "an override was set") || !strings.Contains(log, "by=ops") || strings.Contains(log, "hunter2") || strings.Contains(log, "0001-01-01") {
		t.Errorf("the log:\n%.3000s", log)
	}
	if _, metrics := s.get(s.debug + "/metrics"); !strings.Contains(metrics, `sluice_override_changes_total{result="removed"} 2`) {
		t.Errorf("no count of changes in the metrics")
	}
}

// The tiers of docs/guides/overrides.md: a value of the descriptor says the limit, or the row of the key does.
func TestTiers(t *testing.T) {
	rules := filepath.Join(top, "deploy/rules/tiers.yaml")
	if code, out, errs := runLine("check", "--strict", "--override=tier=pro&api_key=a=9000", "--override=edge?partner=x=unlimited", rules); code != 0 ||
		!strings.Contains(out, "[tier=pro&api_key=a]") || !strings.Contains(out, "9000 per minute") || !strings.Contains(out, "100000 per minute") {
		t.Errorf("check: %d %s%s", code, out, errs)
	}
	for want, override := range map[string]string{
		"max_override 1000":            "tier=free&api_key=a=1001",
		"the rule has max_override: 0": "masked_remote_address=10.0.0.0/8=1",
		"no rule matches":              "tier=none&api_key=a=1",
		"write DESCRIPTOR=LIMIT":       "nothing",
		"must be a whole number":       "api_key=a=b",
	} {
		if code, _, errs := runLine("check", "--override="+override, rules); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("check --override=%s: %d %s, must be %q", override, code, errs, want)
		}
	}
	s := serve(t, []string{"ADMIN_TOKEN=hunter2", "DRAIN_TIME=0s"}, "--config", rules)
	limitOf := func(entries string) string { // the code, and the limit in force
		t.Helper()
		answer := s.overJSON()(parseRequest(t, "domain=edge | "+entries))
		m := regexp.MustCompile(`^(\w+) \[\w+ (\d+)/`).FindStringSubmatch(answer)
		if m == nil {
			t.Fatalf("%s is answered %s", entries, answer)
		}
		return m[1] + " " + m[2]
	}
	tier := func(name string) string { return limitOf("tier=" + name + ",api_key=ann") }
	if got := tier("free") + ", " + tier("pro") + ", " + tier("enterprise"); got != "OK 60, OK 6000, OK 60000" {
		t.Errorf("the tiers are answered %s", got)
	}
	s.may("set", "9000", "edge", "tier=pro", "api_key=ann")
	s.may("set", "500", "edge", "api_key=bob")
	s.may("set", "10", "edge", "partner=acme")
	for want, entry := range map[string]string{
		"OK 500": "api_key=bob", "OK 60": "api_key=eve", "OK 10": "partner=acme", "OVER_LIMIT 0": "partner=stranger",
	} {
		if got := limitOf(entry); got != want {
			t.Errorf("%v is answered %s, must be %s", entry, got, want)
		}
	}
	if got := tier("pro") + ", " + tier("free"); got != "OK 9000, OK 60" {
		t.Errorf("with an override of the pro tier they are answered %s", got)
	}
}

// Three nodes have used up a key, and refuse it by themselves. An override that is set at one over HTTP counts at all of
// them within a second, on each kind of store, and each node lists all.
func TestOverridesReachEachNode(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, server storeServer) {
		overridesReach(t, newFleet(t, 3, setup{rules: peopleRules, store: server}).nodes)
	})
}

// In mode routing the owner of a key decides by the rule that it gets, also for keys that other nodes lease.
func TestOverridesReachOwners(t *testing.T) {
	t.Parallel()
	rules := strings.Replace(peopleRules, "domain: d\n", "domain: d\ncoordination: {mode: routing, on_store_failure: closed, on_deny: refund}\n", 1)
	overridesReach(t, newFleet(t, 3, setup{rules: rules, ring: 3, store: aRedis(t)}).nodes)
}

const reached = 60 // keys

func overridesReach(t *testing.T, nodes []*sluice) {
	t.Helper()
	const workers = 6
	took := make([]time.Duration, reached)
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for i := worker; i < reached; i += workers {
				took[i] = overrideReaches(t, nodes, i)
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	t.Logf("an override counts at three nodes after %v (p50), %v (p99), %v", took[reached/2], took[reached*99/100], took[reached-1])
	if took[reached/2] > time.Second { // a busy machine may hold up some
		t.Errorf("half of the overrides count later than after %v", took[reached/2])
	}
	eachLists(t, nodes)
}

// eachLists checks that each node lists and exports all overrides.
func eachLists(t *testing.T, nodes []*sluice) {
	t.Helper()
	lines := func(s *sluice, want int, args ...string) {
		t.Helper()
		s.eventually(fmt.Sprint(args, " has ", want, " lines"), func() bool { // while the ring changes, it asks to try again
			_, out, _ := s.read(args...)
			return strings.Count(out, "\n") == want
		})
	}
	for _, s := range nodes {
		lines(s, reached, "list", "--json", "d")
		lines(s, 1+reached, "export")
	}
}

// Nodes of a ring without a store do the same by the memory of each key's owner. Of an override, a node that is added
// takes nothing away, nor does one that ends in good order.
func TestRingOverridesOutliveRestarts(t *testing.T) {
	t.Parallel()
	rules := strings.Replace(peopleRules, "domain: d\n", "domain: d\ncoordination: {mode: routing, on_store_failure: closed, on_deny: refund}\n", 1)
	r := newFleet(t, 3, setup{rules: rules, ring: 4})
	overridesReach(t, r.nodes)
	added := r.join()
	in := func(nodes []*sluice, members int) {
		t.Helper()
		for _, s := range nodes {
			s.eventually("the ring is whole", func() bool { return s.metric("sluice_ring_members") == members && s.healthy() })
		}
		eachLists(t, nodes)
		for i := range reached {
			key, s := fmt.Sprint("k", i), nodes[i%len(nodes)]
			s.eventually(key+" passes", func() bool { return s.post("five", key) == http.StatusOK }) // an owner may answer late
		}
	}
	in(r.nodes, 4)
	r.nodes[0].ends(syscall.SIGINT) // which skips the drain only
	in(r.nodes[1:], 3)
	added.put(t, "five=brief", `{"limit": 0, "reason": "", "expires": "300ms"}`)
	for _, s := range r.nodes[1:] {
		s.eventually("an override is over", func() bool { return s.post("five", "brief") == http.StatusOK })
	}
	eachLists(t, r.nodes[1:])
}

// overrideReaches is how long it takes until an override counts at all nodes, which refused the key before.
func overrideReaches(t *testing.T, nodes []*sluice, i int) time.Duration {
	t.Helper()
	key := fmt.Sprint("k", i)
	for n := range 30 { // each request is charged
		nodes[n%len(nodes)].post("five", key)
	}
	began := time.Now()
	nodes[i%len(nodes)].put(t, "five="+key, `{"limit": 1000, "reason": "", "expires": "1h"}`)
	for _, s := range nodes {
		if !becomes(func() bool { return s.post("five", key) == http.StatusOK }) {
			t.Errorf("%s is refused at %s after %v", key, s.debug, patience)
		}
	}
	return time.Since(began)
}

// put sets an override over HTTP, again while the store does not answer in time: its disk may be busy.
func (s *sluice) put(t *testing.T, descriptor, body string) {
	t.Helper()
	var answer http.Response
	var said string
	becomes(func() bool {
		answer, said = s.do(http.MethodPut, s.debug+"/v1/overrides/d?"+descriptor, body, "Authorization", "Bearer hunter2")
		return answer.StatusCode != http.StatusServiceUnavailable
	})
	if answer.StatusCode != http.StatusOK || answer.Header.Get("ETag") == "" {
		t.Errorf("PUT %s is answered %s %s", descriptor, answer.Status, said)
	}
}

// A ban counts within seconds at a node that missed its recall: the connection that listens was cut.
func TestBanReachesWhoMissedItsRecall(t *testing.T) {
	t.Parallel()
	const rules = "domain: d\ncoordination: {on_deny: refund}\ndescriptors:\n- {key: many, rate_limit: {unit: year, requests_per_unit: 50000}}\n"
	of := func(t *testing.T, server storeServer, cut func()) {
		t.Parallel()
		nodes := newFleet(t, 2, setup{rules: rules, store: server}).nodes
		for range 300 { // a lease worth having
			nodes[0].post("many", "x")
		}
		cut()
		nodes[1].put(t, "many=x", `{"limit": 0, "reason": "abuse"}`)
		nodes[0].eventually("the key is refused", func() bool {
			time.Sleep(300 * time.Millisecond) // so seldom that the lease is not used up meanwhile
			return nodes[0].post("many", "x") == http.StatusTooManyRequests
		})
	}
	t.Run("postgres", func(t *testing.T) {
		server := pgtest.Start(t)
		of(t, server, func() {
			server.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'")
		})
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		of(t, server, func() { server.Do("CLIENT", "KILL", "TYPE", "pubsub") })
	})
}
