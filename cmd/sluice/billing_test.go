package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

const billedRules = `domain: d
descriptors:
  - key: billed
    rate_limit: {unit: month, requests_per_unit: 5, billing: {day: 31, time_zone: America/Havana}}
  - {key: other, rate_limit: {unit: month, requests_per_unit: 5}}
`

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
