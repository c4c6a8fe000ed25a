//go:build !server

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/sluice-gate/sluice/bench"
)

type benchCmd struct {
	Accuracy benchAccuracyCmd `cmd:"" help:"What each mode admits against its limits, with real processes, and what it costs."`
	Cost     benchCostCmd     `cmd:"" help:"Server CPU a call, against an empty gRPC server of the same protocol, in one run."`
	Keys     benchKeysCmd     `cmd:"" help:"Memory and limits of one process under ever new keys."`
	Overload benchOverloadCmd `cmd:"" help:"What a real server answers in time when it is asked for up to ten times what it can answer."`
	Store    benchStoreCmd    `cmd:"" help:"What Redis does for a decision in each mode, beside a service that asks it for each request."`
	Empty    benchEmptyCmd    `cmd:"" hidden:"" help:"Serve the empty server."`
	Baseline benchBaselineCmd `cmd:"" hidden:"" help:"Serve the server that asks Redis for each request."`
}

type benchCostCmd struct {
	Rounds      int           `default:"10" help:"Rounds of each server, in turn."`
	Round       time.Duration `default:"1s" help:"Length of a round."`
	Callers     int           `default:"64" help:"Concurrent callers."`
	Connections int           `default:"4" help:"Connections they share."`
	Keys        int           `default:"1000" help:"Distinct keys."`
	MaxRatio    float64       `default:"1.15" help:"Fail if sluice uses more than this many times the empty server's CPU; 0: never."`
	Forwarded   bool          `help:"Measure decisions that another node makes, too: mode routing."`
	MaxForward  float64       `default:"2.5" name:"max-forwarded-ratio" help:"Fail if a forwarded decision costs more than this many times the empty server's CPU; 0: never."`
	MaxHot      float64       `default:"1.2" name:"max-hot-ratio" help:"Fail if a decision on a hot key costs more than this many times the CPU of a local one; 0: never."`
	JSON        bool          `help:"Print JSON."`
}

// Run measures and fails if the ratio is above MaxRatio.
func (c *benchCostCmd) Run(s streams) error {
	if c.Rounds < 1 || c.Callers < 1 || c.Connections < 1 || c.Keys < 1 || c.Round <= 0 {
		return fmt.Errorf("--rounds %d, --round %v, --callers %d, --connections %d and --keys %d must all be positive", c.Rounds, c.Round, c.Callers, c.Connections, c.Keys)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this binary: %w", err)
	}
	report, err := bench.Cost(ctx, bench.CostOptions{
		Binary: self, Rounds: c.Rounds, Round: c.Round, Callers: c.Callers, Connections: c.Connections, Keys: c.Keys, Forwarded: c.Forwarded, Progress: s.progress(),
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

type benchKeysCmd struct {
	Keys      int `default:"5000000" help:"Distinct keys to send."`
	MaxKeys   int `default:"1000000" help:"Keys that the server may track."`
	MaxMemory int `default:"1536" help:"Fail if it ever has more resident memory than this, in MiB."`
}

// Run fails if memory went above MaxMemory, a limited key was admitted, or
// metrics grew.
func (c *benchKeysCmd) Run(s streams) error {
	if c.Keys < 1000 || c.MaxKeys < 1 {
		return fmt.Errorf("--keys is %d, must be at least 1000; --max-keys is %d, must be at least 1", c.Keys, c.MaxKeys)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this binary: %w", err)
	}
	points, err := bench.Keys(ctx, bench.KeysOptions{Binary: self, Keys: c.Keys, MaxKeys: c.MaxKeys, Progress: s.progress()})
	if err != nil {
		return err
	}
	if err := bench.WriteKeysTable(s.out, points); err != nil {
		return err
	}
	for i, p := range points {
		switch {
		case !p.Limited:
			return fmt.Errorf("after %d keys the known key was admitted beyond its limit", p.Keys)
		case p.PeakMemory>>20 > int64(c.MaxMemory):
			return fmt.Errorf("after %d keys it had used %d MiB, more than --max-memory %d", p.Keys, p.PeakMemory>>20, c.MaxMemory)
		case i > 1 && p.Series != points[1].Series: // at the first look the names were not all taken yet
			return fmt.Errorf("after %d keys there were %d lines of metrics, %d after %d", p.Keys, p.Series, points[1].Series, points[1].Keys)
		}
	}
	return nil
}

type benchEmptyCmd struct {
	Address string `required:"" help:"host:port"`
}

// Run serves until interrupted.
func (c *benchEmptyCmd) Run(s streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return bench.ServeEmpty(ctx, c.Address, s.out)
}
