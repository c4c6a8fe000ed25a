package console

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// overriding keeps overrides where the store may be away, or slow.
type overriding struct {
	*table.Alone
	down error
	// Set says that it has begun, and waits for hold; nil: neither.
	began, hold chan struct{}
}

func (o *overriding) Set(ctx context.Context, r table.Record, expected table.Expected) (table.Record, error) {
	if o.hold != nil {
		o.began <- struct{}{}
		<-o.hold
	}
	if o.down != nil {
		return table.Record{}, o.down
	}
	return o.Alone.Set(ctx, r, expected)
}

// resetting is a limiter whose store may be away.
type resetting struct {
	*overrides.Limiter
	*overriding
}

func (r resetting) Reset(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	return cmp.Or(r.down, r.Limiter.Reset(ctx, now, a))
}

const goneRules = "domain: gone\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 9}}]\n"

const overrideRules = `domain: edge
descriptors:
- {key: api_key, max_override: 5000, rate_limit: {unit: minute, requests_per_unit: 100}}
- key: api_key
  value: "free-*"
  share_threshold: true
  rate_limit: {unit: hour, requests_per_unit: 7}
- {key: api_key, value: old, rate_limit: {unit: day, requests_per_unit: 100}}
- key: tier
  descriptors:
  - {key: limit, rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 10}}
- {key: bucket, algorithm: token_bucket, burst: 20, rate_limit: {unit: second, requests_per_unit: 10}}
- {key: shut, max_override: 0, rate_limit: {unit: minute, requests_per_unit: 100}}
- {key: free, rate_limit: {unlimited: true}}
- {key: held, hold: {amount: 60, on: [0]}, rate_limit: {unit: minute, requests_per_unit: 100}}
- {key: learned, hold: {learned: 0.9, max: 60}, rate_limit: {unit: minute, requests_per_unit: 100}}
`

// overridable is a node's console with the rules above.
type overridable struct {
	*testing.T
	*overriding
	http.Handler
	book    *overrides.Book
	files   config.Static
	console *console
	changes *metrics.OverrideChanges
	log     bytes.Buffer
}

func newOverridable(t *testing.T) *overridable {
	files := config.Static{
		{Name: "rules.yaml", Data: []byte(overrideRules)},
		{Name: "gone.yaml", Data: []byte(goneRules)},
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	store := config.NewStore(files, config.Options{Coordination: ratelimit.DefaultCoordination()}, log)
	if err := store.Load(); err != nil {
		t.Fatal(err)
	}
	wall := time.Unix(1_700_000_000, 0)
	at := func(ratelimit.Instant) ratelimit.LedgerTime { return ratelimit.LedgerTime(wall.UnixMicro()) }
	records := overrides.NewTable()
	n := &overridable{
		T: t, overriding: &overriding{Alone: &table.Alone{Table: records, Wall: func() time.Time { return wall }}},
		files: files, changes: new(metrics.OverrideChanges),
	}
	n.book = &overrides.Book{Table: records, Keeper: n.overriding, Now: func() ratelimit.LedgerTime { return at(0) }}
	base := overrides.NewLimiter(local.New(100, 1, wall), records, at)
	mux := http.NewServeMux()
	n.console = newConsole(Source{
		Inspector: resetting{base, n.overriding},
		Metrics: metrics.Collector{
			Store: store, Overrides: n.changes, Limiter: func() (s ratelimit.LimiterStats) { return s },
		},
		Clock: func() ratelimit.Instant { return 1 }, Token: "hunter2",
		Quotas: rlqs.NewNode(rlqs.Source{}, rlqs.Options{}), Nodes: func() (f Fleet) { return f },
		Name: func() string { return "" }, History: NewHistory(metrics.Collector{}, nil, noFleet),
		Overrides: n.book, Log: slog.New(slog.NewTextHandler(&n.log, nil)),
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

// An entry without a value corrects nothing: most likely it was left out. An empty one is a value.
func TestCorrectionsNeedAValue(t *testing.T) {
	n := newOverridable(t)
	for _, method := range []string{"GET /explain", "POST /admin/reset", "POST /admin/drop"} {
		method, path, _ := strings.Cut(method, " ")
		n.must(http.StatusBadRequest, `\"api_key\" is not key=value`, method, path+"?domain=edge&entry=api_key", "")
		n.must(http.StatusOK, "", method, path+"?domain=edge&entry=api_key=", "")
	}
}

// Nothing is answered without the token, and guesses of it are throttled, on every path; those are not logged.
func TestChangesNeedTheToken(t *testing.T) {
	n := newOverridable(t)
	n.must(200, "", "PUT", alice, `{"limit": 1000, "reason": "s3cret"}`)
	const correct = "?domain=edge&entry=api_key=alice"
	n.must(200, "", "POST", "/admin/drop"+correct, "")
	for _, at := range []string{
		"GET /v1/overrides", "GET /v1/overrides/edge", "GET " + alice, "PUT " + alice, "DELETE " + alice,
		"HEAD " + alice, "POST /admin/drop" + correct, "POST /admin/reset" + correct,
	} {
		method, path, _ := strings.Cut(at, " ")
		for _, token := range []string{"", "Bearer wrong", "Basic hunter2", "Bearer", "hunter2", "Bearer  hunter2"} {
			fresh := newOverridable(t)
			fresh.Alone, fresh.console.Overrides = n.Alone, n.book
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
	if lines := strings.Count(n.log.String(), "was refused"); lines != guessBurst {
		t.Errorf("%d wrong tokens are logged, want %d", lines, guessBurst)
	}
	tokenless := newOverridable(t)
	tokenless.console.Token = ""
	tokenless.must(403, "one is set: false", "GET", alice, "", "Authorization: Bearer ")
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
	f.Add("api_key=alice&entry=limit=c", "\x04edge\x01a\xff\xff\x02b*")
	f.Add("a=%26%3D&=", "\xff00")
	f.Fuzz(func(t *testing.T, query, name string) {
		if entries, _, err := entriesOf(query); err == nil {
			again, page, err := entriesOf(DescriptorText(entries))
			if err != nil || len(page) > 0 || !slices.Equal(again, entries) {
				t.Errorf("%q is %q, and its text %q is %q (%v)", query, entries, DescriptorText(entries), again, err)
			}
		}
		if domain, entries, ok := descriptorOf([]byte(name)); ok && (len(entries) == 0 || len(domain) >= len(name)) {
			t.Errorf("%q is of %q with %q", name, domain, entries)
		}
	})
}
