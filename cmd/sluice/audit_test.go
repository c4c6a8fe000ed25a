package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-gate/sluice/leasing/audit"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

const llmAudited = `domain: d
coordination: {audit: true, on_store_failure: closed, on_deny: charge}
descriptors:
  - {key: fixed, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: bucket, algorithm: token_bucket, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: quiet, coordination: {audit: false}, rate_limit: {unit: year, requests_per_unit: 10000}}
`

// replayed are the windows that sluice audit prints, by their rules; none if it fails.
func replayed(args ...string) map[string]audit.Window {
	code, out, _ := runLine(append([]string{"audit", "--json"}, args...)...)
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

// granted is a line of AUDIT_FILE: a holder is granted more of a limit of 100 until the year 2100.
func granted(t *testing.T, holder string, more, sum int64) string {
	t.Helper()
	line, err := json.Marshal(map[string]any{
		"kind": audit.WasGrant, "rule": "d.k", "key": "year|d|k=x", "holder": holder, "at_us": sum, "window": 1, "ends_us": int64(4e15),
		"fence": sum, "total": more, "granted": more, "need": more, "limit": 100, "sum": sum,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(line) + "\n"
}

// A window whose grants exceed the limit fails the audit of the files of all nodes, and is shown as broken.
func TestAuditFindsABrokenLimit(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two, bad := file("one", "cut off\n"+granted(t, "a", 100, 100)), file("two", granted(t, "b", 7, 107)), file("bad", "{}\n")
	if code, out, errs := runLine("audit", one); code != 0 || !strings.Contains(out, "held") || !strings.Contains(errs, one+":1 is not an event") {
		t.Errorf("of one file: %d %s\n%s", code, errs, out)
	}
	if code, out, errs := runLine("audit", one, two); code != 1 || !strings.Contains(out, "BROKEN") || !strings.Contains(errs, "1 of 1 windows") {
		t.Errorf("of both files: %d %s\n%s", code, errs, out)
	}
	if code, _, errs := runLine("audit", "--rule=none", one); code != 1 || !strings.Contains(errs, `--rule "none" and --key "" leave out its 1 events`) {
		t.Errorf("of a rule that is not on record: %d %s", code, errs)
	}
	if code, _, errs := runLine("audit", bad); code != 1 || !strings.Contains(errs, bad+":1 is not an event of AUDIT_FILE") {
		t.Errorf("of another file: %d %s", code, errs)
	}
}

// 50 clients peek, and charge 5,000 of 10,000 when they are done. The record says how much was used, how much of it
// beyond the limit, and that it was charged after the fact; also of nodes that were killed.
func TestAuditOfCharges(t *testing.T) {
	const limit, cost, clients = 10_000, 5000, 50
	f, files := newAudited(t, setup{rules: patient(llmAudited), store: aRedis(t)}, 3)
	for _, of := range []string{"fixed", "sliding", "bucket", "quiet"} {
		for i := range clients {
			if f.charge(i%3, of, "k", 0) {
				t.Errorf("%s: client %d is refused, and nothing was used", of, i)
			}
		}
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() { f.charge((i+1)%3, of, "k", cost) })
		}
		all.Wait()
		if !f.charge(0, of, "k", 0) {
			t.Errorf("%s: %d are used of %d, and a peek passes", of, clients*cost, limit)
		}
	}
	f.nodes[0].eventually("what is refused is told now and then", func() bool {
		w := replayed(files...)
		decided := func(of string) ratelimit.Tokens { return w[of].Admitted + w[of].Refused }
		return min(w["fixed"].Spent, w["sliding"].Spent, w["bucket"].Taken) >= clients*cost &&
			min(decided("fixed"), decided("sliding"), decided("bucket")) >= clients*cost
	})
	for _, p := range f.nodes {
		p.ends(syscall.SIGKILL)
	}
	windows := replayed(files...)
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

// newAudited is a fleet whose nodes write their events into files.
func newAudited(t *testing.T, s setup, nodes int) (f *fleet, files []string) {
	f = newFleet(t, 0, s)
	for i := range nodes {
		files = append(files, filepath.Join(t.TempDir(), fmt.Sprint(i)))
		f.env = []string{"AUDIT_FILE=" + files[i]}
		f.join()
	}
	f.untilWhole()
	return f, files
}

// Accounts of a cluster are on record, and an owner's claims under the name of the rule.
func TestAuditOfClustersAndOwners(t *testing.T) {
	t.Parallel()
	cluster, file := redistest.Cluster(t, 3), filepath.Join(t.TempDir(), "record")
	rules := rulesFile(t, "domain: d\ncoordination: {audit: true, on_store_failure: closed}\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 10}}]\n")
	s := serve(t, []string{"REDIS_TYPE=CLUSTER", "REDIS_URL=" + cluster[0].Addr, "DRAIN_TIME=0s", "AUDIT_FILE=" + file}, "--config", rules)
	for i := range 20 {
		s.eventually("the ledger answers", func() bool { return s.post("k", fmt.Sprint(i)) == 200 })
	}
	s.ends(syscall.SIGTERM)
	code, out, errs := runLine("audit", "--json", file)
	if code != 0 || strings.Count(out, `"held":true`) != 20 {
		t.Errorf("of a cluster: %d %s\n%s", code, errs, out)
	}

	audited := strings.Replace(routingRules, "{mode: routing,", "{mode: routing, audit: true,", 1)
	r, files := newAudited(t, setup{rules: audited, store: aRedis(t), ring: 2}, 2)
	for i := range 20 {
		r.askFor(i%2, "ten", fmt.Sprint(i))
	}
	code, out, errs = runLine(append([]string{"audit", "--json", "--rule=d.ten"}, files...)...)
	if code != 0 || strings.Count(out, `"rule":"d.ten"`) != 20 {
		t.Errorf("of owners: %d %s\n%s", code, errs, out)
	}
}

// charge is whether a node refuses a charge of so many tokens; 0 peeks, and fewer than none refunds.
func (f *fleet) charge(node int, key, value string, n int) (over bool) {
	f.Helper()
	a, err := f.send(node, descriptor(n, key, value))
	if err != nil {
		f.Error(err)
		return true
	}
	return a.OverallCode == rls.RateLimitResponse_OVER_LIMIT
}
