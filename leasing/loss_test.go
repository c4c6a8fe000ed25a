package leasing_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
)

// strict refuses what the ledger does not decide, and charges no refusal.
var strict = fields{"on_deny": "refund", "on_store_failure": "closed"}

// lose has the store lose all data.
func (s *stage) lose() { s.ledger.Lose(nil, "1") }

// lossCosts checks that all of the limit was admitted before a loss, and at most its declared part after it.
func (s *stage) lossCosts(what any, used, again tokens) {
	s.Helper()
	limit := s.rule.Limit.Capacity()
	if used != limit || again > limit/ratelimit.LossPart {
		s.Errorf("%v, %v: %d of %d passed before the loss, and %d after it", s.rule.Limit, what, used, limit, again)
	}
}

// A process that has read no epoch claims nothing before the others have said that data was lost: of a bucket, too.
// So it is when their breakers were open, or their trips are slow. When it asks early it makes no loop of claims.
func TestNewProcessAfterALoss(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		limit := limitOf(ratelimit.Algorithm(algorithm), 100, ratelimit.Hour)
		for _, outage := range []time.Duration{0, 2 * time.Second, 5 * time.Second, 10 * time.Second} {
			s := newFresh(t, limit, strict)
			old := s.start()
			s.goOn(2 * time.Second)
			used := s.takes(0, "k", 1)
			s.goOn(time.Second)
			old.down = outage > 0
			s.takesFor(outage, "k", 0)
			old.down = false
			s.lose()
			fresh := s.start()
			s.ask(1, "k", 1)
			if fresh.Stats().Claims > 3 {
				t.Errorf("%v: %d claims for one request", limit, fresh.Stats().Claims)
			}
			s.lossCosts(outage, used, s.takesFor(4*time.Second, "k", 1, 0))
		}
		s := newFresh(t, limit, strict)
		old := s.start()
		s.goOn(2 * time.Second)
		used := s.takes(0, "k", 1)
		s.goOn(old.beat.Sub(s.now) + 5*time.Millisecond)
		s.start()
		s.goOn(beatEvery - 3*time.Millisecond) // the one has just greeted, and the other greets next
		s.lose()
		old.oneWay = 50 * time.Millisecond
		s.goOn(100 * time.Millisecond)
		s.lossCosts("a late beat", used, s.takesFor(4*time.Second, "k", 1))
	}
}

// A message that hangs when the store comes back, empty: within the bound of FoundWithin, its node states its totals
// before others are granted them.
func TestNodeIsFoundWhileTheEpochIsYoung(t *testing.T) {
	s := newStage(t, 2, fixed(100, ratelimit.Hour), strict)
	n := s.nodes[0]
	n.Random = func() float64 { return 0.9 }
	s.goOn(2 * time.Second)
	used := s.takes(0, "k", 1)
	s.goOn(time.Second)
	n.down, n.hangs = true, lane.TimeLimit
	s.goOn(20 * time.Second)
	for sent := n.Stats().RoundTrips; n.Stats().RoundTrips == sent; {
		s.goOn(time.Millisecond)
	}
	s.goOn(1700 * time.Millisecond) // the next message hangs
	n.down = false
	s.lose()
	s.lossCosts("a message that hangs", used, s.takesFor(leasing.FoundWithin, "k", 1))
}

// On etcd each node has its own clock. A node that is behind does not claim before others have stated their totals.
func TestYoungEpochBetweenTwoClocks(t *testing.T) {
	for _, ahead := range []time.Duration{0, 100 * time.Millisecond, 400 * time.Millisecond} {
		s := newFresh(t, fixed(1000, ratelimit.Hour), strict)
		s.skew = ahead
		s.start()
		s.skew = 0
		s.start()
		s.goOn(2 * time.Second)
		used := s.takes(0, "k", 50)
		s.goOn(time.Second)
		s.lose()
		s.lossCosts(ahead, used, s.takesFor(2*time.Second, "k", 1))
	}
}

// The first process on an empty store refuses nothing for longer than its wait, whenever its first request comes. Until
// then, on_store_failure decides.
func TestFirstStartWaitsForABeat(t *testing.T) {
	const wait = 3*beatEvery/2 + 100*time.Millisecond
	for _, first := range []int{10, 100, 250, 400} {
		s := newFresh(t, fixed(1000, ratelimit.Hour), strict)
		s.start()
		s.goOn(time.Duration(first) * time.Millisecond)
		began := s.now
		for s.ask(0, "k", 1).OverLimit && s.now.Sub(began) < 3*time.Second {
			s.goOn(time.Millisecond)
		}
		if after := s.now.Sub(began); after > wait {
			t.Errorf("first request after %d ms: requests are refused for %v", first, after)
		}
	}
	for policy, want := range map[string]int{"open": 20, "local": 10, "closed": 0} {
		s := newFresh(t, fixed(10, ratelimit.Hour), fields{"on_deny": "refund", "on_store_failure": policy})
		s.start()
		passed := 0
		for range 20 {
			if !s.ask(0, "k", 1).OverLimit {
				passed++
			}
		}
		if passed != want {
			t.Errorf("%s: %d of 20 pass at first, with a limit of 10", policy, passed)
		}
	}
}

// An account that the store cannot read does not hold up other keys for good.
func TestUnreadableAccountInAYoungEpoch(t *testing.T) {
	s := newStage(t, 1, fixed(10, ratelimit.Year), strict)
	s.ask(0, "broken", 1)
	s.ask(0, "k", 1)
	s.goOn(3 * time.Second)
	s.lose()
	broken := account.StoreKey{Name: account.NameOf("", "broken", s.window())}
	foreign := account.Change{StoreKey: broken, Data: []byte("foreign"), Until: 1 << 60}
	if _, err := s.ledger.Write(t.Context(), "1", []account.Change{foreign}); err != nil {
		t.Fatal(err)
	}
	began := s.now
	s.goOn(600 * time.Millisecond)
	for s.ask(0, "k", 1).OverLimit && s.now.Sub(began) < time.Minute {
		s.goOn(10 * time.Millisecond)
	}
	if after := s.now.Sub(began); after > ratelimit.YoungMost+ratelimit.YoungFor+beatEvery {
		t.Errorf("a key is refused for %v after a loss", after)
	}
}

// After a loss, nodes that all answer admit the limit, and at most a twentieth beyond it. Before and meanwhile there are
// refunds, undone requests, other limits, and answers that are lost.
func TestLossesAtRandom(t *testing.T) {
	for seed := range uint64(80) {
		r := rand.New(rand.NewPCG(seed, 78)) //nolint:gosec // the same run each time
		nodes, limit := 1+r.IntN(4), []tokens{40, 100, 1000}[r.IntN(3)]
		f := fields{
			"on_deny": "refund", "on_store_failure": "closed", "store_deadline": []string{"15ms", "500ms"}[r.IntN(2)],
			"reclaim": ratelimit.Reclaims[r.IntN(2)],
		}
		if r.IntN(4) == 0 {
			f["lease.size"] = fmt.Sprint(1 + limit/8)
		}
		s := newFresh(t, limitOf(ratelimit.Algorithm(r.IntN(3)), limit, ratelimit.Year), f)
		if r.IntN(3) == 0 {
			s.rule.Hold = &ratelimit.Hold{}
		}
		lower := *s.rule // requests of one key may bring limits of their own
		lower.Limit.Requests, lower.Limit.Burst = limit*9/10, limit*9/10
		rules := []*ratelimit.Rule{s.rule, s.rule, &lower}[r.IntN(2):]
		for range nodes {
			oneWay := time.Duration([]int{0, 0, 1, 5, 60}[r.IntN(5)]) * time.Millisecond
			s.start().oneWay = oneWay + time.Millisecond/2
			s.goOn(time.Duration(r.IntN(400)) * time.Millisecond)
		}
		s.goOn(2 * time.Second)
		net, w, lossAt := tokens(0), window(0), r.IntN(150)
		var older *account.MemoryStore
		for i := range 150 {
			if i == lossAt/2 && r.IntN(2) == 0 {
				older = s.ledger.Copy()
			}
			if i == lossAt {
				s.ledger.Lose(older, "2")
			}
			for _, n := range s.nodes {
				n.mute = r.IntN(12) == 0
			}
			node, undone := r.IntN(nodes), r.IntN(6) == 0
			cost := 1 + tokens(r.Int64N(int64([]tokens{1, limit / 10, limit / 3}[r.IntN(3)])))
			a := ask{Rule: rules[r.IntN(len(rules))], Cost: cost, Window: w}
			if r.IntN(5) == 0 && net >= cost && w != 0 {
				a.Kind = []ratelimit.Kind{ratelimit.Refund, ratelimit.Release}[r.IntN(2)]
				net -= cost
			}
			s.begin(node, a, func(v verdict) {
				switch {
				case a.Kind != ratelimit.Spend:
				case undone:
					s.undo(node, a, v)
				case !v.OverLimit && v.Source != ratelimit.FromFallback:
					net, w = net+cost, v.Window
				}
			})
			s.goOn(time.Duration([]int{1, 1, 5, 30, 100, 700}[r.IntN(6)]) * time.Millisecond)
		}
		for _, n := range s.nodes {
			n.mute = false
		}
		s.goOn(20 * time.Second)
		least := s.rule.Limit.Algorithm != ratelimit.TokenBucket // of which a lost answer costs its lease
		if net += s.takesAll("k"); net > limit+limit/ratelimit.LossPart || least && net < limit {
			t.Errorf("seed %d: %d nodes, %v, %v: %d after a loss", seed, nodes, s.rule.Limit, f, net)
		}
	}
}

// After a loss of data, a node restates all keys, for any number of them. It has more to state until the last answer,
// and the epoch is young until then.
func TestManyKeysAreToldAfterALoss(t *testing.T) {
	const keys = 11_000 // more than may wait at once
	s := newStage(t, 0, fixed(100, ratelimit.Hour), nil)
	s.keys, s.keeps = 2*keys, true
	n := s.start()
	for i := range keys {
		s.ask(0, fmt.Sprint("k", i), 60)
	}
	s.goOn(3 * time.Second)
	s.lose()
	n.Beat()
	s.settle()
	for range 10 { // all parts of the table
		n.Sweep(s.now)
	}
	if !n.Restating() {
		t.Error("nothing was answered, and it has nothing more to tell")
	}
	s.goOn(4 * time.Second)
	for i := range keys {
		if used := s.used(fmt.Sprint("k", i)); used < 60 {
			t.Fatalf("key %d: the ledger knows of %d of 60", i, used)
		}
	}
}

// A full table drops no key of which the store has lost the total.
func TestFullTableInAYoungEpoch(t *testing.T) {
	s := newStage(t, 1, fixed(10, ratelimit.Hour), strict)
	for i := range 100 {
		s.ask(0, fmt.Sprint("old", i), 10)
	}
	s.goOn(10 * time.Second)
	s.lose()
	s.nodes[0].Beat()
	s.goOn(5 * time.Millisecond) // it has read the epoch
	tracked, again := 0, 0
	for i := range 100 {
		if s.lease(0, fmt.Sprint("old", i)).Spent > 0 {
			tracked++
		}
	}
	for i := range 60 {
		s.ask(0, fmt.Sprint("new", i), 1)
	}
	s.goOn(10 * time.Second)
	for i := range 100 {
		if !s.ask(0, fmt.Sprint("old", i), 10).OverLimit {
			again++
		}
	}
	if tracked < 80 || again > 100-tracked {
		t.Errorf("%d of 100 keys were tracked at the loss, and %d pass again", tracked, again)
	}
}
