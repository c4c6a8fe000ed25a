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
	Redis    string        `placeholder:"HOST:PORT" help:"A Redis that runs, instead of one that is started; it is not killed or emptied."`
	Target   string        `placeholder:"HOST:PORT" help:"Measure another server of the same protocol: domain and entry must have a rule of --limit a year or day."`
	Domain   string        `default:"bench" help:"Of the target's rule."`
	Entry    string        `default:"accuracy" help:"The key of its descriptor; values are invented."`
	Nodes    int           `default:"3" help:"Nodes of the fleet."`
	MaxKeys  int           `default:"20000" name:"max-keys" help:"Keys that a node tracks."`
	Limit    int64         `default:"300" help:"Of each key."`
	Rate     float64       `default:"2000" help:"Requests a second."`
	Length   time.Duration `default:"3s" help:"Of each scenario under each mode."`
	Scenario []string      `placeholder:"NAME" help:"Only these: closed, zipf, burst, flash, hot, uniform, ramp, many, kill, pause, join, roll, 'slow store', 'hung store', 'dead store', 'flushed store', partition, split."`
	All      bool          `help:"All of them; by default about half."`
	Seed     uint64        `default:"1" help:"Of the demand."`
	JSON     bool          `help:"Print JSON."`
	HTML     string        `placeholder:"FILE" help:"Write a page with charts, too."`
	Charts   string        `placeholder:"DIR" help:"Write the charts as SVG files, too."`
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
	page := r.Page()
	page.Facts = facts(r.Took)
	if err := page.Write(c.HTML, c.Charts); err != nil {
		return err
	}
	if c.JSON {
		err = writeJSON(s.out, r)
	} else {
		err = page.WriteText(s.out)
	}
	if err != nil {
		return err
	}
	return r.Problems()
}
