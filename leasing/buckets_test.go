package leasing_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Idle full buckets leave the table, also if their node never returned what it was granted in vain.
func TestFullBucketsLeaveTheTable(t *testing.T) {
	for _, unit := range []ratelimit.Unit{ratelimit.Second, ratelimit.Minute} {
		s := newStage(t, 1, bucketOf(1000, 1000, unit), strict)
		for _, key := range []string{"a", "b", "c"} {
			s.ask(0, key, 1)
		}
		s.inVain(10, func() { s.down(true) })
		s.goOn(3 * time.Second)
		s.down(false)
		s.goOn(5 * time.Minute)
		if n := s.nodes[0].Stats().Leases; n > 0 {
			t.Errorf("%v: after five minutes, %d buckets are tracked: %+v", unit, n, s.lease(0, "a"))
		}
	}
}

// inVain has a node be granted tokens for a request that has left. Something happens before its next message.
func (s *stage) inVain(cost tokens, then func()) {
	first, _ := s.hold(0, ask{Cost: cost})
	answer, _ := s.nodes[0].book(s.batch(0))
	second, _ := s.hold(0, ask{Cost: cost + 10})
	leaves(s, first)
	answer()
	then()
	leaves(s, second)
}

// leaves has a request end without an answer.
func leaves(s *stage, w *leasing.Wait) {
	for w.TimeOver(); w.Advance(s.now); w.TimeOver() {
	}
}

// A refund whose message never left, because the breaker is open, is stated later.
func TestRefundThatNeverLeft(t *testing.T) {
	s := newStage(t, 1, bucketOf(100, 100, ratelimit.Day), strict)
	s.ask(0, "other", 1)
	first, _ := s.hold(0, ask{Cost: 30})
	answer, _ := s.nodes[0].book(s.batch(0))
	var failing []*leasing.Batch
	for _, key := range []string{"x", "y", "z"} {
		s.hold(0, ask{Key: []byte(key), Cost: 1})
		failing = append(failing, s.batch(0))
	}
	leaves(s, first)
	answer()
	for _, b := range failing {
		b.Fail(errDown)
	}
	if !s.nodes[0].Stats().BreakerOpen {
		t.Fatal("the breaker is closed")
	}
	s.goOn(10 * time.Second)
	if used := s.used("k"); used > 0 {
		t.Errorf("%d are used, of a request that left", used)
	}
}

// Under a limit of 0, a bucket does not admit with tokens that a request left behind.
func TestBanOfABucketWithTokensLeft(t *testing.T) {
	s := newStage(t, 1, bucketOf(100, 100, ratelimit.Day), strict)
	s.ask(0, "other", 1)
	first, _ := s.hold(0, ask{Cost: 1})
	answer, _ := s.nodes[0].book(s.batch(0))
	s.limited(0)
	second, v := s.hold(0, ask{Cost: 1})
	leaves(s, first)
	answer()
	for second.Advance(s.now) {
		s.goOn(time.Millisecond)
	}
	if !v.OverLimit {
		t.Errorf("a limit of 0 admits %+v", v)
	}
}

// What a slow store granted for requests that left comes back: of a bucket of a day, single tokens, too.
func TestRequestsThatLeaveReturnTheirTokens(t *testing.T) {
	for _, cost := range []tokens{1, 2} {
		s := newStage(t, 1, bucketOf(10, 10, ratelimit.Day), strict)
		s.goOn(2 * time.Second)
		s.far(10 * time.Millisecond)
		for range 10 / cost {
			if v := s.ask(0, "k", cost); !v.OverLimit || v.Charged > 0 {
				t.Errorf("%+v", v)
			}
			s.goOn(100 * time.Millisecond)
		}
		s.far(time.Millisecond / 2)
		s.goOn(5 * time.Second)
		if n := s.takes(0, "k", 1); n < 9 {
			t.Errorf("cost %d: all requests were refused, and %d of 10 tokens are left", cost, n)
		}
	}
}

// A young epoch's messages do not state refunds: what was granted in vain returns after it, less what has refilled.
func TestReturnAfterAYoungEpoch(t *testing.T) {
	s := newStage(t, 2, bucketOf(100, 100, ratelimit.Second), strict)
	for i := range s.nodes {
		s.ask(i, "other", 1)
	}
	s.goOn(3 * time.Second)
	s.inVain(50, func() {
		s.lose()
		for i := range s.nodes {
			s.nodes[i].Beat()
		}
		s.goOn(2 * time.Millisecond)
	})
	for s.nodes[0].Young() || s.nodes[1].Young() {
		s.goOn(time.Millisecond)
	}
	from, admitted := s.now, s.takes(1, "k", 1)
	s.goOn(30 * time.Millisecond)
	for i := range 60 {
		if !s.ask(i%2, "k", 10).OverLimit {
			admitted += 10
		}
	}
	if most := 101 + tokens(100*s.now.Sub(from).Seconds()); admitted > most {
		t.Errorf("%d are admitted, of at most %d", admitted, most)
	}
}

// Records of a bucket in use go with the names that nodes have left. Settlements of a slow one need no other names.
func TestBusyBucketStaysSmall(t *testing.T) {
	for most, unit := range map[int]ratelimit.Unit{150: ratelimit.Second, 4: ratelimit.Day} {
		s := newStage(t, 2, bucketOf(100, 100, unit), fields{"on_deny": "refund"})
		s.rule.Hold = &ratelimit.Hold{}
		for i := range 300 {
			s.passes(i%2, 1)
			s.goOn(60 * time.Millisecond)
			if unit == ratelimit.Day {
				s.goOn(1500 * time.Millisecond)
				s.decide(i/2%2, ask{Cost: 1, Kind: ratelimit.Release, Window: 1})
			}
		}
		if v, err := s.ledger.Look(t.Context(), "k", 0, &s.rule.Limit); err != nil || len(v.Holders) > most {
			t.Errorf("per %v, 2 nodes have %d records: %v", unit, len(v.Holders), err)
		}
	}
}

// In any time, a bucket admits burst and refill, at a slow store too, and drift. Requests that no longer wait return
// nothing that was refilled in their place. No account counts as lost, and a bucket that is repaid, of what
// on_store_failure admitted, too, admits its burst.
func TestBucketsAtRandom(t *testing.T) {
	for seed := range uint64(90) {
		r := rand.New(rand.NewPCG(seed, 77)) //nolint:gosec // the same run each time
		nodes, policies, near := 1+r.IntN(3), []string{"closed", "open", "local"}, seed%3 == 0
		rate, burst := []tokens{1, 5, 20}[r.IntN(3)], []tokens{20, 100, 400}[r.IntN(3)]
		if near {
			rate, burst = []tokens{5, 20, 100}[r.IntN(3)], []tokens{1, 2, 5, 100}[r.IntN(4)]
		}
		f := fields{
			"on_deny": "refund", "on_store_failure": policies[r.IntN(3)],
			"store_deadline": []string{"15ms", "100ms", "1s"}[r.IntN(3)],
		}
		if r.IntN(3) == 0 {
			f["lease.size"] = fmt.Sprint(1 + burst/10)
		}
		share := tokens(0)
		if r.IntN(2) == 0 {
			share = []tokens{1, 4, burst / 2, burst * 2}[r.IntN(4)]
			f["mode"], f["max_nodes"], f["drift_budget"] = "approx", fmt.Sprint(nodes), fmt.Sprint(share*tokens(nodes))
			f["check_timeout"] = []string{"0s", "5ms"}[r.IntN(2)]
		}
		s := newStage(t, nodes, bucketOf(rate, burst, ratelimit.Second), f)
		s.keeps = true // a bucket that is full by the lower limit is not, by the other one
		mutes := !near && r.IntN(2) == 0
		for _, n := range s.nodes {
			n.share = share
			n.oneWay = time.Duration([]int{0, 1, 5, 20, 80, 200}[r.IntN(6)])*time.Millisecond + time.Millisecond/2
			if near {
				n.oneWay = min(n.oneWay, 3*time.Millisecond)
			}
		}
		s.goOn(2 * time.Second)
		level, at, worst := float64(burst), s.now, 0.0
		lower := *s.rule
		lower.Limit.Burst, lower.Limit.Requests = max(1, burst/2), max(1, rate/2)
		rules := []*ratelimit.Rule{s.rule, s.rule, &lower}[r.IntN(2):]
		for range 400 {
			if mutes && r.IntN(10) == 0 {
				n := s.nodes[r.IntN(nodes)]
				n.mute, n.down = r.IntN(2) == 0, r.IntN(4) == 0
			}
			for range r.IntN(4) {
				node, undone := r.IntN(nodes), r.IntN(6) == 0
				cost := max(1, []tokens{1, 1, 2, burst / 4, burst/2 + 1, burst}[r.IntN(6)])
				a := ask{Rule: rules[r.IntN(len(rules))], Cost: cost}
				s.begin(node, a, func(v verdict) {
					if undone { // by another limit of the request
						s.undo(node, a, v)
						return
					}
					if v.OverLimit || v.Source == ratelimit.FromFallback {
						return
					}
					level = min(float64(burst), level+s.now.Sub(at).Seconds()*float64(rate)) - float64(a.Cost)
					at, worst = s.now, min(worst, level)
				})
			}
			s.goOn(time.Duration([]int{1, 1, 5, 30, 300}[r.IntN(5)]) * time.Millisecond)
		}
		// A granted request may be answered later: by its deadline.
		slack := 1 + float64(share*tokens(nodes)) + float64(rate)*(s.rule.Coordination.Deadline().Seconds()+0.001)
		if -worst > slack || s.lost() > 0 {
			t.Errorf("seed %d: %d nodes, %v, %v: %.1f beyond burst and refill (at most %.1f), %d accounts count as lost",
				seed, nodes, s.rule.Limit, f, -worst, slack, s.lost())
		}
		for _, n := range s.nodes {
			n.mute, n.down, n.oneWay = false, false, 0
		}
		s.goOn(10 * time.Second) // in which all usage is reported
		s.now = s.now.Add(3 * time.Hour)
		s.goOn(5 * time.Second)
		s.passes(r.IntN(nodes), burst)
	}
}

// After a loss of data, a bucket has what the nodes have left of it: a new key has all, also of a slow bucket. One that
// was used has the rest. An older copy of the data may have more.
func TestSlowBucketsAreRestored(t *testing.T) {
	for i := range 4 {
		s := newStage(t, 2, bucketOf(100, 100, ratelimit.Hour), fields{"on_deny": "refund"})
		s.ask(0, "long ago", 100)
		s.now = s.now.Add(40 * time.Minute)
		s.goOn(time.Second)
		older := []*account.MemoryStore{nil, s.ledger.Copy()}[i/2]
		for n := range 60 {
			s.ask(n%2, "k", 1)
			s.goOn(40 * time.Millisecond)
		}
		s.goOn(5 * time.Second)
		s.ledger.Lose(older, "99")
		for node := range 2 {
			s.nodes[(node+i)%2].Beat()
			s.goOn(time.Duration(1+2*node) * time.Second)
		}
		for key, want := range map[string]tokens{"new": 100, "k": 40, "long ago": 66} {
			if n := s.takes(0, key, 1) + s.takes(1, key, 1); n < want-5 || n > want+5 {
				t.Errorf("case %d: after the loss, %d of %d tokens of %q passed", i, n, want, key)
			}
		}
	}
}
