package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A request that is refused while others have tokens counts once, with its cost, however often the ledger was asked for
// it. One that is admitted after all does not count, though the ledger fell short at first.
func TestUnderAdmissionIsCounted(t *testing.T) {
	for _, deny := range []ratelimit.OnDeny{ratelimit.DenyRefunds, ratelimit.DenyCharges} {
		s := newStage(t, 2, 100, 100, nil)
		s.rule.Counters, s.rule.Coordination.OnDeny = &ratelimit.RuleCounters{}, deny
		under := &s.rule.Counters.UnderAdmitted
		s.ask(1, "k", 1) // 4 more are in hand there
		if v := s.ask(0, "k", 97); !v.OverLimit || under.Load() != 97 {
			t.Errorf("deny %v: %d are counted, and 97 were refused: %+v", deny, under.Load(), v)
		}
		s.ask(1, "other", 1)
		s.ledger.OnRecall = func(h ratelimit.Holder, key string, w ratelimit.Window) {
			s.timers = append(s.timers, timer{s.now, func() { s.nodes[1].Recalled(key, w) }})
		}
		if v := s.ask(0, "other", 97); v.OverLimit || under.Load() != 97 {
			t.Errorf("deny %v: %d are counted, and the second was to be admitted: %+v", deny, under.Load(), v)
		}
		s.goOn(time.Second)
		if v := s.ask(0, "other", 10); !v.OverLimit || under.Load() != 97 { // nobody has more
			t.Errorf("deny %v: %d are counted, and nothing was left: %+v", deny, under.Load(), v)
		}
	}
}
