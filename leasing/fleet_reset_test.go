package leasing

import (
	"context"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A reset at a node without requests for the key also works there. The key has another name than the reset,
// under which its first message would take the refund back.
func TestResetByANodeWithoutTheKey(t *testing.T) {
	c := newCluster(t, 2, ratelimit.Limit{Unit: ratelimit.Year, Requests: 100})
	c.rule.Coordination.OnDeny = ratelimit.DenyRefunds
	for range 110 {
		c.ask(0, "k", ratelimit.Spend, 1)
	}
	c.ask(1, "other", ratelimit.Spend, 1) // so that it has read the time
	if err := c.nodes[1].Reset(context.Background(), c.clock(), &ratelimit.Ask{Rule: c.rule, Key: []byte("k")}); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if v := c.ask(1, "k", ratelimit.Spend, 1); v.OverLimit {
			t.Fatalf("request %d after the reset is refused: %+v", i, v)
		}
	}
	if n := c.nodes[1].Stats().Missing; n != 0 {
		t.Errorf("%d accounts count as lost", n)
	}
}
