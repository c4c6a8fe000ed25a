package leasing

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What on_store_failure admitted goes over the limit as its policy declares. It
// counts as that, and never as a bound that the rule has broken.
func TestWhatAPolicyAdmittedBreaksNoBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFleetWorld(t, 1, time.Millisecond)
		defer w.end()
		rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
		rule.Coordination.OnStoreFailure = ratelimit.FailOpen
		rule.Counters = &ratelimit.RuleCounters{}
		ask := func(n int) (admitted int) {
			for range n {
				if v, _ := w.ask(0, rule, 1, 1); !v.OverLimit {
					admitted++
				}
				time.Sleep(50 * time.Millisecond)
			}
			return admitted
		}
		admitted := ask(20)
		w.ledger.set(func() { w.ledger.err = fmt.Errorf("refused") })
		admitted += ask(150)
		w.ledger.set(func() { w.ledger.err = nil })
		time.Sleep(4 * time.Second)
		admitted += ask(20)
		time.Sleep(4 * time.Second)
		c := rule.Counters
		over := uint64(admitted - 100)
		if got := c.OverAdmitted.Load(); over == 0 || got != over || c.OverByPolicy.Load() != over {
			t.Errorf("%d were admitted; %d count as over, %d of them by the policy", admitted, got, c.OverByPolicy.Load())
		}
		if c.BeyondBound.Load() != 0 || c.NearBound.Load() != 0 || c.BeyondByPolicy.Load() != 1 {
			t.Errorf("%d windows are near their bound, %d beyond it, and %d beyond it by the policy",
				c.NearBound.Load(), c.BeyondBound.Load(), c.BeyondByPolicy.Load())
		}
	})
}

// What other nodes, or nobody knows who, brought over counts as it always did,
// whatever a policy has admitted besides.
func TestABrokenBoundIsNotExcused(t *testing.T) {
	for _, c := range []struct {
		over, all, unasked      tokens
		near, beyond, byPolicy  uint64
		overByPolicy, declaredN tokens
	}{
		{over: 8, all: 8, declaredN: 5, near: 1, beyond: 1},
		{over: 8, all: 8, unasked: 8, declaredN: 5, byPolicy: 1, overByPolicy: 8},
		{over: 8, all: 8, unasked: 3, declaredN: 5, near: 1, byPolicy: 1, overByPolicy: 3},
		{over: 8, all: 8, unasked: 2, declaredN: 5, near: 1, beyond: 1, overByPolicy: 2},
		{over: 1, all: 1, declaredN: 5},
		{over: 3, all: 3, declaredN: 5},
		{over: 5, all: 5, declaredN: 5, near: 1},                                   // as declared, and no more
		{over: 3, all: 8, unasked: 99, declaredN: 5, byPolicy: 1, overByPolicy: 3}, // 5 were over before: near, and counted then
	} {
		rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 100})
		rule.Coordination.Mode, rule.Coordination.DriftBudget = ratelimit.Approx, ratelimit.Share{Tokens: c.declaredN}
		rule.Counters = &ratelimit.RuleCounters{}
		got := lease.CountBound(rule, &ratelimit.Grant{OverAdmitted: c.over, Over: c.all}, c.unasked)
		n := rule.Counters
		if n.OverAdmitted.Load() != uint64(c.over) {
			t.Errorf("%+v: %d count as over", c, n.OverAdmitted.Load())
		}
		if got != c.overByPolicy || n.NearBound.Load() != c.near || n.BeyondBound.Load() != c.beyond || n.BeyondByPolicy.Load() != c.byPolicy {
			t.Errorf("%+v: %d by policy, near %d, beyond %d, beyond by policy %d", c, got, n.NearBound.Load(),
				n.BeyondBound.Load(), n.BeyondByPolicy.Load())
		}
	}
}
