package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/sluice-gate/sluice/bench"
)

type benchCostCmd struct {
	measured    `embed:""`
	Rounds      int           `default:"10" help:"Rounds of each server, in turn."`
	Round       time.Duration `default:"1s" help:"Length of a round."`
	Callers     int           `default:"64" help:"Concurrent callers."`
	Connections int           `default:"4" help:"Connections of the callers."`
	Keys        int           `default:"1000" help:"Distinct keys."`
	MaxRatio    float64       `default:"1.15" help:"Failure threshold: CPU of Sluice as a multiple of the empty server's (0: off)."`
	Forwarded   bool          `help:"Also measure decisions by another node, in mode routing."`
	MaxForward  float64       `default:"2.5" name:"max-forwarded-ratio" help:"Failure threshold for a forwarded decision, as a multiple of the empty server's CPU (0: off)."`
	MaxHot      float64       `default:"1.2" name:"max-hot-ratio" help:"Failure threshold for a decision on a hot key, as a multiple of a local one's CPU (0: off)."`
	JSON        bool          `help:"Print JSON."`
}

// Help is what `sluicelab bench cost --help` says below its summary.
func (*benchCostCmd) Help() string {
	return `Examples:

  sluicelab bench cost`
}

// Run measures and fails if the ratio is above MaxRatio.
func (c *benchCostCmd) Run(s streams) error {
	if c.Rounds < 1 || c.Callers < 1 || c.Connections < 1 || c.Keys < 1 || c.Round <= 0 {
		return fmt.Errorf("--rounds %d, --round %v, --callers %d, --connections %d and --keys %d must all be positive", c.Rounds, c.Round, c.Callers, c.Connections, c.Keys)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	sluice, done, err := c.find()
	if err != nil {
		return err
	}
	defer done()
	lab, err := self()
	if err != nil {
		return err
	}
	report, err := bench.Cost(ctx, bench.CostOptions{
		Binary: sluice, Lab: lab, Rounds: c.Rounds, Round: c.Round, Callers: c.Callers, Connections: c.Connections, Keys: c.Keys, Forwarded: c.Forwarded, Progress: s.progress(),
	})
	if err != nil {
		return err
	}
	write := report.WriteTable
	if c.JSON {
		write = report.WriteJSON
	}
	if err := write(s.out); err != nil {
		return err
	}
	if c.MaxRatio > 0 && report.Ratio > c.MaxRatio {
		return fmt.Errorf("the ratio is %.3f, more than --max-ratio %.3f", report.Ratio, c.MaxRatio)
	}
	if c.MaxForward > 0 && report.ForwardedRatio > c.MaxForward {
		return fmt.Errorf("the ratio of forwarded decisions is %.3f, more than --max-forwarded-ratio %.3f", report.ForwardedRatio, c.MaxForward)
	}
	if c.MaxHot > 0 && report.HotRatio > c.MaxHot {
		return fmt.Errorf("the ratio of decisions on a hot key is %.3f, more than --max-hot-ratio %.3f", report.HotRatio, c.MaxHot)
	}
	return nil
}
