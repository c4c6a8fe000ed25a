package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

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

func TestAuditSaysWhatIsWrong(t *testing.T) {
	bad, empty := filepath.Join(t.TempDir(), "bad"), filepath.Join(t.TempDir(), "empty")
	writeFile(t, bad, "{}\n")
	writeFile(t, empty, "")
	for want, args := range map[string][]string{
		bad + ":1 is not an event": {bad},
		"the record is empty":      {empty},
	} {
		if code, out, errs := runLine(append([]string{"audit"}, args...)...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%v: %d %s %s, want %q", args, code, out, errs, want)
		}
	}
}
