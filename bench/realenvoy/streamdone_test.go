package realenvoy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/bench/envoy"
)

// tap lies between Envoy and a node: it passes each call on, and notes what was asked and answered. The value of a
// call's entry id may have it do more, see ShouldRateLimit.
type tap struct {
	rls.UnimplementedRateLimitServiceServer
	address string
	node    rls.RateLimitServiceClient
	mu      sync.Mutex
	calls   []*call // guarded by mu, in the order in which they came
}

type call struct {
	id, text, nonce string
	wait            time.Duration // that the caller has said it waits; 0: it has not
}

// tapped runs a node, and an Envoy that calls it through a tap.
func (w *world) tapped() *tap {
	w.Helper()
	w.start(1)
	p := &tap{node: rls.NewRateLimitServiceClient(w.fleet.Pool.Next())}
	p.address = serve(w.T, func(s *grpc.Server) { rls.RegisterRateLimitServiceServer(s, p) })
	w.config.Clusters["sluice"] = []string{p.address}
	w.open(1)
	return p
}

// ShouldRateLimit passes a call on. One whose id begins with hold is not answered, one with fail is answered with
// UNAVAILABLE, and one with unknown with UNKNOWN. Each answer has a nonce of its own in its dynamic metadata.
func (p *tap) ShouldRateLimit(ctx context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	c := &call{}
	if end, ok := ctx.Deadline(); ok {
		c.wait = time.Until(end)
	}
	c.describe(r)
	p.mu.Lock()
	c.nonce = fmt.Sprintf("n%d", len(p.calls))
	p.calls = append(p.calls, c)
	p.mu.Unlock()
	switch {
	case strings.HasPrefix(c.id, "hold"):
		<-ctx.Done()
	case strings.HasPrefix(c.id, "fail"):
		return nil, status.Error(codes.Unavailable, "as the test wants it")
	case strings.HasPrefix(c.id, "unknown"):
		return nil, status.Error(codes.Unknown, "as the test wants it")
	}
	a, err := p.node.ShouldRateLimit(ctx, r)
	if err != nil {
		return nil, err
	}
	if a.DynamicMetadata == nil {
		a.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
	}
	a.DynamicMetadata.Fields["nonce"] = structpb.NewStringValue(c.nonce)
	a.DynamicMetadata.Fields["number"] = structpb.NewNumberValue(7)
	return a, nil
}

// describe has the descriptors in the form of the tables: their entries except the id, and their hits.
func (c *call) describe(r *rls.RateLimitRequest) {
	var texts []string
	for _, d := range r.Descriptors {
		var parts []string
		for _, e := range d.Entries {
			switch e.Key {
			case "id":
				c.id = e.Value
			case "at":
				parts = append(parts, e.Value)
			default:
				parts = append(parts, e.Key+"="+e.Value)
			}
		}
		if d.HitsAddend != nil {
			sign := map[bool]string{true: "-"}[d.IsNegativeHits]
			parts = append(parts, fmt.Sprintf("hits %s%d", sign, d.HitsAddend.Value))
		}
		texts = append(texts, strings.Join(parts, " "))
	}
	c.text = strings.Join(texts, " and ")
}

// of are the calls with an id, or all.
func (p *tap) of(id string) (all []*call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if id == "" || c.id == id {
			all = append(all, c)
		}
	}
	return all
}

// until waits for so many calls with an id.
func (p *tap) until(id string, n int) error {
	return Until(fmt.Sprintf("%d calls of %q have come", n, id), func() bool { return len(p.of(id)) >= n })
}

// sequence is what came with an id, in this order. Nonces have the name of the call whose answer had them.
func (p *tap) sequence(id string) string {
	all := p.of(id)
	nonce := regexp.MustCompile(`nonce=(\S+)`)
	texts := []string{}
	for _, c := range all {
		texts = append(texts, nonce.ReplaceAllStringFunc(c.text, func(found string) string {
			n := slices.IndexFunc(all, func(c *call) bool { return "nonce="+c.nonce == found })
			if n < 0 {
				return "nonce of another request's answer"
			}
			return fmt.Sprintf("nonce of call %d's answer", n+1)
		}))
	}
	if len(texts) == 0 {
		return "none"
	}
	return strings.Join(texts, "; ")
}

// doneRow is a row of testdata/stream-done.md.
type doneRow struct {
	id, limits, with, want string
	answer                 int // the client's; 0: none
}

// doneRows reads the table of the page. In its limits the page's words for actions are replaced.
func doneRows(t *testing.T) (rows []doneRow) {
	t.Helper()
	page, err := os.ReadFile("testdata/stream-done.md")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, m := range regexp.MustCompile(`(?m)^([A-Z]+): +(\{.*)$`).FindAllStringSubmatch(string(page), -1) {
		words = append(words, m[1:]...)
	}
	actions := strings.NewReplacer(words...)
	_, table, _ := strings.Cut(string(page), "|---|\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 6 {
			t.Fatalf("a row has %d cells: %s", len(cells), line)
		}
		answer, err := strconv.Atoi(cells[5])
		if err != nil {
			t.Fatal(err)
		}
		limits := actions.Replace(actions.Replace(strings.Trim(cells[2], "`"))) // entries, then their actions
		rows = append(rows, doneRow{cells[0], limits, strings.TrimSpace(cells[3]), cells[4], answer})
	}
	if len(rows) < 20 {
		t.Fatalf("the page has %d rows", len(rows))
	}
	return rows
}

// doneWorld has a route for each row, and one more.
func doneWorld(t *testing.T) *world {
	t.Helper()
	// One request of each id is admitted, and whatever comes when a stream is done.
	w := newWorld(t, "envoy/envoy.yaml", `domain: edge
descriptors:
  - key: at
    value: request
    descriptors: [{key: id, metadata: {hold: from-the-rule}, rate_limit: {unit: year, requests_per_unit: 1}}]
  - key: at
    value: done
    descriptors: [{key: id, rate_limit: {unit: year, requests_per_unit: 1000}}]
`)
	rows := doneRows(t)
	for _, r := range append(rows, doneRow{id: "marker", limits: rows[0].limits}) {
		action, limits := "", r.limits
		if r.with == "in the route" {
			action, limits = fmt.Sprintf("route: {cluster: service, rate_limits: %s}", limits), "[]"
		}
		w.route("/"+r.id, limits, action)
	}
	w.change("timeout: 0.02s", "timeout: 1s")
	w.flags = []string{"--response-dynamic-metadata"}
	w.handler = func(a http.ResponseWriter, r *http.Request) {
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
	return w
}

// All rows are played, and many requests at once.
func TestStreamDone(t *testing.T) {
	open, deny := doneWorld(t), doneWorld(t).change("failure_mode_deny: false", "failure_mode_deny: true")
	taps := map[*world]*tap{open: open.tapped(), deny: deny.tapped()}
	for _, r := range doneRows(t) {
		t.Run(r.id, func(t *testing.T) {
			w := open
			if r.with == "failure_mode_deny: true" {
				w = deny
			}
			p := taps[w]
			headers := []string{"x-test-id", r.id}
			if cost, ok := strings.CutPrefix(r.with, "x-cost: "); ok {
				headers = append(headers, "x-cost", cost)
			}
			if r.with == "it is sent twice" {
				w.get("/"+r.id, headers...)
				w.need(p.until(r.id, 2))
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			before := w.backend.Passed.Load()
			switch r.with {
			case "the client goes away during the call":
				go func() {
					_ = p.until(r.id, 1)
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
			a, err := w.client.Get(ctx, "/"+r.id, headers...)
			if (err != nil) != (r.answer == 0) || a.Status != r.answer {
				t.Errorf("the answer is %d (%v), not %d", a.Status, err, r.answer)
			}
			// What is not to come has not when the call of a later request has: both go the same way.
			w.need(w.envoy.UntilStat("http.ingress.downstream_rq_active", 0))
			w.get("/marker", "x-test-id", "after-"+r.id)
			w.need(p.until("after-"+r.id, 2))
			if got := p.sequence(r.id); got != r.want {
				t.Errorf("%s\ncalls: %s\nwanted: %s", r.limits, got, r.want)
			}
		})
	}
	p := taps[open]
	for _, c := range p.of("own") {
		if c.wait <= 0 || c.wait > time.Second {
			t.Errorf("%s: the call says that Envoy waits %v, its timeout is 1s", c.text, c.wait)
		}
	}
	t.Run("concurrent", func(t *testing.T) {
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				id := fmt.Sprint("many-", i)
				if _, err := open.client.Get(t.Context(), "/own", "x-test-id", id); err != nil {
					t.Error(err)
				}
				if err := p.until(id, 2); err != nil {
					t.Error(err)
				}
				if got := p.sequence(id); got != "request; done nonce of call 1's answer" {
					t.Errorf("%s: %s", id, got)
				}
			})
		}
		all.Wait()
	})
}

// What stands in for an Envoy with llm.yaml makes the same calls, of requests that pass and of one that is refused.
func TestLLMIsEnvoy(t *testing.T) {
	script, err := txtar.ParseFile("testdata/tokens.txtar")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, "envoy/llm.yaml", string(script.Files[0].Data)).change("timeout: 0.2s", "timeout: 1s")
	w.handler = model(1 << 16)
	p := w.tapped()
	conn, err := grpc.NewClient("passthrough:///"+p.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.need(err)
	t.Cleanup(func() { conn.Close() })
	l := envoy.LLM{
		Domain: "llm", Timeout: time.Second,
		Service: func() rls.RateLimitServiceClient { return rls.NewRateLimitServiceClient(conn) },
	}
	seen := 0
	calls := func(n int) (text string) {
		w.need(p.until("", seen+n))
		for _, c := range p.of("")[seen:] {
			text += regexp.MustCompile(`sluice_hold=\S+`).ReplaceAllString(c.text, "sluice_hold=...") + "\n"
			seen++
		}
		return strings.ReplaceAll(text, "team=real", "team=model")
	}
	for i, tokens := range []string{"7", "", "50", "60", "1"} { // 7, none, 50 and 60 of 100: the fifth is refused
		status := w.get("/", "x-team", "real", "x-tokens", tokens).Status
		n := 2
		if status == http.StatusTooManyRequests {
			n = 1
		}
		actual := calls(n)
		r := &envoy.Request{Team: "model"}
		err := l.Begin(t.Context(), r)
		var cost *wrapperspb.UInt64Value
		if used, unknown := strconv.ParseUint(tokens, 10, 64); unknown == nil && err == nil {
			cost = wrapperspb.UInt64(used)
		}
		w.need(l.End(r, cost))
		if played := calls(n); actual != played || (status == http.StatusOK) != (err == nil) {
			t.Errorf("request %d: Envoy answers %d, and calls\n%sand its stand-in (%v)\n%s", i, status, actual, err, played)
		}
	}
	if seen != 18 {
		t.Errorf("%d calls, where 4 of 5 requests pass", seen)
	}
}
