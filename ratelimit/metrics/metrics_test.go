package metrics

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/rls"
	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

func collector(t testing.TB, rules string) Collector {
	t.Helper()
	store := config.NewStore(config.Static{{Name: "test", Data: []byte(rules)}},
		config.Options{Coordination: ratelimit.DefaultCoordination()}, slog.New(slog.DiscardHandler))
	if err := store.Load(); err != nil {
		t.Fatal(err)
	}
	return Collector{
		Store: store, Stats: new(rls.Stats), Limiter: func() ratelimit.LimiterStats { return ratelimit.LimiterStats{} },
		Version: "test", Quotas: &rlqs.Stats{},
		Overrides: new(OverrideChanges),
	}
}

func manyRules(n int) string {
	var rules strings.Builder
	rules.WriteString("domain: d\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&rules, "- {key: k%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	return rules.String()
}

// answered is what a scrape gets.
func answered(t testing.TB, c Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	w := httptest.NewRecorder()
	c.Handler(registry).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatal(w.Code)
	}
	return w.Body.String()
}

// scrape is a page which a parser must be able to read: each metric once, and each series once.
func scrape(t testing.TB, c Collector) string {
	t.Helper()
	text := answered(t, c)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		what := line[:strings.LastIndexByte(line, ' ')] // a series, or a comment
		rest, heads := strings.CutPrefix(line, "# TYPE ")
		if heads {
			what, _, _ = strings.Cut(rest, " ")
			if families[what] == nil && strings.Contains(text, "\n"+what+"{") {
				t.Errorf("%s cannot be read", what)
			}
		} else if line[0] == '#' {
			continue
		}
		if seen[line[:1]+what] {
			t.Errorf("%s comes twice", what)
		}
		seen[line[:1]+what] = true
	}
	return text
}

// shows scrapes, and looks for lines.
func shows(t testing.TB, c Collector, lines ...string) {
	t.Helper()
	text := scrape(t, c)
	for _, want := range lines {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// mapped has a collector use Envoy Gateway's mapping.
func mapped(t testing.TB, c *Collector) {
	t.Helper()
	var err error
	if c.Mapping, err = ReadMapping("testdata/envoy-gateway.yaml"); err != nil {
		t.Fatal(err)
	}
}

// The second level is key2, rules that come out the same are summed, and no scrape fails whatever the values are. A hit
// of a rule counts once, also if another rule has the same name in statistics. No refunds make a count negative.
func TestRuleLabels(t *testing.T) {
	c := collector(t, `
domain: d
descriptors:
  - key: a
    descriptors:
      - {key: b.c, rate_limit: {unit: day, requests_per_unit: 1}}
      - key: b
        value: '10.0.0.1:"<x>'
        descriptors:
          - {key: c, value: '10.0.0.1:"<x>', rate_limit: {unit: day, requests_per_unit: 1}}
          - {key: c, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: k_b, rate_limit: {unit: day, requests_per_unit: 7}}
  - {key: k, value: b, rate_limit: {unit: day, requests_per_unit: 7}}
`)
	for i, r := range c.Store.Rules().All() {
		r.Counters.TotalHits.Add(uint64(1 + i))
		r.Counters.Denied.Add(uint64(1 + i))
		r.Counters.Refunded.Add(1<<63 - 1)
	}
	shows(t, c, `ratelimit_service_rate_limit_total_hits{domain="d",key1="a",key2="b.c"} 1`,
		`ratelimit_service_rate_limit_total_hits{domain="d",key1="a",key2="b_10_0_0_1_\"<x>"} 5`,
		`sluice_limit_tokens{domain="d",rule="a.b_10.0.0.1:\"<x>.c_10.0.0.1:\"<x>",mode="leasing"} 1`,
		`ratelimit_service_rate_limit_total_negative_hits{domain="d",key1="k_b",key2=""} 9223372036854775806`,
		`ratelimit_service_rate_limit_total_hits{domain="d",key1="k_b",key2=""} 9`,
		`sluice_denied_total{domain="d",rule="k_b",mode="leasing"} 9`)
}

// Costs are shown divided by their holds, not in percent.
func TestHoldCostRatio(t *testing.T) {
	c := collector(t, manyRules(1))
	c.Store.Rules().All()[0].Counters.Holds().Settled(100, 125, nil)
	const labels = `{domain="d",rule="k0",mode="leasing"`
	const ratio = "sluice_hold_cost_ratio"
	shows(t, c, ratio+`_bucket`+labels+`,le="1.1"} 0`, ratio+`_bucket`+labels+`,le="1.5"} 1`,
		ratio+`_bucket`+labels+`,le="+Inf"} 1`, ratio+`_sum`+labels+`} 1.25`, ratio+`_count`+labels+`} 1`)
}

// Claims of idle keys lower no counter: Prometheus would take that for a restart, and count all once more.
func TestSavedOperationsOnlyGrow(t *testing.T) {
	c := collector(t, "domain: d")
	c.Stats.Sources[ratelimit.FromLease].Add(90)
	c.Stats.Sources[ratelimit.FromClaim].Add(10)
	for _, claims := range []uint64{10, 30, 200} {
		c.Limiter = func() ratelimit.LimiterStats { return ratelimit.LimiterStats{Claims: claims} }
		shows(t, c, "sluice_store_operations_saved_total 90")
	}
}

// A node that waits for its first rules answers scrapes, and its pages.
func TestScrapedBeforeTheFirstRules(t *testing.T) {
	c := collector(t, "domain: d")
	c.Store = config.NewStore(config.Static{}, config.Options{}, slog.New(slog.DiscardHandler))
	shows(t, c, "sluice_rules 0", "sluice_domains 0", "sluice_config_last_reload_successful 0")
	c.WriteStats(io.Discard)
	c.WriteRules(io.Discard)
}

// A store far away is not slow because of a rule that never needs it.
func TestLeastDeadlineIsOfRulesThatNeedTheStore(t *testing.T) {
	c := collector(t, "domain: d\ndescriptors:\n- {key: ban, rate_limit: {unit: day, requests_per_unit: 0}}\n"+
		"- {key: far, coordination: {store_deadline: 400ms}, rate_limit: {unit: day, requests_per_unit: 9}}\n")
	if text := answered(t, c); !strings.Contains(text, "\nsluice_store_deadline_seconds 0.4\n") {
		t.Errorf("of a ban and a rule with 400ms: %s", text)
	}
}

// Rules beyond MaxRules share the names of (other), with a mapping and without.
func TestSeriesAreBounded(t *testing.T) {
	c := collector(t, manyRules(MaxRules)+"- {key: free, rate_limit: {unlimited: true}}\n"+
		"- {key: last, coordination: {mode: approx}, rate_limit: {unit: day, requests_per_unit: 9000}}\n"+
		"- {key: small, rate_limit: {unit: day, requests_per_unit: 1}}\n")
	c.Store.Rules().All()[MaxRules+1].Counters.BeyondBound.Add(1)
	c.Store.Rules().All()[MaxRules+1].Counters.TotalHits.Add(1)
	text := answered(t, c)
	for _, name := range []string{
		"ratelimit_service_rate_limit_total_hits{", "sluice_limit_tokens{",
		"sluice_decisions_total{",
	} {
		if n := strings.Count(text, "\n"+name); n != MaxRules+1 {
			t.Errorf("%d series of %s for %d rules", n, name, MaxRules+3)
		}
	}
	const others = `{domain="(other)",rule="(other)",mode=""} `
	for _, want := range []string{
		"windows_beyond_bound_total" + others + "1", "drift_budget_tokens" + others + "90",
		"limit_tokens" + others + "9000", "declared_outage_tokens" + others + "18090",
	} {
		if !strings.Contains(text, "\nsluice_"+want+"\n") {
			t.Errorf("of rules without series of their own, there is no %s", want)
		}
	}
	if r := c.State(1).Rules[0]; r.Rule != ratelimit.OtherName || r.Beyond != 1 {
		t.Errorf("for all of them the console shows %s with %d windows", r.Rule, r.Beyond)
	}
	mapped(t, &c)
	text = answered(t, c)
	const name = "\nratelimit_service_rate_limit_total_hits{"
	if n := strings.Count(text, name); n != MaxRules+1 {
		t.Errorf("with a mapping, %d series for %d rules", n, MaxRules+3)
	}
	if want := name + `domain="(other)",key1="(other)"} 1` + "\n"; !strings.Contains(text, want) {
		t.Errorf("with a mapping, no %s", want)
	}
}

// A scrape of a node that has everything shows each metric of the catalogue, and no other: a tag with a slip would have
// a metric without help, or none. Each is in the handbook, with its type or a name that says it.
func TestHandbookNamesEveryMetric(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	handbook := string(text)
	c := collector(t, `
domain: d
descriptors:
  - {key: k, coordination: {mode: approx}, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: h, hold: {amount: 5, on: [0, 1]}, rate_limit: {unit: day, requests_per_unit: 100}}
`)
	c.Seat = func() (int, bool) { return 0, true }
	c.Ring = func() ratelimit.RoutingStats {
		return ratelimit.RoutingStats{RejectedBy: map[string]uint64{"secret": 1}}
	}
	c.Budgets = map[string]*transport.Budget{"grpc": transport.NewBudget(1)}
	c.Safety = func() StoreSafety { return StoreSafety{Known: true} }
	c.Limiter = func() ratelimit.LimiterStats { return ratelimit.LimiterStats{SyncAge: time.Second} }
	c.Stats.NoDescriptors.Named([]byte("d")).Sources[0].Add(1)
	c.Stats.Unlimited.Named([]byte("d" + ratelimit.NameSeparator + "kay")).Sources[0].Add(1)
	c.Store.Rules().All()[0].Counters.Refunded.Add(1)
	c.Gate = shed.NewGate(time.Second)
	c.Gate.Arrive(1, 0, 0)
	c.Gate.Gone()
	shows(t, c, `sluice_shed_total{reason="deadline"} 1`, `sluice_shed_total{reason="overload"} 0`,
		"sluice_calls_given_up_total 1")
	all := map[string]about{}
	heads := regexp.MustCompile(`(?m)^# HELP (\S+) (.*)\n# TYPE \S+ (\S+)$`)
	for _, m := range heads.FindAllStringSubmatch(scrape(t, c), -1) {
		all[m[1]] = about{m[3], m[2]}
	}
	if diff := cmp.Diff(catalogue, all, cmp.AllowUnexported(about{})); diff != "" {
		t.Errorf("-catalogue +shown\n%s", diff)
	}
	for name, is := range all {
		row := "| `" + name + "` | "
		if is.kind == "histogram" {
			row += "Histogram: "
		}
		if (is.kind == "counter") != strings.HasSuffix(name, "_total") || !strings.HasPrefix(name, "sluice_") {
			row = "| `" + name + "` | " + is.kind + " |"
		}
		if !strings.Contains(handbook, row) {
			t.Errorf("docs/reference/metrics.md has no row for %s, a %s", name, is.kind)
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(handbook, -1) {
		if all[m[1]].kind == "" && m[1] != "ratelimit_service_response_time_seconds" { // the server's own
			t.Errorf("docs/reference/metrics.md has %s, which there is not", m[1])
		}
	}
}

func TestText(t *testing.T) {
	c := collector(t, "domain: d:1\ndescriptors: [{key: k, value: 'a|b', rate_limit: {unit: day, requests_per_unit: "+
		"3}}, {key: c, rate_limit: {concurrency: 32}}]\n")
	var out strings.Builder
	c.WriteStats(&out)
	c.WriteRules(&out)
	for _, want := range []string{
		"ratelimit.service.rate_limit.d_1.k_a_b.total_hits: 0\n",
		"d:1.k_a|b: unit=DAY requests_per_unit=3 ", "d:1.c: concurrency=32 hold_ttl=10m0s, mode=leasing",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// Which names have series of their own is the same in each scrape: otherwise counters would fall and rise again.
func TestNamesBeyondMaxRulesStay(t *testing.T) {
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	for i := range 11 {
		fmt.Fprintf(&text, "- {key: k%d, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	c := collector(t, text.String())
	for _, r := range c.Store.Rules().All() {
		for i := range 1000 {
			r.Counters.Named(fmt.Appendf(nil, "v%d", i)).TotalHits.Add(1)
		}
	}
	var pages [2]strings.Builder
	for i := range pages {
		if err := c.WriteRuleMetrics(&pages[i]); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := pages[0].String(), pages[1].String(); a != b {
		t.Errorf("two scrapes of the same counters differ, %d and %d bytes", len(a), len(b))
	}
}

// A server gets each increment once, also those of the time in which it was away.
func TestStatsdMissesNothing(t *testing.T) {
	sums := map[string]int{} // of all that the server was sent
	serve := func(addr string) (net.Listener, func(name string, want int)) {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		var conn net.Conn
		var lines *bufio.Scanner
		t.Cleanup(func() { l.Close() })
		return l, func(name string, want int) {
			t.Helper()
			if conn == nil {
				if conn, err = l.Accept(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
				lines = bufio.NewScanner(conn)
			}
			for sums[name] != want {
				if want < 0 || !lines.Scan() {
					conn.Close()
					return
				}
				of, value, _ := strings.Cut(lines.Text(), ":")
				value, kind, _ := strings.Cut(value, "|")
				n, err := strconv.Atoi(value)
				if kind == "c" && err != nil {
					t.Errorf("line %q", lines.Text())
				}
				sums[of] += n
			}
		}
	}
	l, until := serve("127.0.0.1:0")
	var mu sync.Mutex
	count := map[string]uint64{"a": 3, "b": 0, "always": 0}
	set := func(name string, n uint64) {
		mu.Lock()
		defer mu.Unlock()
		count[name] = n
	}
	failed := make(chan error, 1000)
	s := &Statsd{
		Addr: l.Addr().String(), Interval: 5 * time.Millisecond,
		Tags: map[string]string{"zone": "eu:1.2", "env": "prod"},
		Counters: func(each func(string, uint64)) {
			mu.Lock()
			defer mu.Unlock()
			count["always"]++ // each time there is something to send
			for name, n := range count {
				each(name, n)
			}
		},
		Gauges: func(func(string, uint64)) {}, Latency: NewLatency(time.Second),
		OnError: func(err error) { failed <- err },
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	const tags = ".__env=prod.__zone=eu_1_2"
	expect := func(name string, want int) {
		t.Helper()
		if until(name+tags, want); sums[name+tags] != want {
			t.Errorf("%s is %d, want %d", name, sums[name+tags], want)
		}
	}
	expect("a", 3)
	set("a", 5)
	expect("a", 5)
	l.Close()
	until("", -1)
	// What is under way while the connection breaks may be lost. From the first error on, nothing is.
	if err := <-failed; !strings.Contains(err.Error(), s.Addr) {
		t.Errorf("an error that does not say where: %v", err)
	}
	set("a", 9)
	set("b", 2)
	_, until = serve(s.Addr)
	expect("a", 9)
	expect("b", 2)
	set("b", 7)
	cancel()
	expect("b", 7) // the last is sent at the end
	running.Wait()
}

// BenchmarkScrape is a scrape of 10,000 rules.
func BenchmarkScrape(b *testing.B) {
	c := collector(b, manyRules(MaxRules))
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	h := c.Handler(registry)
	var size int
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		size = w.Body.Len()
	}
	b.ReportMetric(float64(size)/1e6, "MB")
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/scrape")
}

// Envoy Gateway's mapping takes the second level alone as key2, and so do its dashboards, alerts and end-to-end tests.
// The rules are those that it pushes for a Distinct sourceCIDR, and for a header.
func TestMappingOfEnvoyGateway(t *testing.T) {
	c := collector(t, `
domain: default/eg/http
descriptors:
  - key: httproute/default/ip/rule/0/match/0/www_example_com
    value: httproute/default/ip/rule/0/match/0/www_example_com
    descriptors:
      - key: masked_remote_address
        value: 0.0.0.0/0
        descriptors: [{key: remote_address, rate_limit: {unit: hour, requests_per_unit: 3}}]
  - key: httproute/default/header/rule/0/match/0/*
    value: httproute/default/header/rule/0/match/0/*
    descriptors: [{key: rule-0-match-0, value: rule-0-match-0, rate_limit: {unit: hour, requests_per_unit: 3}}]
  - {key: alone, rate_limit: {unit: hour, requests_per_unit: 3}}
`)
	mapped(t, &c)
	for i, r := range c.Store.Rules().All() {
		r.Counters.TotalHits.Add(uint64(10 + i))
		r.Counters.OverLimit.Add(uint64(20 + i))
	}
	c.Stats.Requests.Add(7)
	c.Stats.ServiceErrors.Add(2)
	ip, header := strings.Repeat("_httproute/default/ip/rule/0/match/0/www_example_com", 2)[1:],
		strings.Repeat("_httproute/default/header/rule/0/match/0/*", 2)[1:]
	shows(t, c,
		`ratelimit_service_rate_limit_total_hits{domain="default/eg/http",key1="`+ip+
			`",key2="masked_remote_address_0_0_0_0/0"} 10`,
		`ratelimit_service_rate_limit_over_limit{domain="default/eg/http",key1="`+ip+
			`",key2="masked_remote_address_0_0_0_0/0"} 20`,
		`ratelimit_service_rate_limit_near_limit{domain="default/eg/http",key1="`+ip+
			`",key2="masked_remote_address_0_0_0_0/0"} 0`,
		`ratelimit_service_rate_limit_over_limit{domain="default/eg/http",key1="`+header+
			`",key2="rule-0-match-0_rule-0-match-0"} 21`,
		`ratelimit_service_rate_limit_over_limit{domain="default/eg/http",key1="alone"} 22`,
		`# TYPE ratelimit_service_rate_limit_over_limit counter`,
		`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 7`,
		`ratelimit_service_should_rate_limit_error{err_type="service_error"} 2`,
		`ratelimit_service_config_load_success 1`,
	)
}

// Globs come before regular expressions, an earlier one before a later one. What a file drops is in no metric, and what
// it does not name keeps its name.
func TestMappingFile(t *testing.T) {
	c := collector(t, "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n"+
		"- {key: b, rate_limit: {unit: day, requests_per_unit: 1}}\n"+
		"- {key: c, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}\n")
	file := filepath.Join(t.TempDir(), "mapping.yaml")
	err := os.WriteFile(file, []byte(`
defaults: {match_type: regex}
mappings:
- {match: '^ratelimit\.service\.rate_limit\.(.*)\.([a-z]*)\.total_hits$', name: hits_of_$2, labels: {rule: $1}}
- match: ratelimit.service.rate_limit.*.*.within_limit
  match_type: glob
  name: within
  help: "a\\b\nc"
  labels: {key: $2, domain: $1}
- {match: 'a\.within_limit$', name: nowhere}
- {match: 'near_limit$', name: unwanted, action: drop}
- {match: 'over_limit$', match_metric_type: gauge, name: nowhere}
- {match: 'shadow_mode$', name: kilo_shadow, scale: 0.001}
- {match: 'total_requests$', name: requests_$1, action: map}
- {match: 'config_load_error$', name: unwanted, action: drop}
- {match: 'config_load_success$', name: sluice_rules}
- {match: 'hitCount$', match_type: regex, name: within}
- {match: 'missCount$', name: misses}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if c.Mapping, err = ReadMapping(file); err != nil {
		t.Fatal(err)
	}
	for i, r := range c.Store.Rules().All()[:2] {
		n := uint64(1 + i)
		r.Counters.TotalHits.Add(n)
		r.Counters.WithinLimit.Add(n)
		r.Counters.NearLimit.Add(n)
		r.Counters.ShadowMode.Add(1000 * n)
	}
	c.Store.Rules().All()[0].Counters.OverLimit.Add(9)
	// Requests bring the names of detailed_metric.
	c.Store.Rules().All()[2].Counters.Named([]byte("x\xff\xfe\n\"\\{}")).Refunded.Add(5)
	shows(t, c,
		`hits_of_a{rule="d"} 1`, `hits_of_b{rule="d"} 2`,
		`# HELP within a\\b\nc`, `within{domain="d",key="a"} 1`, `within{domain="d",key="b"} 2`,
		`kilo_shadow 3`, `misses 0`, `# TYPE misses gauge`,
		`ratelimit_service_rate_limit_d_a_over_limit 9`, `requests_ 0`,
		`ratelimit_service_rate_limit_d_x_______total_negative_hits 5`, `sluice_rules 3`)
	text := scrape(t, c)
	for _, not := range []string{
		"unwanted", "nowhere", "near_limit", "ratelimit_service_config_load", "ratelimit_service_total_requests",
		"ratelimit_service_rate_limit_d_b_over_limit", `within 0`,
	} {
		if strings.Contains(text, not) {
			t.Errorf("there is %s in\n%s", not, text)
		}
	}
}

// A bad file is an error with its name and the fault.
func TestBadMappingFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "mapping.yaml")
	for text, want := range map[string]string{
		"":            "no such file",
		"mappings: ":  "",
		"mappings: [": "yaml",
		"mappings: [{match: 'a.*', name: 'a b'}]":                       "metric name 'a b'",
		"mappings: [{match: '(', match_type: regex, name: a}]":          "invalid regex (",
		"mappings: [{match: a, name: a, quantiles: [{quantile: 0.5}]}]": "",
	} {
		if text != "" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := ReadMapping(file)
		if said := fmt.Sprint(err); (err == nil) != (want == "") || !strings.Contains(said, want) ||
			err != nil && !strings.Contains(said, file) {
			t.Errorf("%q: %v", text, err)
		}
		_ = os.Remove(file)
	}
	if _, err := ReadMapping(dir); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory: %v", err)
	}
}

// BenchmarkMappedScrape is a scrape of 10,000 rules by Envoy Gateway's mapping.
func BenchmarkMappedScrape(b *testing.B) {
	c := collector(b, manyRules(MaxRules))
	mapped(b, &c)
	for b.Loop() {
		c.mapped()
	}
}
