package leasing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// newStrictStage has a stage whose store recalls leases.
func newStrictStage(t *testing.T, n int, limit ratelimit.Limit, fields map[string]string) *stage {
	s := newStage(t, n, 100, limit.Requests, fields)
	limit.Multiplier = 1
	s.rule.Limit = limit
	s.recalling()
	return s
}

// passes checks that a request passes, and that no account counts as lost.
func (s *stage) passes(node int, cost tokens) {
	s.Helper()
	if v := s.ask(node, "k", cost); v.OverLimit || s.lost() > 0 {
		s.Errorf("%+v, %d accounts count as lost", v, s.lost())
	}
}

func (s *stage) lost() (n uint64) {
	for _, f := range s.nodes {
		n += f.stats.missing.Load()
	}
	return n
}

func bucketOf(rate, burst tokens, u ratelimit.Unit) ratelimit.Limit {
	return ratelimit.Limit{Unit: u, Requests: rate, Algorithm: ratelimit.TokenBucket, Burst: burst}
}

// Three times the refill for 20 s: what refills passes, because refused requests are charged nothing by default. The
// rule that charges them shows what that costs.
func TestDemandAboveTheRefillPasses(t *testing.T) {
	for _, c := range []struct {
		algorithm ratelimit.Algorithm
		deny      ratelimit.OnDeny
		passes    bool
	}{
		{ratelimit.TokenBucket, ratelimit.TokenBucket.OnDeny(), true},
		{ratelimit.SlidingWindow, ratelimit.SlidingWindow.OnDeny(), true},
		{ratelimit.TokenBucket, ratelimit.DenyCharges, false},
	} {
		for _, nodes := range []int{1, 3} {
			limit := bucketOf(10, 20, ratelimit.Second)
			limit.Algorithm = c.algorithm
			s := newStrictStage(t, nodes, limit, map[string]string{"on_deny": c.deny.String()})
			s.oneWay = 500 * time.Microsecond
			passed, began := 0, s.now
			for i := range 600 {
				if !s.ask(i%nodes, "k", 1).OverLimit {
					passed++
				}
				s.goOn(time.Second / 30)
			}
			refilled := 10 * int(s.now.Sub(began)/time.Second)
			if passed > 20+refilled+10 || (passed >= refilled*9/10) != c.passes {
				t.Errorf("%v, on_deny %v, %d nodes: %d of 600 pass, and %d were refilled", c.algorithm, c.deny, nodes,
					passed, refilled)
			}
		}
	}
}

// After an outage that is longer than the refill, the bucket is full, whatever on_store_failure admitted.
func TestBucketIsFullAfterLongOutage(t *testing.T) {
	for _, policy := range []string{"open", "local", "closed"} {
		s := newStrictStage(t, 1, bucketOf(60, 60, ratelimit.Minute), map[string]string{"on_store_failure": policy})
		s.ask(0, "k", 10)
		s.goOn(1100 * time.Millisecond) // its lease ends
		s.down = true
		s.ask(0, "k", 20)
		s.goOn(2 * time.Minute)
		s.down = false
		s.goOn(25 * time.Second) // the admissions of the policy are charged now
		s.passes(0, 60)
	}
}

// A refund fills a bucket, at the node that spent it or another one, and so does a reset by an operator. The node that
// spent it does not report a loss.
func TestRefundElsewhereFillsBucket(t *testing.T) {
	for i, node := range []int{0, 1, -1, 1, 0, 1, -1, 0, 0} { // -1: a reset
		fields := map[string]string{"reclaim": ratelimit.Reclaims[i%4/3]} // it has no effect on buckets
		s := newStrictStage(t, 3, bucketOf(60, 60, ratelimit.Minute), fields)
		s.ask(1, "other", 1)
		s.ask(0, "k", 60)
		s.goOn(time.Duration([]int{2500, 500, 2100}[i/4]) * time.Millisecond) // its lease has ended, or not yet, or just now
		if s.nodes[1].ledger = s.ledger; node >= 0 {
			s.decide(node, ask{Rule: s.rule, Key: []byte("k"), Cost: 60, Kind: ratelimit.Refund})
		} else if err := s.nodes[1].Reset(context.Background(), s.now, &ask{Rule: s.rule, Key: []byte("k")}); err != nil {
			t.Fatal(err)
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
		fields := map[string]string{"on_deny": "refund", "reclaim": ratelimit.Reclaims[r.IntN(2)]}
		held, share, pause := r.IntN(2) == 0, tokens(0), time.Duration(0)
		if held && r.IntN(2) == 0 { // drift is reported before a settlement at another node
			share, pause = limit/10, 60*time.Millisecond
			fields["mode"], fields["max_nodes"], fields["drift_budget"] = "approx", "4", fmt.Sprint(4*share)
		}
		s := newStrictStage(t, nodes, bucketOf(limit, limit, ratelimit.Year), fields)
		s.rule.Limit.Algorithm, s.oneWay = ratelimit.Algorithm(r.IntN(3)), time.Duration(r.IntN(3))*time.Millisecond
		if held {
			s.rule.Hold = &ratelimit.Hold{}
		}
		for node := range nodes {
			s.nodes[node].Drift = always{share}
			s.ask(node, "other", 1) // from then on, it can tell the window
		}
		s.goOn(100 * time.Millisecond)
		net, charged, w := tokens(0), tokens(0), window(0)
		for range 30 {
			node, kind, cost := r.IntN(nodes), []ratelimit.Kind{
				ratelimit.Spend, ratelimit.Spend, ratelimit.Peek, ratelimit.Charge, ratelimit.Refund, ratelimit.Release,
			}[r.IntN(6)], 1+tokens(r.Int64N(int64(limit/3)))
			a := ask{Rule: s.rule, Key: []byte("k"), Cost: cost, Kind: kind, Window: w}
			switch {
			case kind == ratelimit.Charge && net+cost <= limit:
				net, charged = net+cost, charged+cost
			case (kind == ratelimit.Refund || kind == ratelimit.Release) && net >= cost:
				net -= cost
			case kind == ratelimit.Peek: // a request that another limit refuses
				if a.Kind = ratelimit.Spend; w > 0 {
					s.nodes[node].Undo(s.now, []ask{a}, []verdict{s.decide(node, a)})
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
			for !s.ask(i%nodes, "k", 1).OverLimit {
				net++
			}
			s.goOn(100 * time.Millisecond)
		}
		if net < limit || net > limit+charged+share*tokens(nodes) {
			t.Errorf("seed %d: %v, %v, %d nodes: %d, after charges of %d", seed, s.rule.Limit, fields, nodes, net, charged)
		}
	}
}

// A refund after an undone request that drifted is credited in full.
func TestRefundAfterUndoneDrift(t *testing.T) {
	fields := map[string]string{"mode": "approx", "max_nodes": "1", "drift_budget": "100", "check_timeout": "0s"}
	s := newStrictStage(t, 1, bucketOf(1000, 1000, ratelimit.Year), fields)
	s.nodes[0].Drift = always{100}
	s.ask(0, "k", 300)
	s.goOn(3 * time.Second)
	a := ask{Rule: s.rule, Key: []byte("k"), Cost: 50}
	s.nodes[0].Undo(s.now, []ask{a}, []verdict{s.decide(0, a)})
	s.decide(0, ask{Rule: s.rule, Key: []byte("k"), Cost: 200, Kind: ratelimit.Refund})
	s.goOn(10 * time.Second)
	s.passes(0, 900)
}

// Idle full buckets leave the table.
func TestIdleBucketsAreForgotten(t *testing.T) {
	for _, unit := range []ratelimit.Unit{ratelimit.Second, ratelimit.Minute} {
		s := newStrictStage(t, 1, bucketOf(1000, 1000, unit), nil)
		for _, key := range []string{"a", "b", "c"} {
			s.ask(0, key, 1)
		}
		s.goOn(5 * time.Minute)
		for i := range s.nodes[0].shards {
			if n := s.nodes[0].shards[i].keys.Len(); n > 0 {
				t.Errorf("%v: after five minutes, %d buckets are tracked: %+v", unit, n, s.key(0, "a").Part)
			}
		}
	}
}

// A limit of one a second admits one in each window, at whichever node and however early the request comes.
func TestOneASecondIsUsed(t *testing.T) {
	for _, onDeny := range []string{"charge", "refund"} {
		for _, early := range []int{1, 20, 60, 110, 200} {
			s := newStrictStage(t, 3, ratelimit.Limit{Unit: ratelimit.Second, Requests: 1}, map[string]string{"on_deny": onDeny})
			s.oneWay = time.Millisecond
			turn := func() {
				past := time.Duration(s.time()%1_000_000) * time.Microsecond
				s.goOn(time.Second - past + time.Duration(early)*time.Millisecond)
			}
			turn()
			in, first := map[window]int{}, s.rule.Limit.WindowAt(s.time())
			for w := range 8 {
				for range 2 {
					if v := s.ask(w%3, "k", 1); !v.OverLimit {
						in[v.Window]++
					}
					s.goOn(300 * time.Millisecond)
				}
				turn()
			}
			for w := first; w < first+8; w++ {
				if in[w] != 1 {
					t.Errorf("on_deny %s, %d ms after the turn: window %d admits %d", onDeny, early, w-first, in[w])
				}
			}
		}
	}
}

// A bucket that the store drops, because it is full by the rule, is no lost account under a lower limit.
func TestLoweredBucketIsNoLostAccount(t *testing.T) {
	s := newStrictStage(t, 1, bucketOf(100, 100, ratelimit.Second), map[string]string{"on_deny": "charge"})
	s.ask(0, "k", 1)
	s.limited(10)
	for range 5 {
		s.ask(0, "k", 10)
		s.ask(0, "k", 45)
		s.goOn(2 * time.Second)
	}
	if n := s.lost(); n > 0 {
		t.Errorf("%d accounts count as lost", n)
	}
}

// A limit of 0 passes no peek, though nothing is used.
func TestLimitOfNothingPassesNoPeek(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		limit := bucketOf(100, 100, ratelimit.Minute)
		limit.Algorithm = ratelimit.Algorithm(algorithm)
		s := newStrictStage(t, 1, limit, nil)
		s.ask(0, "other", 1)
		s.limited(0)
		v, a := []verdict{s.peek(0, "k"), {}}, ask{Rule: s.rule, Key: []byte("k"), Kind: ratelimit.Peek}
		s.rule.Limit.Requests, s.rule.Limit.Burst = 0, 0
		if s.nodes[0].alone.Decide(t.Context(), s.now, []ask{a}, v[1:]); !v[0].OverLimit || !v[1].OverLimit {
			t.Errorf("%v: %+v", limit, v)
		}
	}
}

// sweep has the first node sweep once more.
func (s *stage) sweep() {
	s.now = s.now.Add(SweepEvery)
	s.run(&s.timers)
	s.nodes[0].Sweep(s.now)
	s.settle()
}

// Records of a bucket in use go with the names that nodes have left. Settlements of a slow one need no other names.
func TestBusyBucketStaysSmall(t *testing.T) {
	for most, unit := range map[int]ratelimit.Unit{150: ratelimit.Second, 4: ratelimit.Day} {
		s := newStrictStage(t, 2, bucketOf(100, 100, unit), map[string]string{"on_deny": "refund"})
		for i := range 300 {
			s.passes(i%2, 1)
			s.goOn(60 * time.Millisecond)
			if s.rule.Hold = (&ratelimit.Hold{}); unit == ratelimit.Day {
				s.goOn(1500 * time.Millisecond)
				s.decide(i/2%2, ask{Rule: s.rule, Key: []byte("k"), Cost: 1, Kind: ratelimit.Release, Window: 1})
			}
		}
		if v, err := s.ledger.Look(t.Context(), "k", 0, &s.rule.Limit); err != nil || len(v.Holders) > most {
			t.Errorf("per %v, 2 nodes have %d records: %v", unit, len(v.Holders), err)
		}
	}
}

// Random buckets, costs and pauses around the refill: at most burst, rate and drift pass, no account counts as lost, and
// a bucket that is repaid admits its burst.
func TestBucketsAtRandom(t *testing.T) {
	for seed := range uint64(60) {
		newBucketRun(t, seed).play()
	}
}

// bucketRun is a random bucket with its own account of what passed and of what is owed.
type bucketRun struct {
	*stage
	r               *rand.Rand
	what            string
	charge          bool
	share           tokens
	perToken        float64 // seconds
	passed, charged float64
	last            instant
}

func newBucketRun(t *testing.T, seed uint64) *bucketRun {
	r := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // the same run each time
	pick := func(xs ...int) int { return xs[r.IntN(len(xs))] }
	nodes, rate, burst := pick(1, 2, 2, 3), tokens(pick(1, 5, 20, 100)), tokens(pick(1, 2, 5, 20, 100))
	unit := []ratelimit.Unit{ratelimit.Second, ratelimit.Second, ratelimit.Minute}[r.IntN(3)]
	x := &bucketRun{r: r, charge: r.IntN(2) == 0, share: tokens(pick(0, 0, 1, 4, int(burst)*2, 200))}
	fields := map[string]string{"on_deny": "refund"}
	if x.charge {
		fields["on_deny"] = "charge"
	}
	if x.share > 0 {
		fields["mode"], fields["max_nodes"] = "approx", fmt.Sprint(nodes)
		fields["check_timeout"] = []string{"0s", "5ms"}[r.IntN(2)]
		fields["drift_budget"] = fmt.Sprint(x.share * tokens(nodes))
	}
	x.stage = newStrictStage(t, nodes, bucketOf(rate, burst, unit), fields)
	x.oneWay = time.Duration(pick(0, 0, 1, 3)) * time.Millisecond
	for _, n := range x.nodes {
		if x.share > 0 {
			n.Drift = always{x.share}
		}
	}
	x.perToken, x.last = unit.Length().Seconds()/float64(rate), x.now
	x.what = fmt.Sprintf("seed %d: %d nodes, %v, %v, %v one way", seed, nodes, x.rule.Limit, fields, x.oneWay)
	return x
}

func (x *bucketRun) play() {
	burst := x.rule.Limit.Burst
	for range 60 {
		node := x.r.IntN(len(x.nodes))
		cost := []tokens{1, 1, 1, 2, 5, burst, burst * 3}[x.r.IntN(7)]
		for range []int{1, 1, 3, 10}[x.r.IntN(4)] {
			x.request(node, cost)
		}
		x.pause(node)
		if x.r.IntN(8) == 0 {
			x.repaid()
		}
		if x.lost() > 0 {
			x.Errorf("%s: %d accounts count as lost", x.what, x.lost())
		}
		if x.Failed() {
			return
		}
	}
}

func (x *bucketRun) request(node int, cost tokens) {
	v := x.ask(node, "k", cost)
	since := x.now.Sub(x.last).Seconds() / x.perToken
	x.last, x.passed, x.charged = x.now, max(0, x.passed-since), max(0, x.charged-since)
	switch {
	case !v.OverLimit:
		x.passed, x.charged = x.passed+float64(cost), x.charged+float64(cost)
	case x.charge:
		x.charged += float64(cost)
	}
	if most := x.rule.Limit.Burst + x.share*tokens(len(x.nodes)); x.passed > float64(most)+1 {
		x.Errorf("%s: %.1f passed, the maximum is %d", x.what, x.passed, most)
	}
	if v.Source == ratelimit.FromFallback {
		x.Errorf("%s: on_store_failure decides", x.what)
	}
}

// pause waits around the refill of what the node has of the bucket.
func (x *bucketRun) pause(node int) {
	of, _, c := x.nodes[node].find([]byte("k"))
	sum := tokens(0)
	if c != nil {
		sum = c.Val.Sum
	}
	of.mu.Unlock()
	part := []float64{0, 0, 0.01, 0.3, 0.49, 0.5, 0.51, 0.9, 0.99, 1, 1.01, 1.2}[x.r.IntN(12)]
	seconds := part * float64(sum) * x.perToken
	if x.r.IntN(3) == 0 {
		seconds = part * float64(max(0, sum-x.rule.Limit.Burst)) * x.perToken
	}
	if seconds > 20 {
		seconds = 3
	}
	x.goOn(time.Duration(seconds * 1e9).Truncate(time.Millisecond))
}

// repaid waits until all is repaid. Then the whole burst passes.
func (x *bucketRun) repaid() {
	burst := float64(x.rule.Limit.Burst)
	left := (x.charged+burst)*x.perToken - x.now.Sub(x.last).Seconds()
	if left > 40 {
		return
	}
	x.goOn(time.Duration(left*1e9) + 2100*time.Millisecond)
	if v := x.ask(x.r.IntN(len(x.nodes)), "k", x.rule.Limit.Burst); v.OverLimit {
		x.Errorf("%s: a repaid bucket refuses its burst: %+v", x.what, v)
	}
	x.last, x.passed, x.charged = x.now, burst, burst
}

// Tokens of a bucket that a node has reported as spent, and takes back, do not return to its hand: the bucket may have
// refilled in their place.
func TestUndoneTokensOfABucketCountOnce(t *testing.T) {
	for _, pause := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond, 600 * time.Millisecond} {
		s := newStrictStage(t, 2, bucketOf(100, 100, ratelimit.Second), map[string]string{"on_deny": "refund"})
		var asks []ask
		var verdicts []verdict
		for range 5 {
			asks = append(asks, ask{Rule: s.rule, Key: []byte("k"), Cost: 20})
			verdicts = append(verdicts, s.ask(0, "k", 20))
		}
		s.ask(0, "k", 20) // is refused by a claim that states their usage
		s.nodes[0].Undo(s.now, asks, verdicts)
		spent := tokens(0)
		s.goOn(pause)
		for _, node := range []int{1, 0} {
			for !s.ask(node, "k", 1).OverLimit {
				spent++
			}
		}
		if spent > 100+10 { // and the refill meanwhile
			t.Errorf("after %v: %d tokens of a bucket of 100 were spent at once", pause, spent)
		}
	}
}

// After a loss of data, a bucket has what the nodes have left of it: a new key has all, also of a slow bucket. One that
// was used has the rest. An older copy of the data may have more.
func TestSlowBucketsAreRestored(t *testing.T) {
	for i := range 4 {
		s := newStrictStage(t, 2, bucketOf(100, 100, ratelimit.Hour), map[string]string{"on_deny": "refund"})
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
			n := tokens(0)
			for j := range 300 {
				if !s.ask(j%2, key, 1).OverLimit {
					n++
				}
			}
			if n < want-5 || n > want+5 {
				t.Errorf("case %d: after the loss, %d of %d tokens of %q passed", i, n, want, key)
			}
		}
	}
}

// Admissions in an outage, which begins at the 0, all count when the store is back. Refunds may be lost, and no more.
func TestBucketCountsRefundsOfAnOutage(t *testing.T) {
	for policy, costs := range map[string][]tokens{"open": {60, -1, 0, -50, 20, -5}, "closed": {60, 0, 20, -50}} {
		s := newStrictStage(t, 1, bucketOf(1, 100, ratelimit.Year), map[string]string{"on_store_failure": policy})
		want, admitted := tokens(0), tokens(0)
		for _, n := range costs {
			a := ask{Rule: s.rule, Key: []byte("k"), Cost: max(n, -n)}
			switch {
			case n == 0:
				s.goOn(3 * time.Second)
				s.down = true
				s.goOn(3 * time.Second)
				continue
			case n < 0:
				a.Kind = ratelimit.Refund
			}
			if v := s.decide(0, a); !v.OverLimit {
				want, admitted = want+n, admitted+max(0, n)
			}
		}
		s.down = false
		s.goOn(10 * time.Second)
		if used := s.used("k"); used < want || used > admitted {
			t.Errorf("%s: %d are used, want %d, or %d without the refunds", policy, used, want, admitted)
		}
	}
}
