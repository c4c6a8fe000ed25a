package bench

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/bench/caller"
)

// Real nodes, asked in turn: a peek at a small limit shows what is left in all, and all that is left is admitted.
func TestSmallLimitsOfAFleet(t *testing.T) {
	t.Parallel()
	const nodes = 3
	limits := []int{29, 59}
	for limit := range 17 {
		limits = append(limits, limit+1)
	}
	for _, mode := range []string{"leasing", "approx", "routing", "routing without a store"} {
		name, _, alone := strings.Cut(mode, " ")
		var rules strings.Builder
		fmt.Fprintf(&rules, "domain: %s\ndescriptors:\n", domain)
		for _, limit := range limits {
			fmt.Fprintf(&rules, "  - {key: %s, value: \"%d\", coordination: {mode: %s, store_deadline: 1s}, rate_limit: {unit: year, requests_per_unit: %d}}\n", entry, limit, name, limit)
		}
		f := fleet(t, !alone, rules.String(), nodes)
		ask := func(limit, hits int) (bool, int) {
			r := caller.Request(domain, entry, fmt.Sprint(limit))
			r.Descriptors[0].HitsAddend = wrapperspb.UInt64(uint64(hits))
			answer, err := rls.NewRateLimitServiceClient(f.Pool.Next()).ShouldRateLimit(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return answer.GetOverallCode() == rls.RateLimitResponse_OK, int(answer.GetStatuses()[0].GetLimitRemaining())
		}
		for _, limit := range limits {
			for left := limit; left >= 0; left-- {
				if ok, shown := ask(limit, 0); !ok || shown != left {
					t.Fatalf("%s: of %d, %d are left; a peek is OK %v, and shows %d", mode, limit, left, ok, shown)
				}
				if ok, shown := ask(limit, 1); ok != (left > 0) || shown != max(0, left-1) {
					t.Fatalf("%s: of %d, %d are left; a request for one is OK %v, and shows %d", mode, limit, left, ok, shown)
				}
			}
		}
	}
}

// Real nodes: a limit of 10 requests in flight by charges and refunds, of refused requests too, as Envoy does it at the
// end of a stream.
func TestRequestsInFlightByRefunds(t *testing.T) {
	t.Parallel()
	const nodes, limit, callers, length = 3, 10, 24, 3 * time.Second
	rules := fmt.Sprintf("domain: %s\ndescriptors:\n  - {key: %s, coordination: {store_deadline: 1s}, rate_limit: {unit: year, requests_per_unit: %d}}\n", domain, entry, limit)
	f := fleet(t, true, rules, nodes)
	ask := func(refund bool) bool {
		r := caller.Request(domain, entry, "k")
		r.Descriptors[0].HitsAddend, r.Descriptors[0].IsNegativeHits = wrapperspb.UInt64(1), refund
		answer, err := rls.NewRateLimitServiceClient(f.Pool.Next()).ShouldRateLimit(t.Context(), r)
		if err != nil {
			t.Error(err)
		}
		return answer.GetOverallCode() == rls.RateLimitResponse_OK
	}
	var held, most, admitted atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(rand.N(30 * time.Millisecond)) {
				if ask(false) {
					admitted.Add(1)
					for n := held.Add(1); n > most.Load(); {
						most.Store(n)
					}
					time.Sleep(rand.N(50 * time.Millisecond))
					held.Add(-1)
				}
				ask(true)
			}
		})
	}
	all.Wait()
	if most.Load() > limit || admitted.Load() <= limit {
		t.Errorf("%d are held at once, of %d, and %d were admitted", most.Load(), limit, admitted.Load())
	}
	t.Logf("%d at once, %d admitted", most.Load(), admitted.Load())
}
