package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// turn is a moment after the next window has begun.
func (s *stage) turn() {
	end := s.rule.Limit.WindowEnd(s.rule.Limit.WindowAt(s.time()))
	s.goOn(end.Sub(s.time()).Round(10*time.Millisecond) + 50*time.Millisecond)
}

// Debt ends with its window.
func TestDebtIsForgotten(t *testing.T) {
	s := newStage(t, 3, 100, 10, nil)
	s.rule.Limit.Unit = ratelimit.Minute
	if v := s.ask(0, "k", 45); !v.OverLimit || v.Charged+v.Debt != 45 {
		t.Fatalf("%+v", v)
	}
	s.turn()
	if v := s.ask(1, "k", 10); v.OverLimit {
		t.Errorf("%+v", v)
	}
}

// Late reports with debt that are tried for long are bounded in number: invented keys in an outage cost no more memory.
func TestLateReportsAreBounded(t *testing.T) {
	s := newStage(t, 1, 100, 10, nil)
	f := s.nodes[0].Fleet
	reports := make([]*lateReport, mostLate+7)
	for i := range reports {
		reports[i] = &lateReport{tries: lateTries - 1, until: lease.Never}
		f.retryLate(reports[i])
	}
	if kept, lost := f.stats.late.Load(), f.stats.unreported.Load(); kept != mostLate || lost != 7 {
		t.Errorf("%d late reports are tried on, and %d are lost", kept, lost)
	}
	f.endLate(reports[0])
	if kept := f.stats.late.Load(); kept != mostLate-1 {
		t.Errorf("after the end of one, %d late reports are tried on", kept)
	}
}

func (s *stage) peek(node int, key string) ratelimit.Verdict {
	return s.decide(node, ratelimit.Ask{Rule: s.rule, Key: []byte(key), Kind: ratelimit.Peek})
}

func (s *stage) refund(node int, key string, n tokens) {
	s.decide(node, ratelimit.Ask{Rule: s.rule, Key: []byte(key), Kind: ratelimit.Refund, Cost: n})
}

// An answer about a window that has ended decides nothing in the next one, where the limit is free again.
func TestAnswersOfAnEndedWindow(t *testing.T) {
	for _, kind := range []ratelimit.Kind{ratelimit.Peek, ratelimit.Spend} {
		s := newStage(t, 2, 100, 10, nil)
		s.rule.Limit.Unit = ratelimit.Minute
		s.ask(1, "first", 1) // from then on, node 1 has the ledger's time
		s.ask(0, "k", 45)
		if v := s.acrossTheTurn(1, ask{Rule: s.rule, Key: []byte("k"), Kind: kind, Cost: tokens(kind) + 1}); v.OverLimit {
			t.Errorf("45 of 10 were used of the window before, and %+v", v)
		}
	}
}

// acrossTheTurn is the verdict of a request whose claim is answered in a window, and which runs on in the next.
func (s *stage) acrossTheTurn(node int, a ask) (v verdict) {
	s.Helper()
	w := s.rule.Limit.WindowAt(s.time())
	for end := s.rule.Limit.WindowEnd(w); s.time().Add(20*time.Millisecond) < end; {
		s.goOn(10 * time.Millisecond)
	}
	all := []verdict{{}}
	wait := s.nodes[node].Ask(s.now, []ask{a}, all)
	s.sent(node)()
	for s.rule.Limit.WindowAt(s.time()) == w {
		s.now = s.now.Add(time.Millisecond)
	}
	s.now = s.now.Add(5 * time.Millisecond)
	for wait != nil && wait.Advance(s.now) {
		s.settle()
		s.goOn(time.Millisecond)
	}
	return all[0]
}

// A request that waits for tokens of others, while its window ends, has had a reply: its deadline in the next window is
// no outage, and on_store_failure admits nothing.
func TestReplyBeforeTheTurnIsNoOutage(t *testing.T) {
	for policy, admits := range map[string]bool{"local": false, "closed": false, "open": true} {
		s := newStage(t, 2, 100, 100, map[string]string{"on_store_failure": policy})
		s.ask(0, "k", 1)
		s.ask(1, "k", 1)
		w := s.rule.Limit.WindowAt(s.time())
		s.now = s.now.Add(s.rule.Limit.WindowEnd(w).Sub(s.time()) - time.Second)
		s.ask(1, "other", 1) // from then on, node 1 has the ledger's time
		s.now = s.now.Add(995 * time.Millisecond)
		all := []verdict{{}}
		wait := s.nodes[1].Ask(s.now, []ask{{Rule: s.rule, Key: []byte("k"), Cost: 100}}, all)
		s.settle()
		if !wait.Advance(s.now) {
			t.Fatalf("%v: %+v, though another node has tokens in hand", policy, all[0])
		}
		s.now = s.now.Add(10 * time.Millisecond)
		for wait.TimeOver() > 0 {
		}
		open := wait.Advance(s.now)
		if v := &all[0]; open || v.OverLimit == admits || (v.Source == ratelimit.FromFallback) != admits {
			t.Errorf("%v: waits %v, %+v", policy, open, *v)
		}
	}
}

// Charges of an outage that lasts beyond the end of its sliding window count in the next one.
func TestDebtOfAnOutageAcrossTheTurn(t *testing.T) {
	for _, lasts := range []time.Duration{100 * time.Millisecond, 5 * time.Second} {
		outageAcrossTheTurn(t, lasts)
	}
}

func outageAcrossTheTurn(t *testing.T, lasts time.Duration) {
	t.Helper()
	s := newStage(t, 1, 100, 10, map[string]string{"on_store_failure": "open"})
	s.rule.Limit.Unit, s.rule.Limit.Algorithm = ratelimit.Minute, ratelimit.SlidingWindow
	s.ask(0, "k", 1)
	w := s.rule.Limit.WindowAt(s.time())
	for s.time().Add(time.Second) < s.rule.Limit.WindowEnd(w) {
		s.goOn(10 * time.Millisecond)
	}
	s.down = true
	s.goOn(100 * time.Millisecond)
	if v := s.ask(0, "k", 34); v.OverLimit {
		t.Fatalf("%+v", v)
	}
	for s.rule.Limit.WindowAt(s.time()) == w {
		s.goOn(time.Millisecond)
	}
	s.goOn(lasts)
	s.down = false
	s.goOn(3 * time.Second)
	if v := s.peek(0, "k"); !v.OverLimit {
		t.Errorf("35 of 10 were used, and %v after the turn a peek passes: %+v", lasts, v)
	}
}
