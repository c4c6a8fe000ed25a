package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gate/sluice/leasing/audit"
	"github.com/sluice-gate/sluice/leasing/redistest"
)

const auditRules = `domain: d
coordination: {audit: true, on_store_failure: closed}
descriptors:
  - {key: hundred, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: many, coordination: {lease: {size: 500}}, rate_limit: {unit: year, requests_per_unit: 20000}}
  - {key: bucket, algorithm: token_bucket, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: drift, coordination: {mode: approx, drift_budget: 10%}, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: quiet, coordination: {audit: false}, rate_limit: {unit: year, requests_per_unit: 100}}
`

// newAudited is a fleet whose nodes write their events into files, too.
func newAudited(t *testing.T, rules string, nodes int) (f *fleet, files []string) {
	f = newFleet(t, 0, setup{rules: rules, store: aRedis(t)})
	for i := range nodes {
		files = append(files, filepath.Join(t.TempDir(), fmt.Sprint(i)))
		f.env = []string{"AUDIT_FILE=" + files[i], "CACHE_KEY_PREFIX=p[x]*", "COORDINATION_STORE_DEADLINE=1s"}
		f.join()
	}
	f.untilWhole()
	return f, files
}

// What clients were admitted is on record, also of a node that was killed.
func TestAudit(t *testing.T) {
	f, files := newAudited(t, auditRules, 2)
	admitted := map[string]int64{}
	for _, load := range []struct {
		key string
		n   int
	}{ // a node reports its drift while the others are played: the record lacks unreported usage
		{"drift", 3000}, {"hundred", 300}, {"many", 3000}, {"bucket", 1500}, {"sliding", 1500}, {"quiet", 200},
	} {
		before := f.admitted.Load()
		f.load(load.key, 4, load.n, 0, 1).Wait()
		admitted[load.key] = f.admitted.Load() - before
	}
	f.nodes[0].Signal(syscall.SIGKILL)
	f.load("many", 4, 1000, 1).Wait()
	f.nodes[1].Signal(syscall.SIGTERM)
	<-f.nodes[1].exited

	env := []string{"--redis-url=" + f.redis.Addr, "--cache-key-prefix=p[x]*"}
	code, out, errs := runLine(append([]string{"audit", "--json"}, env...)...)
	if code != 0 {
		t.Fatalf("%d %s\n%s", code, errs, out)
	}
	seen := 0
	for line := range strings.Lines(out) {
		var w struct {
			audit.Window
			Held bool
		}
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			t.Fatal(err)
		}
		key := strings.TrimPrefix(w.Rule, "d.")
		if seen++; !w.Held || int64(w.Taken) < admitted[key] || w.Taken-w.Debt > w.Limit+w.Bound {
			t.Errorf("%s: %d were admitted, the record says at most %d of %d; held: %t", key, admitted[key], w.Taken, w.Limit, w.Held)
		}
		if key == "hundred" && (w.Taken-w.Debt != 100 || w.Refused == 0 || w.Holders < 2) {
			t.Errorf("%s: %+v", key, w.Window)
		}
	}
	if seen != 5 {
		t.Errorf("a record of %d windows, want 5:\n%s", seen, out)
	}
	if code, out, errs = runLine(append([]string{"audit"}, files...)...); code != 0 || !strings.Contains(out, "d.hundred") {
		t.Errorf("from files: %d %s\n%s", code, errs, out)
	}
	if code, out, _ = runLine(append([]string{"audit", "--rule=hundred", "--key=hundred=x", "--events"}, env...)...); code != 0 || !strings.Contains(out, `"kind":"grant"`) || strings.Contains(out, "sliding") {
		t.Errorf("events: %d\n%s", code, out)
	}
}

// A cluster keeps each record next to its account, and an owner's claims are on record under the name of the
// rule.
func TestAuditOfClustersAndOwners(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3)
	rules := rulesFile(t, "domain: d\ncoordination: {audit: true, on_store_failure: closed}\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 10}}]\n")
	s := serve(t, []string{"REDIS_TYPE=CLUSTER", "REDIS_URL=" + cluster[0].Addr, "CACHE_KEY_PREFIX=x:", "DRAIN_TIME=0s"}, "--config", rules)
	for i := range 20 {
		s.eventually("the ledger answers", func() bool { return s.post("k", fmt.Sprint(i)) == 200 })
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	<-s.exited
	code, out, errs := runLine("audit", "--redis-type=CLUSTER", "--redis-url="+cluster[0].Addr, "--cache-key-prefix=x:", "--json")
	if code != 0 || strings.Count(out, `"Held":true`) != 20 {
		t.Errorf("of a cluster: %d %s\n%s", code, errs, out)
	}

	audited := strings.Replace(routingRules, "{mode: routing,", "{mode: routing, audit: true,", 1)
	r := newFleet(t, 2, setup{rules: audited, store: aRedis(t), ring: 2})
	for i := range 20 {
		r.askFor(i%2, "ten", fmt.Sprint(i))
	}
	code, out, errs = runLine("audit", "--redis-url="+r.redis.Addr, "--json", "--rule=d.ten")
	if code != 0 || strings.Count(out, `"Rule":"d.ten"`) != 20 {
		t.Errorf("of owners: %d %s\n%s", code, errs, out)
	}
}

func TestAuditSaysWhatIsWrong(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad")
	writeFile(t, bad, "{}\n")
	empty := redistest.Start(t)
	for want, args := range map[string][]string{
		"set STORE_URL or REDIS_URL": nil,
		bad + ":1 is not an event":   {bad},
		"the record is empty":        {"--redis-url=" + empty.Addr},
		"check REDIS_URL":            {"--redis-url=127.0.0.1:1"},
	} {
		if code, out, errs := runLine(append([]string{"audit"}, args...)...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%v: %d %s %s, want %q", args, code, out, errs, want)
		}
	}
}
