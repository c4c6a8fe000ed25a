package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-gate/sluice/leasing/audit"
	"github.com/sluice-gate/sluice/ratelimit"
)

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
