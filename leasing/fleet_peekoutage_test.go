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

// In a window of which it has read the sum, a node admits its lease and its part of the rest, and answers what is left of
// that. In the next window, it admits its part of the limit. A sliding window counts the usage before, and a bucket's part
// is refilled at the node's own rate.
func TestLocalContinuesFromTheSum(t *testing.T) {
	for _, c := range []struct {
		algorithm    ratelimit.Algorithm
		first, later tokens // of node 0: in 30 minutes, and in the next window
	}{
		{ratelimit.FixedWindow, (100 - 60) / 2, 50},
		{ratelimit.SlidingWindow, (100 - 60) / 2, 50 - 20},
		{ratelimit.TokenBucket, (100 - 60 + 50) / 2, (100-60+100)/2 - 45},
	} {
		s := newStage(t, 2, 100, 100, map[string]string{"on_store_failure": "local", "on_deny": "refund", "lease.size": "1"})
		s.rule.Limit.Algorithm, s.rule.Limit.Burst = c.algorithm, 100
		s.ask(1, "k", 40)
		s.ask(0, "k", 20)
		s.down = true
		spent := func() (n tokens) {
			for left := tokens(-1); ; n++ {
				v := s.ask(0, "k", 1)
				switch {
				case v.OverLimit && v.Remaining == 0:
					return n
				case v.OverLimit || v.Source == ratelimit.FromFallback && left >= 0 && v.Remaining != left-1:
					t.Fatalf("%v: %d passed, %d were left: %+v", c.algorithm, n, left, v)
				case v.Source == ratelimit.FromFallback:
					left = v.Remaining
				}
			}
		}
		s.goOn(30 * time.Minute)
		if v := s.ask(0, "k", 90); !v.OverLimit || v.Remaining < c.first-1 || v.Remaining > c.first+1 {
			t.Errorf("%v: of a request for 90 is said: %+v", c.algorithm, v)
		}
		if n := spent(); n < c.first-1 || n > c.first+1 { // a lease may have a token
			t.Errorf("%v: %d pass in the window that was read, want %d", c.algorithm, n, c.first)
		}
		s.goOn(30*time.Minute + 10*time.Second)
		if n := spent(); n < c.later-1 || n > c.later+1 {
			t.Errorf("%v: %d pass in the next window, want %d", c.algorithm, n, c.later)
		}
	}
}
