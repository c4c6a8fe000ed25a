package overrides

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// node is one without a store.
type node struct {
	testing.TB
	*Limiter
	*Book
	wall  atomic.Int64
	rules *config.Rules
}

func newNode(t testing.TB, rules string) *node {
	t.Helper()
	n := &node{TB: t}
	n.wall.Store(1_700_000_000_000_000)
	at := func(ratelimit.Instant) ratelimit.LedgerTime { return ratelimit.LedgerTime(n.wall.Load()) }
	records := NewTable()
	wall := func() time.Time { return time.UnixMicro(n.wall.Load()) }
	n.Book = &Book{
		Table: records, Keeper: &table.Alone{Table: records, Wall: wall, Clock: ratelimit.MonotonicClock()},
		Now: func() ratelimit.LedgerTime { return at(0) },
	}
	n.Limiter = NewLimiter(local.New(200_000, 1, wall()), records, at)
	n.load(rules)
	return n
}

// load puts other rules in force.
func (n *node) load(rules string) {
	n.Helper()
	var problems config.Problems
	n.rules, _, problems = config.Parse([]config.Text{{Name: "rules.yaml", Data: []byte(rules)}},
		config.Options{Coordination: ratelimit.DefaultCoordination()})
	if len(problems) > 0 {
		n.Fatal(problems)
	}
}

func (n *node) ask(kind ratelimit.Kind, key, value string) ratelimit.Ask {
	n.Helper()
	rule, name := n.rules.Domain("d").Match([]config.Entry{{Key: key, Value: value}}, nil)
	if rule == nil {
		n.Fatalf("no rule for %s=%s", key, value)
	}
	a := ratelimit.Ask{Rule: rule, Key: name, Cost: 1, Kind: kind}
	if kind == ratelimit.Peek {
		a.Cost = 0
	}
	return a
}

// set sets an override, or removes it with "".
func (n *node) set(key, value, limit string, expires ratelimit.LedgerTime) {
	n.Helper()
	a := n.ask(ratelimit.Peek, key, value)
	var o *Override
	if limit != "" {
		o = &Override{Per: a.Rule.Limit.Per()}
		o.Unlimited, o.Expires = limit == "unlimited", expires
		_, _ = fmt.Sscan(limit, &o.Requests)
	}
	if _, err := n.Set(n.Context(), a.Key, o, table.Any); err != nil {
		n.Fatal(err)
	}
}

// admits is how many of 100 requests at once are admitted. They are taken back.
func (n *node) admits(key, value string) (admitted int) {
	n.Helper()
	var asks []ratelimit.Ask
	for i := range 100 {
		a := n.ask(ratelimit.Spend, key, value)
		if a.OfSlot() {
			a.Window = ratelimit.Window(i + 1)
		}
		asks = append(asks, a)
	}
	verdicts := make([]ratelimit.Verdict, len(asks))
	before := asks[0].Rule
	n.Decide(n.Context(), 1, asks, verdicts)
	for i := range verdicts {
		if !verdicts[i].OverLimit {
			admitted++
		}
		if limit := verdicts[i].InForce(asks[i].Rule).Requests; asks[i].Rule != before || admitted > int(limit) {
			n.Errorf("%s=%s: admitted %d, and the verdict says a limit of %d", key, value, admitted, limit)
		}
	}
	n.Undo(1, asks, verdicts)
	for i := range asks {
		if asks[i].OfSlot() && !verdicts[i].OverLimit {
			asks[i].Kind = ratelimit.Release
			n.Decide(n.Context(), 1, asks[i:i+1], verdicts[i:i+1])
		}
	}
	return admitted
}

func (n *node) must(want int, key, value, when string) {
	n.Helper()
	if got := n.admits(key, value); got != want {
		n.Errorf("%s, %s=%s admits %d, must admit %d", when, key, value, got, want)
	}
}

const kinds = "fixed sliding bucket flight"

const rules = `domain: d
coordination: {on_deny: refund}
descriptors:
- {key: fixed, algorithm: fixed_window, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: sliding, algorithm: sliding_window, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: bucket, algorithm: token_bucket, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: flight, rate_limit: {concurrency: 10}}
`

// down is a store that does not answer.
type down struct{}

func (down) Settle(context.Context, []account.Claim, []account.Grant) (
	e ratelimit.Epoch, at ratelimit.LedgerTime, err error,
) {
	return e, at, errors.New("down")
}

// An outage of the store lifts no ban, whatever the rule says of outages. What a larger override admits in it is no
// peak of the rule's limit.
func TestOutageAdmitsNoBannedKey(t *testing.T) {
	for _, policy := range ratelimit.FailurePolicies {
		n := newNode(t, strings.Replace(rules, "on_deny: refund", "on_store_failure: "+policy, 1))
		clock := func() ratelimit.Instant { return 1 }
		fleet := leasing.NewFleet(down{}, 0xa00, 1000, clock, time.UnixMicro(n.wall.Load()))
		n.NodeLimiter = fleet
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { fleet.Run(ctx); close(ended) }()
		for _, key := range []string{"fixed", "sliding", "bucket"} {
			n.set(key, "x", "0", 0)
			n.must(0, key, "x", policy)
			v := make([]ratelimit.Verdict, 1)
			n.Decide(ctx, 1, []ratelimit.Ask{n.ask(ratelimit.Spend, key, "another")}, v)
			if v[0].OverLimit != (policy == "closed") {
				t.Errorf("%s: %s=another has the verdict %+v", policy, key, v[0])
			}
			n.set(key, "more", "9000", 0)
			more := n.ask(ratelimit.Spend, key, "more")
			more.Cost = 90
			n.Decide(ctx, 1, []ratelimit.Ask{more}, v)
			if peak := more.Rule.Counters.Alone.Ever(); v[0].OverLimit != (policy == "closed") || peak > 1 {
				t.Errorf("%s: %s=more is answered %+v, and the peak of the limit of 10 is %d", policy, key, v[0], peak)
			}
		}
		end()
		<-ended
	}
}

// Rules of each algorithm take overrides: more, less, none, for a time, and the rule's own again.
func TestEachAlgorithmTakesOverrides(t *testing.T) {
	n := newNode(t, rules)
	for key := range strings.FieldsSeq(kinds) {
		n.set(key, "x", "4", 0)
		n.set(key, "ban", "0", 0)
		n.set(key, "brief", "3", ratelimit.LedgerTime(n.wall.Load())+1000)
		n.must(10, key, "other", "without an override")
		n.must(4, key, "x", "with less")
		n.must(0, key, "ban", "with a ban")
		n.must(3, key, "brief", "before its end")
		n.set(key, "x", "20", 0)
		want := 20
		if key == "bucket" {
			want = 4 // it grows, and what is in it does not
		}
		n.must(want, key, "x", "with more")
		n.set(key, "x", "", 0)
		n.must(min(want, 10), key, "x", "when it is removed")
	}
	n.wall.Add(2000)
	for key := range strings.FieldsSeq(kinds) {
		if got := n.admits(key, "brief"); key != "bucket" && got != 10 {
			t.Errorf("after the end of an override %s admits %d", key, got)
		}
	}
}

// Whatever becomes of a rule, a ban stays. A number counts only for its period.
func TestChangedRulesLiftNoBan(t *testing.T) {
	n := newNode(t, rules)
	n.set("fixed", "ban", "0", 0)
	n.set("fixed", "more", "30", 0)
	n.set("fixed", "all", "unlimited", 0)
	for rule, want := range map[string][3]int{ // of ban, more and all
		"algorithm: fixed_window, rate_limit: {unit: minute, requests_per_unit: 10}":                    {0, 30, 100},
		"algorithm: sliding_window, rate_limit: {unit: minute, requests_per_unit: 12}":                  {0, 30, 100},
		"algorithm: fixed_window, rate_limit: {unit: hour, requests_per_unit: 10}":                      {0, 10, 100},
		"algorithm: fixed_window, rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 9}": {0, 9, 100},
		"max_override: 0, algorithm: fixed_window, rate_limit: {unit: minute, requests_per_unit: 10}":   {0, 10, 10},
		"max_override: 15, algorithm: fixed_window, rate_limit: {unit: day, requests_per_unit: 10}":     {0, 10, 15},
		"rate_limit: {concurrency: 10}": {0, 10, 100},
	} {
		n.load("domain: d\ncoordination: {on_deny: refund}\ndescriptors:\n- {key: fixed, " + rule + "}\n")
		for i, value := range []string{"ban", "more", "all"} {
			n.must(want[i], "fixed", value, "under "+rule)
		}
		if lifted, one := n.Lifted(n.rules); lifted != 0 {
			t.Errorf("under %s, %d bans are said to be lifted, such as %q", rule, lifted, one)
		}
	}
	for _, rule := range []string{
		"{key: other, rate_limit: {concurrency: 1}}", "{key: fixed, rate_limit: {unlimited: true}}",
	} {
		n.load("domain: d\ndescriptors:\n- " + rule + "\n")
		if lifted, one := n.Lifted(n.rules); lifted != 1 || len(one) != 3 {
			t.Errorf("under %s, %d bans are said to be lifted, such as %q", rule, lifted, one)
		}
		d := n.rules.Domain("d")
		is, key := d.Match([]config.Entry{{Key: "fixed", Value: "ban"}}, nil)
		o, _ := n.Get(key)
		if is == nil {
			continue
		}
		if _, counts := o.Rule(is); counts {
			t.Errorf("under %s, which admits all, a ban is shown as in force", rule)
		}
	}
}

// A limit that a request brings itself counts before an override.
func TestLimitsOfRequestsCountFirst(t *testing.T) {
	n := newNode(t, rules)
	n.set("fixed", "x", "0", 0)
	a := n.ask(ratelimit.Spend, "fixed", "x")
	entries := []config.Entry{{Key: "fixed", Value: "x"}}
	d := n.rules.Domain("d")
	a.Rule = d.OverrideRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 5})
	a.Key = d.OverrideKey(a.Rule.Limit, entries, nil)
	v := make([]ratelimit.Verdict, 1)
	if n.Decide(t.Context(), 1, []ratelimit.Ask{a}, v); v[0].OverLimit || v[0].Limit != nil {
		t.Errorf("it is answered %+v", v[0])
	}
}

// A key longer than a ledger's name is listed with its descriptor.
func TestLongKeysHaveTheirDescriptor(t *testing.T) {
	n := newNode(t, rules)
	long := strings.Repeat("x", 300)
	a := n.ask(ratelimit.Peek, "fixed", long)
	o := &Override{Per: "per minute", Of: "d?fixed=" + long}
	o.Requests, o.By, o.Reason = 3, "ann", "why"
	if _, err := n.Set(t.Context(), a.Key, o, table.None); err != nil {
		t.Fatal(err)
	}
	n.must(3, "fixed", long, "with a long key")
	for is := range n.All("") {
		if is.Of != o.Of || is.By != "ann" || is.Reason != "why" || is.Requests != 3 {
			t.Errorf("it is listed as %+v", is)
		}
	}
}

// nothing decides nothing, so that what is measured is this package.
type nothing struct{ ratelimit.NodeLimiter }

func (nothing) Decide(context.Context, ratelimit.Instant, []ratelimit.Ask, []ratelimit.Verdict) {}

// full is a node with as many overrides as there may be, of so many different limits.
func full(t testing.TB, limits int) *node {
	n := newNode(t, rules)
	records := make([]table.Record, 0, table.Most)
	for i := range table.Most {
		a := n.ask(ratelimit.Peek, "fixed", fmt.Sprintf("customer-%06d", i))
		records = append(records, table.Record{
			Key: string(ratelimit.DescriptorKey(a.Key)), Version: 1 + ratelimit.LedgerTime(i),
			Value: fmt.Sprintf(`{"limit":%d,"per":"per minute","by":"ann@example.com","why":"ticket 4711"}`,
				100+i%limits),
		})
	}
	n.Table.Merge(records, 1)
	if n.Table.Len() != table.Most || n.Table.Rejected.Load() != 0 {
		t.Fatalf("%d records, %d rejected", n.Table.Len(), n.Table.Rejected.Load())
	}
	_, err := n.Keeper.Set(t.Context(), table.Record{Key: "more", Value: "x"}, table.Any)
	if !errors.Is(err, table.ErrFull) {
		t.Fatalf("a full table takes more: %v", err)
	}
	return n
}

// All overrides that there may be take at most 30 MB, also if each was used, and a request allocates nothing.
func TestOverridesTakeLittle(t *testing.T) {
	decides := func(n *node) float64 {
		n.NodeLimiter = nothing{}
		asks := []ratelimit.Ask{
			n.ask(ratelimit.Spend, "fixed", "customer-000007"), n.ask(ratelimit.Spend, "fixed", "other"),
		}
		verdicts := make([]ratelimit.Verdict, len(asks))
		return testing.AllocsPerRun(1000, func() { n.Decide(t.Context(), 1, asks, verdicts) })
	}
	if got := decides(newNode(t, rules)); got > 0 {
		t.Errorf("without overrides, a request allocates %v times", got)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for _, limits := range []int{100, table.Most} {
		before := heap()
		n := full(t, limits)
		read := heap() - before
		n.NodeLimiter = nothing{}
		verdicts := make([]ratelimit.Verdict, 1)
		for i := range table.Most {
			a := n.ask(ratelimit.Spend, "fixed", fmt.Sprintf("customer-%06d", i))
			n.Decide(t.Context(), 1, []ratelimit.Ask{a}, verdicts)
		}
		used := heap() - before
		t.Logf("%d overrides with %d different limits: %.1f MB, and %.1f MB when each key was asked for", table.Most,
			limits, float64(read)/1e6, float64(used)/1e6)
		if read > 30e6 || limits < 1000 && used > 30e6 {
			t.Errorf("they take %d and %d bytes", read, used)
		}
		if got := decides(n); got > 0 {
			t.Errorf("with overrides, a request allocates %v times", got)
		}
	}
}

// recorder notes the rules that it is asked under.
type recorder struct {
	ratelimit.NodeLimiter
	rules map[*ratelimit.Rule]int
}

func (r *recorder) Decide(
	_ context.Context, _ ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict,
) {
	for i := range asks {
		r.rules[asks[i].Rule]++
		verdicts[i] = ratelimit.Verdict{}
	}
}

func (r *recorder) Undo(_ ratelimit.Instant, asks []ratelimit.Ask, _ []ratelimit.Verdict) {
	for i := range asks {
		r.rules[asks[i].Rule]++
	}
}

func (r *recorder) Look(_ context.Context, _ ratelimit.Instant, a *ratelimit.Ask) (x ratelimit.Look) {
	r.rules[a.Rule]++
	return x
}

func (r *recorder) Reset(_ context.Context, _ ratelimit.Instant, a *ratelimit.Ask) error {
	r.rules[a.Rule]++
	return nil
}

// Spends, peeks, settlements of holds, and what is undone or looked at are under the same rule. The caller's asks stay.
func TestAllAsksSeeTheSameRule(t *testing.T) {
	n := newNode(t, rules)
	r := &recorder{rules: map[*ratelimit.Rule]int{}}
	n.NodeLimiter = r
	n.set("fixed", "x", "7", 0)
	var asks []ratelimit.Ask
	for kind := ratelimit.Spend; kind <= ratelimit.Release; kind++ {
		asks = append(asks, n.ask(kind, "fixed", "x"), n.ask(kind, "fixed", "other"))
	}
	before := append([]ratelimit.Ask(nil), asks...)
	verdicts := make([]ratelimit.Verdict, len(asks))
	n.Decide(t.Context(), 1, asks, verdicts)
	n.Undo(1, asks, verdicts)
	n.Look(t.Context(), 1, &asks[0])
	if err := n.Reset(t.Context(), 1, &asks[0]); err != nil {
		t.Fatal(err)
	}
	derived, _ := n.Table.Get(ratelimit.DescriptorKey(asks[0].Key)).(*limit)
	is := derived.derived.Load().is
	if len(r.rules) != 2 || r.rules[is] != len(asks)+2 || r.rules[asks[1].Rule] != len(asks) || is.Limit.Requests != 7 {
		t.Errorf("asks were under %d rules", len(r.rules))
	}
	for i := range asks {
		if asks[i].Rule != before[i].Rule || (verdicts[i].Limit == &is.Limit) != (i%2 == 0) {
			t.Errorf("ask %d is under another rule, or its verdict says %v", i, verdicts[i].Limit)
		}
	}
}
