package bench

import (
	"context"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
)

// StoreOptions measure the work of Redis for a decision, in each mode and where each request asks it.
type StoreOptions struct {
	report.Setup
	Nodes  []int         `in:"1..20" default:"3" help:"Sizes of the fleets."`
	Rate   float64       `in:"0..100000" default:"3000" help:"Requests a second."`
	Length time.Duration `in:"500ms..10m" default:"15s" help:"Length of each mode in each row. From 30s on, rows with windows of minutes start so that a window turns halfway."`
	Rows   []string      `placeholder:"N" help:"Rows to measure, from 1 to 8, and only if named, 9 to 11: windows of a second."`
	Modes  []string      `placeholder:"MODE" help:"Modes to measure with the baseline: strict, leasing, routing, approx."`
	Seed   uint64        `default:"1" help:"Seed of the demand."`
}

// Examples implements [report.Measurement].
func (*StoreOptions) Examples() string {
	return "  sluicelab bench store\n  sluicelab bench store --rows 2,3 --length 60s"
}

// Measure implements [report.Measurement].
func (o *StoreOptions) Measure(ctx context.Context) (report.Result, error) {
	baseline := way{name: "baseline", reference: true, open: func(c *comparison, r *row, nodes int) (*process.Fleet, error) {
		return openBaseline(c.setup.Lab, r.limit, r.window(), nodes)
	}}
	c := &comparison{
		title: "The store: what Redis does for one decision", rowFlag: "--rows", rows: rows, named: o.Rows,
		lead: "The baseline asks Redis for each request as envoyproxy/ratelimit does (INCRBY and EXPIRE in one pipeline); strict is a lease of one token.",

		wayFlag: "--modes", ways: append([]way{baseline}, modes...), chosen: o.Modes,
		setup: &o.Setup, nodes: o.Nodes, rate: o.Rate, length: o.Length, rounds: 1, seed: o.Seed,
	}
	if len(o.Modes) > 0 {
		c.chosen = append([]string{baseline.name}, o.Modes...)
	}
	return c.measure(ctx, o)
}

// AccuracyOptions compare admissions with limits, under loads and faults.
type AccuracyOptions struct {
	report.Setup
	Nodes    int           `in:"1..20" default:"3" help:"Nodes of the fleet."`
	Rate     float64       `in:"0..100000" default:"2000" help:"Requests a second."`
	Length   time.Duration `in:"500ms..10m" default:"3s" help:"Length of each scenario in each mode."`
	Scenario []string      `placeholder:"NAME" help:"Scenarios: closed, zipf, burst, flash, hot, uniform, ramp, many, kill, pause, join, roll, 'hung store', 'dead store', 'flushed store'."`
	All      bool          `help:"Run all scenarios instead of about half."`
	Seed     uint64        `default:"1" help:"Seed of the demand."`
	modes    []string
}

// Examples implements [report.Measurement].
func (*AccuracyOptions) Examples() string {
	return `  sluicelab bench accuracy                                     about half of the scenarios, under three minutes
  sluicelab bench accuracy --all --html accuracy.html
  sluicelab bench accuracy --scenario burst --scenario 'dead store'`
}

// accuracyModes tighten the budget of approx, so that each node has a seat.
var accuracyModes = append(modes[:3:3], way{name: "approx", fields: map[string]string{"mode": "approx", "drift_budget": "5%", "max_nodes": "4"}})

// Measure implements [report.Measurement].
func (o *AccuracyOptions) Measure(ctx context.Context) (report.Result, error) {
	c := &comparison{
		title: "Accuracy: what was admitted against what was allowed", rowFlag: "--scenario", rows: scenarios, named: o.Scenario,
		lead: "Which mode fits your traffic is what `sluicelab what-if` says; here is what each did under the same loads and faults.",

		wayFlag: "--modes", ways: accuracyModes, chosen: o.modes,
		setup: &o.Setup, nodes: []int{o.Nodes}, rate: o.Rate, length: o.Length, rounds: 1, seed: o.Seed,
	}
	if o.All {
		for _, r := range scenarios {
			c.named = append(c.named, r.id)
		}
	}
	return c.measure(ctx, o)
}
