package realenvoy

import (
	"context"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
)

// Without a decision a request passes, and with failure_mode_deny: true Envoy answers 500, whatever has become of
// the only node. While it drains it decides.
func TestFailureModes(t *testing.T) {
	needsLong(t)
	text := change(t, shipped(t, "envoy/envoy.yaml"), "timeout: 0.02s", "timeout: 0.3s")
	deny := change(t, text, "failure_mode_deny: false", "failure_mode_deny: true")
	for text, status := range map[string]int{text: http.StatusOK, deny: http.StatusInternalServerError} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			w := (&world{T: t, rules: fleetRules("mode: leasing", 1), config: Config{Text: text}, flags: []string{
				"--drain-time", "3s",
			}}).run()
			node := w.fleet.Nodes[0]
			is := func(status int) bool { return w.get("/", "x-api-key", "k").Status == status }
			refused := func() bool { return is(http.StatusTooManyRequests) }
			undecided := func() bool { return is(status) }
			if w.passes(1, "/", "x-api-key", "k") != 1 || !refused() {
				t.Fatal("the limit of 1 does not hold")
			}
			w.need(node.Pause(true))
			w.need(Until("a request is undecided while the node hangs", undecided))
			for range 5 {
				if !undecided() {
					t.Error("a request was decided while the node hung")
				}
			}
			w.need(node.Pause(false))
			w.need(Until("the node decides again", refused))

			w.need(w.envoy.UntilStat("cluster.sluice.membership_healthy", 1))
			w.need(node.Signal(syscall.SIGTERM))
			w.need(w.envoy.UntilStat("cluster.sluice.membership_healthy", 0))
			if !refused() {
				t.Error("the only node was not asked while it drained")
			}
			w.need(node.Wait(15 * time.Second))
			if !undecided() {
				t.Error("a request was decided by a node that has ended")
			}
			w.need(w.fleet.Start(0))
			w.need(Until("the node decides again", refused)) // in its memory, which is new, k has had none
		})
	}
}

// A node refuses calls because its answer would be late (UNAVAILABLE, which leaves Envoy undecided: see the
// rows fail-open and fail-deny of testdata/stream-done.md). Each request through Envoy is answered 200.
func TestOverloadedNode(t *testing.T) {
	needsLong(t)
	w := (&world{
		T: t, rules: fleetRules("mode: leasing", 1e9), config: Config{Text: shipped(t, "envoy/envoy.yaml")},
		flags: []string{"--max-wait", "1ms"},
	}).run()
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
	passed := w.passes(n, "/", "x-api-key", "k")
	cancel()
	callers.Wait()
	all, err := w.envoy.Stats()
	w.need(err)
	t.Logf("%d of %d passed, %d undecided, %d of them after 20ms",
		passed, n, all[undecidedStat], all["cluster.sluice.upstream_rq_timeout"])
	if passed != n {
		t.Errorf("%d of %d passed", passed, n)
	}
	if errs, ok := all[undecidedStat], all["cluster.service.ratelimit.ok"]; errs+ok != n {
		t.Errorf("of %d requests Envoy counts %d errors and %d decisions", n, errs, ok)
	}
}

// Calls that never begin, and answers that are not taken, leave an Envoy that fails open its decisions: of a limit,
// exactly as many pass.
func TestCallsThatNeverBeginOpenNothing(t *testing.T) {
	const limit, requests = 10, 300
	w := (&world{T: t, rules: fleetRules("mode: leasing", limit), config: Config{
		Text: change(t, shipped(t, "envoy/envoy.yaml"), "timeout: 0.02s", "timeout: 0.3s"), // a busy machine is late by itself
	}}).run()
	request, err := proto.Marshal(caller.Request("edge", "api_key", "other"))
	w.need(err)
	for name, attack := range map[string]func(address string, d time.Duration) error{
		"begin": func(address string, d time.Duration) error { return hostile.NeverBegin(hostile.Method, address, 8, d) },
		"take": func(address string, d time.Duration) error {
			return hostile.NeverTaken(hostile.Method, address, 8, request, d)
		},
	} {
		ctx, stop := context.WithCancel(t.Context())
		var attacker sync.WaitGroup
		attacker.Go(func() {
			for ctx.Err() == nil {
				if err := attack(w.fleet.Addresses()[0], 200*time.Millisecond); err != nil {
					t.Log(err)
				}
			}
		})
		w.need(Until("the attack is under way", func() bool { return hostile.Sent() > 50_000 }))
		passed := w.passes(requests, "/", "x-api-key", name)
		stop()
		attacker.Wait()
		if passed != limit {
			t.Errorf("%s: %d of %d requests passed a limit of %d", name, passed, requests, limit)
		}
	}
}
