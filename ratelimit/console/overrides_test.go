package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// Overrides are set, shown, listed and removed as testdata/overrides.txt has it.
func TestOverridesAreAnsweredInFull(t *testing.T) {
	texts := regexp.MustCompile(`X(\d+)`)
	header := regexp.MustCompile(` (From|If-Match|If-None-Match): ?`)
	times := regexp.MustCompile(`,"expires":"[^"]*"|time=\S+ | expires=\S+`)
	datadriven.RunTest(t, "testdata/overrides.txt", func(t *testing.T, in *datadriven.TestData) string {
		n := newOverridable(t)
		// listed is all pages of a list.
		listed := func(path string) string {
			all := []string{}
			for after := ""; ; {
				var page Page
				answer := n.do("GET", path+"&after="+url.QueryEscape(after), "").Body.Bytes()
				if err := json.Unmarshal(answer, &page); err != nil {
					n.Fatal(err)
				}
				for _, o := range page.Overrides {
					all = append(all, o.Descriptor)
				}
				if after = page.Next; after == "" {
					return fmt.Sprintf("%q", all)
				}
			}
		}
		// play does what a line says: without one of the words below, it is a request.
		var play func(line string) string
		play = func(line string) string {
			cmd, rest, _ := strings.Cut(line, " ")
			switch cmd {
			case "keys":
				names := []string{}
				for o := range n.book.All("") {
					names = append(names, o.Key)
				}
				return fmt.Sprintf("%q", names)
			case "log":
				return n.log.String()
			case "down":
				n.down = errors.New("no route to Redis")
				return ""
			case "gone": // the rules of some overrides
				other := strings.NewReplacer("unit: day", "unit: minute", "domain: gone", "domain: other")
				for i, f := range n.files {
					n.files[i].Data = []byte(other.Replace(string(f.Data)))
				}
				if err := n.console.Metrics.Store.Load(); err != nil {
					n.Fatal(err)
				}
				return ""
			case "explain":
				var e Explanation
				text := n.do("GET", "/explain?domain=edge&entry=api_key=alice", "", "Authorization: ").Body.Bytes()
				if err := json.Unmarshal(text, &e); err != nil {
					n.Fatal(err)
				}
				return fmt.Sprintf("%s of %s, %q in the file: %s; set %t, expires %t, says why %t", e.Limit,
					e.LimitFrom, e.RuleLimit, e.Next, !e.OverrideSet.IsZero(), !e.OverrideExpires.IsZero(),
					bytes.Contains(text, []byte("s3cret")) || bytes.Contains(text, []byte("ops")))
			case "quiet":
				return play(rest)[:0]
			case "list":
				return listed(rest)
			}
			var headers []string
			if at := header.FindAllStringIndex(rest, -1); at != nil {
				for i := range at {
					end := append(at, []int{len(rest)})[i+1][0]
					headers = append(headers, rest[at[i][0]+1:end])
				}
				rest = rest[:at[0][0]]
			}
			path, body, _ := strings.Cut(rest, " ")
			w := n.do(cmd, path, body, headers...)
			if w.Code >= 400 && w.Body.Len() > 400 || strings.Count(w.Body.String(), "\n") > 1 {
				n.Errorf("%.60s is answered at length: %.600s", line, w.Body)
			}
			return fmt.Sprintf("%d %s %s", w.Code, w.Header().Get("ETag"), w.Body)
		}
		var out strings.Builder
		for line := range strings.SplitSeq(in.Input, "\n") {
			line = texts.ReplaceAllStringFunc(line, func(x string) string {
				n, _ := strconv.Atoi(x[1:])
				return strings.Repeat("x", n)
			})
			if said := times.ReplaceAllString(play(line), ""); said != "" {
				fmt.Fprintln(&out, strings.TrimSpace(said))
			}
		}
		return out.String()
	})
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

// Explanations are so many a second, and few at once; each slot is used again.
func TestQuestionsAreThrottled(t *testing.T) {
	th := newThrottle(func() time.Time { return time.Unix(1000, 0) })
	var open []func()
	for range 10 {
		if done, ok := th.question(); ok {
			open = append(open, done)
		}
	}
	if len(open) != questionsAtOnce {
		t.Errorf("%d are under way, want %d", len(open), questionsAtOnce)
	}
	open[0]()
	if _, ok := th.question(); !ok {
		t.Error("a slot that is free again is not used")
	}
	n, answered, refused := newOverridable(t), 0, 0
	for range 100 {
		switch w := n.do("GET", "/explain?domain=edge&entry=api_key=alice", ""); {
		case w.Code == http.StatusOK:
			answered++
		case w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != "":
			refused++
		}
	}
	if answered < questionRate || refused == 0 || answered+refused != 100 {
		t.Errorf("of 100 questions at once %d are answered, and %d refused for a moment", answered, refused)
	}
}

// Wrong tokens are compared five times at once and once a second, by address. The right one is
// never delayed, and attackers lock no others out.
func TestGuessesAreThrottled(t *testing.T) {
	now := time.Unix(1000, 0)
	th := newThrottle(func() time.Time { return now })
	wrong, right := func() bool { return false }, func() bool { return true }
	looks := func(from string, n int) (looked int) {
		for range n {
			if l, ok := th.guess(from, wrong); ok {
				t.Fatal("a wrong token was right")
			} else if l {
				looked++
			}
		}
		return looked
	}
	for range 100 {
		if l, ok := th.guess("10.0.0.1:1", right); !l || !ok {
			t.Fatal("the right token was refused")
		}
	}
	if n := looks("10.0.0.1:1", 100); n != guessBurst {
		t.Errorf("%d were looked at, want %d", n, guessBurst)
	}
	if l, ok := th.guess("10.0.0.1:2", right); l || ok {
		t.Error("after those, the token was looked at, from another port of the address")
	}
	if l, _ := th.guess("10.0.0.2:1", right); !l {
		t.Error("another address was held to it")
	}
	if n := looks("[2001:db8::1]:1", 3) + looks("[2001:db8::2]:1", 7); n != guessBurst {
		t.Errorf("of one network %d were looked at", n)
	}
	now = now.Add(2 * time.Second)
	if n := looks("10.0.0.1:3", 10); n != 2 {
		t.Errorf("two seconds later %d were looked at", n)
	}
	// However many guess, hardly an address that does not has both of its places taken.
	for i := range 1024 {
		looks(fmt.Sprintf("10.1.%d.%d:1", i/250, i%250), 2*guessBurst)
	}
	locked := 0
	for i := range 1000 {
		if l, ok := th.guess(fmt.Sprintf("10.2.%d.%d:1", i/250, i%250), right); !l || !ok {
			locked++
		}
	}
	if locked > 60 { // 14 are to be expected
		t.Errorf("1024 addresses that guess lock %d of 1000 others out", locked)
	}
	now = now.Add(time.Minute)
	if n := looks("10.1.0.1:1", 10); n != guessBurst {
		t.Errorf("a minute later: %d", n)
	}
}

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

// overridable is a node's console with the rules of testdata/rules.
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
	files, err := (&config.Tree{Path: "testdata/rules"}).Read()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	store := config.NewStore(config.Static(files), config.Options{Coordination: ratelimit.DefaultCoordination()}, log)
	if err := store.Load(); err != nil {
		t.Fatal(err)
	}
	wall := time.Unix(1_700_000_000, 0)
	at := func(ratelimit.Instant) ratelimit.LedgerTime { return ratelimit.LedgerTime(wall.UnixMicro()) }
	records := overrides.NewTable()
	n := &overridable{
		T: t, overriding: &overriding{Alone: &table.Alone{
			Table: records, Wall: func() time.Time { return wall }, Clock: ratelimit.MonotonicClock(),
		}},
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

func noFleet() Fleet { return Fleet{} }
