package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/sluice-gate/sluice/bench/tokens"
)

type benchTokensCmd struct {
	measured `embed:""`
	Nodes    int           `default:"3" help:"Nodes of each fleet."`
	Length   time.Duration `default:"15s" help:"Length of the longest case, without its last responses."`
	Case     []string      `placeholder:"NAME" help:"Cases: half, twice, flight, five, fifty. Default: all."`
	Seed     uint64        `default:"1" help:"Seed of the demand."`
	output   `embed:""`
}

// Help is what `sluicelab bench tokens --help` says below its summary.
func (*benchTokensCmd) Help() string {
	return `Examples:

  sluicelab bench tokens
  sluicelab bench tokens --case five --case fifty`
}

// Run fails if a way exceeded a limit by more than the costs in flight above their holds.
func (c *benchTokensCmd) Run(s streams) error {
	sluice, done, err := c.find()
	if err != nil {
		return err
	}
	defer done()
	lab, err := self()
	if err != nil {
		return err
	}
	o := tokens.Options{Binary: sluice, Lab: lab, Nodes: c.Nodes, Length: c.Length, Cases: c.Case, Seed: c.Seed}
	if out := s.progress(); out != nil {
		count := o.Count()
		o.Progress = func(done int, what string) { fmt.Fprintf(out, "\r%d of %d: %-90s", done+1, count, what) }
		defer fmt.Fprintln(out)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r, err := tokens.Run(ctx, o)
	if err != nil {
		return err
	}
	if err := c.show(s, r, r.Page(), r.Took); err != nil {
		return err
	}
	return r.Problems()
}
