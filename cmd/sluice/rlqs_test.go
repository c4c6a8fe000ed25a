package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/cmd/sluice/pace"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
)

// passes counts what Envoys let pass, by the minute.
type passes struct {
	mu     sync.Mutex
	minute map[int64]int // guarded by mu
}

func (p *passes) count(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.minute[at.Unix()/60]++
}

func (p *passes) most() (most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.minute {
		most = max(most, n)
	}
	return most
}

func (p *passes) all() (all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.minute {
		all += n
	}
	return all
}

// askEach asks each Envoy so often, until ctx is done.
func askEach(ctx context.Context, d time.Duration, id map[string]string, all ...*envoy.Live) *sync.WaitGroup {
	var wg sync.WaitGroup
	for _, e := range all {
		wg.Go(func() { pace.Every(ctx, d, func() { e.Request(id) }) })
	}
	return &wg
}

func envoyOf(t *testing.T, address string, p *passes) *envoy.Live {
	t.Helper()
	e, err := envoy.NewLive(envoy.Options{Domain: "d", Quirks: envoy.Stock()}, address, p.count)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

const quotaRules = `
domain: d
descriptors:
- key: tier
  value: gold
  descriptors:
  - key: api_key
    rate_limit: {unit: minute, requests_per_unit: 600}
- key: bucket
  algorithm: token_bucket
  rate_limit: {unit: minute, requests_per_unit: 600}
- key: brief
  rate_limit: {unit: second, requests_per_unit: 600}
`

// Three Envoys of two nodes share 600 a minute, and an RLS caller has its part of the same
// budget. Streams are cut, an Envoy stands still, a node is killed and started again, and the
// store loses its data: together they never have more than is declared.
func TestEnvoysShareABudget(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 40 s")
	}
	t.Parallel()
	store := redistest.Start(t)
	rules := rulesFile(t, quotaRules)
	env := []string{"REDIS_URL=" + store.Addr}
	host, port := freeAddress(t)
	address := net.JoinHostPort(host, port)
	first := serve(t, env, "--config", rules)
	second := serve(t, env, "--config", rules, "--grpc-port", port)
	p := &passes{minute: map[int64]int{}}
	id := map[string]string{"api_key": "k", "tier": "gold"}
	all := []*envoy.Live{envoyOf(t, first.rpc, p), envoyOf(t, first.rpc, p), envoyOf(t, second.rpc, p)}
	asking, stop := context.WithCancel(t.Context())
	wg := askEach(asking, 50*time.Millisecond, id, all...)

	first.eventually("explain shows who holds", func() bool {
		_, text := first.get(first.debug + "/explain?domain=d&entry=tier=gold&entry=api_key=k")
		return strings.Contains(text, `"envoys":[{"name":"127.0.0.1:`) && strings.Contains(text, `"envoys_in_all":2`)
	})
	first.eventually("200 have passed", func() bool { return p.all() >= 200 })
	_, text := first.get(first.debug + "/metrics")
	for _, want := range []string{"sluice_rlqs_streams 2\n", "sluice_rlqs_buckets 2\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics do not say %q", want)
		}
	}
	if code := first.postBody(`{"domain":"d","descriptors":[{"entries":[{"key":"tier","value":"gold"},{"key":"api_key","value":"k"}]}]}`); code == 200 {
		p.count(time.Now()) // of the same budget
	}
	all[0].Cut()
	second.Signal(syscall.SIGKILL)
	<-second.exited
	second = serve(t, env, "--config", rules, "--grpc-port", port)
	if second.rpc != address {
		t.Fatalf("it is at %s, not at %s again", second.rpc, address)
	}
	first.eventually("the streams are there again", func() bool {
		a, one := all[0].Opened()
		b, two := all[2].Opened()
		return one && two && a > 1 && b > 1
	})
	all[1].Freeze(4 * time.Second)
	store.Do("FLUSHALL")
	time.Sleep(8 * time.Second)
	stop()
	wg.Wait()
	for i, e := range all {
		if n, connected := e.Opened(); !connected || i != 1 && n < 2 {
			t.Errorf("Envoy %d has opened %d streams, and has one: %t", i, n, connected)
		}
	}
	// One lease of half the limit for the Envoy that stood still, if that was at a window's end. In addition,
	// the grants of a store that lost its data, with the usage of the killed node.
	if most, declared := p.most(), 600+300+30+600; most > declared {
		t.Errorf("%d passed in a minute, and at most %d are declared", most, declared)
	}
	if p.most() < 200 {
		t.Errorf("only %d passed in a minute: the load was not what the test is about", p.most())
	}
}

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
	_, port := freeAddress(t)
	// Both listen on one port, as behind a balancer.
	leaves := serve(t, env, "--config", rules, "--grpc-port", port)
	stays := serve(t, env, "--config", rules, "--grpc-port", port)
	asking, stop := context.WithCancel(t.Context())
	defer stop()
	var left atomic.Bool
	var asked, refused atomic.Int64
	var all []*envoy.Live
	var wg sync.WaitGroup
	join := func() {
		e := envoyOf(t, leaves.rpc, &passes{minute: map[int64]int{}})
		all = append(all, e)
		wg.Go(func() {
			pace.Every(asking, 50*time.Millisecond, func() {
				ok := e.Request(map[string]string{"k": "v"})
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
