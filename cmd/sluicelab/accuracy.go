package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/sluice-gate/sluice/bench/accuracy"
)

type benchAccuracyCmd struct {
	measured `embed:""`
	Redis    string        `placeholder:"HOST:PORT" help:"Address of a running Redis. It is not killed or flushed. Default: start one."`
	Target   string        `placeholder:"HOST:PORT" help:"Address of another RLS server to measure. Its rule for domain and entry must allow --limit a year or day."`
	Domain   string        `default:"bench" help:"Domain of the target's rule."`
	Entry    string        `default:"accuracy" help:"Descriptor key of the target's rule. Values are generated."`
	Nodes    int           `default:"3" help:"Nodes of the fleet."`
	MaxKeys  int           `default:"20000" name:"max-keys" help:"Keys that a node tracks."`
	Limit    int64         `default:"300" help:"Limit of each key."`
	Rate     float64       `default:"2000" help:"Requests a second."`
	Length   time.Duration `default:"3s" help:"Length of each scenario in each mode."`
	Scenario []string      `placeholder:"NAME" help:"Scenarios: closed, zipf, burst, flash, hot, uniform, ramp, many, kill, pause, join, roll, 'slow store', 'hung store', 'dead store', 'flushed store', partition, split."`
	All      bool          `help:"Run all scenarios instead of about half."`
	Seed     uint64        `default:"1" help:"Seed of the demand."`
	output   `embed:""`
}

// Help is what `sluicelab bench accuracy --help` says below its summary.
func (*benchAccuracyCmd) Help() string {
	return `Examples:

  sluicelab bench accuracy                                     about half of the scenarios, under three minutes
  sluicelab bench accuracy --all --html accuracy.html
  sluicelab bench accuracy --scenario burst --scenario 'dead store'
  sluicelab bench accuracy --target ratelimit:8081 --limit 300     another server of the same protocol`
}

// Run fails if a mode went further than it declares, or counts differ.
func (c *benchAccuracyCmd) Run(s streams) error {
	sluice, done, err := c.find()
	if err != nil {
		return err
	}
	defer done()
	o := accuracy.Options{
		Binary: sluice, Redis: c.Redis, Target: c.Target, Domain: c.Domain, Entry: c.Entry, Nodes: c.Nodes, MaxKeys: c.MaxKeys, Limit: c.Limit,
		Rate: c.Rate, Length: c.Length, Scenarios: c.Scenario, All: c.All, Seed: c.Seed,
	}
	if out := s.progress(); out != nil {
		count := o.Count()
		o.Progress = func(done int64, what string) { fmt.Fprintf(out, "\r%d of %d: %-30s", done+1, count, what) }
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r, err := accuracy.Run(ctx, o)
	if out := s.progress(); out != nil {
		fmt.Fprintln(out)
	}
	if err != nil {
		return err
	}
	if err := c.show(s, r, r.Page(), r.Took); err != nil {
		return err
	}
	return r.Problems()
}
