package leasing

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// asksFor asks for one token of each of several keys, each under a rule of its own.
func (s *nodeScript) asksFor(rules ...*ratelimit.Rule) (*Wait, []verdict) {
	asks, verdicts := make([]ask, len(rules)), make([]verdict, len(rules))
	for i, r := range rules {
		asks[i] = ask{Rule: r, Key: keyOf(uint64(100 + i)), Cost: 1}
	}
	return s.Ask(s.now, asks, verdicts), verdicts
}

// A request for several keys waits for as long as the most patient of their rules
// lets it: before it drifts, if one may, and in all.
func TestPatienceOfSeveralRules(t *testing.T) {
	const ms = time.Millisecond
	type rules = []*ratelimit.Rule
	waits := func(check, deadline time.Duration, mode ratelimit.Mode) *ratelimit.Rule {
		r := testRule(perMinute100)
		r.Coordination.Mode, r.Coordination.CheckTimeout, r.Coordination.StoreDeadline = mode, check, deadline
		r.Coordination.DriftBudget = ratelimit.Share{Tokens: 20}
		return r
	}
	for _, x := range []struct {
		what        string
		rules       rules
		first, more time.Duration
	}{
		{"none may drift, and what is set for that does not count", rules{waits(2*ms, 10*ms, ratelimit.Leasing)}, 10 * ms, 0},
		{"the longer deadline", rules{waits(0, 20*ms, ratelimit.Leasing), waits(0, 10*ms, ratelimit.Leasing)}, 20 * ms, 0},
		{"the longer check", rules{waits(5*ms, 20*ms, ratelimit.Approx), waits(2*ms, 20*ms, ratelimit.Approx)}, 5 * ms, 15 * ms},
		{"one may drift", rules{waits(5*ms, 10*ms, ratelimit.Approx), waits(0, 20*ms, ratelimit.Leasing)}, 5 * ms, 15 * ms},
		{"a check beyond the deadline", rules{waits(30*ms, 20*ms, ratelimit.Approx)}, 20 * ms, 0},
	} {
		s := newNodeScript(t, perMinute100)
		w, _ := s.asksFor(x.rules...)
		if w == nil {
			t.Fatalf("%s: it is decided", x.what)
		}
		if got := w.Patience(); got != x.first {
			t.Errorf("%s: it waits for %v, want %v", x.what, got, x.first)
		}
		if got := w.TimeOver(); got != x.more {
			t.Errorf("%s: and for %v more, want %v", x.what, got, x.more)
		}
		if x.more > 0 && w.TimeOver() != 0 {
			t.Errorf("%s: it waits on", x.what)
		}
	}
}

// Who has gone is waited for no longer, though there would be time: the rule's policy
// decides, and the lease that comes is for others.
func TestRequestWhoseCallerHasGone(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	r := testRule(perMinute100)
	c := &r.Coordination
	c.Mode, c.CheckTimeout, c.OnStoreFailure = ratelimit.Approx, 2*time.Millisecond, ratelimit.FailClosed
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	v := []verdict{{}}
	s.fleet.Decide(gone, s.now, []ask{{Rule: r, Key: keyOf(1), Cost: 1}}, v)
	if !v[0].OverLimit || v[0].Reason != ratelimit.FallbackDeadline {
		t.Errorf("%+v", v[0])
	}
}

// What is decided of a request stays so while the rest waits.
func TestDecidedAsksAreNotDecidedAgain(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.leased(10)
	asks := []ask{{Rule: s.rule, Key: keyOf(1), Cost: 4}, {Rule: s.rule, Key: keyOf(2), Cost: 3}}
	v := make([]verdict, 2)
	w := s.Ask(s.now, asks, v)
	if w == nil || !w.Decided(0) || w.Decided(1) || v[0].Charged != 4 {
		t.Fatalf("one has its lease, and the other none: %+v", v)
	}
	b, c := s.sends()
	if w.Advance(s.now); c.Waiting != 3 {
		t.Errorf("3 wait: %+v", c)
	}
	s.settled(b, 0)
	if w.Advance(s.now) || !w.Decided(1) {
		t.Errorf("%+v", v)
	}
	s.spends(5) // of ten, 1 and 4 are spent
}
