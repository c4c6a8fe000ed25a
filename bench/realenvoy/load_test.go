package realenvoy

import (
	"context"
	"sync"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/bench/caller"
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
