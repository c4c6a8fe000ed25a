package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The files are what the code writes.
func TestDashboardsAreWritten(t *testing.T) {
	fresh := t.TempDir()
	if err := write(fresh); err != nil {
		t.Fatal(err)
	}
	for _, d := range dashboards {
		want, err := os.ReadFile(filepath.Join(fresh, d.uid+".json"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("dashboards", d.uid+".json"))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s is not what make dashboards writes (%v)", d.uid, err)
		}
	}
}

// Each query reads the namespaces that were chosen, and no others. Rings are counted in each fleet, and keys with and
// without a store.
func TestQueriesAreOfTheNamespace(t *testing.T) {
	metric := regexp.MustCompile(`\b(sluice|ratelimit|process|up)[a-z0-9_]*\{[^}]*\}|\b(sluice|ratelimit|process)_[a-z0-9_]+`)
	for _, d := range dashboards {
		for _, p := range d.panels {
			for _, q := range p.queries {
				for _, m := range metric.FindAllString(q.expr, -1) {
					if !strings.Contains(m, `namespace=~"$namespace"`) && !joined[m] {
						t.Errorf("%s, %s: %s is of all namespaces", d.title, p.title, m)
					}
					if strings.Contains(m, `kind="leases"`) || strings.Contains(q.expr, "count_values(") || strings.Contains(m, "overflow") && len(p.queries) == 1 {
						t.Errorf("%s, %s: %s leaves out nodes without a store, or is of all fleets together", d.title, p.title, q.expr)
					}
				}
			}
		}
	}
}

// A window with an outage is compared with the number of an outage, also when the store is back. Rules with open have
// none.
func TestOutagesBreakNoPromise(t *testing.T) {
	const form = `tests:
- interval: 1m
  input_series:
%s  promql_expr_test:
  - {eval_time: 1m, expr: %q, exp_samples: [{labels: '{domain="d",rule="local"}', value: 75}, {labels: '{domain="d",rule="calm"}', value: 80}]}
`
	series := ""
	for rule, values := range map[string][]string{ // the limit, over-admission, in an outage, usage, and by policy
		"local": {"100", "0", "200", "100", "50"}, "calm": {"100", "0", "200", "80", "0"}, "open": {"100", "0", "", "100", "900"},
	} {
		for i, name := range []string{"limit", "declared_over_admission", "declared_outage", "window_used", "worst_key_by_policy"} {
			if values[i] != "" {
				series += fmt.Sprintf("  - {series: 'sluice_%s_tokens{domain=\"d\",rule=%q,namespace=\"n\",job=\"j\"}', values: %q}\n", name, rule, values[i]+"x9")
			}
		}
	}
	query := strings.NewReplacer("$namespace", ".*", "$domain", ".*", "$rule", ".*").Replace(highest(declaredNow))
	file := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, form, series, query), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool, which make deps installs: %v\n%s", err, out)
	}
}

// joined are metrics that others, which are of the namespace, are divided by.
var joined = map[string]bool{"sluice_drift_share_tokens": true}
