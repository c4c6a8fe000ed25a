package leasing

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A request that is refused while others have tokens counts once, with its cost, for any number of claims. A request
// that is admitted in the end does not count, though the ledger fell short at first.
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
		if v := s.ask(0, "other", 10); !v.OverLimit || under.Load() != 97 { // no node has more
			t.Errorf("deny %v: %d are counted, and nothing was left: %+v", deny, under.Load(), v)
		}
	}
}

// A key counts as evicted if a full table drops it and this node had taken tokens of it in the window. One that is over,
// and goes by itself, does not.
func TestEvictedKeysAreCounted(t *testing.T) {
	s := newStage(t, 1, 1, 10, nil) // of so small a limit a node takes what it needs
	s.ask(0, "over", 1)
	s.goOn(150 * time.Minute)
	if n := s.nodes[0].Stats(); n.Leases != 0 || n.Evicted != 0 {
		t.Errorf("%d keys are there, and %d were evicted: its window is over", n.Leases, n.Evicted)
	}
	s.ask(0, "k", 1)
	s.goOn(10 * time.Millisecond)
	s.ask(0, "other", 1)
	if n := s.nodes[0].Stats(); n.Leases != 1 || n.Evicted != 1 {
		t.Errorf("%d keys are there, and %d were evicted", n.Leases, n.Evicted)
	}
}

// A late report for which there is no room is tried again. Where it has none in three tries it is lost, and counted.
func TestLateReportWithoutRoom(t *testing.T) {
	for room, want := range map[time.Duration]tokens{SweepEvery: 0, 3 * SweepEvery: 5} {
		s := newStage(t, 1, 100, 100, nil)
		s.ask(0, "k", 1)
		k := s.key(0, "k")
		w := k.Window
		k.Refund(1) // which the ledger, that has 5, lacks when the window ends
		l := &s.nodes[0].lanes[0]
		l.Patient = 0
		s.now = s.now.Add(s.rule.Limit.WindowEnd(w).Sub(s.time()) + time.Second)
		s.nodes[0].Sweep(s.now)
		s.goOn(room)
		l.Patient = queueSize
		s.goOn(time.Second)
		lost := s.nodes[0].Stats().Unreported
		if used := s.usedIn("k", w); used != want || (lost > 0) != (want == 5) {
			t.Errorf("room after %v: the ledger has %d, must have %d, and %d reports are lost", room, used, want, lost)
		}
	}
}

// gauged has sweeps look at all keys.
func (s *stage) gauged() *ratelimit.RuleCounters {
	for range 2 * sweepParts { // the first of them may end a round that began before
		for _, n := range s.nodes {
			n.Sweep(s.now)
		}
	}
	return s.rule.Counters
}

// The gauge of leased tokens is the ledger's sum less the admissions, at each moment.
func TestLeasedAgreesWithACountByHand(t *testing.T) {
	for seed := range uint64(5) {
		s := newStage(t, 2, 100, 1000, nil)
		s.rule.Counters = &ratelimit.RuleCounters{}
		turn := instant(2 * time.Hour)
		s.now = turn.Add(-3 * time.Second)
		r := rand.New(rand.NewPCG(seed, 7))
		admitted := map[window]tokens{}
		for s.now < turn.Add(time.Second) {
			if v := s.ask(r.IntN(2), fmt.Sprint("k", r.IntN(4)), 1+tokens(r.IntN(8))); !v.OverLimit {
				admitted[v.Window] += v.Charged
			}
			if s.goOn(30 * time.Millisecond); s.now == turn { // the current window is not certain
				s.goOn(10 * time.Millisecond)
			}
			leased, w := s.gauged().Leased.Load(), s.rule.Limit.WindowAt(s.time())
			hand := -admitted[w]
			for i := range 4 {
				hand += s.usedIn(fmt.Sprint("k", i), w)
			}
			if tokens(leased) != hand {
				t.Fatalf("seed %d, at %v: %d are leased, and %d are in hand", seed, s.now, leased, hand)
			}
		}
	}
}

// newDriftStage has two nodes with shares of 50 tokens.
func newDriftStage(t *testing.T) *stage {
	s := newStage(t, 2, 100, 1000, map[string]string{
		"mode": "approx", "check_timeout": "0s", "drift_budget": "100", "max_nodes": "2",
	})
	s.rule.Counters = &ratelimit.RuleCounters{}
	for i, n := range s.nodes {
		n.Drift = always{50}
		s.ask(i, "other", 1) // what time it is there
	}
	return s
}

// The gauge of drifting tokens is what was admitted from shares, until the ledger has confirmed it.
func TestDriftingAgreesWithACountByHand(t *testing.T) {
	s := newDriftStage(t)
	s.goOn(3 * time.Second)
	r, drifted := rand.New(rand.NewPCG(1, 7)), tokens(0)
	for range 40 {
		a := ask{Rule: s.rule, Key: fmt.Append(nil, "k", r.IntN(4)), Cost: 1 + tokens(r.IntN(3))}
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

// The worst key is the one that drifted farthest beyond its limit, and disappears after two turns.
func TestWorstKeyOfLate(t *testing.T) {
	s := newDriftStage(t)
	drifts := func(node int, key string, n tokens) (undo func()) {
		a := ask{Rule: s.rule, Key: []byte(key), Cost: n}
		v := s.overdue(node, a)
		if v.Source != ratelimit.FromDrift {
			t.Fatalf("%+v", v)
		}
		return func() { s.nodes[node].Undo(s.now, []ask{a}, []verdict{v}) }
	}
	for key, n := range map[string]tokens{"a": 7, "b": 30, "c": 12} {
		s.ask(1, key, 500)
		s.ask(1, key, 500)
		drifts(0, key, n)
	}
	s.goOn(1100 * time.Millisecond) // a draw that covers nothing, then a claim
	worst := &s.rule.Counters.Worst
	if n := worst.Lately(); n != 30 {
		t.Errorf("the worst key went %d beyond its limit, and is said to have gone 30", n)
	}
	s.rule.Counters.Turn()
	if n := worst.Lately(); n != 30 {
		t.Errorf("a turn later it is said to have gone %d", n)
	}
	s.rule.Counters.Turn()
	if n := worst.Lately(); n != 0 || worst.Ever() != 30 {
		t.Errorf("%d are said of long ago, and %d ever", n, worst.Ever())
	}
	// Drift under a larger limit, or a larger share, breaks no bound of a lower one. Nor does drift that was undone, with
	// any charges later. Drift that is reported after its window counts, too.
	lowered, less, over := *s.rule, *s.rule, s.rule.Counters.OverAdmitted.Load()
	lowered.Limit.Requests, less.Coordination.DriftBudget.Tokens = 40, 20
	for i, c := range []struct {
		rule  *ratelimit.Rule // afterwards
		undo  bool
		over  uint64
		pause time.Duration
	}{{&lowered, false, 0, 0}, {&less, false, 30, 0}, {s.rule, true, 30, 0}, {s.rule, false, 30, time.Hour}} {
		key, whole := fmt.Sprint(i), s.rule
		s.ask(1, key, 500)
		s.ask(1, key, 500)
		if undo := drifts(0, key, 30); c.undo {
			undo()
			drifts(0, key, 30)
		}
		s.rule, s.now = c.rule, s.now.Add(c.pause)
		w := s.rule.Limit.WindowAt(s.time())
		s.decide(0, ask{Rule: s.rule, Key: []byte(key), Cost: 100, Kind: ratelimit.Charge, Window: w})
		s.goOn(5 * time.Second)
		n, beyond := s.rule.Counters.OverAdmitted.Load()-over, s.rule.Counters.BeyondBound.Load()
		if over += n; n != c.over || beyond > 0 {
			t.Errorf("%s: %d were over, must be %d, and %d bounds count as broken", key, n, c.over, beyond)
		}
		s.rule = whole
	}
}

// Admissions of an outage within the limit are no over-admission, whatever is refused and charged later.
func TestOutageWithinTheLimitIsNoExcess(t *testing.T) {
	s := newStage(t, 1, 100, 100, map[string]string{"on_store_failure": "open", "on_deny": "charge"})
	s.rule.Counters = &ratelimit.RuleCounters{}
	s.ask(0, "k", 1)
	s.down = true
	s.ask(0, "k", 60)
	s.down = false
	s.goOn(5 * time.Second)
	if k := s.key(0, "k"); s.used("k") < 60 || k.Kept() {
		t.Errorf("%d of 60 are booked, and the key keeps %+v", s.used("k"), k.Excess)
	}
	for range 100 {
		s.ask(0, "k", 1)
	}
	s.goOn(5 * time.Second)
	if c := s.rule.Counters; c.OverAdmitted.Load() > 0 || c.BeyondByPolicy.Load() > 0 {
		t.Errorf("100 of 100 are admitted, and %d count beyond", c.OverAdmitted.Load())
	}
}

// A request without room in the queue counts as that: neither as an error of the store nor as its breaker.
func TestFullQueueIsNamed(t *testing.T) {
	s := newStage(t, 1, 10, 10, nil)
	l := &s.nodes[0].lanes[0]
	for _, answered := range []bool{false, true} {
		l.Size = 0
		v := s.ask(0, "k", 1)
		if v.Source != ratelimit.FromFallback || v.Reason != ratelimit.FallbackQueueFull {
			t.Errorf("after an answer %v: %v by %v", answered, v.Reason, v.Source)
		}
		l.Size = queueSize
		s.goOn(time.Second)
		s.ask(0, "other", 1)
	}
}

// The age of the last reply counts from the start, if the store has never answered.
func TestSilenceCountsFromTheStart(t *testing.T) {
	clock, random := func() instant { return instant(time.Minute) }, func() float64 { return 0.5 }
	f := NewStepped(account.NewHolder(), 100, clock, time.Now(), func(time.Duration, func()) {}, random)
	if age := f.Stats().SyncAge; age != time.Minute {
		t.Errorf("after a minute it is silent for %v", age)
	}
}
