package realenvoy

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
)

// fleetRules are envoy.yaml's rules, with a limit that keys come to.
func fleetRules(coordination string, limit int) string {
	return fmt.Sprintf("domain: edge\ncoordination: {%s}\ndescriptors:\n"+
		"- {key: api_key, rate_limit: {unit: year, requests_per_unit: %d}}\n", coordination, limit)
}

// ratelimitErrors is how often Envoy's filter got no decision.
const ratelimitErrors = "cluster.service.ratelimit.error"

// Three nodes are restarted one after the other, as soon as the one before is back, while 500 requests
// a second go through Envoy: each is decided, and no key gets more than its limit.
func TestRollingRestart(t *testing.T) {
	needsLong(t)
	const limit, keys, rate = 500, 20, 500
	for name, over := range map[string]int64{"leasing": 0, "approx": limit / 100, "routing": 0} {
		t.Run(name, func(t *testing.T) {
			w := (&world{
				T: t, rules: fleetRules("mode: "+name, limit), nodes: 3,
				config: Config{Text: shipped(t, "envoy/envoy.yaml")},
			}).run()
			restarted := make(chan error, 1)
			go func() {
				for i := range w.fleet.Nodes {
					if err := w.fleet.Restart(i); err != nil {
						restarted <- err
						return
					}
				}
				restarted <- nil
			}()
			c := w.client.Drive(t.Context(), load.Load{Rate: rate, Keys: keys, Length: 40 * time.Second}, 20*time.Millisecond)
			select {
			case err := <-restarted:
				w.need(err)
			default:
				t.Error("the nodes were not restarted within the load")
			}
			all, err := w.envoy.Stats()
			w.need(err)
			t.Logf("%s: %d passed, %d limited, %d failed (%v), %d without a decision, %d over, %d slower than 20ms; p50 %dus, p99 %dus, max %dus",
				name, c.Passed, c.Limited, c.Failed, c.Err, all[ratelimitErrors], c.Over(limit), len(c.Slow),
				c.Latency.ValueAtQuantile(50), c.Latency.ValueAtQuantile(99), c.Latency.Max())
			if c.Failed != 0 || all[ratelimitErrors] != 0 {
				t.Errorf("%d failed, and %d passed without a decision", c.Failed, all[ratelimitErrors])
			}
			if c.Over(limit) > over {
				t.Errorf("%d over, %d are declared", c.Over(limit), over)
			}
			if c.Limited == 0 {
				t.Error("no key came to its limit")
			}
		})
	}
}
