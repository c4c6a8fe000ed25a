package leasing

import (
	"context"
	"testing"

	"github.com/sluice-gate/sluice/leasing/account"
)

// A reset at a node without requests for the key also works there, and if one comes meanwhile. The key has another name
// than the reset, under which its first message would take the refund back.
func TestResetByANodeWithoutTheKey(t *testing.T) {
	for _, meanwhile := range []int{0, 1} {
		s := newStage(t, 2, 100, 100, map[string]string{"audit": "true", "on_deny": "refund"})
		s.ask(0, "k", 100)
		s.ask(1, "other", 1) // so that it has read the time
		n := s.nodes[1]
		n.ledger, n.OnAudit = s.ledger, func(*account.Claim, *account.Grant) {
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
