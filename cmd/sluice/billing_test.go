package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

const billedRules = `domain: d
descriptors:
  - key: billed
    rate_limit: {unit: month, requests_per_unit: 5, billing: {day: 31, time_zone: America/Havana}}
  - {key: other, rate_limit: {unit: month, requests_per_unit: 5}}
`

// Check says when the next billing months begin, on the clocks of their zones.
func TestCheckSaysWhenMonthsBegin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	writeFile(t, file, billedRules)
	r, err := (&checkCmd{}).checked(file, config.Options{})
	if err != nil || r.problems != nil {
		t.Fatal(err, r.problems)
	}
	var out strings.Builder
	d := declaration{rules: r.rules.All(), nodes: 3, now: time.Date(2028, 2, 28, 0, 0, 0, 0, time.UTC)}
	if err := d.write(&out); err != nil {
		t.Fatal(err)
	}
	want := "\nthe next billing months begin:\n" +
		"  d.billed: 2028-02-29T00:00:00-05:00, 2028-03-31T00:00:00-04:00, 2028-04-30T00:00:00-04:00\n"
	if !strings.Contains(out.String(), want) || strings.Count(out.String(), "begin") != 1 {
		t.Errorf("no %q in\n%s", want, out.String())
	}
	var v checkReport
	if _, out := checks("--json", file); json.Unmarshal([]byte(out), &v) != nil || len(v.Rules) != 2 || len(v.Rules[0].NextMonths) != 3 || v.Rules[1].NextMonths != nil {
		t.Errorf("as JSON: %s", out)
	}
	for _, text := range v.Rules[0].NextMonths {
		if at, err := time.Parse(time.RFC3339, text); err != nil || at.Before(time.Now()) || at.Day() < 28 {
			t.Errorf("a month begins at %s (%v)", text, err)
		}
	}
}

// Servers count billing months, alone and on a Redis, and say so to people.
func TestServeBillingMonths(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	writeFile(t, file, billedRules)
	for _, store := range []string{"", redistest.Start(t).Addr} {
		env := []string{"DRAIN_TIME=0s"}
		if store != "" {
			env = append(env, "REDIS_URL="+store)
		}
		s := serve(t, env, "--config", file)
		s.eventually("healthy", s.healthy)
		for i := range 7 {
			if got, want := s.post("billed", "x"), []int{200, 429}[i/5]; got != want {
				t.Fatalf("request %d was answered %d, want %d", i, got, want)
			}
		}
		said := s.explained("d", "billed=x")
		for _, want := range []string{"5 per month from day 31, America/Havana", "begins 20", "month@31@America/Havana|d|billed=x", "0 of 5 left"} {
			if !strings.Contains(said, want) {
				t.Errorf("no %q in\n%s", want, said)
			}
		}
		if _, config := s.get(s.debug + "/rlconfig"); !strings.Contains(config, "unit=MONTH requests_per_unit=5 algorithm=fixed_window (from day 31, America/Havana)") {
			t.Errorf("/rlconfig has\n%s", config)
		}
	}
}

// A machine without a database of time zones has that of the binary.
func TestZonesAreInTheBinary(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-tags", "server", ".").Output()
	if err != nil || !slices.Contains(strings.Fields(string(out)), "time/tzdata") {
		t.Errorf("the server does not have package time/tzdata (%v)", err)
	}
}
