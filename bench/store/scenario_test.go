package store

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/sluicetest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Real nodes, a real Redis: no mode goes further than it declares, and caller and nodes count the same, with faults of
// each kind.
func TestAccuracy(t *testing.T) {
	o := (&Accuracy{Nodes: 2, Rate: 500, Length: time.Second, Seed: 1, Scenario: []string{"closed", "kill", "dead store"}}).options()
	o.Modes = []string{"leasing", "approx"}
	r, page := sluicetest.Measure[*Report](t, o)
	if err := r.Problems(); err != nil {
		t.Error(err)
	}
	if len(r.Measured) != 6 {
		t.Errorf("%d measurements, want 6", len(r.Measured))
	}
	for _, m := range r.Measured {
		if m.Asked < 100 || m.Admitted == 0 || m.NodeCPU == 0 || m.P99 == 0 {
			t.Errorf("nothing was measured: %+v", m)
		}
	}
	if !strings.Contains(page, "kill: a node is killed") || strings.Contains(page, "of baseline  at most") {
		t.Errorf("the page does not show the row, or shows a column without figures:\n%s", page)
	}
}

// A figure beyond its bound fails the run.
func TestBeyondTheBound(t *testing.T) {
	calm, struck := &Row{Limit: 300, Unit: ratelimit.Year}, &Row{Limit: 300, Unit: ratelimit.Year, strike: func(*process.Fleet) error { return nil }}
	leasing, approx := &scenarioModes[1], &scenarioModes[3]
	ten := map[string]int64{"total_hits": 10, "within_limit": 8}
	for _, c := range []struct {
		m       Measured
		row     *Row
		mode    *mode
		problem string
	}{
		{
			Measured{Over: 1, Fallbacks: map[string]int64{"deadline": 4}}, struck, leasing,
			"1 over the limit of 300, and 0 are declared while the store answers in time; decisions without it: map[deadline:4]",
		},
		{Measured{Over: 15}, struck, approx, ""},
		{Measured{Over: 16}, struck, approx, "16 over the limit of 300, and 15 are declared"},
		{Measured{Failed: 1}, struck, leasing, ""},
		{Measured{Failed: 1, Admitted: 8}, calm, leasing, "1 of 0 calls had no answer"},
		{Measured{Admitted: 8}, calm, leasing, ""},
		{Measured{Admitted: 7}, calm, leasing, "the nodes count 10 hits and 8 within the limit, the caller 10 and 7"},
		{Measured{Admitted: 7}, calm, &modes[0], ""},
	} {
		c.m.Nodes = 3
		c.m.declared(c.row, c.mode)
		c.m.check(c.row, c.mode, &tally{asked: 10}, ten)
		if (c.m.Problem == "") != (c.problem == "") || !strings.Contains(c.m.Problem, c.problem) {
			t.Errorf("%+v: %q, want %q", c.m, c.m.Problem, c.problem)
		}
		if r := (Report{Measured: []Measured{c.m}}); (r.Problems() == nil) != (c.problem == "") {
			t.Errorf("the report says %v", r.Problems())
		}
	}
}

func TestWithoutRedis(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := process.OpenRedis(); !errors.Is(err, process.ErrNoRedis) {
		t.Errorf("without redis-server: %v", err)
	}
}

func TestEveryRowHasALoad(t *testing.T) {
	for _, r := range append(rows, scenarios...) {
		if errs := r.load(100, time.Second).Validate(); errs != nil || r.ID == "" || r.Name == "" {
			t.Errorf("%s: %v", r.Name, errs)
		}
	}
}
