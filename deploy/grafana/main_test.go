package main

import (
	"os"
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

// joined are metrics that others, which are of the namespace, are divided by.
var joined = map[string]bool{"sluice_drift_share_tokens": true}
