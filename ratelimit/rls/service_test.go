package rls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/shed"
)

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

// A bug is one failed request, and counted, wherever a request meets it.
func TestBugsOverJSONAreCounted(t *testing.T) {
	f := newFixture(t, Options{}, testRules)
	sound := f.limiter
	f.limiter = &leaver{sound, func() { panic("a bug") }}
	if _, err := f.call(rlsRequest(desc("five=x"))); !errors.Is(err, errInternal) {
		t.Error(err)
	}
	f.limiter = sound
	f.expect("OK: OK 19/20 45s", rlsRequest(desc("twenty=x")))
	f.clock = func() ratelimit.Instant { panic("a bug") }
	w := httptest.NewRecorder()
	f.ServeJSON(w, post())
	if n := f.Stats.Panics.Load(); n != 2 || w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d bugs of 2 are counted, /json answers %d", n, w.Code)
	}
}

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

// A caller that closes its side before it was answered is not taken for one that may pass.
func TestGoneCallersAreNotOK(t *testing.T) {
	f := newFixture(t, Options{Gate: shed.NewGate(time.Second)}, testRules)
	server := httptest.NewServer(http.HandlerFunc(f.ServeJSON))
	defer server.Close()
	for range 20 {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		body := `{"domain":"d","descriptors":[{"entries":[{"key":"twenty"}]}]}`
		_, _ = fmt.Fprintf(c, "POST /json HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		_ = c.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(c)
		c.Close()
		if err != nil || !strings.Contains(string(answer), "503") && !strings.Contains(string(answer), "overallCode") {
			t.Fatalf("%q, %v", answer, err)
		}
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
