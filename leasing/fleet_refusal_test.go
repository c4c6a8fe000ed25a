package leasing

import (
	"fmt"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A refusal has a time and a cost for the next attempt, which then passes, also if other nodes have tokens in hand.
func TestRefusalsCanBeActedOn(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		for _, on := range []string{"charge", "refund"} {
			t.Run(fmt.Sprint(ratelimit.Algorithm(algorithm), " ", on), func(t *testing.T) {
				s := newStage(t, 2, 100, 60, map[string]string{"on_deny": on})
				s.rule.Limit.Algorithm, s.rule.Limit.Unit, s.rule.Limit.Burst = ratelimit.Algorithm(algorithm), ratelimit.Hour, 60
				for range 3 {
					s.ask(0, "k", 10)
				}
				s.ask(1, "k", 28) // it may have more in hand
				v := s.ask(0, "k", 20)
				if !v.OverLimit || v.Remaining >= 20 || v.ResetAfter <= 0 {
					t.Fatalf("%+v", v)
				}
				if on == "refund" && v.Remaining > 0 {
					if v := s.ask(0, "k", v.Remaining); v.OverLimit {
						t.Errorf("so much was said to remain, and %+v", v)
					}
					v = s.ask(0, "k", 20)
				}
				if s.rule.Limit.Algorithm == ratelimit.SlidingWindow {
					return // when it passes, depends on what is old
				}
				s.goOn(v.ResetAfter)
				if again := s.ask(0, "k", 20); again.OverLimit {
					t.Errorf("after %v it does not pass: %+v", v.ResetAfter, again)
				}
			})
		}
	}
}
