package accuracy

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/bench/sluicetest"
)

// Real nodes, a real Redis: no mode goes further than it declares, client and
// service count the same, and what is killed is there again afterwards.
func TestAccuracy(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	o := Options{
		Setup: report.Setup{Binary: sluicetest.Build(t)}, Nodes: 2, MaxKeys: 1000, Limit: 100, Rate: 500, Length: time.Second, Seed: 1,
		Scenario: []string{"closed", "zipf", "kill", "partition", "split"},
	}
	told := 0
	o.Progress = func(done, _ int, _ string) { told = done + 1 }
	r, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Problems(); err != nil {
		t.Error(err)
	}
	if len(r.Measured) != o.Count() || told != o.Count() {
		t.Errorf("%d measurements, %d told, want %d", len(r.Measured), told, o.Count())
	}
	for _, m := range r.Measured {
		if m.Offered < 100 || m.Admitted == 0 || m.CPU == 0 || m.P99 == 0 || m.StoreOps == 0 {
			t.Errorf("nothing was measured: %+v", m)
		}
	}
	var text bytes.Buffer
	page := r.Page()
	if err := page.WriteHTML(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "Admitted: split") {
		t.Error("the page does not show what was admitted")
	}
}

// A figure beyond its bound fails the run.
func TestProblems(t *testing.T) {
	b := &bench{Options: &Options{Limit: 300, Nodes: 3}}
	leasing, approx := &modes[1], &modes[3]
	for _, c := range []struct {
		m       Measured
		s       scenario
		problem string
	}{
		{Measured{Over: 1, Declared: int64(leasing.declares(300, 3).Over.Tokens)}, scenario{}, "1 over the limit of 300"},
		{Measured{Over: 15, Declared: int64(approx.declares(300, 3).Over.Tokens)}, scenario{}, ""},
		{Measured{Over: 16, Declared: int64(approx.declares(300, 3).Over.Tokens)}, scenario{fault: true}, "16 over"},
		{Measured{Failed: 1}, scenario{}, "1 calls had no answer"},
		{Measured{Failed: 1}, scenario{fault: true}, ""},
	} {
		b.check(&c.m, &c.s)
		if (c.m.Problem == "") != (c.problem == "") || !strings.Contains(c.m.Problem, c.problem) {
			t.Errorf("%+v: %q, want %q", c.m, c.m.Problem, c.problem)
		}
		r := Report{Measured: []Measured{c.m}}
		if (r.Problems() == nil) != (c.problem == "") {
			t.Errorf("the report says %v", r.Problems())
		}
	}
}

func TestTally(t *testing.T) {
	tally := newTally(2, 2)
	for range 3 {
		tally.count(0, time.Now(), true, nil)
	}
	tally.count(1, time.Now(), false, nil)
	tally.count(1, time.Now(), true, nil)
	tally.count(1, time.Now(), false, errors.New("no answer"))
	offered, admitted, over, under := tally.sum()
	if offered != 6 || admitted != 4 || over != 1 || under != 1 || tally.early != 1 || tally.failed != 1 {
		t.Errorf("offered %d, admitted %d, over %d, under %d, early %d, failed %d", offered, admitted, over, under, tally.early, tally.failed)
	}
}

func TestBadOptions(t *testing.T) {
	o := Options{Scenario: []string{"storm"}}
	err := o.validate()
	for _, want := range []string{"--nodes is 0", "--limit is 0", "--max-keys is 0", "--length is 0s", "no scenario \"storm\"", "the rate is 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said in %v", want, err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := process.OpenRedis(""); !errors.Is(err, process.ErrNoRedis) {
		t.Errorf("without redis-server: %v", err)
	}
	if _, err := process.OpenRedis("127.0.0.1:1"); err == nil {
		t.Error("a Redis was found where there is none")
	}
}

// Another server is measured by the same demand and the same count.
func TestTarget(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	dir := t.TempDir()
	o := Options{Setup: report.Setup{Binary: sluicetest.Build(t)}, Nodes: 2, MaxKeys: 1000, Limit: 100, Rate: 300, Length: 500 * time.Millisecond, Seed: 1}
	c, err := openCluster(&o, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	other := o
	other.Target, other.Domain, other.Entry, other.Scenario = c.members[0].node.Address, domain, "leasing", []string{"closed", "hot", "kill"}
	r, err := Run(context.Background(), other)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Measured) != 2 || r.Measured[0].Over > 0 || r.Measured[0].Admitted == 0 || r.Problems() != nil {
		t.Errorf("%+v %v", r.Measured, r.Problems())
	}
	other.Target = "127.0.0.1:1"
	if _, err := Run(context.Background(), other); err == nil || !strings.Contains(err.Error(), "answered none of") {
		t.Errorf("of a server that is not there: %v", err)
	}
}

func TestEveryScenarioHasALoad(t *testing.T) {
	o := Options{Rate: 100, Length: time.Second, Limit: 10, MaxKeys: 100}
	for _, s := range scenarios {
		if errs := s.load(&o).Validate(); errs != nil || s.what == "" {
			t.Errorf("%s: %v", s.name, errs)
		}
		if s.fault != (s.strike != nil) {
			t.Errorf("%s: a fault that does not strike, or the other way round", s.name)
		}
	}
}
