package metrics

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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

// Rules beyond MaxRules share the names of (other).
func TestMappedSeriesAreBounded(t *testing.T) {
	c := collector(t, manyRules(MaxRules+2))
	mapped(t, &c)
	for _, r := range c.Store.Rules().All() {
		r.Counters.TotalHits.Add(1)
	}
	text := scrape(t, c)
	const name = "\nratelimit_service_rate_limit_total_hits{"
	if n := strings.Count(text, name); n != MaxRules+1 {
		t.Errorf("%d series", n)
	}
	if want := name + `domain="(other)",key1="(other)"} 2` + "\n"; !strings.Contains(text, want) {
		t.Errorf("no %s", want)
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
