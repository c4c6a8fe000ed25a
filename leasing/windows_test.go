package leasing_test

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
)

// If a clock of the ledger is set, nodes read at once which window is current. They do not claim for the old one in a
// loop until its end. After one window, the ledger still has the account of the old one.
func TestClockSetByMoreThanAWindow(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, 5 * time.Hour, -5 * time.Hour} {
		s := newStage(t, 1, fixed(100, ratelimit.Hour), nil)
		s.ask(0, "k", 1)
		s.goOn(time.Second)
		s.ahead += by
		s.claims = 0
		for range 50 {
			if v := s.ask(0, "k", 1); v.OverLimit || v.Source == ratelimit.FromFallback {
				t.Fatalf("by %v: %+v", by, v)
			}
		}
		if used := s.used("k"); s.claims > 100 || used < 40 {
			t.Errorf("by %v: %d claims for 50 requests, and %d are used of the window that goes on", by, s.claims, used)
		}
	}
}

// When the ledger's clock is set back by more than a window, a busy key returns to a window that its node has left.
// Its first claim there must not take the earlier usage back: the key needs another name at the ledger.
func TestWindowThatComesBack(t *testing.T) {
	s := newStage(t, 1, fixed(100, ratelimit.Minute), fields{"on_store_failure": "closed"})
	s.passes(0, 73)
	busy := func(seconds int) {
		for range seconds {
			s.goOn(time.Second)
			s.ask(0, "k", 0)
		}
	}
	busy(70)
	s.ahead = -65 * time.Second
	busy(52)
	if !s.ask(0, "k", 60).OverLimit {
		t.Error("133 of 100 are admitted")
	}
}

// Drift before a turn of the window counts against the share after it, so the node drifts on until it is reported.
func TestDriftOfTheWindowBeforeIsKept(t *testing.T) {
	s := newStage(t, 1, limitOf(ratelimit.SlidingWindow, 100, ratelimit.Minute),
		fields{"mode": "approx", "check_timeout": "0s", "drift_budget": "4", "max_nodes": "1"})
	s.nodes[0].share = 4
	s.ask(0, "other", 1) // what time it is there
	s.toTurn(10 * time.Second)
	drifts := func() (n tokens) {
		for range 5 {
			if v := s.overdue(0, ask{Cost: 1}); v.Source == ratelimit.FromDrift {
				n++
			}
		}
		return n
	}
	before := drifts()
	s.jump(-10 * time.Second) // no report was sent
	is := s.nodes[0].Drifting()
	if after := drifts(); before != 4 || after > 0 || !is {
		t.Errorf("%d of a share of 4 drift, and %d in the next window; it says that it drifts: %v", before, after, is)
	}
}

// A new window is free, whatever was refused and charged in the one before. An answer about the old one, which arrives
// after the turn, decides nothing, and what is taken back of the old one frees nothing.
func TestAnswersOfAnEndedWindow(t *testing.T) {
	for _, a := range []ask{{Kind: ratelimit.Peek}, {Cost: 2}} {
		s := newStage(t, 2, fixed(10, ratelimit.Minute), nil)
		s.ask(1, "first", 1) // from then on, node 1 has the ledger's time
		if v := s.ask(0, "k", 45); !v.OverLimit || v.Charged+v.Debt != 45 {
			t.Fatalf("45 of 10: %+v", v)
		}
		undone := s.ask(0, "other", 5)
		s.toTurn(20 * time.Millisecond)
		wait, v := s.hold(1, a)
		answer, _ := s.nodes[1].book(s.batch(1))
		answer()
		s.jump(-5 * time.Millisecond)
		for wait != nil && wait.Advance(s.now) {
			s.goOn(time.Millisecond)
		}
		if v.OverLimit || s.ask(0, "k", 8).OverLimit {
			t.Errorf("45 of 10 were used of the window before, and %+v", v)
		}
		s.ask(0, "other", 10)
		s.undo(0, ask{Key: []byte("other"), Cost: 5}, undone)
		if v := s.ask(0, "other", 1); !v.OverLimit {
			t.Errorf("5 of the window before are taken back, and of this one 11 of 10 are admitted: %+v", v)
		}
	}
}

// A request that waits for tokens of others, while its window ends, has had a reply: its deadline in the next window is
// no outage, and on_store_failure admits nothing.
func TestReplyBeforeTheTurnIsNoOutage(t *testing.T) {
	for policy, admits := range map[string]bool{"local": false, "closed": false, "open": true} {
		s := newStage(t, 2, fixed(100, ratelimit.Hour), fields{"on_store_failure": policy})
		s.deaf = true
		s.ask(0, "k", 1)
		s.ask(1, "k", 1)
		s.jump(time.Second)
		s.ask(1, "other", 1) // from then on, node 1 has the ledger's time
		s.jump(5 * time.Millisecond)
		wait, v := s.hold(1, ask{Cost: 100})
		s.settle()
		if !wait.Advance(s.now) {
			t.Fatalf("%v: %+v, though another node has tokens in hand", policy, v)
		}
		s.jump(-5 * time.Millisecond)
		for wait.TimeOver() > 0 {
		}
		if wait.Advance(s.now) || v.OverLimit == admits || (v.Source == ratelimit.FromFallback) != admits {
			t.Errorf("%v: %+v", policy, v)
		}
	}
}

// Charges of an outage that lasts beyond the end of its sliding window count in the next one.
func TestDebtOfAnOutageAcrossTheTurn(t *testing.T) {
	for _, lasts := range []time.Duration{100 * time.Millisecond, 5 * time.Second} {
		s := newStage(t, 1, limitOf(ratelimit.SlidingWindow, 10, ratelimit.Minute), fields{"on_store_failure": "open"})
		s.ask(0, "k", 1)
		s.toTurn(time.Second)
		s.down(true)
		s.goOn(100 * time.Millisecond)
		if v := s.ask(0, "k", 34); v.OverLimit {
			t.Fatalf("%+v", v)
		}
		s.toTurn(-lasts)
		s.down(false)
		s.goOn(3 * time.Second)
		if v := s.peek(0); !v.OverLimit {
			t.Errorf("35 of 10 were used, and %v after the turn a peek passes: %+v", lasts, v)
		}
	}
}

// Tokens that are in hand when a window ends go back, if the next one still counts them. So do tokens that a message
// brings after the turn, whether the key is already in the next window or not.
func TestTokensOfAnEndedWindowGoBack(t *testing.T) {
	for _, answered := range []string{"before the turn", "before the key turns", "after the key has turned"} {
		s := newStage(t, 2, limitOf(ratelimit.SlidingWindow, 1000, ratelimit.Minute), nil)
		s.ask(0, "other", 1) // from then on, node 0 has the ledger's time
		w := s.window()
		s.toTurn(20 * time.Millisecond)
		first, v := s.hold(0, ask{Cost: 40})
		answer, _ := s.nodes[0].book(s.batch(0))
		if answered == "before the turn" {
			answer()
			first.Advance(s.now)
			s.undo(0, ask{Cost: 40}, *v)
		}
		s.jump(-20 * time.Millisecond)
		if answered == "after the key has turned" {
			s.begin(0, ask{Cost: 40}, func(verdict) {})
		}
		if answered != "before the turn" {
			answer()
		}
		for range 5 {
			first.Advance(s.now)
			s.goOn(time.Millisecond)
		}
		s.goOn(3 * time.Second)
		if used := s.usedIn("k", w); used != 0 {
			t.Errorf("the answer comes %s: %d are used of the ended window", answered, used)
		}
	}
}

// A sweep does not give back tokens for a waiting request before the request is awake, though the key was not used
// before.
func TestWhatWasWaitedForIsKept(t *testing.T) {
	s := newStage(t, 1, fixed(100, ratelimit.Hour), nil)
	s.ask(0, "other", 1) // what time it is there
	w, v := s.hold(0, ask{Cost: 95})
	s.settle()
	s.nodes[0].Sweep(s.now)
	if w.Advance(s.now) || v.OverLimit {
		t.Errorf("it waits still, and 95 were granted: %+v", v)
	}
}

// A request of several rules waits for the longest check_timeout of those that drift, and then for the longest
// deadline, in any order. At the end of the first, the rules that may drift have drifted, and the others wait.
func TestRulesOfDifferentPatience(t *testing.T) {
	limit := fixed(100, ratelimit.Hour)
	rules := map[string]*ratelimit.Rule{
		"short":  ruleOf(t, limit, fields{"mode": "approx", "check_timeout": "2ms", "drift_budget": "50", "max_nodes": "1"}),
		"long":   ruleOf(t, limit, fields{"mode": "approx", "check_timeout": "6ms", "drift_budget": "50", "max_nodes": "1"}),
		"leases": ruleOf(t, limit, fields{"store_deadline": "40ms", "on_store_failure": "open"}),
	}
	for _, order := range [][]string{
		{"short", "long", "leases"}, {"leases", "long", "short"}, {"long", "short", "leases"},
	} {
		s := newStage(t, 1, limit, nil)
		s.nodes[0].share = 50
		var asks []ask
		for _, name := range order {
			asks = append(asks, ask{Rule: rules[name], Key: []byte(name), Cost: 20})
			s.decide(0, ask{Rule: rules[name], Key: []byte(name), Cost: 1})
		}
		s.now = s.now.Add(3 * time.Second) // the last answer is too old for drift
		verdicts := make([]verdict, len(asks))
		w := s.nodes[0].Ask(s.now, asks, verdicts)
		if w == nil || w.Patience() != 6*time.Millisecond {
			t.Fatalf("%v: it waits %v", order, w.Patience())
		}
		if rest := w.TimeOver(); rest != 34*time.Millisecond || !w.Advance(s.now) {
			t.Errorf("%v: it waits %v longer", order, rest)
		}
		if rest := w.TimeOver(); rest != 0 || w.Advance(s.now) {
			t.Errorf("%v: it waits still, for %v", order, rest)
		}
		for i, name := range order {
			want := ratelimit.FromDrift
			if name == "leases" {
				want = ratelimit.FromFallback
			}
			if v := verdicts[i]; v.Source != want || v.OverLimit {
				t.Errorf("%v: %s: %+v", order, name, v)
			}
		}
	}
}

// A late report that the store does not take is tried again. After three tries it is lost, and counted.
func TestLateReportsAreTriedAgain(t *testing.T) {
	for away, lost := range map[time.Duration]uint64{2 * leasing.SweepEvery: 0, 2 * time.Second: 1} {
		s := newStage(t, 1, fixed(100, ratelimit.Hour), nil)
		s.passes(0, 1)
		w := s.window()
		s.jump(100 * time.Millisecond)
		s.ask(0, "other", 1) // what time it is there
		s.down(true)
		s.overdue(0, ask{Kind: ratelimit.Refund, Cost: 1}) // which the ledger lacks when the window ends
		s.toTurn(-away)
		s.down(false)
		s.goOn(5 * time.Second)
		n := s.nodes[0].Stats().Unreported
		if used := s.usedIn("k", w); n != lost || (used == 0) != (lost == 0) {
			t.Errorf("the store is away for %v: the ledger has %d, and %d reports are lost", away, used, n)
		}
	}
}
