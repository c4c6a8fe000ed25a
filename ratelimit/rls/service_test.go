package rls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
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
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

const testRules = `
domain: d
descriptors:
  - key: twenty
    rate_limit: {unit: minute, requests_per_unit: 20, name: the-name}
    metadata: {tier: {name: twenty, a: 1}}
  - key: five
    rate_limit: {unit: hour, requests_per_unit: 5}
    metadata: {tier: {name: five, b: 2}}
  - key: ban
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
  - key: node
    descriptors: [{key: leaf, rate_limit: {unit: second, requests_per_unit: 1}}]
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: quota
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: quota2
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: replacer
    rate_limit: {unit: minute, requests_per_unit: 1, replaces: [{name: the-name}]}
  - key: shared
    value: a*
    share_threshold: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: refund
    coordination: {on_deny: refund}
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: bucket
    algorithm: token_bucket
    burst: 3
    rate_limit: {unit: minute, requests_per_unit: 60}
`

// fixture is a service at a standstill: 15 s into a minute and an hour.
type fixture struct {
	testing.TB
	*Service
	overrides overrides.Book
	now       ratelimit.Instant
}

type discard struct{}

func (discard) Observe(float64) {}

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
	f.overrides = overrides.Book{Table: records, Keeper: &table.Alone{Table: records, Wall: wall}}
	limiter := overrides.NewLimiter(local.New(1000, f.now, start), records, at)
	f.Service = New(func() *config.Rules { return rules }, limiter, clock, wall, discard{}, o,
		slog.New(slog.NewTextHandler(io.Discard, nil)))
	return f
}

// A token_bucket without further settings passes what refills while three times as much is requested. A fixed_window
// charges refused requests, as the original.
func TestDefaultOfOnDeny(t *testing.T) {
	f := newFixture(t, Options{}, `
domain: d
descriptors:
  - {key: bucket, algorithm: token_bucket, burst: 20, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: window, rate_limit: {unit: minute, requests_per_unit: 10}}
`)
	passed := 0
	for range 600 {
		if f.must(rlsRequest(desc("bucket=x"))).OverallCode == rlsv3.RateLimitResponse_OK {
			passed++
		}
		f.now = f.now.Add(time.Second / 30)
	}
	if passed < 210 || passed > 220 {
		t.Errorf("%d of 600 requests pass a token_bucket, want 210 to 220", passed)
	}
	f.expect("OVER_LIMIT: OVER_LIMIT 0/10 26s", rlsRequest(hits(desc("window=x"), 11)))
	f.expect("OVER_LIMIT: OVER_LIMIT 0/10 26s", rlsRequest(desc("window=x")))
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

func TestBadRequests(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	many := rlsRequest()
	for range 10_000 {
		many.Descriptors = append(many.Descriptors, desc("twenty=x"))
	}
	deep := rlsRequest(desc(strings.Repeat("a=b,", 200)))
	f := newFixture(t, Options{}, testRules)
	large := f.wired(rlsRequest(desc("twenty=x"), desc("a=b,c="+big)))
	for i, c := range []struct {
		in   []byte
		want string
	}{
		{f.wired(many), "request has more than 1000 descriptors"},
		{f.wired(deep), "descriptor 0 has more than 100 entries"},
		{large, "descriptor 1, entry 1: value has 1048576 bytes, and the maximum is 65536"},
		{[]byte{0x0a, 2, 0xff, 0xfe}, "domain is not valid UTF-8"},
		{[]byte("\x0a\x01d\x12\x06\x0a\x04\x0a\x02\xc3\x28"), "descriptor 0, entry 0: key is not valid UTF-8"},
	} {
		err := f.answer(context.Background(), &call{in: c.in})
		if n := int(f.Stats.BadRequests.Load()); err == nil || !strings.Contains(err.Error(), c.want) || n != i+1 {
			t.Errorf("got %v, want %s; %d bad requests are counted", err, c.want, n)
		}
	}
	f.expect("OK: OK 19/20 45s", rlsRequest(desc("twenty=x"))) // nothing was changed
}

// A bug in a limiter is one failed request and a line in the log.
func TestPanicIsOneFailedRequest(t *testing.T) {
	f := newFixture(t, Options{}, testRules)
	sound := f.limiter
	f.limiter = broken{}
	if _, err := f.call(rlsRequest(desc("twenty=x"))); !errors.Is(err, errInternal) {
		t.Error(err)
	}
	f.limiter = sound
	f.expect("OK: OK 19/20 45s", rlsRequest(desc("twenty=x")))
	if f.Stats.Panics.Load() != 1 {
		t.Error("the panic was not counted")
	}
}

type broken struct{ ratelimit.Limiter }

func TestAnswerAllocatesNothing(t *testing.T) {
	f := newFixture(t, Options{Headers: HeaderNames{Limit: "L", Remaining: "Rem", Reset: "Res"}},
		testRules+"  - {key: named, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}\n")
	q := rlsRequest(desc("five=0123456789"), desc("twenty=x"), desc("node=x,leaf=y"), desc("named=z"))
	c := &call{in: f.wired(q)}
	if n := testing.AllocsPerRun(1000, func() {
		if err := f.answer(context.Background(), c); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// post is a request of /json for key "twenty".
func post() *http.Request {
	return httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(
		`{"domain":"d","descriptors":[{"entries":[{"key":"twenty","value":"x"}]}]}`))
}

// Requests by other methods, too large ones, and what a page of another site can have a browser send without the
// browser asking first, are not accepted.
func TestJSON(t *testing.T) {
	f := newFixture(t, Options{}, testRules)
	none := newFixture(t, Options{}, "")
	of := func(origin, kind string) *http.Request {
		r := post()
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		if kind != "" {
			r.Header.Set("Content-Type", kind)
		}
		return r
	}
	large := httptest.NewRequest(http.MethodPost, "/json", io.LimitReader(endless{}, 100<<20))
	for i, c := range []struct {
		f    *fixture
		r    *http.Request
		code int
		says string
	}{
		{f, large, 413, "request is larger than 262144 bytes\n"},
		{f, httptest.NewRequest(http.MethodGet, "/json", nil), 405, "use POST"},
		{none, post(), 503, "no rate limit configuration loaded\n"},
		{f, post(), 200, "OK"},
		{f, of("", "application/json"), 200, "OK"},
		{f, of("", "application/x-www-form-urlencoded"), 200, "OK"}, // as curl -d sends it
		{f, of("", "text/plain"), 415, "text/plain"},
		{f, of("", "Text/Plain; charset=utf-8"), 415, "text/plain"},
		{f, of("", "text/plain;a=1;a=2"), 415, "text/plain"},
		{f, of("", "multipart/form-data; boundary=x"), 415, "multipart"},
		{f, of("http://example.com", "application/json"), 415, "example.com"}, // whose name points here
		{f, of("https://evil.example", "application/x-www-form-urlencoded"), 415, "evil.example"},
		{f, of("null", ""), 415, "null"},
		{f, of("%", ""), 415, "%"},
	} {
		w := httptest.NewRecorder()
		if c.f.ServeJSON(w, c.r); w.Code != c.code || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("request %d: %d %s, want %d and %q", i, w.Code, w.Body, c.code, c.says)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte(" "), len(p))), nil }

// leaver is a limiter whose caller gives up while it decides.
type leaver struct {
	ratelimit.Limiter
	leave func()
}

func (l *leaver) Decide(ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask,
	verdicts []ratelimit.Verdict,
) {
	l.Limiter.Decide(ctx, now, asks, verdicts)
	l.leave()
}

// What a call was charged is given back if its caller gave up meanwhile, of all its
// rules; it is then not answered, and not counted as admitted. What it settles counts, and the cost of what has ended.
func TestCallersThatGiveUpAreNotCharged(t *testing.T) {
	f := holdFixtureOf(t, testRules+"  - {key: h, hold: {amount: 4}, rate_limit: {unit: day, requests_per_unit: 9}}\n")
	gate := shed.NewGate(20 * time.Millisecond)
	f.options.Gate = gate
	hold, _ := f.takes(desc("h=a"))
	ctx, cancel := context.WithCancel(context.Background())
	inner := f.limiter
	f.limiter = &leaver{inner, cancel}
	ends := descOf("h=a,"+EntryHold+"="+hold, 1)
	ended := descOf("twenty=b,"+EntryHold+"="+hold, 1)
	c := &call{in: f.wired(rlsRequest(desc("twenty=a"), desc("five=a"), ends, ended))}
	for range 100 {
		if err := f.answer(ctx, c); !errors.Is(err, errGone) {
			t.Fatalf("answered, with %v", err)
		}
	}
	f.limiter = inner
	if n := f.left("twenty=b"); n != 0 {
		t.Errorf("a rule without a hold has %d left of 20, and ended requests cost 100", n)
	}
	again := rlsRequest(desc("twenty=a"), desc("five=a"), desc("h=a"))
	f.expect("OK: OK 19/20 45s, OK 4/5 3585s, OK 4/9 57585s", again)
	if n := gate.Stats().GivenUp; n != 100 || f.Stats.OK.Load() != 2 || f.Stats.ServiceErrors.Load() != 0 {
		t.Errorf("%d counted as given up, %d as OK, %d as errors", n, f.Stats.OK.Load(), f.Stats.ServiceErrors.Load())
	}
	want := map[string]uint64{"taken": 2, "open": 4, "settled": 1, "released": 3, "replayed": 99}
	if got := f.holdsCounted("h"); !maps.Equal(got, want) {
		t.Errorf("of holds: %v, want %v", got, want)
	}
}

// An overloaded node refuses /json as it does gRPC, and charges nothing.
func TestJSONIsShed(t *testing.T) {
	gate := shed.NewGate(20 * time.Millisecond)
	f := newFixture(t, Options{Gate: gate}, testRules)
	code := func() int {
		w := httptest.NewRecorder()
		f.ServeJSON(w, post())
		return w.Code
	}
	if code := code(); code != http.StatusOK {
		t.Errorf("a quiet node: %d", code)
	}
	for own := range 60 { // of which some are answered, 50 us one after the other
		gate.Arrive(f.now, own, time.Second)
	}
	for left := range 40 {
		f.now = f.now.Add(50 * time.Microsecond)
		gate.Leave(f.now, 59-left, 1)
	}
	for range 2000 { // each of a connection of its own
		gate.Arrive(f.now, 0, time.Second)
	}
	if code := code(); code != http.StatusServiceUnavailable {
		t.Errorf("while 2,000 calls wait: %d", code)
	}
}
