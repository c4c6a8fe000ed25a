package rls

import (
	"context"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/holds"
)

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
	f.endsWith(entries, hold, 0, cost)
}

// endsWith sends it with the status of the response.
func (f *fixture) endsWith(entries, hold string, status uint64, cost usage) {
	f.Helper()
	last := desc(entries + "," + EntryEnd + "=," + EntryHold + "=" + hold)
	last.HitsAddend = wrapperspb.UInt64(status)
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
	var entries []config.Entry
	for _, e := range desc(key).Entries {
		entries = append(entries, config.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	rule, of := f.rules().Domain("d").Match(entries, nil)
	v := make([]ratelimit.Verdict, 1)
	f.limiter.Decide(context.Background(), f.now, []ratelimit.Ask{{Rule: rule, Key: of, Kind: ratelimit.Peek}}, v)
	return v[0].Remaining
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
		all["open"] = h.TakenSum.Load() - h.SettledSum.Load()
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

// A response that is an error costs nothing, unless it names a cost. Of others, on_unknown decides.
func TestErrorsCostNothing(t *testing.T) {
	f := holdFixtureOf(t, `
domain: d
descriptors: [{key: k, hold: {amount: 10}, rate_limit: {unit: year, requests_per_unit: 100}}]
`)
	for _, c := range []struct {
		status uint64
		cost   usage
		left   ratelimit.Tokens
	}{
		{503, unsaid, 100},
		{429, unsaid, 100},
		{400, unsaid, 100},
		{200, unsaid, 90},
		{399, unsaid, 80},
		{0, unsaid, 70}, // the client left before there was a response, or the gateway does not tell
		{500, 3, 67},
		{200, 3, 64},
	} {
		hold, over := f.takes(desc("k=a"))
		if f.endsWith("k=a", hold, c.status, c.cost); over || f.left("k=a") != c.left {
			t.Errorf("status %d, cost %d: %d are left, must be %d", c.status, c.cost, f.left("k=a"), c.left)
		}
	}
	if n := f.holdsCounted("k"); n["failed"] != 3 || n["unknown"] != 3 || n["settled"] != 2 {
		t.Errorf("counted %v", n)
	}
}

// A quantile of the last costs is held: of the key, or where that is new, of the rule; at first the maximum.
func TestHoldsAreLearned(t *testing.T) {
	f := holdFixtureOf(t, `
domain: d
descriptors: [{key: learned, hold: {learned: 0.9, max: 60}, rate_limit: {unit: minute, requests_per_unit: 1000000}}]
`)
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
