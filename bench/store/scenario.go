package store

import (
	"context"
	"syscall"
	"time"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Accuracy compares admissions with limits, under loads and faults.
type Accuracy struct {
	report.Setup
	Nodes    int           `default:"3" help:"Nodes of the fleet."`
	Rate     float64       `default:"2000" help:"Requests a second."`
	Length   time.Duration `default:"3s" help:"Length of each scenario in each mode."`
	Scenario []string      `placeholder:"NAME" help:"Scenarios: closed, zipf, burst, flash, hot, uniform, ramp, many, kill, pause, join, roll, 'hung store', 'dead store', 'flushed store'."`
	All      bool          `help:"Run all scenarios instead of about half."`
	Seed     uint64        `default:"1" help:"Seed of the demand."`
}

// Examples implements [report.Measurement].
func (*Accuracy) Examples() string {
	return `  sluicelab bench accuracy                                     about half of the scenarios, under three minutes
  sluicelab bench accuracy --all --html accuracy.html
  sluicelab bench accuracy --scenario burst --scenario 'dead store'`
}

// Measure implements [report.Measurement].
func (a *Accuracy) Measure(ctx context.Context) (report.Result, error) {
	return a.options().Measure(ctx)
}

func (a *Accuracy) options() *Options {
	o := &Options{
		Setup: a.Setup, Nodes: []int{a.Nodes}, Rate: a.Rate, Length: a.Length, Rows: a.Scenario, Seed: a.Seed,
		of: suite{
			title: "Accuracy: what was admitted against what was allowed", flag: "--scenario", rows: scenarios, modes: scenarioModes,
			lead: "Which mode fits your traffic is what `sluicelab what-if` says; here is what each did under the same loads and faults.",
		},
	}
	if len(o.Rows) == 0 {
		for i := range scenarios {
			if r := &scenarios[i]; a.All || !r.extra {
				o.Rows = append(o.Rows, r.ID)
			}
		}
	}
	return o
}

// scenarioModes tighten the budget of approx, so that each node has a seat.
var scenarioModes = append(modes[1:4:4], mode{name: "approx", fields: map[string]string{"mode": "approx", "drift_budget": "5%", "max_nodes": "4"}})

// scenario is a row: ten keys, which at the default rate and length get twice their limit. Windows are of a year, so
// that none ends during the measurement: the simulator plays windows that end.
func scenario(id, what string, change func(*Row)) Row {
	r := Row{
		ID: id, Name: id + ": " + what, Unit: ratelimit.Year, Limit: 300, Keys: 10,
		fields: map[string]string{"on_store_failure": "closed"},
	}
	if change != nil {
		change(&r)
	}
	return r
}

// fault is a scenario in which something goes wrong a third into the time, and is right again after two.
func fault(id, what string, strike, mend func(*process.Fleet) error, change func(*Row)) Row {
	r := scenario(id, what, change)
	r.strike, r.mend = strike, mend
	return r
}

func extra(r *Row) { r.extra = true }

var scenarios = []Row{
	scenario("closed", "16 callers, each after its last answer; uniform keys", func(r *Row) { r.Callers = 16 }),
	scenario("zipf", "open loop, Zipf 1.1 over 200 keys", func(r *Row) { r.Keys, r.Skew = 200, 1.1 }),
	scenario("burst", "open loop, 5.5 times the rate in a tenth of each second", func(r *Row) { r.shape = load.Burst }),
	scenario("flash", "open loop, a crowd of four times the rate on a cold key", func(r *Row) { r.shape, r.extra = load.Flash, true }),
	scenario("hot", "open loop, half of it on one key", func(r *Row) { r.hot, r.extra = 0.5, true }),
	scenario("uniform", "open loop, uniform keys", extra),
	scenario("ramp", "open loop, from nothing to twice the rate", func(r *Row) { r.shape, r.extra = load.Ramp, true }),
	scenario("many", "open loop, more keys than the nodes' tables hold", func(r *Row) {
		r.Keys, r.hot, r.flags, r.extra = 60_000, 0.3, []string{"--max-keys", "1000"}, true
	}),
	fault("kill", "a node is killed, and started again",
		func(f *process.Fleet) error { return f.End(0, syscall.SIGKILL) }, func(f *process.Fleet) error { return f.Start(0) }, nil),
	fault("pause", "a node is stopped, and goes on",
		func(f *process.Fleet) error { return f.Nodes[0].Pause(true) }, func(f *process.Fleet) error { return f.Nodes[0].Pause(false) }, extra),
	fault("join", "a node joins", func(f *process.Fleet) error { return f.Start(len(f.Nodes) - 1) }, nil, func(r *Row) { r.others, r.extra = 1, true }),
	fault("roll", "each node in turn leaves, and is there again", func(f *process.Fleet) error {
		for i := range f.Running() {
			if err := f.End(i, syscall.SIGTERM); err != nil {
				return err
			}
			if err := f.Start(i); err != nil {
				return err
			}
		}
		return nil
	}, nil, extra),
	fault("hung store", "Redis is stopped, and goes on",
		func(f *process.Fleet) error { return f.Redis.Pause(true) }, func(f *process.Fleet) error { return f.Redis.Pause(false) }, nil),
	fault("dead store", "Redis is killed, and started again empty",
		func(f *process.Fleet) error { return f.Redis.Kill() }, func(f *process.Fleet) error { return f.Redis.Start() }, func(r *Row) { r.amnesia, r.extra = true, true }),
	fault("flushed store", "FLUSHALL", func(f *process.Fleet) error { return f.Redis.Forget() }, nil, func(r *Row) { r.amnesia = true }),
}

// fails has things go wrong, and right again.
func (r *Row) fails(ctx context.Context, f *process.Fleet, length time.Duration) error {
	for _, step := range []func(*process.Fleet) error{r.strike, r.mend} {
		if step == nil {
			continue
		}
		if err := caller.Sleep(ctx, length/3); err != nil {
			return err
		}
		if err := step(f); err != nil {
			return err
		}
	}
	return nil
}
