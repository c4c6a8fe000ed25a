package rls

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/holds"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

//go:embed testdata/rules.yaml
var testRules string

// fixture is a service at a standstill: 15 s into a minute and an hour.
type fixture struct {
	testing.TB
	*Service
	overrides overrides.Book
	now       ratelimit.Instant
}

// observes gets nothing.
type observes []float64

func (observes) Observe(float64) {}

func newFixture(t testing.TB, o Options, text string) *fixture {
	t.Helper()
	if o.NearLimitRatio == 0 {
		o.NearLimitRatio = 0.8
	}
	f := &fixture{TB: t, now: 1}
	start := time.Unix(1_800_000_015, 0)
	var rules *config.Rules
	if text != "" {
		var problems config.Problems
		rules, _, problems = config.Parse([]config.Text{{Name: "test", Data: []byte(text)}},
			config.Options{Coordination: ratelimit.DefaultCoordination()})
		if problems != nil {
			t.Fatal(problems)
		}
	}
	clock := func() ratelimit.Instant { return f.now }
	wall := func() time.Time { return start.Add(f.now.Sub(1)) }
	at := func(ratelimit.Instant) ratelimit.LedgerTime { return ratelimit.LedgerTime(wall().UnixMicro()) }
	records := overrides.NewTable()
	keeper := &table.Alone{Table: records, Wall: wall, Clock: ratelimit.MonotonicClock()}
	f.overrides = overrides.Book{Table: records, Keeper: keeper}
	limiter := overrides.NewLimiter(local.New(1000, f.now, start), records, at)
	f.Service = New(func() *config.Rules { return rules }, limiter, clock, wall, observes(nil), o,
		slog.New(slog.NewTextHandler(io.Discard, nil)))
	return f
}

func holdFixtureOf(t testing.TB, rules string) *fixture {
	t.Helper()
	desk := new(holds.Desk)
	if err := desk.Set("0123456789abcdef"); err != nil {
		t.Fatal(err)
	}
	return newFixture(t, Options{Holds: desk}, rules)
}

// desc writes "key=value,key=value" as a descriptor.
func desc(entries string) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{}
	for entry := range strings.SplitSeq(entries, ",") {
		key, value, _ := strings.Cut(entry, "=")
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

func hits(d *common.RateLimitDescriptor, n uint64) *common.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(n)
	return d
}

func negative(d *common.RateLimitDescriptor) *common.RateLimitDescriptor {
	d.IsNegativeHits = true
	return d
}

func override(d *common.RateLimitDescriptor, n uint32, unit typev3.RateLimitUnit) *common.RateLimitDescriptor {
	d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
	return d
}

func rlsRequest(descriptors ...*common.RateLimitDescriptor) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: "d", Descriptors: descriptors}
}

// wired is a request as it comes.
func (f *fixture) wired(r *rlsv3.RateLimitRequest) []byte {
	f.Helper()
	in, err := proto.Marshal(r)
	if err != nil {
		f.Fatal(err)
	}
	return in
}

func (f *fixture) call(r *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	f.Helper()
	c := &call{in: f.wired(r)}
	if err := f.answer(context.Background(), c); err != nil {
		return nil, err
	}
	answer := &rlsv3.RateLimitResponse{}
	if err := proto.Unmarshal(c.out, answer); err != nil {
		f.Fatalf("the answer is no RateLimitResponse: %v", err)
	}
	return answer, nil
}

func (f *fixture) must(r *rlsv3.RateLimitRequest) *rlsv3.RateLimitResponse {
	f.Helper()
	answer, err := f.call(r)
	if err != nil {
		f.Fatal(err)
	}
	return answer
}

// short writes an answer as "OVERALL: CODE remaining/limit reset, ...".
func short(a *rlsv3.RateLimitResponse) string {
	var parts []string
	for _, s := range a.Statuses {
		p := s.Code.String()
		if s.CurrentLimit != nil {
			p += fmt.Sprintf(" %d/%d %ds", s.LimitRemaining, s.CurrentLimit.RequestsPerUnit,
				s.DurationUntilReset.GetSeconds())
		} else if s.LimitRemaining > 0 {
			p += fmt.Sprintf(" %d", s.LimitRemaining)
		}
		parts = append(parts, p)
	}
	return a.OverallCode.String() + ": " + strings.Join(parts, ", ")
}

func (f *fixture) expect(want string, r *rlsv3.RateLimitRequest) {
	f.Helper()
	if got := short(f.must(r)); got != want {
		f.Errorf("got  %s\nwant %s", got, want)
	}
}

// usage is what one descriptor says of its cost; unsaid is nothing.
type usage int

const unsaid usage = -1

func descOf(entries string, n usage) *common.RateLimitDescriptor {
	if n == unsaid {
		return desc(entries)
	}
	return hits(desc(entries), uint64(n))
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

// ends sends the call of a gateway at the end of a request, with its cost, and the status of the response, or 0.
func (f *fixture) ends(entries, hold string, status uint64, cost usage) {
	f.Helper()
	last := descOf(entries+","+EntryEnd+"=,"+EntryHold+"="+hold, usage(status))
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
