package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// kept keeps overrides in a map, as a store would.
type kept struct {
	mu   sync.Mutex
	of   map[string]ratelimit.Override
	last ratelimit.LedgerTime
	down error
	// SetOverride says that it has begun, and waits for hold; nil: neither.
	began, hold chan struct{}
}

func (k *kept) Override(_ context.Context, _ ratelimit.Instant, a *ratelimit.Ask) (ratelimit.Override, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	o, ok := k.of[leasing.KeyName(a.Key)]
	return o, ok, k.down
}

func (k *kept) SetOverride(_ context.Context, _ ratelimit.Instant, a *ratelimit.Ask, o *ratelimit.Override,
	match ratelimit.Match,
) (ratelimit.Override, error) {
	if k.hold != nil {
		k.began <- struct{}{}
		<-k.hold
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	name := leasing.KeyName(a.Key)
	was := k.of[name]
	switch {
	case k.down != nil:
		return was, k.down
	case !match.Any && match.Set != was.Set:
		return was, ratelimit.ErrOverrideChanged
	case o == nil:
		delete(k.of, name)
		return ratelimit.Override{}, nil
	}
	k.last += 1_000_000
	is := *o
	is.Set = k.last
	k.of[name] = is
	return is, nil
}

func (k *kept) Overrides(
	_ context.Context, _ ratelimit.Instant, prefix, after string, n int,
) (all []ratelimit.NamedOverride, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for name := range k.of {
		if strings.HasPrefix(name, prefix) && name > after {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names[:min(n, len(names))] {
		all = append(all, ratelimit.NamedOverride{Key: name, Override: k.of[name]})
	}
	return all, k.down
}

const overrideRules = `domain: edge
descriptors:
- {key: api_key, max_override: 5000, rate_limit: {unit: minute, requests_per_unit: 100}}
- key: api_key
  value: "free-*"
  share_threshold: true
  rate_limit: {unit: hour, requests_per_unit: 7}
- key: tier
  descriptors:
  - {key: limit, rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 10}}
- {key: bucket, algorithm: token_bucket, burst: 20, rate_limit: {unit: second, requests_per_unit: 10}}
- {key: shut, max_override: 0, rate_limit: {unit: minute, requests_per_unit: 100}}
- {key: free, rate_limit: {unlimited: true}}
`

// overridable is a node's console with the rules above.
type overridable struct {
	*testing.T
	*kept
	http.Handler
	console *console
	changes *metrics.OverrideChanges
	log     bytes.Buffer
}

func newOverridable(t *testing.T) *overridable {
	files := config.Static{{Name: "rules.yaml", Data: []byte(overrideRules)}}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	store := config.NewStore(files, config.Options{Coordination: ratelimit.DefaultCoordination()}, log)
	if err := store.Load(); err != nil {
		t.Fatal(err)
	}
	n := &overridable{
		T: t, kept: &kept{of: map[string]ratelimit.Override{}, last: 1_800_000_000_000_000},
		changes: new(metrics.OverrideChanges),
	}
	mux := http.NewServeMux()
	n.console = newConsole(Source{
		Inspector: leasing.NewLocal(100, 1, time.Unix(1_800_000_000, 0)),
		Metrics:   metrics.Collector{Source: metrics.Source{Store: store, Overrides: n.changes}},
		Clock:     func() ratelimit.Instant { return 1 }, Token: "hunter2", Overrides: n.kept, KeyName: leasing.KeyName,
		Log: slog.New(slog.NewTextHandler(&n.log, nil)),
	})
	n.console.register(mux)
	n.Handler = mux
	return n
}

// do asks with the token. Headers are "Name: value".
func (n *overridable) do(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	n.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer hunter2")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	n.ServeHTTP(w, r)
	return w
}

// must sends a request, and requires a status and a part of the answer.
func (n *overridable) must(code int, part, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	n.Helper()
	w := n.do(method, path, body, headers...)
	if w.Code != code || !strings.Contains(w.Body.String(), part) {
		n.Errorf("%s %s %s %v is answered %d %s, must be %d with %q", method, path, body, headers, w.Code, w.Body,
			code, part)
	}
	return w
}

const alice = "/v1/overrides/edge?api_key=alice"

// An override is set, read, changed under a condition, and removed; and the log says who did it and why.
func TestOverrideIsAResource(t *testing.T) {
	n := newOverridable(t)
	n.must(404, "the limit of the file is in force, 100 per minute", "GET", alice, "")
	n.must(412, "changed", "PUT", alice, `{"limit": 1, "reason": ""}`, "If-Match: *")
	w := n.must(200, `"limit":1000`, "PUT", alice, `{"limit": 1000, "unit": "Minute", "reason": "bought more"}`,
		"From: ops@example.com", "If-None-Match: *")
	first := w.Header().Get("ETag")
	n.must(412, "changed", "PUT", alice, `{"limit": 1, "reason": ""}`, "If-None-Match: *")
	w = n.must(200, `"in_force":"1000 per minute"`, "GET", alice, "")
	var o Overridden
	if err := json.Unmarshal(w.Body.Bytes(), &o); err != nil || o.By != "ops@example.com" ||
		o.Reason != "bought more" ||
		o.Rule != "api_key" || o.Descriptor != "api_key=alice" || strconv.Quote(o.Version) != first ||
		o.Set.Year() != 2027 {
		t.Errorf("it is read as %+v (%v), its tag was %s", o, err, first)
	}
	w = n.must(200, `"limit":"unlimited"`, "PUT", alice, `{"limit": "unlimited", "reason": ""}`, "If-Match: "+first)
	if !strings.Contains(w.Body.String(), `"in_force":"5000 per minute"`) || w.Header().Get("ETag") == first {
		t.Errorf("unlimited is answered %s, with the tag %s", w.Body, w.Header().Get("ETag"))
	}
	n.must(412, "changed", "DELETE", alice, "", "If-Match: "+first)
	n.must(200, `"limit":0`, "PUT", alice, `{"limit": 0, "reason": "abuse", "expires": "24h"}`, "If-Match: *")
	n.must(200, "100 per minute", "DELETE", alice, "")
	n.must(200, "100 per minute", "DELETE", alice, "")
	n.must(404, "", "GET", alice, "")
	n.must(200, `"in_force":"1 per second, bucket of 2"`, "PUT", "/v1/overrides/edge?bucket=x",
		`{"limit":1,"reason":""}`)
	n.must(200, `"in_force":"4 per 5 minutes"`, "PUT", "/v1/overrides/edge?tier=a%26b&entry=limit=c",
		`{"limit":4,"reason":""}`)
	if _, ok := n.of["minute*5|edge|tier=a&b|limit=c"]; !ok {
		t.Errorf("the keys are %v", n.of)
	}
	for _, part := range []string{
		`msg="an override was set" by=ops@example.com from=192.0.2.1:1234 rule=edge.api_key ` +
			`descriptor="api_key=alice" limit=1000 expires=0001-01-01T00:00:00.000Z reason="bought more"`,
		`msg="an override was removed" by="ADMIN_TOKEN at 192.0.2.1"`, `msg="an override did not change"`,
	} {
		if !strings.Contains(n.log.String(), part) {
			t.Errorf("no %s in the log:\n%s", part, n.log.String())
		}
	}
	n.down = errors.New("no route to Redis")
	n.must(503, "no route to Redis", "PUT", alice, `{"limit":1,"reason":""}`)
	n.must(503, "cannot be read or set now", "GET", alice, "")
	n.must(503, "cannot be read or set now", "GET", "/v1/overrides", "")
}

// An explanation has the limit in force and its origin, and neither who set it nor why: it needs no token.
func TestExplanationOfAnOverride(t *testing.T) {
	n := newOverridable(t)
	explained := func() (e Explanation, text string) {
		w := n.must(200, "", "GET", "/explain?domain=edge&entry=api_key=alice", "", "Authorization: ")
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		return e, w.Body.String()
	}
	if e, _ := explained(); e.Limit != "100 per minute" || e.LimitFrom != "rule" || e.RuleLimit != "" {
		t.Errorf("without an override: %+v", e)
	}
	n.must(200, "", "PUT", alice, `{"limit": 70, "reason": "s3cret", "expires": "1h"}`, "From: ops")
	e, text := explained()
	if e.Limit != "70 per minute" || e.LimitFrom != "override" || e.RuleLimit != "100 per minute" ||
		e.OverrideSet.IsZero() ||
		e.OverrideExpires.IsZero() || strings.Contains(text, "s3cret") || strings.Contains(text, "ops") {
		t.Errorf("with one: %s", text)
	}
	n.must(200, "", "PUT", alice, `{"limit": 0, "reason": ""}`)
	if e, _ := explained(); e.Next != "OVER_LIMIT: the limit of this key is 0" {
		t.Errorf("of a banned key: %+v", e)
	}
	n.down = errors.New("no route to Redis")
	if e, _ := explained(); e.Limit != "100 per minute" || e.OverrideError != "no route to Redis" {
		t.Errorf("without a store: %+v", e)
	}
}

// What cannot be meant is refused, by name and on one line, and changes nothing.
func TestOverridesThatAreWrong(t *testing.T) {
	n := newOverridable(t)
	put := func(code int, part, path, body string, headers ...string) {
		t.Helper()
		w := n.must(code, part, "PUT", path, body, headers...)
		if w.Body.Len() > 400 || strings.Count(w.Body.String(), "\n") != 1 {
			t.Errorf("%.60s is answered at length: %.600s", body, w.Body)
		}
	}
	long := strings.Repeat("x", 300)
	for body, want := range map[string]string{
		"": "the body is not", "[]": "the body is not", `{"limit":1,"reason":""}{}`: "more than one value",
		`{"limit":1,"reson":"typo"}`: "is no field", `{"reason":"none"}`: "limit is missing",
		`{"limit":-1}`: "must be a whole number from 0", `{"limit":1.5}`: "must be a whole number from 0",
		`{"limit":"many"}`: "must be a whole number from 0", `{"limit":1e3}`: "must be a whole number from 0",
		`{"limit":1000000000001}`:                                    "must be a whole number from 0",
		`{"limit":5001}`:                                             "must be at most the rule's max_override 5000",
		`{"limit":1,"unit":"hour"}`:                                  "the rule's limit is 100 per minute",
		`{"limit":1,"unit":"fortnight"}`:                             "the rule's limit is 100 per minute",
		`{"limit":1,"expires":"soon"}`:                               "must be a time like",
		`{"limit":1,"expires":"2020-01-01T00:00:00Z"}`:               "must be later than now",
		`{"limit":1,"expires":"-1h"}`:                                "must be later than now",
		`{"limit":1,"expires":"9999-01-01T00:00:00Z"}`:               "within 100 years",
		`{"limit":1,"reason":"` + long + `"}`:                        "reason has 300 bytes, must be at most 256",
		`{"limit":1,"reason":"a\nb"}`:                                "not one line",
		`{"limit":1,"reason":"` + "\xff" + `"}`:                      "not one line",
		`{"limit":1,"reason":"` + strings.Repeat("x", 5000) + `"}`:   "at most 4096 bytes",
		`{"limit":` + strings.Repeat("[", 4000):                      "the body is not",
		`{"limit":1,"expires":"` + strings.Repeat("9", 3000) + `h"}`: "must be a time like",
	} {
		code := 422
		if strings.Contains(want, "body") || strings.Contains(want, "value") || strings.Contains(want, "field") ||
			strings.Contains(want, "4096") || strings.Contains(want, "whole number") {
			code = 400
		}
		put(code, want, alice, body)
	}
	const good = `{"limit":1,"reason":""}`
	for path, want := range map[string]string{
		"/v1/overrides/edge?shut=x":                       "422 the rule has max_override: 0",
		"/v1/overrides/edge?free=x":                       "422 the rule is unlimited",
		"/v1/overrides/edge?nothing=x":                    "404 no rule matches",
		"/v1/overrides/edge?tier=x":                       "404 no rule matches",
		"/v1/overrides/edg?api_key=x":                     "404 did you mean 'edge'?",
		"/v1/overrides/edge?api_key":                      "400 is not an entry",
		"/v1/overrides/edge?=x":                           "400 is not an entry",
		"/v1/overrides/edge?api_key=%zz":                  "400 is not an entry",
		"/v1/overrides/edge?api_key=a&limit=":             "400 are of lists",
		"/v1/overrides/edge":                              "400 the query has no entries",
		"/v1/overrides/edge?tier=x&limit=c":               "400 write entry=KEY=VALUE",
		"/v1/overrides/edge?api_key=" + long + "&" + long: "400 is not an entry",
	} {
		code, part, _ := strings.Cut(want, " ")
		n, _ := strconv.Atoi(code)
		put(n, part, path, good)
	}
	for _, headers := range [][]string{
		{"If-Match: 5"},
		{`If-Match: W/"5"`},
		{`If-Match: "5", "6"`},
		{`If-Match: "0"`},
		{`If-Match: "-1"`},
		{`If-Match: "x"`},
		{`If-None-Match: "5"`},
		{`If-Match: "5"`, "If-None-Match: *"},
	} {
		put(400, "give one of If-Match", alice, good, headers...)
	}
	put(422, "the header From", alice, good, "From: "+long)
	n.must(405, "", "PATCH", alice, good)
	n.must(405, "", "PUT", "/v1/overrides", good)
	n.must(404, "", "PUT", "/v1/overrides/edge/more?api_key=x", good)
	if len(n.of) != 0 {
		t.Errorf("%d overrides are kept", len(n.of))
	}
}

// Nothing is answered without the token, and guesses of it are throttled, on every path.
func TestOverridesNeedTheToken(t *testing.T) {
	n := newOverridable(t)
	n.must(200, "", "PUT", alice, `{"limit": 1000, "reason": "s3cret"}`)
	for _, at := range []string{
		"GET /v1/overrides", "GET /v1/overrides/edge", "GET " + alice, "PUT " + alice, "DELETE " + alice,
		"HEAD " + alice,
	} {
		method, path, _ := strings.Cut(at, " ")
		for _, token := range []string{"", "Bearer wrong", "Basic hunter2", "Bearer"} {
			fresh := newOverridable(t)
			fresh.of = n.of
			w := fresh.do(method, path, `{"limit":1,"reason":""}`, "Authorization: "+token)
			if w.Code != 403 || strings.Contains(w.Body.String(), "s3cret") || w.Header().Get("ETag") != "" {
				t.Errorf("%s with %q is answered %d %s", at, token, w.Code, w.Body)
			}
		}
	}
	for range 20 {
		n.do("GET", alice, "", "Authorization: Bearer guess")
	}
	n.must(429, "too many wrong tokens", "GET", alice, "")
	tokenless := newOverridable(t)
	tokenless.console.Token = ""
	tokenless.must(403, "one is set: false", "GET", alice, "", "Authorization: Bearer ")
}

// A list has the overrides of a domain, or of all, a page at a time, also those whose rule is gone.
func TestOverridesAreListed(t *testing.T) {
	n := newOverridable(t)
	for i := range 5 {
		n.must(200, "", "PUT", fmt.Sprint(alice, i), `{"limit": 1000, "reason": ""}`)
	}
	for _, path := range []string{"api_key=free-1", "tier=gold&entry=limit=ann", "bucket=b%7C%25+=~", "api_key=bob"} {
		n.must(200, "", "PUT", "/v1/overrides/edge?"+path, `{"limit": 9, "reason": ""}`)
	}
	n.must(200, "", "PUT", "/v1/overrides/edge?api_key="+strings.Repeat("x", 500), `{"limit": 9, "reason": ""}`)
	n.of["day|edge|api_key=old"] = ratelimit.Override{Requests: 3, Set: 7}
	n.of["day|gone|k=v"] = ratelimit.Override{Requests: 3, Set: 7}
	list := func(path string) (all []string) {
		t.Helper()
		for after := ""; ; {
			w := n.must(200, "", "GET", path+"&after="+after, "")
			var page Page
			if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
				t.Fatal(err)
			}
			for _, o := range page.Overrides {
				all = append(all, o.Descriptor)
			}
			if after = strings.NewReplacer("%", "%25", "&", "%26", "+", "%2B", "#",
				"%23").Replace(page.Next); after == "" {
				return all
			}
		}
	}
	for path, want := range map[string]string{
		"/v1/overrides/edge?limit=3": "api_key=free-%2A tier=gold&entry=limit%3Dann api_key=alice0 api_key=alice1 " +
			"api_key=alice2 api_key=alice3 api_key=alice4 api_key=bob bucket=b%7C%25%20%3D~",
		"/v1/overrides/edge?prefix=api_key%3Dal": "api_key=alice0 api_key=alice1 api_key=alice2 api_key=alice3 " +
			"api_key=alice4",
		"/v1/overrides/edge?limit=1&prefix=buc":                 "bucket=b%7C%25%20%3D~",
		"/v1/overrides/edge?prefix=tier%3Dgold%26limit%3Da":     "tier=gold&entry=limit%3Dann",
		"/v1/overrides/edge?prefix=tier%3Dgold%26entry%3Dlim":   "",
		"/v1/overrides/edge?prefix=tier%3Dgold%26":              "tier=gold&entry=limit%3Dann",
		"/v1/overrides/edge?prefix=bucket%3Db%257C":             "bucket=b%7C%25%20%3D~",
		"/v1/overrides/edge?prefix=api_key%3Dalice0":            "api_key=alice0",
		"/v1/overrides/none?limit=3":                            "",
		"/v1/overrides/edge?limit=1000&prefix=api_key%3Dnobody": "",
	} {
		if got := strings.Join(list(path), " "); got != want {
			t.Errorf("%s lists\n%s, must be\n%s", path, got, want)
		}
	}
	if all := list("/v1/overrides?limit=2"); len(all) != 12 || !slices.Contains(all, "k=v") ||
		!slices.Contains(all, "api_key=old") || !strings.HasPrefix(all[0], "#") {
		t.Errorf("of all domains: %q", all)
	}
	for _, path := range []string{"edge?limit=0", "edge?limit=1001", "edge?limit=x", "edge?prefix=%25zz%3D"} {
		n.must(400, "", "GET", "/v1/overrides/"+path, "")
	}
	n.must(400, "are of a domain", "GET", "/v1/overrides?k=v", "")
	n.must(400, "are of a domain", "GET", "/v1/overrides?prefix=k", "")
}

// So many questions run at once, and more are refused for a moment.
func TestFloodsOfOverridesAreBounded(t *testing.T) {
	n := newOverridable(t)
	n.began, n.hold = make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	for range overridesAtOnce {
		wg.Go(func() { n.must(200, "", "PUT", alice, `{"limit":1,"reason":""}`) })
	}
	for range overridesAtOnce {
		<-n.began
	}
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		if got := n.must(429, "at once", method, alice, ""); got.Header().Get("Retry-After") == "" {
			t.Error("it does not say when to ask again")
		}
	}
	close(n.hold)
	wg.Wait()
}

// In a file + is no space, and blanks around a key or a value are a mistake.
func TestDescriptorsOfFiles(t *testing.T) {
	entries, err := ParseDescriptor("api_key=ann+test@example.com&entry=limit=a%20b")
	want := []config.Entry{{Key: "api_key", Value: "ann+test@example.com"}, {Key: "limit", Value: "a b"}}
	if err != nil || !slices.Equal(entries, want) {
		t.Errorf("%v, %v", entries, err)
	}
	for _, text := range []string{"", "api_key=alice ", " api_key=alice", "#ff00", "limit=3", "a"} {
		if entries, err := ParseDescriptor(text); err == nil {
			t.Errorf("%q is read as %v", text, entries)
		}
	}
}

// Descriptors survive their text, and names that are no keys stay different.
func FuzzOverrideDescriptors(f *testing.F) {
	f.Add("api_key=alice&entry=limit=c", "minute|edge|a=b|c~d*")
	f.Add("a=%26%3D&=", "#ff00")
	f.Fuzz(func(t *testing.T, query, name string) {
		if entries, _, err := entriesOf(query); err == nil {
			again, page, err := entriesOf(DescriptorText(entries))
			if err != nil || len(page) > 0 || !slices.Equal(again, entries) {
				t.Errorf("%q is %q, and its text %q is %q (%v)", query, entries, DescriptorText(entries), again, err)
			}
		}
		if domain, entries, ok := entriesOfName(name); ok && (len(entries) == 0 || strings.Count(name, "|") < 2) {
			t.Errorf("%q is of %q with %q", name, domain, entries)
		}
	})
}

// An empty condition is a mistake, and not none.
func TestEmptyIfMatch(t *testing.T) {
	n := newOverridable(t)
	n.must(200, "", "PUT", alice, `{"limit": 0, "reason": "abuse"}`)
	if w := n.do("PUT", alice, `{"limit": 4000, "reason": ""}`, "If-Match: "); w.Code == 200 {
		t.Errorf("a change with an empty If-Match is made: %s", w.Body)
	}
}

// What may be read in two ways changes nothing.
func TestAmbiguousChangesAreRefused(t *testing.T) {
	n := newOverridable(t)
	n.must(200, "", "PUT", alice, `{"limit": 0, "reason": "abuse"}`)
	for what, r := range map[string][]string{
		"a field twice":          {"PUT", alice, `{"limit": 5, "limit": 4000, "reason": ""}`},
		"a field in other cases": {"PUT", alice, `{"limit": 5, "LIMIT": 4000, "reason": ""}`},
		"no object":              {"PUT", alice, `null`},
	} {
		if w := n.do(r[0], r[1], r[2], r[3:]...); w.Code == 200 {
			t.Errorf("%s is answered %s", what, w.Body)
		}
	}
	if o := n.of["minute|edge|api_key=alice"]; len(n.of) != 1 || o.Requests != 0 {
		t.Errorf("set is %v", n.of)
	}
}
