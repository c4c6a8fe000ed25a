package approx

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// rollout is a fleet whose nodes read new rules one after the other. Each spends its whole share in every
// window, like a node that is cut off from the ledger of accounts. The sum is compared with the larger of the
// two budgets.
type rollout struct {
	testing.TB
	now     ratelimit.LedgerTime
	seats   *Memory
	keepers []*Keeper
	rules   []*ratelimit.Rule // as each node has them
	spent   map[ratelimit.LedgerTime]map[int]ratelimit.Tokens
	length  time.Duration
}

func (r *rollout) clock() ratelimit.Instant {
	return ratelimit.Instant(r.now-epoch)*1000 + ratelimit.Instant(time.Hour)
}

func newRollout(t testing.TB, nodes int, rule *ratelimit.Rule) *rollout {
	r := &rollout{TB: t, now: epoch, spent: map[ratelimit.LedgerTime]map[int]ratelimit.Tokens{}, length: rule.Limit.Period()}
	r.seats = NewMemory(func() ratelimit.LedgerTime { return r.now })
	for i := range nodes {
		r.keepers = append(r.keepers, NewKeeper(r.seats, ratelimit.Holder(i+1), r.clock))
		r.rules = append(r.rules, rule)
	}
	return r
}

// step makes every node renew its seat, if it reaches the ledger of seats, and spend its share.
func (r *rollout) step(d time.Duration, reached func(node int) bool) {
	r.now = r.now.Add(d)
	begins := r.now - r.now%ratelimit.LedgerTime(r.length/time.Microsecond)
	if r.spent[begins] == nil {
		r.spent[begins] = map[int]ratelimit.Tokens{}
	}
	for i, k := range r.keepers {
		if reached(i) {
			k.keep(context.Background(), NewPlan([]*ratelimit.Rule{r.rules[i]}))
		}
		share := k.Share(r.clock(), r.rules[i], begins)
		r.spent[begins][i] = max(r.spent[begins][i], share)
	}
}

// worst is the most that all nodes together spent in a window.
func (r *rollout) worst() (worst ratelimit.Tokens) {
	for _, by := range r.spent {
		sum := ratelimit.Tokens(0)
		for _, n := range by {
			sum += n
		}
		worst = max(worst, sum)
	}
	return worst
}

func approxRule(limit ratelimit.Tokens, nodes int, budget uint32) *ratelimit.Rule {
	rule := &ratelimit.Rule{Domain: "d", Path: "key", Limit: ratelimit.Limit{Unit: ratelimit.Minute, Requests: limit}, Coordination: ratelimit.DefaultCoordination()}
	rule.Coordination.Mode, rule.Coordination.MaxNodes, rule.Coordination.DriftBudget.PPM = ratelimit.Approx, nodes, budget
	return rule
}

func always(int) bool { return true }

// max_nodes becomes 1 while ten nodes have spent a tenth of the budget each: the owner of the only seat left
// does not spend the whole budget once more.
func TestMaxNodesChangesWithinAWindow(t *testing.T) {
	ten, one := approxRule(10_000, 10, 50_000), approxRule(10_000, 1, 50_000)
	r := newRollout(t, 10, ten)
	for range 20 {
		r.step(time.Second, always)
	}
	for i := range r.rules {
		r.rules[i] = one
		r.step(100*time.Millisecond, always)
	}
	if worst := r.worst(); worst != 500 {
		t.Errorf("the nodes spent %d beyond the limit, of a budget of 500", worst)
	}
	for range 180 {
		r.step(time.Second, always)
	}
	begins := r.now - r.now%ratelimit.LedgerTime(r.length/time.Microsecond)
	if worst := r.worst(); worst != 500 || r.spent[begins][0] != 500 {
		t.Errorf("three windows later %d were spent of a budget of 500 (%d at most in a window), all of which is one node's now", r.spent[begins][0], worst)
	}
}

// For any changes of the rules, late reads, crashes and new nodes, the nodes spend at most the largest budget
// in force in a window.
func TestRolloutsStayWithinTheBudget(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 9))
			any := func() *ratelimit.Rule { return approxRule(10_000, 1+rnd.IntN(8), 10_000*uint32(1+rnd.IntN(5))) }
			rule := any()
			r := newRollout(t, 1+rnd.IntN(8), rule)
			most := rule.Coordination.DriftBudget.Of(10_000)
			deaf := rnd.Float64() / 2
			for range 600 {
				if rnd.IntN(60) == 0 {
					rule = any()
					most = max(most, rule.Coordination.DriftBudget.Of(10_000))
				}
				i := rnd.IntN(len(r.keepers))
				if rnd.IntN(3) == 0 {
					r.rules[i] = rule
				}
				if rnd.IntN(40) == 0 { // it crashes, and another process is there
					r.keepers[i] = NewKeeper(r.seats, ratelimit.Holder(rnd.Uint64()), r.clock)
					r.rules[i] = rule
				}
				r.step(time.Duration(rnd.Int64N(int64(3*time.Second))), func(int) bool { return rnd.Float64() > deaf })
			}
			if worst := r.worst(); worst > most {
				t.Errorf("the nodes spent %d beyond the limit, and no budget was larger than %d", worst, most)
			}
		})
	}
}

// A plan tells rules apart by all that divides their budget, and nothing else. It has as many seats as one of them needs.
func TestPlansAreTheSameForTheSameRules(t *testing.T) {
	a, b := approxRule(100, 10, 10_000), approxRule(5, 4, 10_000)
	b.Path = "other"
	same := NewPlan([]*ratelimit.Rule{a, b})
	if p := NewPlan([]*ratelimit.Rule{b, a, {Domain: "x"}}); p.id != same.id || p.Seats != 10 || same.Seats != 10 {
		t.Error("the order of rules, or one that does not drift, makes another plan")
	}
	for what, change := range map[string]func(*ratelimit.Rule){
		"max_nodes":    func(r *ratelimit.Rule) { r.Coordination.MaxNodes++ },
		"drift_budget": func(r *ratelimit.Rule) { r.Coordination.DriftBudget.PPM++ },
		"mode":         func(r *ratelimit.Rule) { r.Coordination.Mode = ratelimit.Leasing },
		"path":         func(r *ratelimit.Rule) { r.Path = "more" },
	} {
		changed := *b
		change(&changed)
		if NewPlan([]*ratelimit.Rule{a, &changed}).id == same.id {
			t.Errorf("another %s makes the same plan", what)
		}
	}
}

// A node's share of a rule, and the number of seats, are the smallest of its own plan and of all that may have
// been in force in a window. For a window that is since it began. For a bucket it is until it may have filled.
func TestShareWhileMaxNodesChanges(t *testing.T) {
	two, four := approxRule(10_000, 2, 10_000), approxRule(10_000, 4, 10_000) // 100 tokens for all
	bucket := func(r *ratelimit.Rule) *ratelimit.Rule {
		b := *r
		b.Limit.Algorithm, b.Limit.Burst = ratelimit.TokenBucket, 20_000 // two minutes
		b.Coordination.DriftBudget.PPM /= 2
		return &b
	}
	var fromTwo, fromFour, lateTwo []agreement
	plan := func(r *ratelimit.Rule) Plan { return NewPlan([]*ratelimit.Rule{r}) }
	reached := ratelimit.Instant(time.Hour)
	fromTwo = withAgreement(withAgreement(nil, plan(two), 0, reached), plan(four), 100, reached)
	fromFour = withAgreement(withAgreement(nil, plan(four), 0, reached), plan(two), 100, reached)
	lateTwo = withAgreement(nil, plan(two), 10, reached)
	const filled = 2 * time.Minute
	for _, c := range []struct {
		what   string
		all    []agreement
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
		{"a bucket under one plan", []agreement{{plan: plan(bucket(two)), reached: reached}}, bucket(two), 0, 0, 50, 2},
		{"a bucket that has not filled", []agreement{{plan: plan(bucket(two)), since: 10, reached: reached}}, bucket(two), filled - 1, 50, 0, 0},
		{"a bucket that has", []agreement{{plan: plan(bucket(two)), since: 10, reached: reached}}, bucket(two), filled, 50, 50, 2},
	} {
		if share, seats := shareUnder(c.all, reached.Add(c.later), c.rule, c.begins); share != c.share || seats != c.seats {
			t.Errorf("%s: a share of %d for %d seats, want %d for %d", c.what, share, seats, c.share, c.seats)
		}
	}
}

// A rule without a limit needs no seats, nor do limits that requests bring along, whose
// budget is only divided where there are seats for others.
func TestRulesThatNeedNoSeats(t *testing.T) {
	for _, c := range []struct {
		what    string
		change  func(*ratelimit.Rule)
		seats   int
		divided int
	}{
		{"of four nodes", func(*ratelimit.Rule) {}, 4, 1},
		{"of the request", func(r *ratelimit.Rule) { r.Override = true }, 0, 1},
		{"without a limit", func(r *ratelimit.Rule) { r.Unlimited = true }, 0, 0},
		{"of mode leasing", func(r *ratelimit.Rule) { r.Coordination.Mode = ratelimit.Leasing }, 0, 0},
	} {
		rule := approxRule(100, 4, 10_000)
		c.change(rule)
		if p := NewPlan([]*ratelimit.Rule{rule}); p.Seats != c.seats || len(p.shares) != c.divided {
			t.Errorf("a rule %s: %d seats and %d budgets, want %d and %d", c.what, p.Seats, len(p.shares), c.seats, c.divided)
		}
	}
}

// How long a bucket takes to fill follows from its size and its rate, also where it is slow.
func TestFillTime(t *testing.T) {
	for _, c := range []struct {
		requests, burst ratelimit.Tokens
		want            time.Duration
	}{
		{60, 60, time.Minute},
		{60, 90, 90 * time.Second},
		{1, 3, 3 * time.Minute},
		{2, 3, 90 * time.Second},
		{0, 3, 3 * time.Minute},
		{1, ratelimit.MaxLimit, 1 << 62}, // for ever
	} {
		l := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: c.requests, Burst: c.burst}
		if got := l.Refill(c.burst); got != c.want {
			t.Errorf("%d of a size, at %d a minute: %v, want %v", c.burst, c.requests, got, c.want)
		}
	}
}

// Limits that requests bring along divide one budget in a domain, whichever descriptors they
// come with.
func TestLimitsOfRequestsHaveOneBudget(t *testing.T) {
	ofDomain := approxRule(10_000, 2, 10_000)
	ofDomain.Override, ofDomain.Path = true, ""
	plan := withAgreement(nil, NewPlan([]*ratelimit.Rule{ofDomain}), 0, 0)
	for domain, want := range map[string]ratelimit.Tokens{ofDomain.Domain: 50, "another": 0} {
		request := *ofDomain
		request.Domain, request.Path = domain, "some/descriptor"
		if share, _ := shareUnder(plan, 0, &request, 0); share != want {
			t.Errorf("domain %s: a share of %d, want %d", domain, share, want)
		}
	}
}
