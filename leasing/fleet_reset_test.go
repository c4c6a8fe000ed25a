package leasing

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A reset at a node without requests for the key also works there, and if one comes meanwhile. The key has another name
// than the reset, under which its first message would take the refund back.
func TestResetByANodeWithoutTheKey(t *testing.T) {
	for _, meanwhile := range []int{0, 1} {
		s := newStage(t, 2, 100, 100, map[string]string{"audit": "true", "on_deny": "refund"})
		s.ask(0, "k", 100)
		s.ask(1, "other", 1) // so that it has read the time
		n := s.nodes[1]
		n.ledger, n.OnAudit = s.ledger, func(*ratelimit.Rule, *account.Claim, *account.Grant) {
			if meanwhile--; meanwhile == 0 {
				s.ask(1, "k", 1)
			}
		}
		if err := n.Reset(context.Background(), s.now, &ask{Rule: s.rule, Key: []byte("k")}); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			s.passes(1, 1)
		}
	}
}

// A view of a sliding window counts its part of the previous one, which a reset also clears.
func TestResetOfASlidingWindow(t *testing.T) {
	limit := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100, Algorithm: ratelimit.SlidingWindow}
	s := newStrictStage(t, 1, limit, nil)
	s.ask(0, "k", 100)
	s.goOn(65 * time.Second)
	n, a := s.nodes[0], &ask{Rule: s.rule, Key: []byte("k")}
	n.ledger = s.ledger
	if v := n.Look(t.Context(), s.now, a); v.Ledger == nil || v.Ledger.Free > 10 {
		t.Errorf("nine tenths of it count, and it shows %+v", v.Ledger)
	}
	if err := n.Reset(t.Context(), s.now, a); err != nil {
		t.Fatal(err)
	}
	s.goOn(time.Second)
	s.passes(0, 90)
}
