package realenvoy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// doneRules admit one request of each id, and whatever comes when a stream is done.
const doneRules = `domain: edge
descriptors:
  - key: at
    value: request
    descriptors:
      - key: id
        metadata: {hold: from-the-rule}
        rate_limit: {unit: year, requests_per_unit: 1}
  - key: at
    value: done
    descriptors:
      - key: id
        rate_limit: {unit: year, requests_per_unit: 1000}
`

// marker is the row of a request that comes after that of another row.
const marker = "marker"

// donePage has the rows that are run.
const donePage = "testdata/stream-done.md"

// doneRow is a row of it.
type doneRow struct {
	id, config, with, want string
	answer                 int // the client's; 0: none
}

// doneRows reads the table of the page. In its configurations the page's words for actions are replaced.
func doneRows(t *testing.T) (rows []doneRow) {
	t.Helper()
	text, err := os.ReadFile(donePage)
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, m := range regexp.MustCompile(`(?m)^([A-Z]+): +(\{.*)$`).FindAllStringSubmatch(string(text), -1) {
		words = append(words, m[1:]...)
	}
	actions := strings.NewReplacer(words...)
	_, table, _ := strings.Cut(string(text), "|---|\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 6 {
			t.Fatalf("a row of %s has %d cells: %s", donePage, len(cells), line)
		}
		answer, err := strconv.Atoi(cells[5])
		if err != nil {
			t.Fatal(err)
		}
		config := actions.Replace(actions.Replace(strings.Trim(cells[2], "`"))) // entries, then their actions
		rows = append(rows, doneRow{cells[0], config, strings.TrimSpace(cells[3]), cells[4], answer})
	}
	if len(rows) < 20 {
		t.Fatalf("%s has %d rows", donePage, len(rows))
	}
	return append(rows, doneRow{id: marker, config: rows[0].config})
}

// All rows are played, and many requests at once.
func TestStreamDone(t *testing.T) {
	w, p := doneWorld(t, false)
	deny, q := doneWorld(t, true)
	for _, r := range doneRows(t) {
		if r.id == marker {
			continue
		}
		w, p := w, p
		if r.with == "failure_mode_deny: true" {
			w, p = deny, q
		}
		t.Run(r.id, func(t *testing.T) {
			(&world{T: t, envoy: w.envoy, backend: w.backend, client: w.client}).doneRow(p, &r)
		})
	}
	for _, c := range p.of("own") {
		if c.wait <= 0 || c.wait > time.Second {
			t.Errorf("%s: the call says that Envoy waits %v, its timeout is 1s", c.text, c.wait)
		}
	}
	t.Run("concurrent", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				if _, err := w.client.Get(t.Context(), "/own", "x-test-id", fmt.Sprint("many-", i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for i := range 50 {
			id := fmt.Sprint("many-", i)
			if err := Until("the stream is done", func() bool { return len(p.of(id)) == 2 }); err != nil {
				t.Error(err)
			}
			if got := p.sequence(id); got != "request; done nonce of call 1's answer" {
				t.Errorf("%s: %s", id, got)
			}
		}
	})
}

// The calls of a stream come in their order. The last one of a stream may come after the first one of
// the next, although both are on one connection: how often is printed.
func TestStreamDoneOrder(t *testing.T) {
	needsLong(t)
	w, p := doneWorld(t, false)
	const streams = 500
	for i := range streams {
		w.get("/own", "x-test-id", fmt.Sprint("order-", i))
	}
	w.need(Until("all streams are done", func() bool { return len(p.of("")) == 2*streams }))
	late, last := 0, -1
	for _, c := range p.of("") {
		n, err := strconv.Atoi(strings.TrimPrefix(c.id, "order-"))
		w.need(err)
		request := strings.HasPrefix(c.text, "request")
		switch {
		case request && n != last+1:
			t.Errorf("the request's call of stream %d came after that of stream %d", n, last)
		case request:
			last = n
		case n > last:
			t.Errorf("stream %d was done before its request's call came", n)
		case n < last:
			late++
		}
	}
	t.Logf("the last call of %d of %d streams came after the first of the next", late, streams)
}

// perRoute is the type of what a route has of the filter's.
const perRoute = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute"

// doneWorld has a route for each row.
func doneWorld(t *testing.T, deny bool) (*world, *tap) {
	t.Helper()
	const first = "                      routes:\n"
	indent := strings.Repeat(" ", 24)
	var routes strings.Builder
	for _, r := range doneRows(t) {
		if r.with == "in the route" {
			fmt.Fprintf(&routes, "%s- {match: {path: /%s}, route: {cluster: service, rate_limits: %s}}\n",
				indent, r.id, r.config)
			continue
		}
		fmt.Fprintf(&routes, "%s- {match: {path: /%s}, route: {cluster: service}, typed_per_filter_config: {"+
			"envoy.filters.http.ratelimit: {\"@type\": %s, rate_limits: %s}}}\n", indent, r.id, perRoute, r.config)
	}
	text := change(t, shipped(t, "envoy/envoy.yaml"), first, first+routes.String(), "timeout: 0.02s", "timeout: 1s")
	if deny {
		text = change(t, text, "failure_mode_deny: false", "failure_mode_deny: true")
	}
	w := &world{T: t, rules: doneRules, config: Config{Text: text}, handler: serveDone}
	w.flags = []string{"--response-dynamic-metadata"}
	w.prepare()
	p := newTap(t, w.fleet)
	w.config.Clusters["sluice"] = []string{p.address}
	w.start()
	return w, p
}

// serveDone is the service. Paths say how it fails.
func serveDone(a http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/slow-cancel":
		<-r.Context().Done()
	case "/body-cancel":
		_, _ = a.Write([]byte("begun"))
		_ = http.NewResponseController(a).Flush()
		<-r.Context().Done()
	case "/broken":
		panic(http.ErrAbortHandler)
	default:
		a.Header().Set("x-cost", "42")
		_, _ = a.Write([]byte("hello"))
	}
}

// doneRow sends a row's requests, and holds what arrives against what is wanted. What is not to come
// has not when the call of a later request has: both go the same way.
func (w *world) doneRow(p *tap, r *doneRow) {
	w.Helper()
	headers := []string{"x-test-id", r.id}
	if cost, ok := strings.CutPrefix(r.with, "x-cost: "); ok {
		headers = append(headers, "x-cost", cost)
	}
	if r.with == "it is sent twice" {
		w.get("/"+r.id, headers...)
		w.need(Until("the first stream is done", func() bool { return len(p.of(r.id)) == 2 }))
	}
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	before := w.backend.Passed.Load()
	switch r.with {
	case "the client goes away during the call":
		go func() {
			_ = Until("the call has come", func() bool { return len(p.of(r.id)) == 1 })
			cancel()
		}()
	case "the client goes away during the service":
		go func() {
			_ = Until("the service has the request", func() bool { return w.backend.Passed.Load() > before })
			cancel()
		}()
	case "the client goes away during the body":
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: cancel})
	}
	if a, err := w.client.Get(ctx, "/"+r.id, headers...); (err != nil) != (r.answer == 0) || a.Status != r.answer {
		w.Errorf("the answer is %d (%v), not %d", a.Status, err, r.answer)
	}
	w.need(w.envoy.UntilStat("http.ingress.downstream_rq_active", 0))
	after := "after-" + r.id
	w.get("/marker", "x-test-id", after)
	w.need(Until("the next stream is done", func() bool { return len(p.of(after)) == 2 }))
	if got := p.sequence(r.id); got != r.want {
		w.Errorf("%s\ncalls: %s\nwanted: %s", r.config, got, r.want)
	}
}
