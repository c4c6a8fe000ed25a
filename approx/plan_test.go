package approx

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// rollout is a fleet whose nodes read new rules one after the other. Each spends its whole share in every window, like a
// node that is cut off from the ledger of accounts.
type rollout struct {
	now     ratelimit.LedgerTime
	seats   *Memory
	keepers []*Keeper
	rules   []*ratelimit.Rule // as each node has them
	spent   map[ratelimit.LedgerTime]map[int]ratelimit.Tokens
	ahead   time.Duration     // of the clock of windows, which may be another server's
	also    []*ratelimit.Rule // of all nodes
}

func (r *rollout) clock() ratelimit.Instant {
	return ratelimit.Instant(r.now-epoch)*1000 + ratelimit.Instant(time.Hour)
}

func newRollout(nodes int, rule *ratelimit.Rule) *rollout {
	r := &rollout{now: epoch, spent: map[ratelimit.LedgerTime]map[int]ratelimit.Tokens{}}
	r.seats = NewMemory(func() ratelimit.LedgerTime { return r.now })
	for i := range nodes {
		r.keepers = append(r.keepers, NewKeeper(r.seats, ratelimit.Holder(i+1), r.clock))
		r.rules = append(r.rules, rule)
	}
	return r
}

// step has every node renew its seat, if it reaches the ledger of seats, and spend its share. It returns what all have
// spent in this window.
func (r *rollout) step(t *testing.T, d time.Duration, reached func() bool) (sum ratelimit.Tokens) {
	r.now = r.now.Add(d)
	begins := r.now.Add(r.ahead)
	begins -= begins % ratelimit.LedgerTime(time.Minute/time.Microsecond)
	by := r.spent[begins]
	if by == nil {
		by = map[int]ratelimit.Tokens{}
		r.spent[begins] = by
	}
	for i, k := range r.keepers {
		if reached() {
			k.keep(t.Context(), planOf(append(r.also, r.rules[i])...))
		}
		by[i] = max(by[i], k.Share(r.clock(), r.rules[i], begins))
	}
	for _, n := range by {
		sum += n
	}
	return sum
}

// ends ends a process, which may say so, and starts another in its place. What it has spent stays spent.
func (r *rollout) ends(t *testing.T, i int, leaves bool, holder ratelimit.Holder) {
	if leaves {
		r.keepers[i].Leave(t.Context(), false)
	}
	for _, by := range r.spent {
		by[-int(holder)], by[i] = by[i], 0
	}
	r.keepers[i] = NewKeeper(r.seats, holder, r.clock)
}

// max_nodes becomes 1 while ten nodes have spent a tenth of the budget each. The owner of the only seat left does not
// spend the whole budget once more. From the next window on it spends all.
func TestMaxNodesChangesWithinAWindow(t *testing.T) {
	r := newRollout(10, approxRule(10_000, 10, 50_000))
	always, worst, last := func() bool { return true }, ratelimit.Tokens(0), ratelimit.Tokens(0)
	for i := range 210 {
		d := time.Second
		if i >= 20 && i < 30 {
			d, r.rules[i-20] = 100*time.Millisecond, approxRule(10_000, 1, 50_000)
		}
		last = r.step(t, d, always)
		worst = max(worst, last)
	}
	if worst != 500 || last != 500 || r.keepers[0].Share(r.clock(), r.rules[0], r.now) != 500 {
		t.Errorf("of a budget of 500 at most %d are spent in a window, and by one node in the last: %d", worst, last)
	}
}

// A node reads a larger max_nodes, and takes it back before the answer that all others have agreed on it. As long as
// they go on under it, the node uses no more than its share of then.
func TestMaxNodesTakenBackAtOneNode(t *testing.T) {
	two, four := approxRule(10_000, 2, 10_000), approxRule(10_000, 4, 10_000)
	r := newRollout(4, two)
	r.rules[2], r.rules[3] = four, four
	worst := ratelimit.Tokens(0)
	for i := range 180 {
		calls := 0
		switch i {
		case 70:
			r.rules[0] = four
		case 71:
			r.rules[0], r.rules[1] = two, four
		}
		worst = max(worst, r.step(t, time.Second, func() bool { calls++; return i != 71 || calls > 1 }))
	}
	if worst != 100 {
		t.Errorf("of a budget of 100, %d are spent in a window", worst)
	}
}

// For any changes of the rules, late reads, changes that some nodes take back, crashes, departures and new nodes, the
// nodes spend at most the budget in a window. Its clock may be ahead of that of seats.
func TestRolloutsStayWithinTheBudget(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 9))
			any := func() *ratelimit.Rule { return approxRule(10_000, 1+rnd.IntN(8), 10_000) }
			rules := []*ratelimit.Rule{any(), any(), any()} // the last ones
			r := newRollout(1+rnd.IntN(8), rules[0])
			if rnd.IntN(2) == 0 { // then the number of seats stays
				r.also = []*ratelimit.Rule{approxRule(10_000, 8, 10_000)}
				r.also[0].Path = "also"
			}
			r.ahead = time.Duration(rnd.Int64N(int64(margin)))
			worst, deaf, often := ratelimit.Tokens(0), rnd.Float64()/2, 1+rnd.IntN(60)
			for n := range ratelimit.Holder(600) {
				if rnd.IntN(often) == 0 {
					rules = append(rules[1:], any())
				}
				i := rnd.IntN(len(r.keepers))
				r.rules[i] = rules[max(0, 2-rnd.IntN(8)/5*rnd.IntN(3))]
				if rnd.IntN(40) == 0 {
					r.ends(t, i, rnd.IntN(2) == 0, 1000+n)
				}
				d := time.Duration(rnd.Int64N(int64(3*time.Second))) >> rnd.IntN(4)
				worst = max(worst, r.step(t, d, func() bool { return rnd.Float64() > deaf }))
			}
			if worst > 100 {
				t.Errorf("of a budget of 100, %d are spent in a window", worst)
			}
		})
	}
}

// A plan tells rules apart by all that divides their budget, and nothing else. It has as many seats as one of them needs.
// A rule without a limit needs none, nor do limits that requests bring along: they only divide a budget where there are
// seats for others, one for a domain.
func TestPlans(t *testing.T) {
	a, b := approxRule(100, 10, 10_000), approxRule(5, 4, 10_000)
	b.Path = "other"
	same := planOf(a, b)
	if p := planOf(b, a, &ratelimit.Rule{Domain: "x"}); p.id != same.id || p.Seats != 10 || same.Seats != 10 {
		t.Error("the order of rules, or one that does not drift, makes another plan")
	}
	for what, x := range map[string]struct {
		change         func(*ratelimit.Rule)
		seats, divided int // of the rule alone
	}{
		"max_nodes":       {func(r *ratelimit.Rule) { r.Coordination.MaxNodes++ }, 5, 1},
		"drift_budget":    {func(r *ratelimit.Rule) { r.Coordination.DriftBudget.PPM++ }, 4, 1},
		"mode":            {func(r *ratelimit.Rule) { r.Coordination.Mode = ratelimit.Leasing }, 0, 0},
		"path":            {func(r *ratelimit.Rule) { r.Path = "more" }, 4, 1},
		"of the request":  {func(r *ratelimit.Rule) { r.Override = true }, 0, 1},
		"without a limit": {func(r *ratelimit.Rule) { r.Unlimited = true }, 0, 0},
	} {
		changed := *b
		x.change(&changed)
		p := planOf(&changed)
		if planOf(a, &changed).id == same.id || p.Seats != x.seats || len(p.shares) != x.divided {
			t.Errorf("%s: the same plan, or %d seats and %d budgets", what, p.Seats, len(p.shares))
		}
	}
	a.Override, a.Path = true, ""
	of := withAgreement(nil, planOf(a), 0, 0)
	for domain, want := range map[string]ratelimit.Tokens{a.Domain: a.Coordination.DriftBudget.Of(100) / 10, "another": 0} {
		request := *a
		request.Domain, request.Path = domain, "some/descriptor"
		if share, _ := shareUnder(of, 0, &request, 0); share != want {
			t.Errorf("domain %s: a share of %d, want %d", domain, share, want)
		}
	}
}

// A node's share of a rule, and the number of seats, are the smallest of its own plan and of all that may have been in
// force in a window. For a window that is since it began. For a bucket it is until it may have filled.
func TestShareWhileMaxNodesChanges(t *testing.T) {
	two, four := approxRule(10_000, 2, 10_000), approxRule(10_000, 4, 10_000) // 100 tokens for all
	bucket := *two
	bucket.Limit.Algorithm, bucket.Limit.Burst = ratelimit.TokenBucket, 20_000 // two minutes
	bucket.Coordination.DriftBudget.PPM /= 2
	const filled = 2 * time.Minute
	reached := ratelimit.Instant(time.Hour)
	type since struct {
		rule *ratelimit.Rule
		at   ratelimit.LedgerTime
	}
	fromTwo, fromFour, lateTwo := []since{{two, 0}, {four, 100}}, []since{{four, 0}, {two, 100}}, []since{{two, 10}}
	lateBucket := []since{{&bucket, 10}}
	for _, c := range []struct {
		what   string
		all    []since
		rule   *ratelimit.Rule
		later  time.Duration
		begins ratelimit.LedgerTime
		share  ratelimit.Tokens
		seats  int
	}{
		{"one plan", fromTwo[:1], two, 0, 50, 50, 2},
		{"this node has another", fromTwo[:1], four, 0, 50, 25, 2},
		{"this node has another, with fewer seats", fromFour[:1], two, 0, 50, 25, 2},
		{"the window began with the new plan", fromTwo, four, 0, 100, 25, 4},
		{"the window began with the old plan", fromTwo, four, 0, 99, 25, 2},
		{"the window began with the old plan, of more seats", fromFour, two, 0, 99, 25, 2},
		{"the window began before any", lateTwo, two, 0, 9, 0, 0},
		{"other nodes may not know the rule", lateTwo, &ratelimit.Rule{Path: "new", Coordination: two.Coordination}, 0, 50, 0, 0},
		{"a bucket under one plan", []since{{&bucket, 0}}, &bucket, 0, 0, 50, 2},
		{"a bucket that has not filled", lateBucket, &bucket, filled - 1, 50, 0, 0},
		{"a bucket that has", lateBucket, &bucket, filled, 50, 50, 2},
	} {
		var all []agreement
		for _, x := range c.all {
			all = withAgreement(all, planOf(x.rule), x.at, reached)
		}
		if share, seats := shareUnder(all, reached.Add(c.later), c.rule, c.begins); share != c.share || seats != c.seats {
			t.Errorf("%s: a share of %d for %d seats, want %d for %d", c.what, share, seats, c.share, c.seats)
		}
	}
}

// How long a bucket takes to fill follows from its size and its rate, also where it is slow.
func TestFillTime(t *testing.T) {
	type bucket struct{ requests, burst ratelimit.Tokens }
	for b, want := range map[bucket]time.Duration{
		{60, 90}: 90 * time.Second, {1, 3}: 3 * time.Minute, {2, 3}: 90 * time.Second, {0, 3}: 3 * time.Minute,
		{1, ratelimit.MaxLimit}: 1 << 62, // for ever
	} {
		l := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: b.requests, Burst: b.burst}
		if got := l.Refill(b.burst); got != want {
			t.Errorf("%d of a size, at %d a minute: %v, want %v", b.burst, b.requests, got, want)
		}
	}
}
