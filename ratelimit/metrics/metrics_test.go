package metrics

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/service"
)

func collector(t *testing.T, rules string) Collector {
	t.Helper()
	store := config.NewStore(config.Static{{Name: "test", Data: []byte(rules)}},
		config.Options{Coordination: ratelimit.DefaultCoordination()}, slog.New(slog.DiscardHandler))
	if err := store.Load(); err != nil {
		t.Fatal(err)
	}
	return Collector{Source{
		Store: store, Stats: new(service.Stats), Limiter: func() ratelimit.LimiterStats { return ratelimit.LimiterStats{} },
		Version: "test",
	}}
}

// Deeper levels share key2, rules that come out the same are summed, and no
// scrape fails whatever the values are.
func TestRuleLabels(t *testing.T) {
	c := collector(t, `
domain: d
descriptors:
  - key: a
    descriptors:
      - {key: b.c, rate_limit: {unit: day, requests_per_unit: 1}}
      - key: b
        descriptors: [{key: c, value: '"<x>', rate_limit: {unit: day, requests_per_unit: 1}}, {key: c, rate_limit: {unit: day, requests_per_unit: 1}}]
`)
	for i, r := range c.Store.Rules().All() {
		r.Counters.TotalHits.Add(uint64(1 + i))
	}
	want := `
# HELP ratelimit_service_rate_limit_total_hits Hits asked of a rule.
# TYPE ratelimit_service_rate_limit_total_hits counter
ratelimit_service_rate_limit_total_hits{domain="d",key1="a",key2="b.c"} 4
ratelimit_service_rate_limit_total_hits{domain="d",key1="a",key2="b.c_\"<x>"} 2
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "ratelimit_service_rate_limit_total_hits"); err != nil {
		t.Error(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	if _, err := registry.Gather(); err != nil {
		t.Error(err)
	}
}

func TestSeriesAreBounded(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("domain: d\ndescriptors:\n")
	for i := range MaxRules + 500 {
		fmt.Fprintf(&rules, "- {key: k%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	c := collector(t, rules.String())
	if n := testutil.CollectAndCount(c, "ratelimit_service_rate_limit_total_hits"); n != MaxRules+1 {
		t.Errorf("%d series for %d rules", n, MaxRules+500)
	}
}

func TestText(t *testing.T) {
	c := collector(t, "domain: d:1\ndescriptors: [{key: k, value: 'a|b', rate_limit: {unit: day, requests_per_unit: 3}}]\n")
	var out strings.Builder
	c.WriteStats(&out)
	c.WriteRules(&out)
	for _, want := range []string{"ratelimit.service.rate_limit.d_1.k_a_b.total_hits: 0\n", "d:1.k_a|b: unit=DAY requests_per_unit=3 "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
