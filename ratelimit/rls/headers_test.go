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
`

func headersOf(a *rlsv3.RateLimitResponse) string {
	var all []string
	for _, h := range a.ResponseHeadersToAdd {
		all = append(all, h.Key+": "+h.Value)
	}
	return strings.Join(all, " | ")
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
