package overload

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/sluicetest"
)

// A real server, for a short time: what the callers counted and what the server
// says fits together, at any speed of the machine.
func TestOverload(t *testing.T) {
	t.Run("the same headers", func(t *testing.T) { overload(t, false) })
	t.Run("headers of their own", func(t *testing.T) { overload(t, true) })
}

func overload(t *testing.T, traced bool) {
	o := &Options{
		Traced: traced, Step: 300 * time.Millisecond, Patience: 20 * time.Millisecond, MaxWait: 20 * time.Millisecond, Times: []float64{0.5, 4},
		Connections: 2, Callers: 32, Outstanding: 512, Rounds: 1,
	}
	r, _ := sluicetest.Measure[*Report](t, o)
	if len(r.Steps) != 2 || r.Capacity <= 0 {
		t.Fatalf("%+v", r)
	}
	for _, s := range r.Steps {
		if sum := s.HeldBack + s.Shed + s.GivenUp + s.Goodput; sum < 0.999*s.Offered || sum > 1.001*s.Offered {
			t.Errorf("%g times: of %.0f calls a second, %.0f are accounted for: %+v", s.Times, s.Offered, sum, s)
		}
		if want := s.Times * r.Capacity; s.Offered < 0.95*want || s.Offered > 1.05*want {
			t.Errorf("%g times the capacity of %.0f is %.0f", s.Times, r.Capacity, s.Offered)
		}
		// What the callers gave up may have been charged, and nothing else.
		if s.Charged > s.GivenUp+1 || s.P50 > s.P99 || s.P99 > o.Patience {
			t.Errorf("%+v", s)
		}
	}
	var text bytes.Buffer
	page := r.Page()
	if err := page.WriteHTML(&text); err != nil {
		t.Fatal(err)
	}
	if len(page.Tables[0].Rows) != 2 || !strings.Contains(text.String(), "What becomes of calls") || !strings.Contains(text.String(), "<svg") {
		t.Errorf("the page is %s", text.String())
	}
}

func TestOptionsAreChecked(t *testing.T) {
	err := (&Options{Times: []float64{1000}}).validate()
	for _, want := range []string{"--step is 0s", "--patience", "--connections", "--outstanding", "--callers", "--rounds", "--times is 1000"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

func TestMedianIsARound(t *testing.T) {
	steps := []Step{{Share: 0.9, Goodput: 1}, {Share: 0.1, Goodput: 2}, {Share: 0.5, Goodput: 3}}
	if s := medianStep(steps); s.Goodput != 3 {
		t.Errorf("%+v", s)
	}
	if m := median([]float64{4, 1, 2, 3}); m != 2.5 {
		t.Errorf("the median is %v", m)
	}
}
