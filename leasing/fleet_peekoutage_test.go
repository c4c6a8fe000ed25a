package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Debt that a node has read refuses peeks also while the store does not answer, until the window ends.
func TestPeeksInAnOutage(t *testing.T) {
	for _, policy := range []string{"local", "closed"} {
		s := newStage(t, 2, 100, 100, map[string]string{"on_store_failure": policy})
		s.ask(1, "k", 1) // has tokens in hand, and its recall is lost
		s.ask(0, "k", 1)
		s.decide(0, ask{Rule: s.rule, Key: []byte("k"), Kind: ratelimit.Charge, Cost: 130})
		s.goOn(50 * time.Millisecond)
		if v := s.peek(0, "k"); !v.OverLimit {
			t.Fatalf("%s: 132 of 100 are used: %+v", policy, v)
		}
		s.down = true
		s.goOn(5 * time.Second)
		if v := s.peek(0, "k"); !v.OverLimit {
			t.Errorf("%s: 132 of 100 are used, and in an outage: %+v", policy, v)
		}
	}
}

// Without an answer, a peek is decided as a request is: closed refuses, open admits, and local has the node's part of
// the limit. Costs after the fact would otherwise have no limit in an outage.
func TestPeeksWithoutTheStore(t *testing.T) {
	for policy, want := range map[string][2]bool{"closed": {true, true}, "open": {false, false}, "local": {false, true}} {
		s := newStage(t, 2, 100, 100, map[string]string{"on_store_failure": policy})
		s.ask(0, "other", 1)
		s.down = true
		before := s.peek(0, "k").OverLimit
		s.ask(0, "k", 300)
		if after := s.peek(0, "k").OverLimit; [2]bool{before, after} != want {
			t.Errorf("%s: a peek is refused before and after the node's own budget is used: %v, %v", policy, before, after)
		}
	}
}

// So do costs above their holds. Without that, requests would pass for as long as their holds fit.
func TestChargesWithoutTheStore(t *testing.T) {
	for _, key := range []string{"known", "new"} {
		s := newStage(t, 2, 100, 100, map[string]string{"on_deny": "refund"})
		s.ask(0, "known", 1)
		s.down = true
		s.goOn(5 * time.Second)
		used := 0
		for range 100 {
			if v := s.ask(0, key, 1); !v.OverLimit {
				used += 10
				w := max(v.Window, v.Booked)
				s.decide(0, ask{Rule: s.rule, Key: []byte(key), Kind: ratelimit.Charge, Cost: 9, Window: w})
			}
		}
		if used > 70 {
			t.Errorf("%s: of a part of 50, and a lease of 5, %d are used", key, used)
		}
	}
}
