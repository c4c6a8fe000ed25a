package realenvoy

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
)

// A node that hangs costs requests the filter's timeout, for as long as deploy says: then Envoy's health
// checks have found it. None fails, and what hung is asked again when it goes on.
func TestHungNode(t *testing.T) {
	needsLong(t)
	for _, mode := range []string{"leasing", "approx", "routing"} {
		t.Run(mode, func(t *testing.T) { hungNode(t, mode) })
	}
}

func hungNode(t *testing.T, mode string) {
	const (
		rate   = 500
		found  = 2 * time.Second // interval and timeout of the health check
		length = 9 * time.Second
		hangs  = 2 * time.Second // since the start
	)
	w := (&world{
		T: t, rules: fleetRules("mode: "+mode, 1e6), nodes: 3, config: Config{Text: shipped(t, "envoy/envoy.yaml")},
	}).run()
	type moment struct {
		after    time.Duration // since the node hung
		timeouts int64
	}
	out := make(chan moment, 1)
	start := time.Now()
	time.AfterFunc(hangs, func() {
		if err := w.fleet.Nodes[1].Pause(true); err != nil {
			t.Error(err)
		}
		if err := w.envoy.UntilStat("cluster.sluice.membership_healthy", 2); err != nil {
			t.Error(err)
		}
		all, err := w.envoy.Stats()
		if err != nil {
			t.Error(err)
		}
		out <- moment{time.Since(start) - hangs, all["cluster.sluice.upstream_rq_timeout"]}
	})
	c := w.client.Drive(t.Context(), load.Load{Rate: rate, Keys: 20, Length: length}, 19*time.Millisecond)
	at := <-out
	all, err := w.envoy.Stats()
	w.need(err)
	timeouts := all["cluster.sluice.upstream_rq_timeout"]
	t.Logf("%s, out after %v: %d calls timed out until then, %d in the rest; %d failed; "+
		"slowest of 100 %dus, of all %dus", mode, at.after,
		at.timeouts, timeouts-at.timeouts, c.Failed, c.Latency.ValueAtQuantile(99), c.Latency.Max())
	if c.Failed != 0 || c.Limited != 0 {
		t.Errorf("%d failed (%v), %d were refused", c.Failed, c.Err, c.Limited)
	}
	if at.timeouts == 0 {
		t.Error("no call timed out: the node did not hang")
	}
	if slack := 500 * time.Millisecond; at.after > found+slack {
		t.Errorf("the node was asked for %v", at.after)
	}
	// This machine's own stalls are a few of a thousand.
	if late := timeouts - at.timeouts; late > rate/100*int64((length-hangs)/time.Second) {
		t.Errorf("%d calls timed out although the node was known to hang", late)
	}
	w.need(w.fleet.Nodes[1].Pause(false))
	w.need(w.envoy.UntilStat("cluster.sluice.membership_healthy", 3))
}
