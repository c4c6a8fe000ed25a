package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Who allows nothing over is not told to drift; who cannot wait is.
func TestRecommendations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		over ratelimit.Share
		wait time.Duration
		want string
	}{
		{ratelimit.Share{}, 15 * time.Millisecond, "it is never over the limit"},
		{ratelimit.Share{PPM: 50_000}, 15 * time.Millisecond, "Use "},
		{ratelimit.Share{}, time.Microsecond, "Nothing keeps within 1µs"},
	} {
		q := Question{
			Limit: ratelimit.Limit{Unit: ratelimit.Second, Requests: 500}, Coordination: ratelimit.DefaultCoordination(),
			Nodes: 3, Seed: 1, MaxOver: c.over, MaxWait: c.wait,
			Load: load.Load{Rate: 1500, Keys: 2, Length: 8 * time.Second},
			Net:  Net{Trip: Delay{Least: 4 * time.Millisecond}, Hop: Delay{Least: time.Millisecond}},
		}
		a, err := WhatIf(t.Context(), q, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(a.Reasons, " "); !strings.Contains(got, c.want) {
			t.Errorf("over %v, wait %v: %s", c.over, c.wait, got)
		}
		if eager := &a.Choices[2]; eager.Name != "leasing, eager" || eager.Declared != 3*25 {
			t.Errorf("%s is said to be at most %d over, and three silent nodes may have 25 each", eager.Name, eager.Declared)
		}
		if best := &a.Choices[a.Best]; best.Declared > c.over.Of(500) {
			t.Errorf("%s may be %d over, and %d are allowed", best.Name, best.Declared, c.over.Of(500))
		}
		strict, leasing := a.Choices[0].Plain, a.Choices[1].Plain
		if strict.ClaimsPerThousand() < 3*leasing.ClaimsPerThousand() {
			t.Errorf("strict took %.1f claims, leasing %.1f", strict.ClaimsPerThousand(), leasing.ClaimsPerThousand())
		}
		for _, choice := range a.Choices {
			if choice.Plain.Violation != nil || choice.Bad.Violation != nil {
				t.Errorf("%s: %v %v", choice.Name, choice.Plain.Violation, choice.Bad.Violation)
			}
		}
		if table := a.Table(500); len(table.Rows) != len(a.Choices) || !strings.HasPrefix(table.Rows[a.Best].Cells[0], "* ") {
			t.Errorf("the table does not mark %s: %v", a.Choices[a.Best].Name, table.Rows)
		}
	}
}

// In random outages, each mode with each policy admits at most the declared number of a window. It is another one where an
// outage begins or ends, between, and without one.
func TestOutages(t *testing.T) {
	t.Parallel()
	rows, err := Outages(t.Context(), 100, 90, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		local := r.Policy == ratelimit.FailLocal.String()
		if r.Outages < 10 || r.Windows < 50 || r.Normal < 0.9 || local && (r.Edges < 0.4 || r.Between < 0.4 || r.Median == 0) {
			t.Errorf("%+v: was it tried?", r)
		}
	}
}

// Windows with an outage that is not known are judged as those without one, and exceed their number.
func TestOutageThatIsNotDeclared(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"local", "open"} {
		found := false
		for seed := uint64(0); seed < 40 && !found; seed++ {
			o := drawOutage(seed, ratelimit.Leasing.String(), policy)
			o.from, o.to = time.Hour, 2*time.Hour
			found = new(OutageRow).judge(o) != nil
		}
		if !found {
			t.Errorf("%s: nothing is beyond its number: what is judged?", policy)
		}
	}
}
