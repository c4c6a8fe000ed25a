package main

import (
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-gate/sluice/leasing/etcd/etcdtest"
	"github.com/sluice-gate/sluice/leasing/postgres/pgtest"
)

const databaseRules = `domain: d
coordination: {on_store_failure: closed, store_deadline: 200ms, check_timeout: 200ms, audit: true}
descriptors:
  - {key: five, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: thousand, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: bucket, algorithm: token_bucket, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: drift, coordination: {mode: approx, drift_budget: 40, max_nodes: 4, audit: false}, rate_limit: {unit: year, requests_per_unit: 1000}}
`

// database is a server that is no Redis.
type database interface {
	URL() string
	Kill()
	Run()
}

func TestFleetOnPostgres(t *testing.T) {
	t.Parallel()
	fleetOnDatabase(t, pgtest.Start(t))
}

func TestFleetOnEtcd(t *testing.T) {
	t.Parallel()
	fleetOnDatabase(t, etcdtest.Start(t))
}

// Three nodes on one database: each limit is kept, in modes leasing and approx; the nodes know of each other; what is
// audited is on record, also after the server was killed; and decisions go on by the rules while it is away.
func fleetOnDatabase(t *testing.T, server database) {
	t.Helper()
	f := newEmptyFleet(t, databaseRules)
	for range 3 {
		s := serve(f.T, []string{"STORE_URL=" + server.URL(), "DRAIN_TIME=0s"}, "--config", f.rules, "--log-level=warn")
		s.untilHealthy()
		f.nodes, f.clients = append(f.nodes, s), append(f.clients, rls.NewRateLimitServiceClient(s.dial()))
	}
	for _, c := range []struct {
		key       string
		limit     int64
		over, few int64
	}{{"five", 5, 0, 0}, {"thousand", 1000, 0, 30}, {"bucket", 100, 0, 5}, {"sliding", 1000, 0, 30}, {"drift", 1000, 40, 30}} {
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
	f.nodes[0].eventually("the nodes know of each other", func() bool {
		_, text := f.nodes[0].get(f.nodes[0].debug + "/console/state")
		return strings.Count(text, `"started"`) >= 3
	})
	server.Kill()
	f.admitted.Store(0)
	f.load("five", 3, 5, 0, 1, 2).Wait() // nobody has anything in hand, and the rule is closed
	if got := f.admitted.Load(); got > 0 {
		t.Errorf("while the server was away %d more than the limit were admitted", got)
	}
	server.Run()
	f.load("five", 3, 5, 0, 1, 2).Wait()
	if got := f.admitted.Load(); got > 0 {
		t.Errorf("after the server came back %d more than the limit were admitted", got)
	}
	code, out, errs := runLine("audit", "--json", "--store-url="+server.URL())
	if code != 0 || strings.Count(out, `"Rule":"d.thousand"`) == 0 {
		t.Errorf("sluice audit exits with %d\n%s\n%s", code, out, errs)
	}
}
