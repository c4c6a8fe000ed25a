package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/sluice-gate/sluice/bench/store"
)

type benchStoreCmd struct {
	measured `embed:""`
	Nodes    []int         `default:"3,10" help:"Sizes of the fleets of processes."`
	Virtual  []int         `default:"3,30,100" help:"Sizes of the fleets in virtual time, up to 1000 (0: none)."`
	Rate     float64       `default:"3000" help:"Requests a second."`
	Length   time.Duration `default:"15s" help:"Length of each mode in each row. From 30s on, rows with windows of minutes start so that a window turns halfway."`
	Rows     []int         `placeholder:"N" help:"Rows to measure, from 1 to 8."`
	Modes    []string      `placeholder:"MODE" help:"Modes to measure with the baseline: strict, leasing, routing, approx, and with large limits leasing-reserve and routing-reserve."`
	Rounds   int           `default:"1" help:"Measurements of each mode of a row, in turn."`
	Warm     bool          `help:"Call each node once for each key before the measurement."`
	Seed     uint64        `default:"1" help:"Seed of the demand."`
	output   `embed:""`
}

// Help is what `sluicelab bench store --help` says below its summary.
func (*benchStoreCmd) Help() string {
	return `Examples:

  sluicelab bench store --nodes 3 --virtual 0
  sluicelab bench store --nodes 3 --virtual 0 --rows 2,3 --length 60s --warm`
}

// Run fails if a mode went further over a limit than it declares.
func (c *benchStoreCmd) Run(s streams) error {
	sluice, done, err := c.find()
	if err != nil {
		return err
	}
	defer done()
	lab, err := self()
	if err != nil {
		return err
	}
	if len(c.Virtual) == 1 && c.Virtual[0] == 0 {
		c.Virtual = nil
	}
	o := store.Options{
		Binary: sluice, Lab: lab, Nodes: c.Nodes, Virtual: c.Virtual, Rate: c.Rate, Length: c.Length, Rows: c.Rows, Modes: c.Modes, Warm: c.Warm, Rounds: c.Rounds, Seed: c.Seed,
	}
	if out := s.progress(); out != nil {
		count := o.Count()
		o.Progress = func(done int, what string) { fmt.Fprintf(out, "\r%d of %d: %-70s", done+1, count, what) }
		defer fmt.Fprintln(out)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r, err := store.Run(ctx, o)
	if err != nil {
		return err
	}
	if err := c.show(s, r, r.Page(), r.Took); err != nil {
		return err
	}
	return r.Problems()
}
