package leasing

import (
	"testing"
	"time"
)

// Requests of one key can have different limits: they bring their own, or the rules change. A claim that a smaller
// limit refused says nothing about a request with a larger one, which shares it.
func TestSmallerLimitsRefuseNoOthers(t *testing.T) {
	s := newStage(t, 1, 100, 100, map[string]string{"on_deny": "refund"})
	smaller := *s.rule
	smaller.Limit.Requests = 10
	if v := s.ask(0, "k", 20); v.OverLimit {
		t.Fatalf("%+v", v)
	}
	large, small := make([]verdict, 1), make([]verdict, 1)
	waits := []*Wait{
		s.nodes[0].Ask(s.now, []ask{{Rule: s.rule, Key: []byte("k"), Cost: 30}}, large),
		s.nodes[0].Ask(s.now, []ask{{Rule: &smaller, Key: []byte("k"), Cost: 1}}, small),
	}
	for range 5 {
		s.settle()
		for _, w := range waits {
			if w != nil {
				w.Advance(s.now)
			}
		}
	}
	if large[0].OverLimit || large[0].Charged != 30 || !small[0].OverLimit {
		t.Errorf("20 are used: 30 of 100 are %+v, and 1 of 10 is %+v", large[0], small[0])
	}
}

// A limit that was used up, and is raised, is free again, also for a key that had no requests for a while.
func TestRaisedLimitsAreFree(t *testing.T) {
	for _, idle := range []time.Duration{0, 10 * time.Second} {
		s := newStage(t, 1, 100, 10, map[string]string{"on_deny": "refund"})
		for range 10 {
			s.ask(0, "k", 1)
		}
		if v := s.ask(0, "k", 1); !v.OverLimit {
			t.Fatalf("%+v", v)
		}
		s.goOn(idle)
		raised := *s.rule
		raised.Limit.Requests = 100
		s.rule = &raised
		if v := s.ask(0, "k", 1); v.OverLimit {
			t.Errorf("10 of 100 are used, and after %v: %+v", idle, v)
		}
	}
}
