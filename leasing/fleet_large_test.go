package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Limits of 30,000,000,000 tokens are admitted to the token, by requests for half of the rest at two nodes in turn. A
// bucket has its maximum, without a refill in the meantime.
func TestLargeLimitsAreExact(t *testing.T) {
	for _, l := range []ratelimit.Limit{
		{Unit: ratelimit.Hour, Requests: 30_000_000_000},
		{Unit: ratelimit.Hour, Requests: 30_000_000_000, Algorithm: ratelimit.SlidingWindow},
		{Unit: ratelimit.Year, Requests: 1, Burst: 1<<32 - 1, Algorithm: ratelimit.TokenBucket},
	} {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			s := newStage(t, 2, 100, 1, map[string]string{"on_deny": "refund", "lease.size": "1"})
			s.rule.Limit = l
			s.ledger.OnRecall = func(_ ratelimit.Holder, key string, w ratelimit.Window) {
				for _, n := range s.nodes {
					s.timers = append(s.timers, timer{s.now, func() { n.Recalled(key, w) }})
				}
			}
			limit, admitted := l.Capacity(), tokens(0)
			try := func(node int, cost tokens) bool {
				v := s.ask(node, "k", cost)
				if !v.OverLimit {
					admitted += cost
				}
				return !v.OverLimit
			}
			for i := 0; admitted < limit; i++ { // what is left, in halves
				if cost := max(1, (limit-admitted)/2); !try(i%2, cost) {
					t.Fatalf("%d of %d were admitted, and %d more are refused", admitted, limit, cost)
				}
				s.goOn(10 * time.Millisecond)
			}
			if admitted != limit || try(0, 1) || try(1, 1) {
				t.Errorf("%d of %d were admitted", admitted, limit)
			}
		})
	}
}
