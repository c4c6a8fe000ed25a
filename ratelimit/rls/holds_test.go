package rls

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/holds"
)

const holdRules = `
domain: d
descriptors:
  - key: constant
    hold: {amount: 30, ttl: 90s}
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: hourly
    hold: {amount: 20, on_unknown: release}
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: request
    hold: {from: request, max: 50}
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: learned
    hold: {learned: 0.9, max: 60}
    rate_limit: {unit: minute, requests_per_unit: 1000000}
  - key: blind
    hold: {amount: 20, on: [0, 1]}
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: carried
    hold: {amount: 30}
    coordination: {debt: carry}
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: plain
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: bucket
    algorithm: token_bucket
    hold: {amount: 30}
    rate_limit: {unit: hour, requests_per_unit: 100}
`

func holdFixture(t testing.TB) *fixture {
	t.Helper()
	return holdFixtureOf(t, holdRules)
}

func holdFixtureOf(t testing.TB, rules string) *fixture {
	t.Helper()
	desk := new(holds.Desk)
	if err := desk.Set("0123456789abcdef"); err != nil {
		t.Fatal(err)
	}
	return newFixture(t, Options{Holds: desk}, rules)
}

// usage is what one descriptor says of its cost; unsaid is nothing.
type usage int

const unsaid usage = -1

func descOf(entries string, n usage) *common.RateLimitDescriptor {
	d := desc(entries)
	if n != unsaid {
		d.HitsAddend = wrapperspb.UInt64(uint64(n))
	}
	return d
}

// holdOf is the hold in an answer, "" if it has none.
func holdOf(t testing.TB, a *rlsv3.RateLimitResponse) string {
	t.Helper()
	hold := a.GetDynamicMetadata().GetFields()[EntryHold].GetStringValue()
	if len(hold) > 96 {
		t.Errorf("a hold of %d bytes", len(hold))
	}
	return hold
}

// takes sends descriptors, each of which may hold, and returns the hold and whether it was refused.
func (f *fixture) takes(descriptors ...*common.RateLimitDescriptor) (hold string, over bool) {
	f.Helper()
	a := f.must(rlsRequest(descriptors...))
	return holdOf(f, a), a.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT
}

// ends sends the call of a gateway at the end of a request, with its cost; unsaid: without a cost.
func (f *fixture) ends(entries, hold string, cost usage) {
	f.Helper()
	last := desc(entries + "," + EntryEnd + "=," + EntryHold + "=" + hold)
	last.HitsAddend = wrapperspb.UInt64(0)
	all := []*common.RateLimitDescriptor{last}
	if cost != unsaid {
		all = append(all, descOf(entries+","+EntryHold+"="+hold, cost))
	}
	if a := f.must(rlsRequest(all...)); a.OverallCode != rlsv3.RateLimitResponse_OK || holdOf(f, a) != "" {
		f.Errorf("the end of a request is answered %v", a)
	}
}

// left is how much of a budget is left: the most that is admitted. It takes nothing, for it is asked of rules whose
// refusals take nothing, by a copy of the key's asks.
func (f *fixture) left(key string) ratelimit.Tokens {
	f.Helper()
	entries := desc(key).Entries
	d := f.rules().Domain("d")
	c := call{}
	c.request.domain = "d"
	for _, e := range entries {
		c.request.entries = append(c.request.entries, entryOf(e))
	}
	rule, of := d.Match(c.request.entries, nil)
	v := make([]ratelimit.Verdict, 1)
	f.limiter.Decide(context.Background(), f.now, []ratelimit.Ask{{Rule: rule, Key: of, Kind: ratelimit.Peek}}, v)
	return v[0].Remaining
}

func (f *fixture) hasLeft(key string, want ratelimit.Tokens) {
	f.Helper()
	if got := f.left(key); got != want {
		f.Errorf("%s has %d left, must be %d", key, got, want)
	}
}

func (f *fixture) pass(d time.Duration) { f.now = f.now.Add(d) }

// counted is what became of a rule's holds.
func (f *fixture) holdsCounted(path string) map[string]uint64 {
	f.Helper()
	all := map[string]uint64{}
	for _, r := range f.rules().All() {
		if r.Path != path {
			continue
		}
		h := r.Counters.Holds()
		all["taken"], all["charged"], all["released"] = h.Taken.Load(), h.Charged.Load(), h.Released.Load()
		for i, name := range ratelimit.SettledNames {
			all[name] = h.Results[i].Load()
		}
	}
	for name, n := range all {
		if n == 0 {
			delete(all, name)
		}
	}
	return all
}

func (f *fixture) hasCounted(path, want string) {
	f.Helper()
	if got := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(f.holdsCounted(path)), "map["), "]"); got != want {
		f.Errorf("%s counts %s, must be %s", path, got, want)
	}
}

// A request holds the rule's amount, and is charged its cost when it is known: once.
func TestHoldSettles(t *testing.T) {
	f := holdFixture(t)
	hold, over := f.takes(desc("constant=a"))
	if over || hold == "" {
		t.Fatalf("%q, over %v", hold, over)
	}
	f.hasLeft("constant=a", 70)
	f.ends("constant=a", hold, 12)
	f.hasLeft("constant=a", 88)
	f.ends("constant=a", hold, 1)
	f.hasLeft("constant=a", 88)
	hold, _ = f.takes(desc("constant=a"))
	f.ends("constant=a", hold, 50)
	f.hasLeft("constant=a", 38)
	f.hasCounted("constant", "charged:20 released:18 replayed:1 settled:2 taken:2")
}

// A request that fits none of its budgets takes nothing of any, and what is refused holds nothing.
func TestHoldsAreAllOrNothing(t *testing.T) {
	f := holdFixture(t)
	both := []*common.RateLimitDescriptor{desc("constant=a"), desc("hourly=b")}
	var all []string
	for range 3 {
		hold, over := f.takes(both...)
		if over || hold == "" {
			t.Fatalf("%q, over %v", hold, over)
		}
		all = append(all, hold)
	}
	if hold, over := f.takes(both...); !over || hold != "" {
		t.Errorf("90 and 60 of 100 are held, and 30 and 20 more are: %q, over %v", hold, over)
	}
	f.hasLeft("constant=a", 10)
	f.hasLeft("hourly=b", 40)
	// Each is settled by its own cost, in one call or in two.
	f.ends("constant=a", all[0], 1)
	f.ends("hourly=b", all[0], 2)
	f.must(rlsRequest(descOf("constant=a,"+EntryHold+"="+all[1], 3), descOf("hourly=b,"+EntryHold+"="+all[1], 4)))
	f.hasLeft("constant=a", 66)
	f.hasLeft("hourly=b", 74)
}

// A request that ends without a known cost costs what it held, or nothing, as the rule says.
func TestHoldsOfUnknownCost(t *testing.T) {
	f := holdFixture(t)
	hold, _ := f.takes(desc("constant=a"), desc("hourly=a"))
	f.ends("constant=a", hold, unsaid)
	f.ends("hourly=a", hold, unsaid)
	f.hasLeft("constant=a", 70)
	f.hasLeft("hourly=a", 100)
	// A request that was refused, or failed open, ends without a hold, which costs nothing.
	f.ends("constant=a", "", unsaid)
	f.hasLeft("constant=a", 70)
	f.hasCounted("constant", "taken:1 unknown:1")
	f.hasCounted("hourly", "taken:1 unknown:1")
}

// What is settled in another window credits nothing, and charges nothing but where debt is carried.
func TestHoldsOverTheTurn(t *testing.T) {
	f := holdFixture(t)
	hold, _ := f.takes(desc("constant=a"), desc("hourly=a"), desc("carried=a"))
	f.pass(50 * time.Second)
	f.takes(desc("constant=a"))
	f.ends("constant=a", hold, 5)
	f.ends("hourly=a", hold, 5)
	f.ends("carried=a", hold, 70)
	f.hasLeft("constant=a", 70)
	f.hasLeft("hourly=a", 95)
	f.hasLeft("carried=a", 60)
	f.hasCounted("constant", "late:1 taken:2")
	hold, _ = f.takes(desc("constant=a"))
	f.pass(91 * time.Second)
	f.ends("constant=a", hold, 5)
	f.hasCounted("constant", "expired:2 late:1 taken:3")
}

// The hits of a request are what it holds, up to the maximum, and 0 holds nothing.
func TestHoldsFromTheRequest(t *testing.T) {
	f := holdFixture(t)
	hold, _ := f.takes(descOf("request=a", 40))
	f.hasLeft("request=a", 60)
	f.ends("request=a", hold, 41)
	f.hasLeft("request=a", 59)
	if hold, over := f.takes(descOf("request=a", 70)); over || hold == "" {
		t.Errorf("50 of 70 are held at most: %q, over %v", hold, over)
	}
	f.hasLeft("request=a", 9)
	if hold, over := f.takes(descOf("request=a", 0)); over || hold != "" {
		t.Errorf("a peek holds: %q, over %v", hold, over)
	}
}

// A quantile of the last costs is held: of the key, or where that is new, of the rule; at first the maximum.
func TestHoldsAreLearned(t *testing.T) {
	f := holdFixture(t)
	held := func(key string) ratelimit.Tokens {
		t.Helper()
		before := f.left(key)
		hold, over := f.takes(desc(key))
		if over {
			t.Fatal("refused")
		}
		n := before - f.left(key)
		f.ends(key, hold, unsaid)
		return n
	}
	if n := held("learned=a"); n != 60 {
		t.Errorf("before costs are known, %d are held", n)
	}
	for i := range 100 {
		hold, _ := f.takes(desc("learned=a"))
		f.ends("learned=a", hold, usage(1+i%10))
	}
	if n := held("learned=a"); n != 10 {
		t.Errorf("of costs from 1 to 10, %d are held", n)
	}
	if n := held("learned=b"); n != 10 {
		t.Errorf("for another key, %d are held", n)
	}
	for range 100 {
		hold, _ := f.takes(desc("learned=b"))
		f.ends("learned=b", hold, 500)
	}
	if n := held("learned=b"); n != 60 {
		t.Errorf("of costs beyond the maximum, %d are held", n)
	}
	if n := held("learned=a"); n != 10 {
		t.Errorf("a key with costs of its own holds %d", n)
	}
}

// Without an id, calls of some hits hold, and all others settle.
func TestHoldsWithoutAnID(t *testing.T) {
	f := holdFixture(t)
	for _, n := range []usage{0, 1, unsaid} {
		if hold, over := f.takes(descOf("blind=a", n)); over || hold != "" {
			t.Errorf("%d: %q, over %v", n, hold, over)
		}
	}
	f.hasLeft("blind=a", 40)
	for _, n := range []usage{5, 20, 50} {
		if _, over := f.takes(descOf("blind=a", n)); over {
			t.Errorf("a cost of %d is refused", n)
		}
	}
	f.hasLeft("blind=a", 25)
	f.hasCounted("blind", "charged:30 released:15 settled:3 taken:3")
	// A gateway that can say that a request has ended may say any cost.
	f.ends("blind=a", "", 1)
	f.hasLeft("blind=a", 44)
	// Two more, and a third is refused, also as a peek.
	f.takes(descOf("blind=a", 0))
	f.takes(descOf("blind=a", 0))
	if _, over := f.takes(descOf("blind=a", 0)); !over {
		t.Error("96 of 100 are held, and 20 more")
	}
	f.hasLeft("blind=a", 4)
}

// Entries with reserved names are taken off the end alone, and are no rule's.
func TestReservedEntries(t *testing.T) {
	f := holdFixture(t)
	hold, _ := f.takes(desc("constant=a"))
	for _, entries := range []string{
		"constant=a," + EntryHold + "=" + hold + ",more=x", // not at the end: no rule has it
		EntryHold + "=" + hold + ",constant=a",
		EntryHold + "=" + hold,
		"constant=b," + EntryHold + "=" + hold, // another budget
		"constant=a," + EntryHold + "=x",
		"constant=a," + EntryHold + "=",
		"plain=a," + EntryHold + "=" + hold,
		"plain=a," + EntryHold + "=x",
	} {
		f.takes(descOf(entries, 1))
	}
	f.hasLeft("constant=a", 70)
	f.hasLeft("constant=b", 100)
	f.hasLeft("plain=a", 100)
	negative := descOf("constant=a,"+EntryHold+"="+hold, 5)
	negative.IsNegativeHits = true
	if _, err := f.call(rlsRequest(negative)); err == nil {
		t.Error("a cost below 0 settles a hold")
	}
	f.ends("constant=a", hold, 10)
	f.hasLeft("constant=a", 90)
}

// 100,000 hostile settlements credit nothing: of holds that are cut, changed, made up, of another budget, or replayed.
func TestHostileSettlements(t *testing.T) {
	f := holdFixture(t)
	used, _ := f.takes(desc("constant=a"))
	f.ends("constant=a", used, 30)
	foreign, _ := f.takes(desc("hourly=z"))
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 100_000 {
		hold := used
		switch i % 5 {
		case 0:
			hold = used[:r.IntN(len(used))]
		case 1:
			b := []byte(used)
			b[r.IntN(len(b))] ^= 1
			hold = string(b)
			if strings.ContainsAny(hold, ",=") || hold == used {
				hold = "x"
			}
		case 2:
			hold = strings.Repeat("A", r.IntN(200))
		case 3:
			hold = foreign
		}
		f.takes(descOf("constant=a,"+EntryHold+"="+hold, usage(r.IntN(3))))
	}
	f.hasLeft("constant=a", 70)
	counted := f.holdsCounted("constant")
	// A hold that is cut down to nothing is none.
	n := counted["forged"] + counted["foreign"] + counted["replayed"]
	if n+1000 < 100_000 || counted["settled"] != 1 {
		t.Errorf("of 100,000 hostile settlements these are counted: %v", counted)
	}
	t.Log(counted)
}

// A hold is in the answer where nothing else is in its metadata, and where everything is.
func TestHoldsBesideMetadata(t *testing.T) {
	f := holdFixture(t)
	f.options.DynamicMetadata = true
	a := f.must(rlsRequest(desc("constant=a")))
	if holdOf(t, a) == "" || a.GetDynamicMetadata().GetFields()["domain"].GetStringValue() != "d" {
		t.Errorf("%v", a.GetDynamicMetadata())
	}
	f.options.DynamicMetadata = false
	if a = f.must(rlsRequest(desc("plain=a"))); a.GetDynamicMetadata() != nil {
		t.Errorf("a rule that holds nothing has %v", a.GetDynamicMetadata())
	}
	f.options.ShadowMode = true
	f.takes(desc("constant=a"), desc("constant=a"))
	if hold, over := f.takes(desc("constant=a")); over || hold != "" {
		t.Errorf("admitted by SHADOW_MODE alone: %q, over %v", hold, over)
	}
}

// Ten budgets are more than a hold has room for: the last stays charged, and is counted.
func TestMoreBudgetsThanRoom(t *testing.T) {
	f := holdFixture(t)
	f.rules().All()[0].Hold.Amount = 100 // of a limit that is raised
	var all []*common.RateLimitDescriptor
	for i := range 10 {
		all = append(all, desc(fmt.Sprint("constant=", i)))
	}
	hold, over := f.takes(all...)
	if over || hold == "" {
		t.Fatalf("%q, over %v", hold, over)
	}
	for i := range 10 {
		f.ends(fmt.Sprint("constant=", i), hold, 1)
	}
	f.hasCounted("constant", "foreign:2 left_out:1 released:891 settled:9 taken:10")
}

// A caller that has gone takes no hold along.
func TestGoneCallersHoldNothing(t *testing.T) {
	f := holdFixture(t)
	c := &call{}
	c.in, _ = proto.Marshal(rlsRequest(desc("constant=a")))
	if err := f.answer(context.Background(), c); err != nil {
		t.Fatal(err)
	}
	c.undo(f.Service, f.now, func(int) bool { return true })
	f.hasLeft("constant=a", 100)
}

func entryOf(e *common.RateLimitDescriptor_Entry) config.Entry {
	return config.Entry{Key: e.GetKey(), Value: e.GetValue()}
}

// One instant names the windows of all budgets: this node's, moved into those that the ledger has charged. A budget
// whose window has no instant in common with the others is left out, and so is one of a window that is not known.
func TestInstantOfAHold(t *testing.T) {
	minute, hour := ratelimit.Limit{Unit: ratelimit.Minute}, ratelimit.Limit{Unit: ratelimit.Hour}
	bucket := ratelimit.Limit{Unit: ratelimit.Hour, Algorithm: ratelimit.TokenBucket}
	of := func(w ratelimit.Window) *ratelimit.Verdict { return &ratelimit.Verdict{Window: w} }
	in := instants{0, 1<<32 - 1}
	if got := in.nearest(77); got != 77 {
		t.Errorf("of no window: %d, must be 77", got)
	}
	for _, c := range []struct {
		limit *ratelimit.Limit
		v     *ratelimit.Verdict
		ok    bool
		in    instants
	}{
		{&hour, of(2), true, instants{3600, 7199}},
		{&minute, of(120), true, instants{7140, 7199}},
		{&minute, of(121), false, instants{7140, 7199}},
		{&bucket, of(9), true, instants{7140, 7199}},
		{&bucket, of(0), false, instants{7140, 7199}},
		{&minute, of(0), false, instants{7140, 7199}},
		{&minute, &ratelimit.Verdict{Source: ratelimit.FromFallback, Window: 120}, false, instants{7140, 7199}},
		{&minute, &ratelimit.Verdict{Source: ratelimit.FromFallback, Booked: 120}, true, instants{7140, 7199}},
	} {
		if ok := in.narrow(c.limit, c.v); ok != c.ok || in != c.in {
			t.Errorf("%v, %+v: %v, %v, must be %v, %v", c.limit, c.v, ok, in, c.ok, c.in)
		}
	}
	for at, want := range map[int64]int64{0: 7140, 7150: 7150, 7200: 7199} {
		if got := in.nearest(at); got != want {
			t.Errorf("nearest to %d is %d, must be %d", at, got, want)
		}
	}
}
