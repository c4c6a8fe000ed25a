package sim

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// In random outages, each mode with each policy admits at most the declared number of a window. It is another one where an
// outage begins or ends, between, and without one.
func TestOutages(t *testing.T) {
	rows, err := Outages(t.Context(), 1, 180, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		local := r.Policy == ratelimit.FailLocal.String()
		if r.Outages < 20 || r.Windows < 100 || r.Normal < 0.9 || local && (r.Edges < 0.4 || r.Between < 0.4 || r.Median == 0) {
			t.Errorf("%+v: was it tried?", r)
		}
	}
}

// Windows with an outage that is not known are judged as those without one, and exceed their number.
func TestOutageThatIsNotDeclared(t *testing.T) {
	for _, policy := range []string{"local", "open"} {
		beyond := 0
		for seed := range uint64(40) {
			o := drawOutage(seed, ratelimit.Leasing.String(), policy)
			o.from, o.to = time.Hour, 2*time.Hour
			if new(OutageRow).judge(o) != nil {
				beyond++
			}
		}
		if beyond == 0 {
			t.Errorf("%s: nothing is beyond its number: what is judged?", policy)
		}
	}
}
