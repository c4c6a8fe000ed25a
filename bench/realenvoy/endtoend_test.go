package realenvoy

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/sluicetest"
)

// Each way answers its requests, and its cost is in the right place: Envoy pays for each, a service only where
// it is called, and least where Envoys have leases.
func TestEndToEnd(t *testing.T) {
	needsLong(t)
	needsEnvoy(t)
	r, page := sluicetest.Measure[*EndToEndReport](t, &Options{Nodes: 1, Rounds: 1, Round: 3 * time.Second, Rate: 100, Keys: 10})
	t.Log("\n" + page)
	costs := map[string]Way{}
	for _, w := range r.Ways {
		costs[w.Name] = w
		if w.Requests < 200 || w.Refused > 0 || w.P50 <= 0 || w.P99 < w.P50 || w.EnvoyCPU <= 0 {
			t.Errorf("%+v", w)
		}
		if asked := w.Name != "no filter"; asked != (w.ServiceCPU > 0) {
			t.Errorf("%s: the service took %v us", w.Name, w.ServiceCPU)
		}
	}
	if len(costs) != 7 || costs["RLQS"].ServiceCPU > costs["leasing"].ServiceCPU {
		t.Errorf("with leases the service takes more than with calls: %+v", costs)
	}
}
