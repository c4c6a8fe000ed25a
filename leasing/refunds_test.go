package leasing_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Charges after the fact are booked whole, wherever they arrive: from then on all nodes refuse, peeks included.
func TestChargesAreBookedWhole(t *testing.T) {
	for _, deny := range ratelimit.OnDenies {
		s := newStage(t, 3, fixed(10_000, ratelimit.Year), fields{"on_deny": deny})
		for i := range s.nodes {
			if v := s.peek(i); v.OverLimit {
				t.Fatalf("node %d refuses a peek at nothing: %+v", i, v)
			}
		}
		first, denied := s.ask(0, "k", 5000), deny == ratelimit.DenyCharges.String()
		a := ask{Cost: 10_000}
		if !denied {
			a.Kind, a.Window = ratelimit.Charge, first.Window
		}
		if v := s.decide(1, a); v.OverLimit != denied || v.Charged+v.Debt != 10_000 {
			t.Fatalf("%v: the charge is answered %+v", deny, v)
		}
		s.goOn(time.Second)
		for i := range s.nodes {
			if !s.peek(i).OverLimit || !s.ask(i, "k", 1).OverLimit {
				t.Errorf("%v: node %d admits, and 15,000 of 10,000 are used", deny, i)
			}
		}
	}
}

// What envoyproxy/ratelimit counts: a counter that charges add to, and refunds of them take from, at any node. A node
// that has refused learns a moment later of a refund elsewhere. Of a small limit, the answers are those of one counter.
func TestRefundsCreditAnywhere(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // the same run each time
		limit := []tokens{100, 1 + tokens(r.IntN(59))}[seed%2]
		s := newStage(t, 3, fixed(limit, ratelimit.Year), nil)
		s.rule.Coordination.OnDeny = ratelimit.OnDeny(seed / 2 % 2)
		s.far(time.Duration(r.IntN(2)) * time.Millisecond)
		count := tokens(0)
		var did []string
		for range 30 {
			node, cost, undone := r.IntN(3), 1+tokens(r.Int64N(int64(limit+2))), r.IntN(4) == 0
			pause := 20 * time.Millisecond
			if refund := min(cost, count); r.IntN(3) == 0 && refund > 0 {
				s.decide(node, ask{Kind: ratelimit.Refund, Cost: refund})
				count -= refund
				did = append(did, fmt.Sprintf("%d: refund %d", node, refund))
			} else {
				a := ask{Cost: cost}
				v := s.decide(node, a)
				did = append(did, fmt.Sprintf("%d: charge %d: %+v", node, cost, v))
				over := count+cost > limit
				if over || undone {
					pause = 3 * time.Second
				}
				if v.OverLimit != over {
					t.Fatalf("seed %d: of %d, %d are used\n%s", seed, limit, count, strings.Join(did, "\n"))
				}
				switch {
				case undone:
					s.undo(node, a, v)
				case !v.OverLimit || s.rule.Coordination.OnDeny == ratelimit.DenyCharges:
					count += cost
				}
			}
			s.goOn(pause) // the ledger has what was refused or undone
			for i := range s.nodes {
				v := s.peek(i)
				for end := s.now.Add(2 * time.Second); v.OverLimit && count <= limit && s.now < end; v = s.peek(i) {
					s.goOn(10 * time.Millisecond) // it learns of a refund elsewhere when it is asked
				}
				if v.OverLimit != (count > limit) || limit < 60 && v.Remaining != max(0, limit-count) {
					t.Fatalf("seed %d: of %d, %d are used, and node %d shows %+v\n%s",
						seed, limit, count, i, v, strings.Join(did, "\n"))
				}
			}
		}
		if used := s.used("k") - s.hand(0) - s.hand(1) - s.hand(2); used != count {
			t.Fatalf("seed %d: %d are used, and the ledger has %d", seed, count, used)
		}
	}
}

// A refund above the usage also credits what nodes have in hand: the limit is exceeded by no more than that. A refund
// of any size resets the usage, and nothing else.
func TestRefundAboveTheUsage(t *testing.T) {
	for _, refunds := range [][]tokens{
		{50},
		{ratelimit.MaxTokens},
		{ratelimit.MaxTokens, ratelimit.MaxTokens},
		{account.MostBooked + 50},
		{1 << 42, 1 << 43},
	} {
		s := newStage(t, 2, fixed(100, ratelimit.Year), fields{"on_deny": "refund"})
		s.passes(0, 10)
		hand, node := s.hand(0), 0
		if refunds[0] == 50 {
			node = 1 // its last answer does not show them
		}
		for _, n := range refunds {
			s.begin(node, ask{Kind: ratelimit.Refund, Cost: n}, func(verdict) {})
		}
		s.goOn(time.Second)
		admitted := s.takesAll("k")
		if over := admitted - 100; over < 0 || over > hand {
			t.Errorf("after refunds of %d with %d in hand, %d of 100 are admitted", refunds, hand, admitted)
		}
	}
}

// Of a new key, the ledger decides a request of any cost, and on_store_failure does not.
func TestHugeRequestsAreDecided(t *testing.T) {
	s := newStage(t, 1, fixed(100, ratelimit.Year), nil)
	for i, cost := range []tokens{100, 101, ratelimit.MaxLimit + 1, ratelimit.MaxBooked, ratelimit.MaxTokens} {
		if v := s.ask(0, fmt.Sprint(i), cost); v.OverLimit != (cost > 100) || v.Source == ratelimit.FromFallback {
			t.Errorf("%d of 100: %+v", cost, v)
		}
	}
}

// A refund fills a bucket, at the node that spent it or another one, and so does a reset by an operator. The node that
// spent it does not report a loss.
func TestRefundElsewhereFillsBucket(t *testing.T) {
	for i, node := range []int{0, 1, -1, 1, 0, 1, -1, 0, 0} { // -1: a reset
		f := fields{"reclaim": ratelimit.Reclaims[i%4/3]} // it has no effect on buckets
		s := newStage(t, 3, bucketOf(60, 60, ratelimit.Minute), f)
		s.ask(1, "other", 1)
		s.ask(0, "k", 60)
		s.goOn(time.Duration([]int{2500, 500, 2100}[i/4]) * time.Millisecond) // its lease has ended, or not, or just now
		if node >= 0 {
			s.decide(node, ask{Cost: 60, Kind: ratelimit.Refund})
		} else {
			s.reset(1)
		}
		s.goOn(10 * time.Second)
		s.passes(2, 30)
	}
}

// Nothing is lost: after requests, charges, refunds, settlements and undone requests at any node, the limit is admitted
// in full, and beyond it at most the charges and drift.
func TestNothingIsLost(t *testing.T) {
	for seed := uint64(1000); seed < 1300; seed++ {
		r := rand.New(rand.NewPCG(seed, 11)) //nolint:gosec // the same run each time
		nodes, limit := 1+r.IntN(4), []tokens{10, 40, 100, 1000}[r.IntN(4)]
		f := fields{"on_deny": "refund", "reclaim": ratelimit.Reclaims[r.IntN(2)]}
		held, share, pause := r.IntN(2) == 0, tokens(0), time.Duration(0)
		if held && r.IntN(2) == 0 { // drift is reported before a settlement at another node
			share, pause = limit/10, 60*time.Millisecond
			f["mode"], f["max_nodes"], f["drift_budget"] = "approx", "4", fmt.Sprint(4*share)
		}
		s := newStage(t, nodes, limitOf(ratelimit.Algorithm(r.IntN(3)), limit, ratelimit.Year), f)
		s.far(time.Duration(r.IntN(3)) * time.Millisecond)
		if held {
			s.rule.Hold = &ratelimit.Hold{}
		}
		for i, n := range s.nodes {
			n.share = share
			s.ask(i, "other", 1) // from then on, it can tell the window
		}
		s.goOn(100 * time.Millisecond)
		net, charged, w := tokens(0), tokens(0), window(0)
		for range 30 {
			node, kind, cost := r.IntN(nodes), []ratelimit.Kind{
				ratelimit.Spend, ratelimit.Spend, ratelimit.Peek, ratelimit.Charge, ratelimit.Refund, ratelimit.Release,
			}[r.IntN(6)], 1+tokens(r.Int64N(int64(limit/3)))
			a := ask{Cost: cost, Kind: kind, Window: w}
			switch {
			case kind == ratelimit.Charge && net+cost <= limit:
				net, charged = net+cost, charged+cost
			case (kind == ratelimit.Refund || kind == ratelimit.Release) && net >= cost:
				net -= cost
			case kind == ratelimit.Peek: // a request that another limit refuses
				if a.Kind = ratelimit.Spend; w > 0 {
					s.undo(node, a, s.decide(node, a))
				}
				continue
			case kind != ratelimit.Spend:
				continue
			}
			if v := s.decide(node, a); kind == ratelimit.Spend && !v.OverLimit {
				net, w = net+cost, v.Window
			}
			s.goOn(max(pause, time.Duration([]int{0, 1, 20, 200, 900, 3000}[r.IntN(6)])*time.Millisecond))
		}
		s.goOn(15 * time.Second)
		for i := range 60 * nodes {
			net += s.takes(i%nodes, "k", 1)
			s.goOn(100 * time.Millisecond)
		}
		if net < limit || net > limit+charged+share*tokens(nodes) || s.lost() > 0 {
			t.Errorf("seed %d: %v, %v, %d nodes: %d, after charges of %d; %d accounts count as lost",
				seed, s.rule.Limit, f, nodes, net, charged, s.lost())
		}
	}
}

// A refund after an undone request that drifted is credited in full.
func TestRefundAfterUndoneDrift(t *testing.T) {
	s := newStage(t, 1, bucketOf(1000, 1000, ratelimit.Year),
		fields{"mode": "approx", "max_nodes": "1", "drift_budget": "100", "check_timeout": "0s"})
	s.nodes[0].share = 100
	s.ask(0, "k", 300)
	s.goOn(3 * time.Second)
	a := ask{Cost: 50}
	s.undo(0, a, s.decide(0, a))
	s.decide(0, ask{Cost: 200, Kind: ratelimit.Refund})
	s.goOn(10 * time.Second)
	s.passes(0, 900)
}

// A node that gives back its tokens, because the key is idle or the node ends, does not take more with the same
// message: these would be stranded.
func TestWhoGivesBackTakesNothing(t *testing.T) {
	s := newStage(t, 2, fixed(1000, ratelimit.Hour), fields{"lease.size": "30"})
	s.ask(1, "k", 900)
	s.ask(0, "k", 1) // then there is no plenty
	s.goOn(10 * time.Second)
	if used := s.used("k"); used != 901 {
		t.Errorf("%d are used of an idle key, and 901 were admitted", used)
	}
	s.ask(0, "k", 1)
	claims := s.nodes[0].Release()
	for _, c := range claims {
		if c.Need > 0 || c.Want > 0 {
			t.Errorf("the last words are %+v", c)
		}
	}
	if len(claims) == 0 {
		t.Error("it gives back nothing")
	}
}

// A refund that the node has taken while requests wait together: those that got nothing could pass with it.
func TestRefundBeforeTheAnswer(t *testing.T) {
	for _, kind := range []ratelimit.Kind{ratelimit.Refund, ratelimit.Release} {
		s := newStage(t, 1, fixed(100, ratelimit.Hour),
			fields{"on_store_failure": "closed", "store_deadline": "900ms", "lease.size": "1", "on_deny": "refund"})
		s.far(40 * time.Millisecond)
		first := s.ask(0, "k", 96)
		s.goOn(2 * time.Second)
		refused := 0
		count := func(v verdict) {
			if v.OverLimit {
				refused++
			}
		}
		// A request is under way: the others wait for it, and then claim together.
		s.begin(0, ask{Cost: 1}, count)
		s.goOn(10 * time.Millisecond)
		for range 5 {
			s.begin(0, ask{Cost: 1}, count)
		}
		s.goOn(100 * time.Millisecond)
		s.begin(0, ask{Cost: 5, Kind: kind, Window: first.Window}, func(verdict) {})
		s.goOn(3 * time.Second)
		if refused > 0 {
			t.Errorf("%v: %d of 6 refused: 97 of 100 are used after the refund, which came before the answer", kind, refused)
		}
	}
}

// A limit of requests in flight by charges and refunds, of refused requests too, at any node: at most the limit is held
// at once.
func TestRefundsOfRefusedRequestsAdmitNothing(t *testing.T) {
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 10)) //nolint:gosec // the same run each time
		limit := []tokens{10, 10, 10, 10, 100}[seed%5]
		s := newStage(t, 3, fixed(limit, ratelimit.Hour), nil)
		s.rule.Coordination.StoreDeadline = time.Second // a refusal without an answer may be booked later
		holds := []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond}[seed%3]
		held, most, ends := tokens(0), tokens(0), false
		charges, refunds := []int{0, 1, 2}, []int{0, 1, 2}
		if seed%2 == 0 {
			charges, refunds = []int{0, 1}, []int{2}
		}
		// A caller charges one token, and refunds it when its request ends, as Envoy does at the end of a stream. A
		// refused request ends at once.
		var call func()
		call = func() {
			if ends {
				return
			}
			s.begin(charges[r.IntN(len(charges))], ask{Cost: 1}, func(v verdict) {
				pause, mine := time.Duration(r.IntN(3))*time.Millisecond, tokens(0)
				if !v.OverLimit {
					pause, mine = time.Duration(r.Int64N(int64(holds))), 1
				}
				held += mine
				most = max(most, held)
				s.after(pause, func() {
					held -= mine
					s.begin(refunds[r.IntN(len(refunds))], ask{Cost: 1, Kind: ratelimit.Refund}, func(verdict) {
						s.after(time.Duration(r.IntN(3))*time.Millisecond, call)
					})
				})
			})
		}
		callers := int(limit) + 2 + r.IntN(30)
		for range callers {
			s.after(0, call)
		}
		for range 3000 {
			s.far(time.Duration(r.IntN(2)) * time.Millisecond)
			s.goOn(time.Millisecond)
		}
		ends = true
		s.goOn(12 * time.Second)
		hand := s.hand(0) + s.hand(1) + s.hand(2)
		if used := s.used("k"); used != hand || most != limit {
			t.Errorf("seed %d: %d callers, up to %v: %d are held at once, of %d, and of refunded ones %d are used, %d in hand",
				seed, callers, holds, most, limit, used, hand)
		}
	}
}

// While there is plenty, what was held too much stays in hand at the node that settles, and the ledger is not asked.
func TestSettlementsAskSeldom(t *testing.T) {
	s := newStage(t, 1, fixed(1_000_000, ratelimit.Year), fields{"on_deny": "refund"})
	for range 1000 {
		v := s.ask(0, "k", 1000)
		if v.OverLimit {
			t.Fatal("refused, and a quarter of the limit is used")
		}
		s.decide(0, ask{Kind: ratelimit.Release, Cost: 750, Window: v.Window})
	}
	if s.claims > 20 {
		t.Errorf("1,000 requests that settle asked the ledger %d times", s.claims)
	}
}

// What is settled for another window credits nothing, and is charged where that still counts: on a fleet, and on a node
// alone. 40 of 100 are used before a charge of 30 and a release of 30.
func TestSettlementsOfOtherWindows(t *testing.T) {
	for _, row := range []struct {
		name           string
		algorithm      ratelimit.Algorithm
		before         window // so many windows before the one that goes on; below 0: after it
		charged, freed tokens
	}{
		{"its own", ratelimit.FixedWindow, 0, 30, 30},
		{"ended", ratelimit.FixedWindow, 1, 0, 0},
		{"to come", ratelimit.FixedWindow, -1, 0, 0},
		{"ended, sliding", ratelimit.SlidingWindow, 1, 30, 0},
		{"bucket", ratelimit.TokenBucket, 1, 30, 30},
	} {
		s := newStage(t, 2, limitOf(row.algorithm, 100, ratelimit.Year), nil)
		alone := local.New(64, 1, time.Unix(1_800_000_000, 0))
		for where, decide := range map[string]func(ask) verdict{
			"a fleet": func(a ask) verdict {
				if a.Kind.Settles() {
					return s.decide(1, a)
				}
				return s.decide(0, a)
			},
			"a node alone": func(a ask) verdict {
				v := make([]verdict, 1)
				alone.Decide(t.Context(), 1, s.whole(a), v)
				return v[0]
			},
		} {
			w := decide(ask{Cost: 40}).Window - row.before
			charge := decide(ask{Kind: ratelimit.Charge, Cost: 30, Window: w})
			release := decide(ask{Kind: ratelimit.Release, Cost: 30, Window: w})
			if charge.Charged+charge.Debt != row.charged || release.Charged != row.freed {
				t.Errorf("%s, %s: a charge of 30 is %+v, and a release %+v", row.name, where, charge, release)
			}
			left := 60 + row.freed - row.charged
			rest, more := decide(ask{Cost: left}), decide(ask{Cost: 1})
			if rest.OverLimit || !more.OverLimit {
				t.Errorf("%s, %s: %d are left, for which it says %+v, and of one more %+v", row.name, where, left, rest, more)
			}
		}
	}
}

// reset has an operator reset the key at a node.
func (s *stage) reset(node int) {
	s.Helper()
	if err := s.nodes[node].Reset(s.Context(), s.now, &ask{Rule: s.rule, Key: []byte("k")}); err != nil {
		s.Fatal(err)
	}
}

// A reset at a node without requests for the key also works there, and if one comes meanwhile. The key has another name
// than the reset, under which its first message would take the refund back.
func TestResetByANodeWithoutTheKey(t *testing.T) {
	for _, meanwhile := range []int{0, 1} {
		s := newStage(t, 2, fixed(100, ratelimit.Hour), fields{"audit": "true", "on_deny": "refund"})
		s.ask(0, "k", 100)
		s.ask(1, "other", 1) // so that it has read the time
		s.nodes[1].OnAudit = func(*ratelimit.Rule, *account.Claim, *account.Grant) {
			if meanwhile--; meanwhile == 0 {
				s.ask(1, "k", 1)
			}
		}
		s.reset(1)
		for range 20 {
			s.passes(1, 1)
		}
	}
}

// Refused requests are charged, and nodes report that later. Once they have dropped the key, a reset of it is not
// undone by reports of earlier refusals. A report that is under way at the reset, or lost, or its answer, is credited
// once.
func TestResetAndRefusalsOfOthers(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, limit := range []ratelimit.Limit{fixed(5, ratelimit.Hour), bucketOf(5, 5, ratelimit.Day)} {
		for _, report := range []string{"told", "under way", "lost", "without an answer"} {
			s := newStage(t, 2, limit, fields{"on_deny": "charge"})
			drop := func() { // as at a reset elsewhere, without a wait until the ledger has what is reported
				_, _ = s.nodes[1].Drop(ended, s.now, []byte("k"))
			}
			s.takesAll("k")
			for range 20 {
				s.ask(1, "k", 1)
			}
			end := func() {}
			if report != "told" {
				s.hold(1, ask{Cost: 1, Kind: ratelimit.Charge, Window: max(1, s.window())})
				b := s.batch(1)
				for range 20 {
					s.hold(1, ask{Cost: 1})
				}
				switch report {
				case "under way":
					end, _ = s.nodes[1].book(b)
				case "lost":
					end = func() { b.Fail(errDown) }
				case "without an answer":
					_, end = s.nodes[1].book(b)
				}
			}
			if report != "under way" {
				drop()
				end()
				s.goOn(10 * time.Millisecond)
				drop()
				s.goOn(time.Second)
			}
			s.reset(0)
			admitted := s.takes(0, "k", 1)
			drop()
			if report == "under way" {
				end()
			}
			s.goOn(time.Second)
			if admitted += s.takesAll("k"); admitted != 5 {
				t.Errorf("%v: after a reset %d of 5 are admitted, with a report that is %s", limit, admitted, report)
			}
		}
	}
}

// A reset also counts long after the last claim of its node: the ledger must not take the node's record for an old one.
func TestResetAfterARest(t *testing.T) {
	s := newStage(t, 2, fixed(100, ratelimit.Hour), nil)
	s.takesAll("k")
	s.goOn(15 * time.Minute)
	s.reset(0)
	s.goOn(time.Second)
	if n := s.takesAll("k"); n != 100 {
		t.Errorf("after a reset %d of 100 are admitted", n)
	}
}

// A view of a sliding window counts its part of the previous one, which a reset also clears.
func TestResetOfASlidingWindow(t *testing.T) {
	s := newStage(t, 1, limitOf(ratelimit.SlidingWindow, 100, ratelimit.Minute), nil)
	s.ask(0, "k", 100)
	s.goOn(65 * time.Second)
	v := s.nodes[0].Look(t.Context(), s.now, &ask{Rule: s.rule, Key: []byte("k")})
	if v.Ledger == nil || v.Ledger.Free > 10 {
		t.Errorf("nine tenths of it count, and it shows %+v", v.Ledger)
	}
	s.reset(0)
	s.goOn(time.Second)
	s.passes(0, 90)
}
