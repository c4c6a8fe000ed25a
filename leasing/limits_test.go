package leasing_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Of a small limit, nodes take what they need, and nothing else. So a peek at any node shows what is left in all, and
// each token is admitted wherever its request arrives, without a recall.
func TestSmallLimitsAreExact(t *testing.T) {
	for _, limit := range []tokens{1, 2, 3, 4, 5, 8, 10, 13, 20, 31, 40, 59} {
		for _, mode := range []string{"leasing", "approx"} {
			for _, deny := range ratelimit.OnDenies {
				s := newStage(t, 3, fixed(limit, ratelimit.Hour), fields{"mode": mode, "on_deny": deny})
				s.deaf = true
				s.far(500 * time.Microsecond)
				for _, n := range s.nodes {
					n.share = s.rule.DriftShare()
				}
				at := int(limit)
				next := func() int { at++; return at % 3 }
				for left := limit; left >= 0; left-- {
					if v := s.peek(next()); v.Remaining != left || v.OverLimit {
						t.Fatalf("%s, %s: of %d, %d are left, and a peek shows %+v", mode, deny, limit, left, v)
					}
					if v := s.ask(next(), "k", 1); v.OverLimit != (left == 0) || v.Remaining != max(0, left-1) {
						t.Fatalf("%s, %s: of %d, %d are left, and a request for one shows %+v", mode, deny, limit, left, v)
					}
				}
			}
		}
	}
}

// For the ledger, what others have just drawn is in hand. Of a small limit they need it, so that a request waits for
// its recalls during half of its time at most.
func TestSmallLimitsRefuseInHalfTheTime(t *testing.T) {
	s := newStage(t, 3, fixed(10, ratelimit.Hour), nil)
	s.deaf = true
	s.ask(1, "k", 1)
	for range 9 {
		s.ask(0, "k", 1)
	}
	began := s.now
	if v := s.ask(1, "k", 1); !v.OverLimit || s.now.Sub(began) > 10*time.Millisecond {
		t.Errorf("after %v: %+v", s.now.Sub(began), v)
	}
}

// Limits of 30,000,000,000 tokens are admitted to the token, by requests for half of the rest at two nodes in turn. A
// bucket has its maximum, without a refill in the meantime.
func TestLargeLimitsAreExact(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		fixed(30_000_000_000, ratelimit.Hour),
		limitOf(ratelimit.SlidingWindow, 30_000_000_000, ratelimit.Hour),
		bucketOf(1, 1<<32-1, ratelimit.Year),
	} {
		s := newStage(t, 2, limit, fields{"on_deny": "refund", "lease.size": "1"})
		most, admitted := limit.Capacity(), tokens(0)
		for i := 0; admitted < most; i++ {
			cost := max(1, (most-admitted)/2)
			if v := s.ask(i%2, "k", cost); v.OverLimit {
				t.Fatalf("%v: %d were admitted, and %d more are refused", limit, admitted, cost)
			}
			admitted += cost
			s.goOn(10 * time.Millisecond)
		}
		if more := s.takesAll("k"); admitted != most || more > 0 {
			t.Errorf("%v: %d were admitted", limit, admitted+more)
		}
	}
}

// A limit of 0 passes no peek, though nothing is used: on a fleet and on a node alone.
func TestLimitOfNothingPassesNoPeek(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		s := newStage(t, 1, limitOf(ratelimit.Algorithm(algorithm), 100, ratelimit.Minute), nil)
		s.ask(0, "other", 1)
		s.limited(0)
		v := []verdict{s.peek(0), {}}
		s.nodes[0].Alone().Decide(t.Context(), s.now, s.whole(ask{Kind: ratelimit.Peek}), v[1:])
		if !v[0].OverLimit || !v[1].OverLimit {
			t.Errorf("%v: %+v", s.rule.Limit, v)
		}
	}
}

// Requests of one key can have different limits: they bring their own, or the rules change. A claim that a smaller
// limit refused says nothing about a request with a larger one, which shares it.
func TestSmallerLimitsRefuseNoOthers(t *testing.T) {
	s := newStage(t, 1, fixed(100, ratelimit.Hour), fields{"on_deny": "refund"})
	smaller := *s.rule
	smaller.Limit.Requests = 10
	s.passes(0, 20)
	first, large := s.hold(0, ask{Cost: 30})
	second, small := s.hold(0, ask{Rule: &smaller, Cost: 1})
	for first.Advance(s.now) || second.Advance(s.now) {
		s.goOn(time.Millisecond)
	}
	if large.OverLimit || large.Charged != 30 || !small.OverLimit {
		t.Errorf("20 are used: 30 of 100 are %+v, and 1 of 10 is %+v", *large, *small)
	}
}

// A limit that was used up, and is raised, is free again, also for a key that had no requests for a while.
func TestRaisedLimitsAreFree(t *testing.T) {
	for _, idle := range []time.Duration{0, 10 * time.Second} {
		s := newStage(t, 1, fixed(10, ratelimit.Hour), fields{"on_deny": "refund"})
		if n := s.takes(0, "k", 1); n != 10 {
			t.Fatalf("%d of 10 were admitted", n)
		}
		s.goOn(idle)
		s.limited(100)
		if v := s.ask(0, "k", 1); v.OverLimit {
			t.Errorf("10 of 100 are used, and after %v: %+v", idle, v)
		}
	}
}

// A refusal has a time and a cost for the next attempt, which then passes, also if other nodes have tokens in hand.
func TestRefusalsCanBeActedOn(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		for _, deny := range ratelimit.OnDenies {
			s := newStage(t, 2, limitOf(ratelimit.Algorithm(algorithm), 60, ratelimit.Hour), fields{"on_deny": deny})
			s.deaf = true
			for range 3 {
				s.ask(0, "k", 10)
			}
			s.ask(1, "k", 28) // it may have more in hand
			v := s.ask(0, "k", 20)
			if !v.OverLimit || v.Remaining >= 20 || v.ResetAfter <= 0 {
				t.Fatalf("%v, on_deny %s: %+v", s.rule.Limit, deny, v)
			}
			if deny == "refund" && v.Remaining > 0 {
				if v := s.ask(0, "k", v.Remaining); v.OverLimit {
					t.Errorf("%v, on_deny %s: so much was said to remain, and %+v", s.rule.Limit, deny, v)
				}
				v = s.ask(0, "k", 20)
			}
			if s.rule.Limit.Algorithm == ratelimit.SlidingWindow {
				continue // when it passes, depends on what is old
			}
			s.goOn(v.ResetAfter)
			if again := s.ask(0, "k", 20); again.OverLimit {
				t.Errorf("%v, on_deny %s: after %v it does not pass: %+v", s.rule.Limit, deny, v.ResetAfter, again)
			}
		}
	}
}

// Requests get the tokens that a claim brought for them, though refusals of other nodes exceed the limit before the
// requests are awake. Later requests are refused then.
func TestGrantedTokensAreSpent(t *testing.T) {
	s := newStage(t, 3, fixed(5, ratelimit.Hour), nil)
	for i := range s.nodes {
		s.ask(i, "other", 1)
	}
	verdicts := make([]*verdict, 8)
	waits := make([]*leasing.Wait, len(verdicts))
	for i := range waits {
		waits[i], verdicts[i] = s.hold(0, ask{Cost: 1})
	}
	answer, _ := s.nodes[0].book(s.batch(0))
	answer()
	for range 8 {
		if v := s.ask(1, "k", 1); !v.OverLimit {
			t.Fatalf("node 0 has all of the limit, and %+v", v)
		}
	}
	s.nodes[0].Recalled("k", s.window())
	s.settle()
	if elsewhere := s.lease(0, "k").Elsewhere; elsewhere > 0 {
		t.Fatalf("node 0 has no answer with the refusals of node 1: %d are elsewhere", elsewhere)
	}
	admitted := 0
	for i, w := range waits {
		for w != nil && w.Advance(s.now) {
			s.goOn(10 * time.Millisecond)
		}
		if !verdicts[i].OverLimit {
			admitted++
		}
	}
	if admitted != 5 || !s.ask(0, "k", 1).OverLimit {
		t.Errorf("%d of 5 were admitted, or one more is", admitted)
	}
}

// Nodes that each have fewer tokens in hand than a request needs, and more together, do not refuse it for long. A rest
// that is too small costs few claims.
func TestRestInSeveralHandsIsUsed(t *testing.T) {
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // the same run each time
		s := newStage(t, 2, limitOf(ratelimit.Algorithm(seed%3), 100, ratelimit.Hour), fields{"on_deny": "refund"})
		s.far(time.Duration(r.IntN(4)) * time.Millisecond)
		asked, used := 0, tokens(0)
		// A caller requests 30 tokens every 50 ms, and returns a part of them.
		var call func()
		call = func() {
			asked++
			s.begin(asked%2, ask{Cost: 30}, func(v verdict) {
				if v.OverLimit {
					s.after(50*time.Millisecond, call)
					return
				}
				unused := tokens(r.IntN(30))
				used += 30 - unused
				s.after(100*time.Millisecond, func() {
					s.begin(r.IntN(2), ask{Cost: unused, Kind: ratelimit.Release, Window: v.Window}, func(verdict) { call() })
				})
			})
		}
		for range 5 {
			s.after(0, call)
		}
		s.goOn(3 * time.Second)
		if used <= 70 || s.claims > asked/2 {
			t.Errorf("seed %d: %d of 100 are used, by requests for 30, and %d requests made %d claims",
				seed, used, asked, s.claims)
		}
	}
}

// What lies at other nodes comes back when a request needs it, before that is refused: all of the limit is admitted at
// one node, in time. The others take nothing again meanwhile.
func TestRecallsServeTheRequestThatWaits(t *testing.T) {
	s := newStage(t, 4, fixed(100, ratelimit.Hour), fields{"on_deny": "refund", "store_deadline": "100ms"})
	for i := range s.nodes {
		s.ask(i, "k", 1)
	}
	for i := range 96 {
		if v := s.ask(0, "k", 1); v.OverLimit || v.Source == ratelimit.FromFallback {
			t.Fatalf("of the rest of 96, %d were admitted: %+v", i, v)
		}
	}
	for i := range s.nodes {
		if hand := s.hand(i); hand != 0 || !s.ask(i, "k", 1).OverLimit {
			t.Errorf("node %d has %d in hand", i, hand)
		}
	}
}

// A table that is full of idle keys has room for others: the tokens in hand of idle keys go back.
func TestIdleLeasesMakeRoom(t *testing.T) {
	s := newStage(t, 0, fixed(1000, ratelimit.Day), nil)
	s.keys = 1000
	n := s.start()
	const keys = 3000 // of which the node may track a third
	for i := range keys {
		s.ask(0, fmt.Sprint("k", i), 1)
		if i%100 == 0 {
			s.goOn(10 * time.Second) // in which all of them are idle
		}
	}
	if lost := n.Stats().Overflow; lost > 0 {
		t.Errorf("%d of %d keys were limited by this node alone", lost, keys)
	}
}

// A key that comes back to a full table again and again has the records of a few minutes in its account, and all usage.
// That is so without tokens in hand to give back, too, when its messages would all be draws.
func TestAccountsOfReturningKeysStaySmall(t *testing.T) {
	for _, size := range []string{"auto", "1"} {
		accountsStaySmall(newStage(t, 0, fixed(1_000_000, ratelimit.Day), fields{"lease.size": size}))
	}
}

func accountsStaySmall(s *stage) {
	s.keys = 100
	s.start()
	const rounds = 20
	for range rounds {
		for i := range 300 {
			if v := s.ask(0, fmt.Sprint("k", i), 2); v.OverLimit || v.Source == ratelimit.FromFallback {
				s.Fatalf("k%d is not admitted by the ledger: %+v", i, v)
			}
			s.goOn(time.Second)
		}
	}
	for _, key := range []string{"k0", "k7", "k150"} {
		is, err := s.ledger.Look(s.Context(), key, s.window(), &s.rule.Limit)
		if err != nil || len(is.Holders) < 2 || len(is.Holders) > 5 {
			s.Errorf("%s has %d records, after %d rounds of five minutes: %v", key, len(is.Holders), rounds, err)
		}
		if is.Charged != 2*rounds {
			s.Errorf("%d of %s are used, not %d", is.Charged, key, 2*rounds)
		}
	}
}

// Keys that go from a full table while they count, and come back, are not taken for accounts that the store has lost:
// an alert says so of those. They count as evicted, and a key whose window is over does not.
func TestFullTableLosesNoAccounts(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		s := newStage(t, 2, limitOf(ratelimit.Algorithm(algorithm), 20, ratelimit.Minute), nil)
		r := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same run each time
		popular := rand.NewZipf(r, 1.1, 5, 500)
		admitted, most := map[[2]uint64]int{}, 0 // by key and window
		s.jump(8 * time.Second)
		for end := s.now.Add(16 * time.Second); s.now < end; { // which has a turn of the minute
			for range 5 {
				key := popular.Uint64()
				v := s.ask(r.IntN(2), fmt.Sprint("k", key), 1)
				if of := [2]uint64{key, uint64(v.Window)}; !v.OverLimit && v.Source != ratelimit.FromFallback {
					admitted[of]++
					most = max(most, admitted[of])
				}
			}
			s.goOn(10 * time.Millisecond)
		}
		if most > 20 && s.rule.Limit.Algorithm == ratelimit.FixedWindow {
			t.Errorf("%d of 20 are admitted of a key in a window", most)
		}
		if n := s.nodes[0].Stats(); n.Evicted < 50 || s.lost() > 0 {
			t.Errorf("%v: %d keys went from a full table, and %d accounts count as lost", s.rule.Limit, n.Evicted, s.lost())
		}
	}
	s := newStage(t, 0, fixed(10, ratelimit.Hour), nil)
	s.keys = 2
	n := s.start()
	s.ask(0, "over", 1)
	s.goOn(150 * time.Minute)
	before := n.Stats()
	for _, key := range []string{"k", "l", "m"} {
		s.ask(0, key, 1)
		s.goOn(10 * time.Millisecond)
	}
	if after := n.Stats(); before.Leases+int(before.Evicted) > 0 || after.Leases != 2 || after.Evicted != 1 {
		t.Errorf("2 of 3 keys are there: %d, and %d, then %d, were evicted", after.Leases, before.Evicted, after.Evicted)
	}
}

// Accounts that the store has evicted are restated within a sweep. Those evicted within the next minute are restated at
// its end.
func TestEvictedTwiceIsToldTwice(t *testing.T) {
	s := newStage(t, 1, fixed(100, ratelimit.Hour), nil)
	s.ask(0, "k", 5)
	for _, step := range []struct {
		after time.Duration
		told  bool
	}{{10 * time.Second, true}, {40 * time.Second, false}, {11 * time.Second, true}} { // it learns for 10 s
		if step.after != 11*time.Second {
			s.ledger.Evict("k", s.window())
			s.nodes[0].RestateEvicted()
		}
		s.goOn(step.after)
		if used := s.used("k"); used < 5 && step.told || used > 0 && !step.told {
			t.Fatalf("%v later, the ledger has %d of 5", step.after, used)
		}
	}
}

// Each time that recalls may have been missed, all totals are stated again. The rest before the next time grows with
// their number.
func TestMissedRecallsAreMadeUpFor(t *testing.T) {
	const many = 990
	s := newStage(t, 0, fixed(100, ratelimit.Hour), nil)
	s.keys = 2 * many
	n := s.start()
	missed := func(key string, rest time.Duration, told bool) {
		t.Helper()
		s.ledger.Evict(key, s.window())
		n.Recalled("", 0)
		s.goOn(rest)
		if used := s.used(key); (used > 0) != told {
			t.Errorf("after %v the ledger has %d of %q", rest, used, key)
		}
	}
	s.ask(0, "k", 5)
	for range 300 { // which is more than the numbers of restatements
		missed("k", 300*time.Millisecond, true)
	}
	for i := range many {
		s.ask(0, fmt.Sprint(i), 5)
	}
	missed("k", 300*time.Millisecond, true)
	missed("k", 100*time.Millisecond, false)
	s.goOn(many * 500 * time.Microsecond)
	missed("k", 300*time.Millisecond, true)
}
