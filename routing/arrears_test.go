package routing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/ring"
)

// at asks a node, and goes on with its verdict.
func (s *script) at(addr string, kind ratelimit.Kind, cost ratelimit.Tokens, then func(v *verdict)) {
	asks, v := []ask{{Rule: s.rule, Key: keyOf(0), Kind: kind, Cost: cost}}, make([]verdict, 1)
	s.nodes[addr].Ask(asks, v, nil, func() { then(&v[0]) })
}

// Clients look whether they may, and charge what it cost when it is done (as with LLM tokens). A charge is booked
// whole: what is used beyond the limit is at most what was under way, and from then on everybody is refused.
func TestStepsChargesAfterTheFact(t *testing.T) {
	const clients, limit, cost = 50, 10_000, 5_000
	for algorithm := range ratelimit.RateAlgorithms() {
		s := newScript(t, 1, limit)
		s.rule.Limit.Algorithm, s.rule.Limit.Burst, s.rule.Limit.Unit = ratelimit.Algorithm(algorithm), limit, ratelimit.Minute
		s.ring("a:1", "b:1", "c:1")
		used, since, passed := ratelimit.Tokens(0), instant(0), 0
		var client func(i int)
		client = func(i int) {
			addr := s.addrs[(i+s.rnd.IntN(2))%3]
			s.at(addr, ratelimit.Peek, 0, func(v *verdict) {
				if v.OverLimit {
					s.in(20*time.Millisecond, func() { client(i) })
					return
				}
				if since != 0 && s.now.Sub(since) > 50*time.Millisecond {
					passed++
				}
				s.in(300*time.Millisecond, func() {
					s.at(addr, ratelimit.Spend, cost, func(*verdict) {
						if used += cost; used >= limit && since == 0 {
							since = s.now
						}
						client(i)
					})
				})
			})
		}
		for i := range clients {
			s.in(time.Duration(i)*7*time.Millisecond, func() { client(i) })
		}
		s.play(50 * time.Second)
		if used > limit+clients*cost || used < limit {
			t.Errorf("%v: %d were used of %d, with %d x %d under way", s.rule.Limit, used, limit, clients, cost)
		}
		if passed > 0 {
			t.Errorf("%v: %d passed after it was used up", s.rule.Limit, passed)
		}
		s.noFailures()
	}
}

// Each charge is given back at its end: at most the limit is in flight at once, and no token is lost.
func TestStepsChargesThatComeBack(t *testing.T) {
	const limit = 10
	for _, clients := range []int{3, 8, 64} {
		s := newScript(t, 1, limit)
		s.rule.Coordination.OnDeny = ratelimit.DenyRefunds
		s.ring("a:1", "b:1", "c:1")
		under, most, ends := 0, 0, s.now.Add(6*time.Second)
		var client func(i int)
		client = func(i int) {
			if s.now >= ends {
				return
			}
			s.at(s.addrs[i%3], ratelimit.Spend, 1, func(v *verdict) {
				if v.OverLimit {
					s.in(time.Duration(1+s.rnd.IntN(5))*time.Millisecond, func() { client(i) })
					return
				}
				under++
				most = max(most, under)
				s.in(time.Duration(1+s.rnd.IntN(10))*time.Millisecond, func() {
					under--
					s.at(s.addrs[s.rnd.IntN(3)], ratelimit.Refund, 1, func(*verdict) { client(i) })
				})
			})
		}
		for i := range clients {
			s.in(time.Duration(i)*time.Millisecond, func() { client(i) })
		}
		s.play(7 * time.Second)
		if most > limit || under != 0 || clients > limit && most < limit {
			t.Errorf("%d clients: %d were under way at once", clients, most)
		}
		if v := s.one("a:1", ask{Key: keyOf(0), Kind: ratelimit.Peek}); v.Remaining != limit {
			t.Errorf("%d clients: %d are left in the end", clients, v.Remaining)
		}
		s.noFailures()
	}
}

// An admission of a node in place of an owner that does not answer is booked there once, for any arrivals at
// the owner, and before its refund.
func TestStepsAnsweredInPlaceOfTheOwner(t *testing.T) {
	const limit = 1000
	for _, what := range []string{"the answers are late", "the owner is cut off", "the way breaks"} {
		for _, refunds := range []bool{false, true} {
			s := newScript(t, 1, limit)
			s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
			s.ring("a:1", "b:1")
			owner := s.nodes["a:1"].view.Load().ring.Owner(ring.HashOf(keyOf(0)))
			other := map[string]string{"a:1": "b:1", "b:1": "a:1"}[owner]
			s.at(owner, ratelimit.Spend, 1, func(*verdict) {})
			s.play(10 * time.Millisecond)
			want := ratelimit.Tokens(limit - 1)
			switch what {
			case "the answers are late":
				s.delay = 30 * time.Millisecond
			case "the owner is cut off":
				s.nodes[other].cut = true
			case "the way breaks":
				s.breakAll("a:1", "b:1")
				s.play(time.Millisecond)
			}
			for range 20 {
				s.at(other, ratelimit.Spend, 3, func(v *verdict) {
					if v.OverLimit {
						t.Errorf("%s: %+v", what, v)
					}
					if !refunds {
						want -= 3
						return
					}
					s.at(other, ratelimit.Refund, 3, func(*verdict) {})
				})
				s.play(time.Millisecond)
			}
			s.play(TakeOver + time.Second)
			s.delay, s.nodes[other].cut = 100*time.Microsecond, false
			s.play(10 * time.Second)
			got := s.one(owner, ask{Key: keyOf(0), Kind: ratelimit.Peek}).Remaining
			// If a connection breaks after a request, its arrival is unknown: a refund is then not repeated.
			lost := refunds && what == "the owner is cut off"
			if got != want && !lost || got > want {
				t.Errorf("%s, refunds %v: %d are left, want %d", what, refunds, got, want)
			}
		}
	}
}

// A request that was admitted in place of its owner, and taken back, is no credit in the owner's next window.
func TestStepsUndoCreditsNoNextWindow(t *testing.T) {
	const limit = 10
	s := newScript(t, 1, limit)
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.OnDeny = ratelimit.FailOpen, ratelimit.DenyRefunds
	s.rule.Limit.Unit = ratelimit.Second
	s.ring("a:1", "b:1")
	owner := s.nodes["a:1"].view.Load().ring.Owner(ring.HashOf(keyOf(0)))
	other := map[string]string{"a:1": "b:1", "b:1": "a:1"}[owner]
	begun := s.now % instant(time.Second) // windows of a second began with the script
	s.play(2*time.Second - time.Duration(begun) - 70*time.Millisecond)
	s.delay = 30 * time.Millisecond // the owner charges it, and its answer is late
	s.at(other, ratelimit.Spend, 4, func(v *verdict) {
		s.nodes[other].Undo([]ask{{Rule: s.rule, Key: keyOf(0), Cost: 4}}, []verdict{*v})
	})
	s.play(75 * time.Millisecond)
	n := 0
	for range 2 {
		for range limit {
			s.at(owner, ratelimit.Spend, 1, func(v *verdict) {
				if !v.OverLimit {
					n++
				}
			})
		}
		s.play(400 * time.Millisecond)
	}
	if n != limit {
		t.Errorf("%d are admitted of %d", n, limit)
	}
}

// A charge that is taken back while its account moves is credited where the account is in the end.
func TestStepsUndoFollowsItsAccount(t *testing.T) {
	for i := range ratelimit.RateAlgorithms() {
		const limit, keys = 100, 50
		s := newScript(t, keys, limit)
		s.rule.Limit.Algorithm, s.rule.Limit.Burst = ratelimit.Algorithm(i), limit
		s.ring("a:1", "b:1", "c:1")
		a := s.nodes["a:1"]
		charged := make([]verdict, keys)
		for range 2 {
			for k := range keys {
				a.Ask([]ask{{Rule: s.rule, Key: keyOf(k), Cost: 4}}, charged[k:k+1], nil, func() {})
			}
			s.play(100 * time.Millisecond)
		}
		s.delay = 5 * time.Millisecond
		s.nodes["b:1"].Leave(func() {})
		s.until("it is leaving", func() bool { return len(a.Stats().Members) == 2 })
		for k := range keys {
			a.Undo([]ask{{Rule: s.rule, Key: keyOf(k), Cost: 4}}, charged[k:k+1])
		}
		s.play(6 * time.Second)
		for k := range keys {
			if v := s.one("a:1", ask{Key: keyOf(k), Kind: ratelimit.Peek}); v.Remaining != limit-4 {
				t.Errorf("%v, key %d: %d are left of %d", s.rule.Limit.Algorithm, k, v.Remaining, limit)
			}
		}
	}
}

// A booking that reaches the owner, and whose answer is lost, is not credited twice. A charge may count twice.
func TestBookingsWhoseAnswersAreLost(t *testing.T) {
	for _, n := range []ratelimit.Tokens{-3, 3} {
		s, a := newPair(t)
		key := a.ownedBy("b:1")
		spent := s.one("a:1", ask{Key: key, Cost: 6})
		s.delay = 30 * time.Millisecond
		a.owe(&ask{Rule: s.rule, Key: key}, spent.Window, n)
		a.Pump()
		s.play(45 * time.Millisecond)
		s.delay = 100 * time.Microsecond
		s.breakAll("a:1", "b:1")
		s.play(3 * time.Second)
		want := map[ratelimit.Tokens]ratelimit.Tokens{-3: 7, 3: 0}[n] // 6 and twice 3 are more than 10
		if left := s.one("b:1", ask{Key: key, Kind: ratelimit.Peek}).Remaining; left != want || a.arrears.len() != 0 {
			t.Errorf("booked %d: %d are left, must be %d", n, left, want)
		}
	}
}

// A credit that arrives when its window has ended counts in no other.
func TestCreditsAreOfTheirWindow(t *testing.T) {
	s, a := newPair(t)
	s.rule.Limit.Unit = ratelimit.Minute
	key := a.ownedBy("b:1")
	spent := s.one("a:1", ask{Key: key, Cost: 6})
	ends := spent.ResetAfter - 50*time.Millisecond // one waits for as long
	s.play(ends - 15*time.Millisecond)
	s.delay = 30 * time.Millisecond
	a.owe(&ask{Rule: s.rule, Key: key}, spent.Window, -3)
	a.Pump()
	s.play(20 * time.Millisecond)
	if next := s.one("b:1", ask{Key: key, Cost: 6}); next.OverLimit || next.Window != spent.Window+1 {
		t.Fatalf("it is not the next window: %+v", next)
	}
	s.play(time.Second)
	if left := s.one("b:1", ask{Key: key, Kind: ratelimit.Peek}).Remaining; left != 4 || a.arrears.len() != 0 {
		t.Errorf("%d of 10 are left after 6", left)
	}
}

// A charge of an owner after this node's refusal is taken back there, when its answer arrives. It stays if the owner
// refuses as well, or if the rule has admitted here.
func TestLateAnswerOfAnOwnerIsUndone(t *testing.T) {
	for _, x := range []struct {
		policy     ratelimit.FailurePolicy
		cost, left ratelimit.Tokens
	}{{ratelimit.FailClosed, 4, 10}, {ratelimit.FailOpen, 4, 6}, {ratelimit.FailClosed, 12, 0}} {
		s, a := newPair(t)
		s.rule.Coordination.OnStoreFailure = x.policy
		key := a.ownedBy("b:1")
		s.delay = 30 * time.Millisecond
		v := s.one("a:1", ask{Key: key, Cost: x.cost})
		if v.Source != ratelimit.FromFallback || v.OverLimit != (x.policy == ratelimit.FailClosed) {
			t.Errorf("%+v", v)
		}
		s.play(time.Second)
		if left := s.one("b:1", ask{Key: key, Kind: ratelimit.Peek}).Remaining; left != x.left {
			t.Errorf("%v, cost %d: %d of 10 are left, must be %d", x.policy, x.cost, left, x.left)
		}
	}
}

// A node has one budget of a key for all outages, as the rule declares.
func TestOneBudgetOfAKeyForOutages(t *testing.T) {
	s, a := newPair(t)
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.MaxNodes = ratelimit.FailLocal, 3
	key, admitted := a.ownedBy("b:1"), 0
	for range 2 {
		s.crash("b:1")
		admitted += s.admits("a:1", key, 6)
		s.start("b:1")
		s.until("they have met", func() bool { return len(a.Stats().Members) == 2 && s.nodes["b:1"].Ready() })
	}
	if admitted != 3 {
		t.Errorf("%d of a part of 3 were admitted in two outages", admitted)
	}
}
