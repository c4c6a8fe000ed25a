package realenvoy

import (
	"context"
	"sync"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/sluicetest"
)

// A node refuses calls because its answer would be late (UNAVAILABLE, which leaves Envoy undecided: see the rows
// fail-open and fail-deny of testdata/stream-done.md). Each request through Envoy is answered 200.
func TestOverloadedNode(t *testing.T) {
	needsLong(t)
	w := newWorld(t, "envoy/envoy.yaml", "domain: edge\n"+
		"descriptors: [{key: api_key, rate_limit: {unit: year, requests_per_unit: 1000000000}}]\n")
	w.flags = []string{"--max-wait", "1ms"}
	w.run(1)
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	refused := make(chan struct{}, 1)
	for range 256 {
		callers.Go(func() {
			client := rls.NewRateLimitServiceClient(w.fleet.Pool.Next())
			r := caller.Request("edge", "api_key", "k")
			for ctx.Err() == nil {
				if _, err := client.ShouldRateLimit(ctx, r); status.Code(err) == codes.Unavailable {
					select {
					case refused <- struct{}{}:
					default:
					}
				}
			}
		})
	}
	<-refused
	const n = 500
	passed, err := w.passes(n, "/", "x-api-key", "k")
	cancel()
	callers.Wait()
	w.need(err)
	all := w.stats()
	t.Logf("%d of %d passed, %d undecided, %d of them after 20ms", passed, n, all[undecidedStat], all[timeoutStat])
	if passed != n {
		t.Errorf("%d of %d passed", passed, n)
	}
	if errs, ok := all[undecidedStat], all["cluster.service.ratelimit.ok"]; errs+ok != n {
		t.Errorf("of %d requests Envoy counts %d errors and %d decisions", n, errs, ok)
	}
}

// Each way answers its requests, and its cost is in the right place: Envoy pays for each, a service only where it
// is called, and least where Envoys have leases.
func TestEndToEnd(t *testing.T) {
	needsLong(t)
	installed(t)
	r, page := sluicetest.Measure[*EndToEndReport](t, &Options{
		Nodes: 1, Rounds: 1, Round: 3 * time.Second, Rate: 100, Keys: 10,
	})
	t.Log("\n" + page)
	costs := map[string]Way{}
	for _, w := range r.Ways {
		costs[w.Name] = w
		if w.Requests < 200 || w.Refused > 0 || w.P50 <= 0 || w.P99 < w.P50 || w.EnvoyCPU <= 0 {
			t.Errorf("%+v", w)
		}
		if asked := w.Name != "no filter"; asked != (w.ServiceCPU > 0) {
			t.Errorf("%s: the service took %v us", w.Name, w.ServiceCPU)
		}
	}
	if len(costs) != 7 || costs["RLQS"].ServiceCPU > costs["leasing"].ServiceCPU {
		t.Errorf("with leases the service takes more than with calls: %+v", costs)
	}
}
