package bench

import (
	"cmp"
	"flag"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/ratelimit"
)

var allScenarios = flag.Bool("accuracy", false, "TestAccuracy plays all scenarios in all modes, for some minutes")

// Real nodes, a real Redis: no mode goes further than it declares, and caller and nodes count the same, with faults of
// each kind.
//
//	go test -count=1 -v -run '^TestAccuracy$' ./bench -accuracy
func TestAccuracy(t *testing.T) {
	t.Parallel()
	// A limit of 300 with the default budget would leave less than a token for each seat, so approx has a larger one.
	approx := way{name: "approx", fields: map[string]string{"mode": "approx", "drift_budget": "5%", "max_nodes": "4"}}
	ways := slices.Concat(modes[:3], []way{approx})
	o := &FleetsOptions{
		Setup: report.Setup{Binary: built(t, "sluice")}, Nodes: []int{3}, Rate: 2000, Length: 3 * time.Second, Rounds: 1, Seed: 1,
	}
	if !*allScenarios {
		o.Rows, o.Ways, o.Nodes, o.Rate, o.Length = []string{"closed", "kill", "dead store"}, []string{"leasing"}, []int{2}, 500, time.Second
	}
	result, err := (&comparison{FleetsOptions: o, rows: scenarios, ways: ways}).measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := result.(*Compared)
	if want := cmp.Or(len(o.Rows)*len(o.Ways), len(scenarios)*len(ways)); len(r.Measured) != want {
		t.Errorf("%d measurements, want %d", len(r.Measured), want)
	}
	for _, m := range r.Measured {
		if m.Asked < 100 || m.Admitted == 0 || m.NodeCPU == 0 || m.P99 == 0 {
			t.Errorf("nothing was measured: %+v", m)
		}
	}
	var text strings.Builder
	if err := r.Page().WriteText(&text); err != nil {
		t.Fatal(err)
	}
	t.Log(text.String())
	if page := text.String(); !strings.Contains(page, "kill: a node is killed") || strings.Contains(page, "of first|") || strings.Contains(page, "PROBLEM") {
		t.Error("the page does not show the row, or shows a problem")
	}
}

// scenario is a row: ten keys, which at the default rate and length get twice their limit. Windows are of a year, so
// that none ends during the measurement: the simulator plays windows that end. Without an answer of the store, requests
// are refused (on_store_failure: closed), so that over-admission is the mode's and not the policy's.
func scenario(id, what string, r row) row {
	r.id = id
	r.name = what
	r.unit = ratelimit.Year
	r.limit = 300
	r.keys = cmp.Or(r.keys, 10)
	r.fields = map[string]string{"on_store_failure": "closed"}
	return r
}

// scenarios have faults a third into the time, and are right again after two.
var scenarios = []row{
	scenario("closed", "16 callers, each after its last answer; uniform keys", row{callers: 16}),
	scenario("zipf", "open loop, Zipf 1.1 over 200 keys", row{keys: 200, skew: 1.1}),
	scenario("burst", "open loop, 5.5 times the rate in a tenth of each second", row{shape: load.Burst}),
	scenario("flash", "open loop, a crowd of four times the rate on a cold key", row{shape: load.Flash}),
	scenario("hot", "open loop, half of it on one key", row{hot: 0.5}),
	scenario("uniform", "open loop, uniform keys", row{extra: true}),
	scenario("ramp", "open loop, from nothing to twice the rate", row{shape: load.Ramp}),
	scenario("many", "open loop, more keys than the nodes' tables hold", row{keys: 60_000, hot: 0.3, flags: []string{"--max-keys", "1000"}}),
	scenario("kill", "a node is killed, and started again", row{
		strike: func(f *process.Fleet) error { return f.End(0, syscall.SIGKILL) },
		mend:   func(f *process.Fleet) error { return f.Start(0) },
	}),
	scenario("pause", "a node is stopped, and goes on", row{
		strike: func(f *process.Fleet) error { return f.Nodes[0].Pause(true) },
		mend:   func(f *process.Fleet) error { return f.Nodes[0].Pause(false) },
	}),
	scenario("join", "a node joins", row{strike: func(f *process.Fleet) error { return f.Start(len(f.Nodes) - 1) }, others: 1}),
	scenario("roll", "each node in turn leaves, and is there again", row{strike: roll}),
	scenario("hung store", "Redis is stopped, and goes on", row{
		strike: func(f *process.Fleet) error { return f.Redis.Pause(true) },
		mend:   func(f *process.Fleet) error { return f.Redis.Pause(false) },
	}),
	scenario("dead store", "Redis is killed, and started again empty", row{
		strike: func(f *process.Fleet) error { return f.Redis.Kill() },
		mend:   func(f *process.Fleet) error { return f.Redis.Start() }, amnesia: true,
	}),
	scenario("flushed store", "FLUSHALL", row{strike: func(f *process.Fleet) error { return f.Redis.Forget() }, amnesia: true}),
}

// roll restarts the nodes one after the other. Restart waits until the fleet is whole again, as a Deployment waits for
// readiness.
func roll(f *process.Fleet) error {
	for i := range f.Running() {
		if err := f.Restart(i); err != nil {
			return err
		}
	}
	return nil
}
