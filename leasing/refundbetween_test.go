package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A refund that the node has taken while requests wait together: those that got nothing could pass with it.
func TestRefundBeforeTheAnswer(t *testing.T) {
	for _, kind := range []ratelimit.Kind{ratelimit.Refund, ratelimit.Release} {
		x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 100}, map[string]string{
			"on_store_failure": "closed", "store_deadline": "900ms", "lease.size": "1", "on_deny": "refund",
		})
		a := x.start(2)
		x.nodes[a].oneWay = 40 * time.Millisecond
		x.goOn(time.Second)
		first := x.ask(a, "k", 96)
		x.goOn(2 * time.Second)
		refused := 0
		// A request is under way: the others wait for it, and then claim together.
		x.begin(a, ask{Rule: x.rule, Key: []byte("k"), Cost: 1}, func(v *verdict) {})
		x.goOn(10 * time.Millisecond)
		for range 5 {
			x.begin(a, ask{Rule: x.rule, Key: []byte("k"), Cost: 1}, func(v *verdict) {
				if v.OverLimit {
					refused++
				}
			})
		}
		x.goOn(100 * time.Millisecond)
		x.begin(a, ask{Rule: x.rule, Key: []byte("k"), Cost: 5, Kind: kind, Window: first.Window}, func(*verdict) {})
		x.goOn(3 * time.Second)
		if refused > 0 {
			t.Errorf("%v: %d of 5 refused: 98 of 100 are used after the refund, which came before the answer", kind, refused)
		}
	}
}
