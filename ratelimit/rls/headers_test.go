package rls

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const headerRules = `
domain: d
descriptors:
  - {key: hundred, rate_limit: {unit: minute, requests_per_unit: 100, name: per minute}}
  - {key: five, rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 7}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 30000000000}}
  - {key: odd, rate_limit: {unit: hour, requests_per_unit: 3, name: "a \"b\\ é"}}
  - {key: bucket, algorithm: token_bucket, burst: 30, rate_limit: {unit: minute, requests_per_unit: 60}}
  - {key: free, rate_limit: {unlimited: true}}
`

func headersOf(a *rlsv3.RateLimitResponse) string {
	var all []string
	for _, h := range a.ResponseHeadersToAdd {
		all = append(all, h.Key+": "+h.Value)
	}
	return strings.Join(all, " | ")
}

// The fields of draft-ietf-httpapi-ratelimit-headers-11 are about the descriptor that the
// older ones are about, and come with them or alone.
func TestIETFHeaders(t *testing.T) {
	f := newFixture(t, Options{Headers: HeaderNames{IETF: true}}, headerRules)
	for _, c := range []struct {
		request *rlsv3.RateLimitRequest
		want    string
	}{
		{
			rlsRequest(hits(desc("hundred=x"), 85)),
			`RateLimit-Policy: "per minute";q=100;w=60 | RateLimit: "per minute";r=15;t=45`,
		},
		{
			rlsRequest(desc("hundred=y"), desc("five=y")),
			`RateLimit-Policy: "five";q=7;w=300 | RateLimit: "five";r=6;t=285`,
		},
		{
			rlsRequest(desc("month=x")),
			`RateLimit-Policy: "month";q=30000000000;w=2592000 | RateLimit: "month";r=29999999999;t=1439985`,
		},
		{rlsRequest(desc("odd=x")), `RateLimit-Policy: "a \"b\\ __";q=3;w=3600 | RateLimit: "a \"b\\ __";r=2;t=3585`},
		{rlsRequest(desc("bucket=x")), `RateLimit-Policy: "bucket";q=30;w=30 | RateLimit: "bucket";r=29;t=1`},
		{rlsRequest(desc("free=x")), ""},
	} {
		if got := headersOf(f.must(c.request)); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	both := newFixture(t, Options{Headers: HeaderNames{Limit: "L", Remaining: "Rem", Reset: "Res", IETF: true}},
		headerRules)
	if got, want := headersOf(both.must(rlsRequest(desc("five=x")))),
		`L: 7 | Rem: 6 | Res: 285 | RateLimit-Policy: "five";q=7;w=300 | RateLimit: "five";r=6;t=285`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// RLS has 32 bits for a limit and for what is left: answers say the most that these hold,
// what is left below that exactly, and headers everything.
func TestLargeLimitsAreClamped(t *testing.T) {
	f := newFixture(t, Options{Headers: HeaderNames{Limit: "L", Remaining: "Rem", Reset: "Res"}}, headerRules)
	f.expect("OK: OK 4294967295/4294967295 1439985s", rlsRequest(desc("month=x")))
	if got, want := headersOf(f.must(rlsRequest(desc("month=x")))),
		"L: 30000000000 | Rem: 29999999998 | Res: 1439985"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	f.expect("OK: OK 998/4294967295 1439985s", rlsRequest(hits(desc("month=x"), 29_999_999_000)))
	f.expect("OVER_LIMIT: OVER_LIMIT 0/4294967295 1439985s", rlsRequest(hits(desc("month=x"), 999)))
}

// A refusal over /json says when to come back: when the last of the limits that refused
// may admit again.
func TestJSONSaysWhenToComeBack(t *testing.T) {
	f := newFixture(t, Options{}, headerRules)
	post := func(keys ...string) *httptest.ResponseRecorder {
		var all []string
		for _, k := range keys {
			all = append(all, fmt.Sprintf(`{"entries":[{"key":%q,"value":"x"}],"hitsAddend":"1000"}`, k))
		}
		w := httptest.NewRecorder()
		body := `{"domain":"d","descriptors":[` + strings.Join(all, ",") + `]}`
		f.ServeJSON(w, httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(body)))
		return w
	}
	for _, c := range []struct {
		keys []string
		code int
		want string
	}{
		{[]string{"hundred"}, 429, "45"},
		{[]string{"hundred", "five", "month"}, 429, "285"},
		{[]string{"month"}, 200, ""},
	} {
		if w := post(c.keys...); w.Code != c.code || w.Header().Get("Retry-After") != c.want {
			t.Errorf("%v: %d, Retry-After %q, want %d %q", c.keys, w.Code, w.Header().Get("Retry-After"), c.code,
				c.want)
		}
	}
}
