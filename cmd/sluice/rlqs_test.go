package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
)

// A node leaves while others take its streams over: its Envoys go on with what they have, ask
// another node within 5 s, and refuse hardly anything meanwhile. Told to drop their leases (a
// TTL of 0), they would refuse everything until then.
func TestEnvoysOfANodeThatLeaves(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 25 s")
	}
	t.Parallel()
	store := redistest.Start(t)
	rules := rulesFile(t, "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: hour, requests_per_unit: 36000}\n")
	env := []string{"REDIS_URL=" + store.Addr, "DRAIN_TIME=100ms"}
	port := freePort(t)
	// Both listen on one port, as behind a balancer.
	leaves := serve(t, env, "--config", rules, "--grpc-port", port)
	stays := serve(t, env, "--config", rules, "--grpc-port", port)
	asking, stop := context.WithCancel(t.Context())
	defer stop()
	var left atomic.Bool
	var asked, refused atomic.Int64
	var all []*liveEnvoy
	var wg sync.WaitGroup
	join := func() {
		e := newLiveEnvoy(t, leaves.rpc)
		all = append(all, e)
		wg.Go(func() {
			e.asks(asking, 50*time.Millisecond, map[string]string{"k": "v"}, func(ok bool) {
				if left.Load() {
					asked.Add(1)
					if !ok {
						refused.Add(1)
					}
				}
			})
		})
	}
	for range 4 {
		join()
	}
	// The kernel spreads connections: each node has one of 4, or of some more.
	stays.eventually("both nodes have streams", func() bool {
		a, b := leaves.metric("sluice_rlqs_streams"), stays.metric("sluice_rlqs_streams")
		if a+b == len(all) && (a == 0 || b == 0) && len(all) < 40 {
			join()
		}
		return a+b == len(all) && a > 0 && b > 0
	})
	for _, n := range []*sluice{leaves, stays} {
		n.eventually("leases are by rates, after two reports of each", func() bool {
			return n.metric("sluice_rlqs_reports_total") >= 3*n.metric("sluice_rlqs_streams")
		})
	}
	had := leaves.metric("sluice_rlqs_streams")
	left.Store(true)
	leaves.Signal(syscall.SIGTERM)
	stays.eventually("the other node has all streams", func() bool { return stays.metric("sluice_rlqs_streams") == len(all) })
	stays.eventually("Envoys have asked since", func() bool { return asked.Load() >= 200 })
	stop()
	wg.Wait()
	t.Logf("%d of %d Envoys had a node that left: of %d requests since, %d were refused", had, len(all), asked.Load(), refused.Load())
	if asked.Load() < 100 || refused.Load() > asked.Load()/50 {
		t.Errorf("%d of %d requests were refused", refused.Load(), asked.Load())
	}
}

// The console shows streams as holders: the largest leases and how many there are, with what
// requests brought along hidden, and a name that is markup as text.
func TestConsoleShowsEnvoys(t *testing.T) {
	t.Parallel()
	rules := rulesFile(t, "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: hour, requests_per_unit: 36000}\n")
	s := serve(t, []string{"CONSOLE_REDACT=true"}, "--config", rules)
	const name = "<b onload=x>\"edge\""
	ctx := metadata.AppendToOutgoingContext(t.Context(), rlqs.HolderHeader, name)
	stream, err := rlqsv3.NewRateLimitQuotaServiceClient(s.dial()).StreamRateLimitQuotas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m := &rlqsv3.RateLimitQuotaUsageReports{Domain: "d"}
	for i := range 30 {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, &rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: &rlqsv3.BucketId{Bucket: map[string]string{"k": fmt.Sprint("s3cret", i)}}, NumRequestsDenied: 1,
		})
	}
	if err := stream.Send(m); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	var v console.State
	var body string
	s.eventually("the console shows all", func() bool {
		_, body = s.get(s.debug + "/console/state")
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		return v.Envoys != nil && v.Envoys.Leases == 30
	})
	if e := v.Envoys; e.Streams != 1 || len(e.Held) != 24 || e.Held[0].Name != name || e.Held[0].Charged != 1800 ||
		!strings.HasPrefix(e.Held[0].Account, "hour|d|k=#") {
		t.Errorf("it shows %+v", e)
	}
	if strings.Contains(body, "s3cret") || strings.Contains(body, "<b") {
		t.Errorf("it shows a value, or markup: %s", body)
	}
	// A caller of RLS and the Envoys share a budget.
	_, text := s.get(s.debug + "/explain?domain=d&entry=k=s3cret0")
	if !strings.Contains(text, `"envoys":[{"name":`) || !strings.Contains(text, `"free":34200`) {
		t.Errorf("of an Envoy's account explain says %s", text)
	}
	b := newBrowser(t)
	b.open("http://" + s.debug + "/console")
	s.eventually("the page shows them", func() bool {
		return b.eval(`document.querySelectorAll('#held tbody tr').length`) == "24"
	})
	if cell := b.eval(`document.querySelector('#held tbody td').textContent`); cell != name {
		t.Errorf("the page names the Envoy %q", cell)
	}
	if note := b.eval(`$('envoysnote').textContent`); !strings.HasPrefix(note, "1 streams hold 30 leases;") ||
		!strings.HasSuffix(note, "The largest 24 are shown, 6 more are not.") {
		t.Errorf("the page says %q", note)
	}
}
