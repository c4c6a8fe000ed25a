package routing

import (
	"context"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// settle books at a node what a spend took too few, or too many.
func (n *node) settle(rule *ratelimit.Rule, key int, w ratelimit.Window, difference ratelimit.Tokens) verdict {
	a := ratelimit.Ask{Rule: rule, Key: keyOf(key), Kind: ratelimit.Charge, Cost: difference, Window: w}
	if difference < 0 {
		a.Kind, a.Cost = ratelimit.Release, -difference
	}
	v := make([]verdict, 1)
	n.Decide(context.Background(), n.clock(), []ratelimit.Ask{a}, v)
	return v[0]
}

// A settlement is booked at the key's owner, whichever node it comes to, and only in the window that it names. It is
// booked also of a key that is hot here: what is in hand is not what was held.
func TestSettlementsComeToTheOwner(t *testing.T) {
	w := newRingWorld(t, 3)
	w.hotRate = 5
	nodes := w.ring(3)
	rule := routed(1000)
	rule.Coordination.StoreDeadline = ratelimit.MaxStoreDeadline
	rule.Coordination.OnDeny = ratelimit.DenyRefunds
	for key := range 20 {
		held := nodes[key%3].ask(rule, key, 600)
		if held.OverLimit || held.Window == 0 {
			t.Fatalf("key %d: 600 of 1000 are held: %+v", key, held)
		}
		for i := range 3 {
			if v := nodes[i].settle(rule, key, held.Window-1, -600); v.Charged != 0 {
				t.Errorf("key %d, node %d: a window that has ended is credited: %+v", key, i, v)
			}
			if v := nodes[i].settle(rule, key, held.Window, -100); v.Charged != 100 || v.OverLimit {
				t.Errorf("key %d, node %d: a release of 100: %+v", key, i, v)
			}
			if v := nodes[i].settle(rule, key, held.Window, 200); v.Charged+v.Debt != 200 || v.OverLimit {
				t.Errorf("key %d, node %d: a charge of 200: %+v", key, i, v)
			}
		}
		// 600 less 300 and 600 more.
		if v := nodes[0].ask(rule, key, 101); !v.OverLimit {
			t.Errorf("key %d: 900 of 1000 are used, and 101 are admitted: %+v", key, v)
		}
		if v := nodes[1].ask(rule, key, 100); v.OverLimit {
			t.Errorf("key %d: 900 of 1000 are used, and 100 are refused: %+v", key, v)
		}
	}
}
