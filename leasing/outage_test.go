package leasing_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// What is admitted without the store is booked, and taken back where it was taken: of this node's own budget, and of
// what is to be told.
func TestUndoWithoutTheStore(t *testing.T) {
	for policy, own := range map[string]int{"local": 10, "open": 1000} {
		s := newStage(t, 1, fixed(100, ratelimit.Year), fields{"on_store_failure": policy})
		s.passes(0, 1)
		s.down(true)
		for s.hand(0) > 0 {
			s.ask(0, "k", 1)
		}
		s.goOn(10 * time.Second)
		before := s.lease(0, "k").Spent
		for i := range 3 * own {
			v := s.ask(0, "k", 1)
			after := s.lease(0, "k").Spent
			if v.OverLimit || v.Charged != 1 || v.Source != ratelimit.FromFallback || after != before+1 {
				t.Fatalf("%s, request %d: %+v, spent %d of %d before", policy, i, v, after, before)
			}
			s.undo(0, ask{Cost: 1}, v)
			if after = s.lease(0, "k").Spent; after != before {
				t.Fatalf("%s, request %d was undone, and %d are spent, %d before", policy, i, after, before)
			}
		}
	}
}

// A refund while a window turns, without an answer in time, reports the window of its booking, like a charge.
func TestRefundWithoutTheStoreSaysWhere(t *testing.T) {
	for _, kind := range []ratelimit.Kind{ratelimit.Refund, ratelimit.Spend} {
		s := newStage(t, 1, fixed(100, ratelimit.Hour), fields{"on_store_failure": "open"})
		s.passes(0, 5)
		before := s.lease(0, "k")
		s.jump(0) // the window may be over, or not
		v := s.overdue(0, ask{Cost: 2, Kind: kind})
		after := s.lease(0, "k").Spent
		if v.Source != ratelimit.FromFallback || v.Booked != before.Window || after == before.Spent {
			t.Errorf("kind %d: %+v, and %d are spent, before: %+v", kind, v, after, before)
		}
	}
}

// A refund before the node's first answer credits no window: that which the answer names may be a later one, of which
// nothing was given back. An admission then is booked.
func TestRefundBeforeTheFirstAnswer(t *testing.T) {
	s := newStage(t, 2, fixed(100, ratelimit.Hour), nil)
	s.ask(0, "k", 30)
	s.overdue(1, ask{Cost: 30, Kind: ratelimit.Refund})
	s.jump(-time.Second) // it is certain that the window has turned
	for range 100 {
		s.passes(0, 1)
	}
	if v := s.ask(1, "k", 1); !v.OverLimit {
		t.Errorf("101 of 100 are admitted: %+v", v)
	}
	s = newStage(t, 1, fixed(100, ratelimit.Hour), fields{"on_store_failure": "open"})
	if v := s.overdue(0, ask{Cost: 50}); v.OverLimit {
		t.Fatalf("the store is away, and it is decided %+v", v)
	}
	s.goOn(time.Second)
	s.ask(0, "k", 1)
	s.goOn(time.Second)
	if used := s.used("k"); used < 51 {
		t.Errorf("%d are booked of 51", used)
	}
}

// In an outage nodes divide a limit among those that were last seen alive; a node that has seen none divides by
// max_nodes. What is declared covers both.
func TestLocalDividesByNodesSeen(t *testing.T) {
	for seen, want := range map[int]tokens{2: 50, 4: 25, 1: 100, 0: 10} {
		s := newStage(t, 1, fixed(100, ratelimit.Hour), fields{"on_store_failure": "local", "max_nodes": "10"})
		s.nodes[0].Nodes = func() int { return seen }
		s.ask(0, "other", 1) // what time it is there
		s.down(true)
		admitted := s.takes(0, "k", 1)
		declared := declare.Of(s.rule, max(1, seen), declare.SharedStore).OnOutage.Node.Tokens
		if admitted != want || admitted > declared {
			t.Errorf("%d nodes were seen: one admits %d, must admit %d, and declares %d", seen, admitted, want, declared)
		}
	}
}

// A bucket that refills by fewer tokens in a period than there are nodes refills by its part at each of them, too.
func TestLocalPartsOfSlowBuckets(t *testing.T) {
	for rate, want := range map[tokens]tokens{1: 6 + 6, 4: 6 + 20, 10: 6 + 60, 25: 6 + 120} {
		s := newStage(t, 10, bucketOf(rate, 60, ratelimit.Minute), fields{"on_deny": "refund"})
		s.ask(0, "other", 1)
		s.down(true)
		admitted := s.takes(0, "k", 1)
		for range 60 {
			s.now = s.now.Add(time.Minute)
			admitted += s.takes(0, "k", 1)
		}
		if admitted != want {
			t.Errorf("one of ten nodes with a bucket of 60 and %d a minute admits %d in an hour, want %d", rate, admitted, want)
		}
	}
}

// In an outage, a node has the store's windows, whatever its own wall clock shows: it admits its part once in each.
func TestLocalWindowsAreTheStores(t *testing.T) {
	for _, ahead := range []time.Duration{0, 30 * time.Minute, -30 * time.Minute} {
		s := newStage(t, 2, fixed(100, ratelimit.Hour), fields{"on_store_failure": "local"})
		before := s.nodes[0].LedgerTime(s.now)
		s.ask(0, "other", 1)
		if at := s.nodes[0].LedgerTime(s.now); before != 0 || s.time().Sub(at).Abs() > time.Second {
			t.Errorf("at %d, the ledger's time is %d, and %d before its first answer", s.time(), at, before)
		}
		s.down(true)
		s.jump(-time.Second) // no answer is about this window
		admitted := tokens(0)
		for range 11 {
			s.nodes[0].SyncClock(s.now, time.UnixMicro(int64(s.time())).Add(ahead))
			admitted += s.takes(0, "k", 1)
			s.now = s.now.Add(5 * time.Minute)
		}
		if admitted != 50 {
			t.Errorf("a clock that is ahead by %v: a node with a part of 50 admits %d in a window", ahead, admitted)
		}
	}
}

// Without an answer, a peek is decided as a request is: closed refuses, open admits, and local has the node's part of
// the limit. Costs after the fact would otherwise have no limit in an outage. Debt that a node has read refuses on.
func TestPeeksWithoutTheStore(t *testing.T) {
	for policy, want := range map[string][2]bool{"closed": {true, true}, "open": {false, false}, "local": {false, true}} {
		s := newStage(t, 2, fixed(100, ratelimit.Hour), fields{"on_store_failure": policy})
		s.ask(0, "other", 1)
		s.down(true)
		before := s.peek(0).OverLimit
		s.ask(0, "k", 300)
		if after := s.peek(0).OverLimit; [2]bool{before, after} != want {
			t.Errorf("%s: a peek is refused before and after the node's own budget is used: %v, %v", policy, before, after)
		}
		if policy == "open" {
			continue
		}
		s = newStage(t, 2, fixed(100, ratelimit.Hour), fields{"on_store_failure": policy})
		s.decide(0, ask{Kind: ratelimit.Charge, Cost: 130})
		s.goOn(5 * time.Second)
		known := s.peek(0)
		s.down(true)
		s.goOn(5 * time.Second)
		if v := s.peek(0); !known.OverLimit || !v.OverLimit {
			t.Errorf("%s: 130 of 100 are used, which shows %+v, and then without the store %+v", policy, known, v)
		}
	}
}

// So do costs above their holds. Without that, requests would pass for as long as their holds fit.
func TestChargesWithoutTheStore(t *testing.T) {
	for _, key := range []string{"known", "new"} {
		s := newStage(t, 2, fixed(100, ratelimit.Hour), fields{"on_deny": "refund"})
		s.ask(0, "known", 1)
		s.down(true)
		s.goOn(5 * time.Second)
		used := 0
		for range 100 {
			if v := s.ask(0, key, 1); !v.OverLimit {
				used += 10
				w := max(v.Window, v.Booked)
				s.decide(0, ask{Key: []byte(key), Kind: ratelimit.Charge, Cost: 9, Window: w})
			}
		}
		if used > 70 {
			t.Errorf("%s: of a part of 50, and a lease of 5, %d are used", key, used)
		}
	}
}

// In a window of which it has read the sum, a node admits its lease and its part of the rest, and answers what is left
// of that. In the next window, it admits its part of the limit. A sliding window counts the usage before, and a bucket's
// part is refilled at the node's own rate.
func TestLocalContinuesFromTheSum(t *testing.T) {
	for _, c := range []struct {
		algorithm    ratelimit.Algorithm
		first, later tokens // of node 0: in 30 minutes, and in the next window
	}{
		{ratelimit.FixedWindow, (100 - 60) / 2, 50},
		{ratelimit.SlidingWindow, (100 - 60) / 2, 50 - 20},
		{ratelimit.TokenBucket, (100 - 60 + 50) / 2, (100-60+100)/2 - 45},
	} {
		s := newStage(t, 2, limitOf(c.algorithm, 100, ratelimit.Hour),
			fields{"on_store_failure": "local", "on_deny": "refund", "lease.size": "1"})
		s.ask(1, "k", 40)
		s.ask(0, "k", 20)
		s.down(true)
		spent := func() (n tokens) {
			for left := tokens(-1); ; n++ {
				v := s.ask(0, "k", 1)
				switch {
				case v.OverLimit && v.Remaining == 0:
					return n
				case v.OverLimit || v.Source == ratelimit.FromFallback && left >= 0 && v.Remaining != left-1:
					t.Fatalf("%v: %d passed, %d were left: %+v", c.algorithm, n, left, v)
				case v.Source == ratelimit.FromFallback:
					left = v.Remaining
				}
			}
		}
		s.now = s.now.Add(30 * time.Minute)
		if v := s.ask(0, "k", 90); !v.OverLimit || v.Remaining < c.first-1 || v.Remaining > c.first+1 {
			t.Errorf("%v: of a request for 90 is said: %+v", c.algorithm, v)
		}
		if n := spent(); n < c.first-1 || n > c.first+1 { // a lease may have a token
			t.Errorf("%v: %d pass in the window that was read, want %d", c.algorithm, n, c.first)
		}
		s.now = s.now.Add(30*time.Minute + 10*time.Second)
		if n := spent(); n < c.later-1 || n > c.later+1 {
			t.Errorf("%v: %d pass in the next window, want %d", c.algorithm, n, c.later)
		}
	}
}

// A message that the store refuses alone is a failure, though its round trip has an answer: a full Redis reads its time.
// An answer that only came too late is none.
func TestRefusedMessageIsAFailure(t *testing.T) {
	for refusal, failures := range map[error]int{errDown: 1, account.ErrOvertaken: 0, account.ErrOver: 0} {
		s := newStage(t, 1, fixed(100, ratelimit.Hour), nil)
		s.ask(0, "other", 1)
		told := 0
		s.nodes[0].OnFailure = func(error) { told++ }
		s.hold(0, ask{Cost: 1})
		b := s.batch(0)
		epoch, at, _ := s.ledger.Settle(t.Context(), nil, nil)
		b.Answer(epoch, at, []account.Grant{{Err: refusal}})
		if told != failures {
			t.Errorf("%v: %d failures, must be %d", refusal, told, failures)
		}
	}
}

// A ledger lies to one of two nodes, in answers that make sense. Both together admit the limit and not more. When it
// tells the truth again, the rest is admitted. Where it lies about what time it is, a window may be granted once more.
func TestLedgerThatLies(t *testing.T) {
	const limit = 100
	type (
		claim  = account.Claim
		grant  = account.Grant
		moment = ratelimit.LedgerTime
	)
	says := func(what func(g *grant)) func(*claim, *grant, *moment) {
		return func(_ *claim, g *grant, _ *moment) { what(g) }
	}
	drawn := func(what func(g *grant)) func(*claim, *grant, *moment) {
		return func(c *claim, g *grant, _ *moment) {
			if c.Draws() {
				what(g)
			}
		}
	}
	at := func(other func(moment) moment) func(*claim, *grant, *moment) {
		return func(_ *claim, g *grant, at *moment) { *at = other(*at); g.At = *at }
	}
	hours := func(n int64) func(*claim, *grant, *moment) {
		return at(func(is moment) moment { return is + moment(n)*3600*1e6 })
	}
	for name, row := range map[string]struct {
		lie  func(*claim, *grant, *moment)
		most tokens
	}{
		"a sum that is large":   {says(func(g *grant) { g.Sum = 1 << 51 }), limit},
		"in hand without bound": {says(func(g *grant) { g.InHand = 1 << 53 }), limit},
		"an error":              {says(func(g *grant) { *g = grant{Err: errDown} }), limit},
		"always overtaken":      {says(func(g *grant) { *g = grant{Err: account.ErrOvertaken} }), limit},
		"always over":           {says(func(g *grant) { *g = grant{Err: account.ErrOver} }), limit},
		"always recalling":      {says(func(g *grant) { g.Recalling = true }), limit},
		"draws of a large sum":  {drawn(func(g *grant) { g.Sum = 1 << 52 }), limit},
		"draws that are lost":   {drawn(func(g *grant) { g.Total = 0 }), limit},
		"draws that come twice": {drawn(func(g *grant) { g.Total *= 2 }), limit},
		"draws without account": {drawn(func(g *grant) { *g = grant{Err: account.ErrOver} }), limit},
		"1970":                  {at(func(moment) moment { return 1_000_000 }), 2 * limit},
		"a year ago":            {hours(-366 * 24), 2 * limit},
		"in ten years":          {hours(10 * 366 * 24), 2 * limit},
		"in a million years":    {hours(1e6 * 366 * 24), limit},
	} {
		f := fields{"audit": fmt.Sprint(!strings.Contains(name, "draw"))} // of which nothing is drawn
		maps.Copy(f, strict)
		s := newStage(t, 2, fixed(limit, ratelimit.Year), f)
		s.nodes[0].lie = row.lie
		admitted := s.spend(0, 10) + s.spend(1, 5) + s.spend(0, 10) + s.spend(1, 5)
		s.nodes[0].lie = nil
		for end := s.now.Add(20 * time.Second); s.ask(0, "then", 1).OverLimit; {
			if s.now > end {
				t.Fatalf("%s: it does not recover", name)
			}
		}
		s.goOn(3 * time.Second)
		if admitted += s.takesAll("k"); admitted < limit || admitted > row.most {
			t.Errorf("%s: %d of %d were admitted", name, admitted, limit)
		}
	}
}

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

// After a loss of data, nodes state the usage of a sliding window's previous one again, also without use in this one.
func TestLossRestoresThePreviousWindow(t *testing.T) {
	for _, again := range []int{0, 1} {
		s := newStage(t, 2, limitOf(ratelimit.SlidingWindow, 100, ratelimit.Minute), strict)
		s.toTurn(time.Second)
		if n := s.takesAll("k"); n != 100 {
			t.Fatalf("%d of 100 are admitted", n)
		}
		s.toTurn(-time.Second)
		for range again {
			s.ask(0, "k", 1)
		}
		s.lose()
		s.goOn(10 * time.Second)
		// Of the previous window, 49 to 48 seconds of 60 count.
		if n := s.takesAll("k"); n < 15 || n > 20+5 {
			t.Errorf("with %d requests before the loss, %d of 100 are admitted after it", again, n)
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
