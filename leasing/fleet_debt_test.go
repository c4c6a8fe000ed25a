package leasing

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/ratelimit"
)

// indebted is three nodes and a limit of 10 a minute whose debt is carried, of which 45 are charged at node 0.
func indebted(t *testing.T) *stage {
	t.Helper()
	s := newStage(t, 3, 100, 10, nil)
	s.rule.Limit.Unit, s.rule.Limit.Carries = ratelimit.Minute, true
	if v := s.ask(0, "k", 45); !v.OverLimit || v.Charged+v.Debt != 45 {
		t.Fatalf("%+v", v)
	}
	return s
}

// turn is a moment after the next window has begun.
func (s *stage) turn() {
	end := s.rule.Limit.WindowEnd(s.rule.Limit.WindowAt(s.time()))
	s.goOn(end.Sub(s.time()).Round(10*time.Millisecond) + 50*time.Millisecond)
}

// Debt of 35 of a limit of 10 uses up three windows, at every node, and the fourth has 5 left; whichever node is asked
// first.
func TestDebtIsCarriedAtEveryNode(t *testing.T) {
	for first := range 3 {
		t.Run(fmt.Sprint("node ", first), func(t *testing.T) {
			s := indebted(t)
			for w := range 3 {
				s.turn()
				for i := range 3 {
					if v := s.peek((first+i)%3, "k"); !v.OverLimit {
						t.Errorf("window %d: node %d admits a peek: %+v", w, (first+i)%3, v)
					}
				}
			}
			s.turn()
			admitted := 0
			for i := range 12 {
				if v := s.ask((first+i)%3, "k", 1); !v.OverLimit {
					admitted++
				}
			}
			if admitted != 5 {
				t.Errorf("%d are admitted, and 5 are left", admitted)
			}
		})
	}
}

// In windows without requests for the key, live nodes carry the debt on. When it is paid, they send no message for
// it.
func TestDebtIsCarriedThroughIdleWindows(t *testing.T) {
	s := indebted(t)
	for range 4 {
		s.turn()
		s.goOn(time.Second)
		for i := range 20 { // the table grows
			s.ask(0, fmt.Sprint("other", i), 1)
		}
	}
	if used := s.used("k"); used != 5 {
		t.Errorf("5 of the debt are left, and the ledger has %d", used)
	}
	s.turn()
	s.goOn(10 * time.Second)
	s.claims = 0
	for range 2 {
		s.turn()
	}
	if used := s.used("k"); used != 0 || s.claims > 0 {
		t.Errorf("the debt is paid; the ledger has %d, and nodes sent %d claims", used, s.claims)
	}
}

// A refund pays, in the window of the charge and in the next one.
func TestRefundsPayCarriedDebt(t *testing.T) {
	s := indebted(t)
	s.refund(1, "k", 20)
	s.turn()
	if used := s.used("k"); used != 15 {
		t.Errorf("45 are charged and 20 refunded of 10: 15 are carried, and the ledger has %d", used)
	}
	s.peek(2, "k")
	s.refund(2, "k", 8)
	s.goOn(2 * time.Second)
	if v := s.ask(0, "k", 3); v.OverLimit {
		t.Errorf("7 of 10 are used, and 3 are refused: %+v", v)
	}
	s.turn()
	if used := s.used("k"); used != 0 {
		t.Errorf("nothing is owed, and the ledger has %d", used)
	}
}

// What is charged in a window's last moments counts in the next: nothing of that is claimed before.
func TestDebtOfTheLastMoment(t *testing.T) {
	for _, carries := range []bool{false, true} {
		s := newStage(t, 2, 100, 1000, nil)
		s.rule.Limit.Unit, s.rule.Limit.Carries = ratelimit.Minute, carries
		s.goOn(57 * time.Second)
		for s.now < instant(time.Hour+time.Minute-50*time.Millisecond) {
			s.ask(1, "k", 1)
			s.goOn(50 * time.Millisecond)
		}
		if next := s.held(s.nodes[1], "k").Next; (next != nil) == carries {
			t.Errorf("debt is carried: %v; claimed early: %+v", carries, next)
		}
		s.ask(0, "k", 3000)
		s.turn()
		for i := range 2 {
			if v := s.ask(1-i, "k", 1); v.OverLimit != carries {
				t.Errorf("debt is carried: %v; node %d: %+v", carries, 1-i, v)
			}
		}
	}
}

// Refusals of the last moment are reported late, to the ended window, and a claim of the next window may precede
// them. They are carried all the same, also without another request.
func TestDebtThatIsToldLate(t *testing.T) {
	s := indebted(t)
	s.goOn(time.Second)
	w := s.rule.Limit.WindowAt(s.time())
	for end := s.rule.Limit.WindowEnd(w); s.time().Add(20*time.Millisecond) < end; {
		s.goOn(10 * time.Millisecond)
	}
	if v := s.ask(0, "k", 100); v.Debt != 100 || v.Source != ratelimit.FromLease {
		t.Fatalf("%+v", v)
	}
	for s.rule.Limit.WindowAt(s.time()) == w {
		s.now = s.now.Add(time.Millisecond)
	}
	s.now = s.now.Add(5 * time.Millisecond)
	if v := s.peek(0, "k"); !v.OverLimit {
		t.Fatalf("%+v", v)
	}
	s.turn()
	if used := s.used("k"); used != 125 {
		t.Errorf("145 were charged of 10 two windows ago, and the ledger has %d", used)
	}
}

// A window after one without debt: carry begins at 0.
func TestDebtIsForgotten(t *testing.T) {
	s := indebted(t)
	s.rule.Limit.Carries = false
	s.turn()
	if v := s.ask(1, "k", 10); v.OverLimit {
		t.Errorf("%+v", v)
	}
}

// Late reports with debt that are tried for long are bounded in number: invented keys in an outage cost no more memory.
func TestLateReportsAreBounded(t *testing.T) {
	s := newStage(t, 1, 100, 10, nil)
	f := s.nodes[0].Fleet
	reports := make([]*flight, mostLate+7)
	for i := range reports {
		reports[i] = &flight{late: &lateReport{tries: lateTries - 1, until: hold.Never}, done: make(chan struct{})}
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

// An answer about a window that has ended decides nothing in the next one. There, a peek is refused because of carried
// debt, and a request passes because the limit is free again.
func TestAnswersOfAnEndedWindow(t *testing.T) {
	s := indebted(t)
	s.ask(1, "first", 1) // from then on, node 1 has the ledger's time
	if v := s.acrossTheTurn(1, ask{Rule: s.rule, Key: []byte("k"), Kind: ratelimit.Peek}); !v.OverLimit {
		t.Errorf("35 of 10 are carried, and a peek passes: %+v", v)
	}
	s.ask(0, "other", 11)
	if v := s.acrossTheTurn(1, ask{Rule: s.rule, Key: []byte("other"), Cost: 1}); v.OverLimit {
		t.Errorf("1 of 10 is carried, and %+v", v)
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

// Charges of an outage that lasts beyond the end of its window count in the next, where debt is carried, and where the
// window slides.
func TestDebtOfAnOutageAcrossTheTurn(t *testing.T) {
	for _, slides := range []bool{false, true} {
		for _, lasts := range []time.Duration{100 * time.Millisecond, 5 * time.Second} {
			outageAcrossTheTurn(t, slides, lasts)
		}
	}
}

func outageAcrossTheTurn(t *testing.T, slides bool, lasts time.Duration) {
	t.Helper()
	s := newStage(t, 1, 100, 10, map[string]string{"on_store_failure": "open"})
	s.rule.Limit.Unit, s.rule.Limit.Carries = ratelimit.Minute, !slides
	if slides {
		s.rule.Limit.Algorithm = ratelimit.SlidingWindow
	}
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
		t.Errorf("35 of 10 were used, and %v after the turn a peek passes (it slides: %v): %+v", lasts, slides, v)
	}
}
