package approx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/ratelimit"
)

const epoch ratelimit.LedgerTime = 1_800_000_000_000_000

// approxRule lets so many nodes drift by so many millionths of a limit a minute.
func approxRule(limit ratelimit.Tokens, nodes int, budget uint32) *ratelimit.Rule {
	rule := &ratelimit.Rule{Domain: "d", Path: "p", Coordination: ratelimit.DefaultCoordination()}
	rule.Limit = ratelimit.Limit{Unit: ratelimit.Minute, Requests: limit}
	c := &rule.Coordination
	c.Mode, c.MaxNodes, c.DriftBudget.PPM = ratelimit.Approx, nodes, budget
	return rule
}

func planOf(rules ...*ratelimit.Rule) Plan { return NewPlan(rules) }

// words are a line of a script: a command, and what it has, as name=value or alone.
type words map[string]string

func wordsOf(line string) (command string, w words) {
	all := strings.Fields(line)
	w = words{}
	for _, word := range all[1:] {
		name, value, _ := strings.Cut(word, "=")
		w[name] = value
	}
	return all[0], w
}

func (w words) has(name string) bool { _, ok := w[name]; return ok }

// number is a value; 0 if there is none.
func (w words) number(name string) (n int) {
	_, _ = fmt.Sscan(w[name], &n)
	return n
}

// duration is a value, or the only word if it has no name.
func (w words) duration(name string) time.Duration {
	text := w[name]
	for word := range w {
		if name == "" {
			text = word
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil && text != "" {
		panic(err)
	}
	return d
}

// keeperScript is a keeper that a script drives: it applies, and the script answers.
type keeperScript struct {
	testing.TB
	*Keeper
	now  ratelimit.Instant
	rule *ratelimit.Rule // the rule p, which lets two nodes drift by 100 tokens
	plan Plan
	told []int
}

// applied is an application as scripts say it. It has to make sense.
func (s *keeperScript) applied(a Application, due bool) string {
	text := "waits"
	if due {
		text = fmt.Sprintf("of %d seats, has seat %d with fence %d", a.Seats, a.Now.Seat, a.Now.Fence)
		if a.Holder != 7 || a.valid() != nil {
			s.Errorf("it applies with %+v", a)
		}
	}
	if a.Leave {
		text += ", leaves" + map[bool]string{true: " clean"}[a.Clean]
	}
	return text
}

// do plays a line of a script, and returns what it shows.
func (s *keeperScript) do(line string) string {
	command, w := wordsOf(line)
	apply, due := s.Due(s.now, s.plan)
	switch command {
	case "pass":
		s.now = s.now.Add(w.duration(""))
	case "rules":
		var all []*ratelimit.Rule
		for path := range w {
			rule := approxRule(10_000, w.number(path), 10_000)
			if rule.Path = path; path == "p" {
				s.rule = rule
			}
			all = append(all, rule)
		}
		s.plan = NewPlan(all)
	case "ledger":
		known := ratelimit.EpochKnown{ID: uint64(w.number("id")), Young: w.has("learning")}
		known.Asked = s.now.Add(w.duration("asked"))
		s.Epoch = func() ratelimit.EpochKnown { return known }
	case "gets", "answer":
		if command == "answer" {
			apply, due = Application{epoch: s.epoch().ID}, true
		}
		sent := s.now
		if s.now = s.now.Add(w.duration("after")); !due {
			return "it does not apply"
		}
		t := Tenancy{Seat: w.number("seat"), Fence: ratelimit.Fence(w.number("fence")), Agreed: !w.has("disagreed")}
		if w.has("not_before") {
			t.NotBefore = epoch.Add(w.duration("not_before"))
		}
		if w.has("none") {
			t = Tenancy{Seat: -1}
		}
		s.Answer(sent, apply, s.plan, t, nil)
	case "fails":
		s.Answer(s.now, apply, s.plan, Tenancy{}, errors.New("gone"))
		return "fails: " + s.applied(apply, due)
	case "due":
		return "due: " + s.applied(apply, due)
	case "leave":
		return "leave: " + s.applied(s.Resign(w.has("clean")))
	case "share":
		rule := s.rule
		if w["of"] == "q" {
			rule = approxRule(10_000, 5, 10_000)
			rule.Path = "q"
		}
		return fmt.Sprint("share: ", s.Share(s.now, rule, epoch.Add(w.duration("begins"))))
	case "seat":
		seat, wanted := s.Seat()
		return fmt.Sprintf("seat: %d, wanted %v", seat, wanted)
	case "told":
		return fmt.Sprint("told: ", s.told)
	default:
		s.Fatalf("%s?", line)
	}
	return ""
}

// The scripts of testdata/keeper say what a keeper applies for, and what it spends.
func TestKeeperScripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/keeper", func(t *testing.T, d *datadriven.TestData) (said string) {
		rule := approxRule(10_000, 2, 10_000)
		s := &keeperScript{TB: t, now: ratelimit.Instant(time.Hour), rule: rule, plan: planOf(rule), told: []int{}}
		s.Keeper = NewKeeper(nil, 7, func() ratelimit.Instant { return s.now })
		s.OnChange = func(t Tenancy, _ error) { s.told = append(s.told, t.Seat) }
		for line := range strings.Lines(d.Input) {
			if shown := s.do(line); shown != "" {
				said += shown + "\n"
			}
		}
		return said
	})
}

// scriptedSeats answers applications as the test says.
type scriptedSeats struct {
	asked []Application
	t     Tenancy
	err   error
}

func (s *scriptedSeats) Sit(ctx context.Context, a Application) (Tenancy, error) {
	if end, bounded := ctx.Deadline(); !bounded || time.Until(end) > time.Second {
		return none, errors.New("it would wait for more than a second")
	}
	s.asked = append(s.asked, a)
	return s.t, s.err
}

// While rules need seats, one is kept. When they need none any more, it is given up, as one of which not all is
// confirmed, once. A keeper that never needed one says nothing. An operator gets each change: a seat, none, and seats
// without an answer.
func TestKeeperKeepsWhatRulesNeed(t *testing.T) {
	now, gone := ratelimit.Instant(time.Hour), errors.New("gone")
	ledger, nothing, two := &scriptedSeats{}, NewPlan(nil), planOf(approxRule(10_000, 2, 10_000))
	k, told := NewKeeper(ledger, 7, func() ratelimit.Instant { return now }), []string{}
	k.OnChange = func(t Tenancy, err error) { told = append(told, fmt.Sprint(t.Seat, " ", err)) }
	if k.Leave(t.Context(), true); len(ledger.asked)+len(told) != 0 {
		t.Fatalf("it has no seat, and gives up %+v, and tells of %+v", ledger.asked, told)
	}
	seat := func(seat int, fence ratelimit.Fence) Tenancy { return Tenancy{Seat: seat, Fence: fence, Agreed: true} }
	for i, x := range []struct {
		plan  Plan
		t     Tenancy
		err   error
		asked int // applications so far
		seat  int
		told  string
		later time.Duration
	}{
		{nothing, none, nil, 0, -1, "", 0},
		{two, none, gone, 1, -1, "-1 gone", 0},
		{two, none, nil, 2, -1, "", SeatTTL},
		{two, seat(1, 5), nil, 3, 1, "1 <nil>", 0},
		{two, seat(1, 5), nil, 3, 1, "", SeatTTL / 2}, // it has one since a moment ago
		{two, seat(1, 5), nil, 4, 1, "", SeatTTL / 2}, // renewed: no change
		{two, seat(1, 5), gone, 5, 1, "-1 gone", 0},
		{two, seat(1, 6), nil, 6, 1, "1 <nil>", 0},
		{nothing, none, nil, 7, -1, "-1 <nil>", 0},
		{nothing, none, nil, 7, -1, "", 0},
	} {
		told, ledger.t, ledger.err = nil, x.t, x.err
		k.keep(t.Context(), x.plan)
		seat, wanted := k.Seat()
		asked, said := len(ledger.asked), strings.Join(told, "; ")
		if asked != x.asked || seat != x.seat || wanted != (x.plan.Seats > 0) || said != x.told {
			t.Errorf("step %d: asked %d times, seat %d, wanted %v, told of %q", i, asked, seat, wanted, said)
		}
		now = now.Add(x.later)
	}
	if last := ledger.asked[6]; !last.Leave || last.Clean {
		t.Errorf("no rule needs the seat any more, and it has asked %+v", last)
	}
}

// A keeper renews in time, and lets go: a node that did not run for longer than its seat lasts may not spend from it
// when it wakes.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		clock := func() ratelimit.Instant { return ratelimit.Instant(time.Since(start)) + 1 }
		seats := NewMemory(func() ratelimit.LedgerTime { return ratelimit.LedgerTime(time.Now().UnixMicro()) })
		rule, later := approxRule(10_000, 2, 10_000), ratelimit.LedgerTime(start.Add(time.Hour).UnixMicro())
		keepers, stop := make([]*Keeper, 3), make([]context.CancelFunc, 3)
		for i := range keepers {
			keepers[i] = NewKeeper(seats, ratelimit.Holder(i+1), clock)
			ctx, cancel := context.WithCancel(t.Context())
			stop[i] = cancel
			go keepers[i].Run(ctx, func() Plan { return planOf(rule) })
			synctest.Wait()
		}
		type shares [3]ratelimit.Tokens
		for _, x := range []struct {
			what string
			do   func()
			want []shares
		}{
			{"at first", func() {}, []shares{{50, 50, 0}}},
			{"a minute later", func() { time.Sleep(time.Minute) }, []shares{{50, 50, 0}}},
			{"a TTL after the first has stopped", func() { stop[0](); time.Sleep(SeatTTL) }, []shares{{0, 50, 0}, {0, 50, 50}}},
			{"and another", func() { time.Sleep(SeatTTL) }, []shares{{0, 50, 50}}},
		} {
			x.do()
			var got shares
			for i, k := range keepers {
				got[i] = k.Share(clock(), rule, later)
			}
			if got != x.want[0] && got != x.want[len(x.want)-1] {
				t.Errorf("%s: shares %v, want %v", x.what, got, x.want)
			}
		}
	})
}

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
