package realenvoy

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
)

// fleetRules are envoy.yaml's rules for keys. A late store refuses, so that what is over is not its doing.
func fleetRules(coordination string, limit int) string {
	return fmt.Sprintf("domain: edge\ncoordination: {%s, on_store_failure: closed}\ndescriptors:\n"+
		"- {key: api_key, rate_limit: {unit: year, requests_per_unit: %d}}\n", coordination, limit)
}

// Three nodes are restarted one after the other, each as soon as the previous one is back, while 500 requests a
// second go through Envoy. Each request is decided, and no key exceeds its rule's bound.
//
// A call that Envoy gave up after 20 ms passes undecided. On a busy machine, some do so without any restart.
// They are at most 1 of 200, and each may be one over. All other failures are 0.
func TestRollingRestart(t *testing.T) {
	needsLong(t)
	const limit, keys, rate = 500, 20, 500
	for name, at := range map[string]struct {
		mode  string
		alone bool
		over  int64 // as declared
	}{
		"leasing": {mode: "leasing"}, "approx": {mode: "approx", over: limit / 100}, "routing": {mode: "routing"},
		"routing without Redis": {mode: "routing", alone: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := (&world{
				T: t, rules: fleetRules("mode: "+at.mode, limit), nodes: 3, alone: at.alone,
				config: Config{Text: shipped(t, "envoy/envoy.yaml")},
			}).run()
			restarted := make(chan error, 1)
			go func() {
				var err error
				for i := 0; i < len(w.fleet.Nodes) && err == nil; i++ {
					err = w.fleet.Restart(i)
				}
				restarted <- err
			}()
			l := load.Load{Rate: rate, Keys: keys, Length: 25 * time.Second}
			c := w.client.Drive(t.Context(), l, 20*time.Millisecond)
			select {
			case err := <-restarted:
				w.need(err)
			default:
				t.Error("the nodes were not restarted within the load")
			}
			all, err := w.envoy.Stats()
			w.need(err)
			late := all["cluster.sluice.upstream_rq_timeout"]
			undecided := all[undecidedStat] - late
			t.Logf("%s, %d requests: %d passed, %d refused, %d failed, %d undecided and %d after 20ms, %d over; "+
				"p50 %dus, p99 %dus", name, c.Latency.TotalCount(),
				c.Passed, c.Limited, c.Failed, undecided, late, c.Over(limit),
				c.Latency.ValueAtQuantile(50), c.Latency.ValueAtQuantile(99))
			if c.Failed != 0 || undecided != 0 {
				t.Errorf("%d failed (%v), %d passed undecided", c.Failed, c.Err, undecided)
			}
			if late > c.Latency.TotalCount()/200 {
				t.Errorf("%d calls took more than 20ms", late)
			}
			if c.Over(limit) > at.over+late {
				t.Errorf("%d over: %d are declared, %d passed undecided after 20ms", c.Over(limit), at.over, late)
			}
			if c.Limited == 0 {
				t.Error("no key came to its limit")
			}
		})
	}
}
