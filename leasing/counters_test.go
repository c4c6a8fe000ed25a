package leasing_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/audit"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A request that is refused while others have tokens counts once, with its cost, for any number of claims. A request
// that is admitted in the end does not count, though the ledger fell short at first.
func TestUnderAdmissionIsCounted(t *testing.T) {
	for _, deny := range ratelimit.OnDenies {
		s := newStage(t, 2, fixed(100, ratelimit.Hour), fields{"on_deny": deny})
		counted := func(what string, v verdict, over bool) {
			t.Helper()
			if n := s.rule.Counters.UnderAdmitted.Load(); v.OverLimit != over || n != 97 {
				t.Errorf("on_deny %v: %d are counted, and %s: %+v", deny, n, what, v)
			}
		}
		s.deaf = true
		s.ask(1, "k", 1) // 4 more are in hand there
		counted("97 were refused", s.ask(0, "k", 97), true)
		s.deaf = false
		s.ask(1, "other", 1)
		counted("the second was to be admitted", s.ask(0, "other", 97), false)
		s.goOn(time.Second)
		counted("no node has more", s.ask(0, "other", 10), true)
	}
}

// gauged has sweeps look at all keys.
func (s *stage) gauged() *ratelimit.RuleCounters {
	const most = 20 // the first of them may end a round that began before
	for range most {
		for _, n := range s.nodes {
			n.Sweep(s.now)
		}
	}
	return s.rule.Counters
}

// The gauge of leased tokens is the ledger's sum less the admissions, at each moment.
func TestLeasedAgreesWithACountByHand(t *testing.T) {
	for seed := range uint64(5) {
		s := newStage(t, 2, fixed(1000, ratelimit.Hour), nil)
		s.deaf = true
		turn := instant(2 * time.Hour)
		s.now = turn.Add(-3 * time.Second)
		r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // the same run each time
		admitted := map[window]tokens{}
		for s.now < turn.Add(time.Second) {
			if v := s.ask(r.IntN(2), fmt.Sprint("k", r.IntN(4)), 1+tokens(r.IntN(8))); !v.OverLimit {
				admitted[v.Window] += v.Charged
			}
			if s.goOn(30 * time.Millisecond); s.now == turn { // the current window is not certain
				s.goOn(10 * time.Millisecond)
			}
			leased, hand := s.gauged().Leased.Load(), -admitted[s.window()]
			for i := range 4 {
				hand += s.used(fmt.Sprint("k", i))
			}
			if tokens(leased) != hand {
				t.Fatalf("seed %d, at %v: %d are leased, and %d are in hand", seed, s.now, leased, hand)
			}
		}
	}
}

// newDriftStage has two nodes with shares of 50 tokens.
func newDriftStage(t *testing.T) *stage {
	s := newStage(t, 2, fixed(1000, ratelimit.Hour),
		fields{"mode": "approx", "check_timeout": "0s", "drift_budget": "100", "max_nodes": "2"})
	for i, n := range s.nodes {
		n.share = 50
		s.ask(i, "other", 1) // what time it is there
	}
	return s
}

// The gauge of drifting tokens is what was admitted from shares, until the ledger has confirmed it.
func TestDriftingAgreesWithACountByHand(t *testing.T) {
	s := newDriftStage(t)
	s.goOn(3 * time.Second)
	r, drifted := rand.New(rand.NewPCG(1, 7)), tokens(0) //nolint:gosec // the same run each time
	for range 40 {
		a := ask{Key: fmt.Append(nil, "k", r.IntN(4)), Cost: 1 + tokens(r.IntN(3))}
		if v := s.overdue(r.IntN(2), a); v.Source == ratelimit.FromDrift {
			drifted += v.Charged
		}
		if n := s.gauged().Drifting.Load(); tokens(n) != drifted {
			t.Fatalf("%d drift, and %d were admitted from shares", n, drifted)
		}
	}
	if drifted < 50 {
		t.Fatalf("%d drifted", drifted)
	}
	s.goOn(3 * time.Second)
	if n := s.gauged().Drifting.Load(); n != 0 {
		t.Errorf("%d drift, and all is confirmed", n)
	}
}

// The worst key is the one that drifted farthest beyond its limit, and disappears after two turns. Drift under a larger
// limit, or a larger share, breaks no bound of a lower one. Nor does drift that was undone, with any charges later.
// Drift that is reported after its window counts, too.
func TestWorstKeyOfLate(t *testing.T) {
	s := newDriftStage(t)
	drifts := func(key string, n tokens) (undo func()) {
		s.ask(1, key, 500)
		s.ask(1, key, 500)
		a := ask{Key: []byte(key), Cost: n}
		v := s.overdue(0, a)
		if v.Source != ratelimit.FromDrift {
			t.Fatalf("%+v", v)
		}
		return func() { s.undo(0, a, v) }
	}
	for key, n := range map[string]tokens{"a": 7, "b": 30, "c": 12} {
		drifts(key, n)
	}
	s.goOn(1100 * time.Millisecond) // a draw that covers nothing, then a claim
	counters := s.rule.Counters
	for turns, want := range []tokens{30, 30, 0} {
		if n := counters.Worst.Lately(); n != want || counters.Worst.Ever() != 30 {
			t.Errorf("after %d turns, the worst key is said to have gone %d beyond, want %d", turns, n, want)
		}
		counters.Turn()
	}
	lowered, less, over := *s.rule, *s.rule, counters.OverAdmitted.Load()
	lowered.Limit.Requests, less.Coordination.DriftBudget.Tokens = 40, 20
	for i, c := range []struct {
		rule  *ratelimit.Rule // afterwards
		undo  bool
		over  uint64
		pause time.Duration
	}{{&lowered, false, 0, 0}, {&less, false, 30, 0}, {s.rule, true, 30, 0}, {s.rule, false, 30, time.Hour}} {
		key, whole := fmt.Sprint(i), s.rule
		if undo := drifts(key, 30); c.undo {
			undo()
			drifts(key, 30)
		}
		s.rule, s.now = c.rule, s.now.Add(c.pause)
		s.decide(0, ask{Key: []byte(key), Cost: 100, Kind: ratelimit.Charge, Window: s.window()})
		s.goOn(5 * time.Second)
		n, beyond := counters.OverAdmitted.Load()-over, counters.BeyondBound.Load()
		if over += n; n != c.over || beyond > 0 {
			t.Errorf("%s: %d were over, must be %d, and %d bounds count as broken", key, n, c.over, beyond)
		}
		s.rule = whole
	}
}

// Admissions of an outage within the limit are no over-admission, whatever is refused and charged later.
func TestOutageWithinTheLimitIsNoExcess(t *testing.T) {
	s := newStage(t, 1, fixed(100, ratelimit.Hour), fields{"on_store_failure": "open", "on_deny": "charge"})
	s.ask(0, "k", 1)
	s.down(true)
	s.ask(0, "k", 60)
	s.down(false)
	s.goOn(5 * time.Second)
	if used := s.used("k"); used < 60 {
		t.Errorf("%d of 60 are booked", used)
	}
	for range 100 {
		s.ask(0, "k", 1)
	}
	s.goOn(5 * time.Second)
	if c := s.rule.Counters; c.OverAdmitted.Load() > 0 || c.BeyondByPolicy.Load() > 0 {
		t.Errorf("100 of 100 are admitted, and %d count beyond", c.OverAdmitted.Load())
	}
}

// The age of the last reply counts from the start, if the store has never answered.
func TestSilenceCountsFromTheStart(t *testing.T) {
	f := leasing.NewFleet(nil, account.NewHolder(), 100, func() instant { return instant(time.Minute) }, time.Now())
	if age := f.Stats().SyncAge; age != time.Minute {
		t.Errorf("after a minute it is silent for %v", age)
	}
}

// A node that is alone answers how much is left to the token, whatever it has leased, returned or lost in the meantime.
func TestRemainingAddsUp(t *testing.T) {
	kinds := []ratelimit.Kind{
		ratelimit.Spend, ratelimit.Spend, ratelimit.Refund, ratelimit.Charge, ratelimit.Release, ratelimit.Peek,
	}
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 15)) //nolint:gosec // the same run each time
		s := newStage(t, 1, limitOf(ratelimit.Algorithm(seed%3), 200, ratelimit.Year), nil)
		left := tokens(200)
		for i := range 20 {
			a := ask{Kind: kinds[r.IntN(len(kinds))], Cost: 1 + tokens(r.IntN(40))}
			switch a.Kind {
			case ratelimit.Peek:
				a.Cost = 0
			case ratelimit.Refund, ratelimit.Release:
				a.Cost = min(a.Cost, 200-left)
				left += a.Cost
			default:
				a.Cost = min(a.Cost, left)
				left -= a.Cost
			}
			if v := s.decide(0, a); v.Remaining != left || v.OverLimit {
				t.Errorf("%v, seed %d, step %d, kind %v: %d left, want %d", s.rule.Limit, seed, i, a.Kind, v.Remaining, left)
			}
			s.goOn(300 * time.Millisecond)
		}
		v := s.decide(0, ask{Cost: left + 7, Kind: ratelimit.Charge})
		if v.Charged != left || v.Debt != 7 || v.Remaining != 0 {
			t.Errorf("%v: %+v of a charge 7 above the rest", s.rule.Limit, v)
		}
	}
}

// Nodes get the events of an audited rule before its tokens are spent. They include draws, late charges, refunds, a
// reset and returns at the end: their sum is that of the ledger. Without the events of a node, what it took is missing.
func TestAuditHearsFirst(t *testing.T) {
	const limit = 1000
	s := newStage(t, 3, fixed(limit, ratelimit.Year), fields{"audit": "true"})
	granted, admitted, drew := tokens(0), tokens(0), false
	var here []audit.Event
	for _, n := range s.nodes {
		n.OnAudit = func(r *ratelimit.Rule, claim *account.Claim, g *account.Grant) {
			e := audit.NewEvent(r, claim, g)
			here, granted = append(here, e), granted+e.Granted
			drew = drew || e.Kind == audit.WasDraw
		}
	}
	for i := range 2 * limit {
		if v := s.ask(i%3, "k", 1); !v.OverLimit {
			admitted++
		}
		if admitted > granted {
			t.Fatalf("%d were admitted, and %d are on record", admitted, granted)
		}
	}
	s.decide(0, ask{Kind: ratelimit.Refund, Cost: 300})
	s.ask(1, "k", 2*limit) // a denial charges
	s.reset(2)
	s.ask(0, "k", 10)
	s.goOn(time.Second)
	for _, n := range s.nodes {
		n.Recalled("k", s.window())
	}
	s.goOn(3 * time.Second)
	all, used := audit.Replay(here), s.used("k")
	if len(all) != 1 {
		t.Fatalf("%d accounts: %+v", len(all), all)
	}
	if w := all[0]; w.Over != 0 || w.Taken != used || w.Debt != max(0, used-limit) || w.Unrecorded != 0 {
		t.Errorf("%+v, and the ledger has %d", w, used)
	}
	if w := all[0]; w.Granted != granted || w.Charged < limit || w.Refunded < 300 || w.Rule != "d.p" || !drew {
		t.Errorf("%+v, draws: %v", w, drew)
	}
	if all = audit.Replay(here[:len(here)/3]); all[0].Unrecorded != 0 {
		t.Errorf("of a part of the time, all of it, %d are unknown", all[0].Unrecorded)
	}
	others := slices.DeleteFunc(here, func(e audit.Event) bool { return e.Holder == here[0].Holder })
	if all = audit.Replay(others); all[0].Unrecorded == 0 {
		t.Error("without the record of one node, nothing is missing")
	}
}
