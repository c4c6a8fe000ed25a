package main

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

const peopleRules = `domain: d
descriptors:
  - {key: five, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: bucket, algorithm: token_bucket, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: tier, value: "g*", descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 50}}]}
  - {key: tier, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 10}}]}
  - {key: drift, coordination: {mode: approx, drift_budget: 10%}, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: ban, rate_limit: {unit: day, requests_per_unit: 0}}
`

// explained asks with the command.
func (s *sluice) explained(args ...string) string {
	s.Helper()
	code, out, errs := runLine(append([]string{"explain", "--debug", s.debug}, args...)...)
	if code != 0 {
		s.Fatalf("explain %v: %d %s", args, code, errs)
	}
	return out
}

// The explanation says what matched and what the next request gets, which it then gets.
func TestExplain(t *testing.T) {
	t.Parallel()
	for _, store := range []storeServer{nil, aRedis(t)} {
		f := newFleet(t, 2, setup{rules: peopleRules, store: store})
		s := f.nodes[0]
		for args, want := range map[string]string{
			"d tier=gold user=ann":   "tier_g*: the first pattern that matches",
			"d tier=none user=ann":   "tier: the default of this key",
			"d tier=gold nobody=x":   "nobody=x by nothing: no rule has this key at this level",
			"d tier=gold":            "it has no rate_limit",
			"d free=x":               "OK: the rule is unlimited",
			"d ban=x":                "OVER_LIMIT: requests_per_unit is 0",
			"d drift=x":              "at most 100 tokens beyond the limit, for each key and window",
			"d five=never-asked-for": "no account: the key is unused",
		} {
			if got := s.explained(strings.Fields(args)...); !strings.Contains(got, want) {
				t.Errorf("%s: no %q in\n%s", args, want, got)
			}
		}
		for _, key := range []string{"five", "bucket", "sliding"} {
			for i := range 7 {
				said := s.explained("d", key+"=x")
				got := s.post(key, "x")
				if ok := strings.Contains(said, "next request    OK"); ok != (got == 200) {
					t.Fatalf("%s, request %d was answered %d, and explained as\n%s", key, i, got, said)
				}
			}
			if got := s.explained("d", key+"=x"); !strings.Contains(got, "0 of 5 left") || key != "bucket" && !strings.Contains(got, "(this node)") || strings.Contains(got, "expires in 0s") {
				t.Errorf("%s, when all is spent:\n%s", key, got)
			}
		}
		if got := s.explained("d", "five=x"); !strings.Contains(got, "x is over 5 per ") || !strings.Contains(got, ": 5 admitted, ") || !strings.Contains(got, "retries do not extend this.") {
			t.Errorf("a customer hears\n%s", got)
		}
		_, port, _ := strings.Cut(s.debug, ":")
		s.eventually("another node names the holder", func() bool {
			return store == nil || strings.Contains(f.nodes[1].explained("d", "five=x"), ":"+port+", fence")
		})
	}
	// In a pod the node's own DEBUG_PORT is asked.
	alone := newFleet(t, 1, setup{rules: peopleRules}).nodes[0]
	_, port, _ := strings.Cut(alone.debug, ":")
	if out, err := command([]string{"DEBUG_PORT=" + port}, "explain", "d", "free=x").CombinedOutput(); err != nil || !strings.Contains(string(out), "unlimited") {
		t.Errorf("%v: %s", err, out)
	}
	for want, args := range map[string][]string{
		"does not answer":                        {"--debug=127.0.0.1:1", "d", "a=b"},
		"its requests are OK; did you mean 'd'?": {"--debug=" + alone.debug, "d_", "a=b"},
		`the domain "nowhere" has no rules`:      {"--debug=" + alone.debug, "nowhere", "a=b"},
	} {
		if code, _, errs := runLine(append([]string{"explain"}, args...)...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%v: %d %s", args, code, errs)
		}
	}
}

// A reset key may be spent once more, by all nodes together; only who has the token may reset, and it is logged.
func TestAdmin(t *testing.T) {
	for name, f := range map[string]*fleet{
		"fleet": newFleet(t, 2, setup{rules: patient(peopleRules), store: aRedis(t), env: []string{"COORDINATION_ON_STORE_FAILURE=closed", "LOG_LEVEL=info"}}),
		"alone": newFleet(t, 2, setup{rules: peopleRules, env: []string{"LOG_LEVEL=info"}}),
	} {
		nodes, all := f.nodes, map[string]int{"fleet": 5, "alone": 10}[name]
		t.Run(name, func(t *testing.T) {
			addresses := nodes[0].debug + "," + nodes[1].debug
			for _, key := range []string{"five", "bucket", "sliding"} {
				drain := func() (admitted int) {
					for i := range 40 {
						if nodes[i%len(nodes)].post(key, "x") == 200 {
							admitted++
						}
					}
					return admitted
				}
				if n := drain(); n != all {
					t.Fatalf("%s: %d of %d were admitted", key, n, all)
				}
				if code, _, errs := runLine("admin", "reset", "--debug", addresses, "--token=wrong", "d", key+"=x"); code != 1 || !strings.Contains(errs, "ADMIN_TOKEN") || strings.Contains(errs, "hunter2") {
					t.Errorf("with a wrong token: %d %s", code, errs)
				}
				if n := drain(); n != 0 {
					t.Errorf("%s: %d more were admitted before the reset", key, n)
				}
				if code, out, errs := runLine("admin", "reset", "--debug", addresses, "--token=hunter2\n", "d", key+"=x"); code != 0 {
					t.Fatalf("reset: %d %s %s", code, out, errs)
				}
				got := 0
				nodes[0].eventually("the limit once more", func() bool { got += drain(); return got >= all })
				if got += drain(); got != all {
					t.Errorf("%s: after the reset %d of %d were admitted", key, got, all)
				}
			}
			corrected := regexp.MustCompile(`a correction by an operator.*from=127\.0\.0\.1:\d+`)
			if log := nodes[0].log(); len(corrected.FindAllString(log, -1)) != 6 || strings.Count(log, "a correction was refused") != 3 || strings.Contains(log, "hunter2") {
				t.Errorf("the log:\n%s", log)
			}
			if code, out, errs := runLine("admin", "drop", "--debug", addresses, "--token=hunter2", "d", "five=x"); code != 0 || strings.Contains(out, "goes back") != (f.store != nil) {
				t.Errorf("drop: %d %s %s", code, out, errs)
			}
		})
	}
}

// hostileValues are values that would be markup, script or worse if anything took them for it.
var hostileValues = []string{
	`<script>document.title='owned'</script>`, `"><img src=x onerror="document.title='owned'">`, `';document.title='owned';//`,
	`</td></table><svg onload=document.title='owned'>`, "{{constructor.constructor('x')()}}", "\u202e\x00evil",
}

// Nothing that a request brings along is markup on any page, nothing on the
// debug port changes anything without the token, and none shows a secret.
func TestDebugPortIsSafe(t *testing.T) {
	redis := redistest.Start(t)
	redis.Do("ACL", "SETUSER", "default", "on", "resetpass", ">hunter9")
	rules := rulesFile(t, peopleRules+"  - {key: v, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 5}}\n  - {key: '<b>k', value: '\"<i>*', rate_limit: {unit: year, requests_per_unit: 5}}\n")
	s := serve(t, []string{"REDIS_URL=redis://:hunter9@" + redis.Addr, "ADMIN_TOKEN=hunter2", "PEER_SECRET=hunter3"}, "--config", rules)
	client := s.overGRPC()
	for _, v := range hostileValues {
		q := asking(descriptor(1, "v", v), descriptor(1, "five", v), descriptor(1, v, v))
		q.Descriptors[2].Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_DAY}
		client(q)
		q.Domain = v
		client(q)
	}
	pages := []string{"/", "/console", "/console/console.js", "/console/page.js", "/console/charts.js", "/console/console.css", "/console/state", "/console/history", "/rlconfig", "/stats", "/ring", "/metrics", "/debug/pprof/cmdline"}
	for _, v := range hostileValues {
		pages = append(pages, "/explain?domain=d&entry="+url.QueryEscape("five="+v), "/explain?domain="+url.QueryEscape(v)+"&entry="+url.QueryEscape(v))
	}
	for _, page := range pages {
		r, body := s.do(http.MethodGet, s.debug+page, "")
		kind := r.Header.Get("Content-Type")
		if strings.HasPrefix(kind, "text/html") && page != "/console" {
			t.Errorf("%s is HTML: %s", page, kind)
		}
		if page != "/metrics" && page != "/debug/pprof/cmdline" && r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s may be taken for another type than %s", page, kind)
		}
		if strings.HasPrefix(kind, "application/json") && strings.ContainsAny(body, "<>") {
			t.Errorf("%s has markup in it", page)
		}
		if strings.Contains(body, "hunter") {
			t.Errorf("%s shows a secret", page)
		}
	}
	if _, body := s.get(s.debug + "/console"); strings.Contains(body, "owned") || strings.Contains(body, "http://") || strings.Contains(body, "https://") {
		t.Error("the page is not only its own")
	}
	for _, path := range []string{"/admin/reset", "/admin/drop", "/v1/overrides/d"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			answer, _ := s.do(method, s.debug+path+"?domain=d&entry=five=x", "")
			if answer.StatusCode != http.StatusForbidden && answer.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s without the token: %d", method, path, answer.StatusCode)
			}
		}
	}
}

// The page, as a browser shows it: rules, keys, an explanation, and hostile values as the text that they are.
func TestConsoleInABrowser(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	s := newFleet(t, 1, setup{rules: peopleRules, store: aRedis(t)}).nodes[0]
	for _, v := range hostileValues {
		for range 3 {
			s.post("five", v)
		}
	}
	for range 50 {
		s.post("drift", "busy")
	}
	b.window(390, 844, false)
	b.open("http://" + s.debug + "/console?domain=d&entry=" + url.QueryEscape("five="+hostileValues[0]))
	dom := ""
	s.eventually("the page shows what the node does", func() bool {
		s.post("drift", "busy") // a key that is idle is not shown for long
		dom = b.eval("document.documentElement.outerHTML")
		// A chart's line needs two looks; by then the page may tell of the values that are no text, as of errors.
		return strings.Contains(dom, "d.five") && strings.Contains(dom, "drift=busy") && strings.Contains(dom, "<polyline")
	})
	for _, want := range []string{
		`id="problems"`, "d.drift", "5 per year", "drift=busy", "<polyline", "answers", "Next request: OK", "(this node)",
		"&lt;script&gt;document.title='owned'&lt;/script&gt;", // as text
	} {
		if !strings.Contains(dom, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, bad := range []string{"<title>owned", "onerror=\"document", "<svg onload", "<script>document.title"} {
		if strings.Contains(dom, bad) {
			t.Errorf("the page has %q as markup", bad)
		}
	}
	if t.Failed() {
		t.Logf("%.6000s", dom)
	}
}
