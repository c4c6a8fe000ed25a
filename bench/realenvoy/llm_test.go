package realenvoy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/bench/envoy"
)

const llmRules = `domain: llm
coordination: {on_store_failure: closed, store_deadline: 1s}
descriptors:
  - key: team
    hold: {amount: 30, on_unknown: release}
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: team
    value: strict
    hold: {amount: 30}
    rate_limit: {unit: year, requests_per_unit: 100}
`

// model answers as a language model does: how much was used is what the request's x-tokens says, and nothing without it.
// For clients that accept it, as Go's do, it might compress, which Envoy does not read. Its JSON has a size.
func model(size int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			w.WriteHeader(http.StatusNotAcceptable)
		}
		if r.URL.Path == "/fails" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		usage := ""
		if n := r.Header.Get("x-tokens"); n != "" {
			usage = fmt.Sprintf(`, "usage": {"total_tokens": %s}`, n)
		}
		if r.URL.Path == "/events" {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			fmt.Fprintf(w, "data: {\"choices\": []}\n\ndata: {\"choices\": [%q", strings.Repeat("x", 1<<16))
			w.(http.Flusher).Flush()
			time.Sleep(20 * time.Millisecond)
			fmt.Fprintf(w, "]%s}\n\ndata: [DONE]\n\n", usage)
			return
		}
		time.Sleep(20 * time.Millisecond)
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		fmt.Fprintf(w, `{"choices": [%q]%s}`, strings.Repeat("x", size), usage)
	}
}

// A request holds 30 of a team's 100, and is charged what its answer says that it has used, be that JSON or events.
func TestTokensThroughEnvoy(t *testing.T) {
	needsEnvoy(t)
	w := (&world{
		T: t, rules: llmRules, config: Config{Text: change(t, shipped(t, "envoy/llm.yaml"), "timeout: 0.2s", "timeout: 1s")},
		handler: model(2 << 20),
	}).run()
	settled := func(result string) (n float64) {
		for _, node := range w.fleet.Nodes {
			for _, rule := range []string{"team", "team_strict"} {
				n += metric(t, node, fmt.Sprintf(`sluice_holds_settled_total{domain="llm",rule=%q,mode="leasing",result=%q}`, rule, result))
			}
		}
		return n
	}
	// uses sends one request, and waits until it is settled.
	ended := 0.0
	uses := func(path, team, tokens string) int {
		t.Helper()
		headers := []string{"x-team", team}
		if tokens != "" {
			headers = append(headers, "x-tokens", tokens)
		}
		r := w.get(path, headers...)
		if r.Status != http.StatusTooManyRequests {
			ended++
			w.need(Until("the request is settled", func() bool {
				return settled("settled")+settled("unknown")+settled("failed") == ended
			}))
		}
		return r.Status
	}
	for i, c := range []struct {
		path, team, tokens string
		left               int // so much is left then
	}{
		{"/", "a", "7", 93},
		{"/events", "a", "5", 88},
		{"/", "a", "", 88},           // not known, and released
		{"/events", "a", "", 88},     // the same
		{"/", "a", "50", 38},         // more than it held
		{"/", "strict", "", 70},      // not known, and charged
		{"/", "strict", "0", 70},     // known to be nothing
		{"/fails", "strict", "", 70}, // an error costs nothing
	} {
		want := http.StatusOK
		if c.path == "/fails" {
			want = http.StatusServiceUnavailable
		}
		if status := uses(c.path, c.team, c.tokens); status != want {
			t.Fatalf("request %d: %d", i, status)
		}
		if free := w.free(c.team); free != c.left {
			t.Errorf("request %d: %d are left, must be %d", i, free, c.left)
		}
	}
	if uses("/", "a", "1") != http.StatusOK || uses("/", "a", "40") != http.StatusOK {
		t.Error("38 are left, of which 30 are held")
	}
	// 38 - 1 - 40: debt.
	if status := uses("/", "a", "1"); status != http.StatusTooManyRequests {
		t.Errorf("nothing is left: %d", status)
	}
}

// What stands in for an Envoy with llm.yaml makes the same calls, of requests that pass and of one that is refused.
func TestLLMIsEnvoy(t *testing.T) {
	w := &world{
		T: t, rules: llmRules, config: Config{Text: change(t, shipped(t, "envoy/llm.yaml"), "timeout: 0.2s", "timeout: 1s")},
		handler: model(1 << 16),
	}
	w.prepare()
	p := newTap(t, w.fleet)
	w.config.Clusters["sluice"] = []string{p.address}
	w.start()
	conn, err := grpc.NewClient("passthrough:///"+p.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.need(err)
	t.Cleanup(func() { conn.Close() })
	l := envoy.LLM{
		Domain: "llm", Timeout: time.Second,
		Service: func() rls.RateLimitServiceClient { return rls.NewRateLimitServiceClient(conn) },
	}
	seen := 0
	calls := func(n int) (text string) {
		w.need(Until("the request is done", func() bool { return len(p.of("")) >= seen+n }))
		for _, c := range p.of("")[seen:] {
			text += regexp.MustCompile(`sluice_hold=\S+`).ReplaceAllString(c.text, "sluice_hold=...") + "\n"
			seen++
		}
		return strings.ReplaceAll(text, "team=real", "team=model")
	}
	for i, tokens := range []string{"7", "", "50", "60", "1"} { // 7, none, 50 and 60 of 100: the fifth is refused
		n := 2
		status := w.get("/", "x-team", "real", "x-tokens", tokens).Status
		if status == http.StatusTooManyRequests {
			n = 1
		}
		actual := calls(n)
		var cost *wrapperspb.UInt64Value
		if used, err := strconv.ParseUint(tokens, 10, 64); err == nil {
			cost = wrapperspb.UInt64(used)
		}
		r := &envoy.Request{Team: "model"}
		err := l.Begin(t.Context(), r)
		if err != nil {
			cost = nil
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

// free is how much of a team's tokens is left, at a node alone.
func (w *world) free(team string) int {
	w.Helper()
	text, err := w.fleet.Nodes[0].Ask("/explain?domain=llm&entry=team=" + team)
	w.need(err)
	var e struct{ Ledger struct{ Free int } }
	w.need(json.Unmarshal([]byte(text), &e))
	return e.Ledger.Free
}

// Gateways that carry no hold, with their configurations and rules as they push them, and the additions that are
// shipped: a request holds what its answer costs, 40 of 100. Two are admitted, where a peek, or one hit, lets three
// pass and uses 120.
func TestGatewaysHoldWithoutAnID(t *testing.T) {
	needsEnvoy(t)
	for _, c := range []struct {
		file, cluster, domain, additions string
		descriptor                       *rlsconf.RateLimitDescriptor
	}{
		{
			"envoy-gateway.yaml", "ratelimit_cluster", "default/eg/http",
			below[string](t, "envoy-gateway/tokens.yaml", 1, "data", "additions.yaml"),
			under(hourly("rule-0-match-0", 100), llmRoute, llmRoute),
		},
		{
			"agent-router.yaml", "ai_gateway_ratelimit_cluster", "ai-gateway-quota",
			below[string](t, "agent-router/values.yaml", 0, "rules", "additions.yaml"),
			quota(100),
		},
	} {
		m := newManager(t)
		m.additions(c.additions, "{amount: 40, on: [0, 1]}")
		m.push(c.domain, c.descriptor)
		w := gateway(t, c.file, c.cluster, m)
		w.answers(200, 200, 429, 429) // 40, 80, and 40 more are too many
	}
}

// Holds with an id through gateways' own files: a request holds 40 of 100 and costs 10, so that seven are admitted.
// Were the call at the end taken for a request, two would be.
func TestGatewaysHoldWithAnID(t *testing.T) {
	needsEnvoy(t)
	seven := []int{200, 200, 200, 200, 200, 200, 200, 429, 429, 429}
	t.Run("Envoy Gateway", func(t *testing.T) {
		m := newManager(t)
		m.additions(below[string](t, "envoy-gateway/tokens.yaml", 1, "data", "additions.yaml"), "{learned: 0.9, max: 40}")
		m.push("default/eg/http", under(hourly("rule-0-match-0", 100), llmRoute, llmRoute))
		text, err := os.ReadFile("testdata/envoy-gateway.yaml")
		if err != nil {
			t.Fatal(err)
		}
		(&world{
			T: t, flags: m.flags(), cluster: "ratelimit_cluster", config: Config{Text: patched(t, string(text))},
			handler: model(1 << 16),
		}).run().answers(seven...)
	})
	t.Run("Istio", func(t *testing.T) {
		rules := "domain: llm\ndescriptors:\n- key: team\n  hold: {learned: 0.9, max: 40}\n" +
			"  rate_limit: {unit: year, requests_per_unit: 100}\n"
		w := (&world{T: t, rules: rules, config: Config{Text: istio(t, "llm.yaml")}, handler: model(1 << 16)}).run()
		w.answers(seven...)
		w.quiet()
	})
}
