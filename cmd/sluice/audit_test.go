package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// newAudited is a fleet whose nodes write their events into files, too.
func newAudited(t *testing.T, rules string, nodes int) (f *fleet, files []string) {
	f = newFleet(t, 0, setup{rules: patient(rules), store: aRedis(t)})
	for i := range nodes {
		files = append(files, filepath.Join(t.TempDir(), fmt.Sprint(i)))
		f.env = []string{"AUDIT_FILE=" + files[i], "CACHE_KEY_PREFIX=p[x]*"}
		f.join()
	}
	f.untilWhole()
	return f, files
}

// A cluster keeps each record next to its account, and an owner's claims are on record under the name of the rule.
func TestAuditOfClustersAndOwners(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3)
	rules := rulesFile(t, "domain: d\ncoordination: {audit: true, on_store_failure: closed}\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 10}}]\n")
	s := serve(t, []string{"REDIS_TYPE=CLUSTER", "REDIS_URL=" + cluster[0].Addr, "CACHE_KEY_PREFIX=x:", "DRAIN_TIME=0s"}, "--config", rules)
	for i := range 20 {
		s.eventually("the ledger answers", func() bool { return s.post("k", fmt.Sprint(i)) == 200 })
	}
	s.ends(syscall.SIGTERM)
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
