package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/bench/sim"
	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/ratelimit"
)

// whatIfCmd is the command that compares the modes in a simulation.
type whatIfCmd struct {
	Limit     string `arg:"" help:"Limit of each key, such as 6000/minute."`
	Algorithm string `default:"fixed_window" enum:"fixed_window,sliding_window,token_bucket" help:"Algorithm: fixed_window, sliding_window or token_bucket."`
	Burst     int64  `default:"0" help:"Burst of a token_bucket (0: the limit)."`

	Nodes  int           `default:"3" help:"Nodes of the fleet."`
	Rate   float64       `default:"1000" help:"Requests a second of all clients."`
	Shape  string        `default:"steady" enum:"steady,burst,flash,ramp" help:"Shape of the demand: steady, burst, flash or ramp."`
	Keys   int           `default:"1000" help:"Distinct keys."`
	Skew   float64       `default:"1.1" help:"Exponent of a Zipf distribution over the keys (0: uniform)."`
	Hot    float64       `default:"0" help:"Additional part of the requests for one key, 0 to 1."`
	Cost   int           `default:"1" help:"Maximum of hits in a request."`
	Length time.Duration `default:"3m" help:"Simulated time."`
	Trace  string        `type:"existingfile" help:"File of recorded requests instead of a generated demand: CSV with the columns time, key, hits, node."`

	Trip time.Duration `default:"500us" help:"Minimum round trip to the store."`
	Tail time.Duration `default:"500us" help:"Mean of the additional round trip time."`
	Hop  time.Duration `default:"300us" help:"Round trip to another node."`
	Loss float64       `default:"0" help:"Part of the messages to the store that are lost, 0 to 1."`

	MaxOver string        `default:"0" help:"Allowed over-admission: tokens, or a part such as 1%."`
	MaxWait time.Duration `default:"5ms" help:"Maximum wait of 999 in 1,000 decisions."`

	Seed         uint64            `default:"1" help:"Seed. The same seed gives the same answer."`
	JSON         bool              `help:"Print JSON."`
	Coordination map[string]string `placeholder:"FIELD=VALUE" help:"Fields of coordination like in rules, such as lease.size=10."`
}

// Run prints what each mode would do, and which to choose. The collector runs less often (sim.GCPercent), because a
// simulation makes much garbage, and its heap is small.
func (c *whatIfCmd) Run(s cli.Streams) error {
	q, err := c.question()
	if err != nil {
		return err
	}
	debug.SetGCPercent(sim.GCPercent)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	a, err := sim.WhatIf(ctx, q, report.Progress(s.Progress(), sim.Runs(), "runs"))
	if err != nil {
		return err
	}
	if c.JSON {
		return s.JSON(a)
	}
	if err := a.Table(q.Limit.Capacity()).WriteText(s.Out); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.Out, "\n%s\n", strings.Join(a.Reasons, "\n"))
	return err
}

// question collects all faults of the command line. A recorded demand replaces the described one.
func (c *whatIfCmd) question() (sim.Question, error) {
	q := sim.Question{
		Nodes: c.Nodes, Seed: c.Seed, MaxWait: c.MaxWait,
		Net:  sim.Net{Trip: sim.Delay{Least: c.Trip, Tail: c.Tail}, Hop: sim.Delay{Least: c.Hop}, Loss: c.Loss, Skew: 20e-6},
		Load: load.Load{Rate: c.Rate, Keys: c.Keys, Skew: c.Skew, Hot: c.Hot, Cost: c.Cost, Length: c.Length},
	}
	var errs [4]error
	q.Limit, errs[0] = parseLimit(c.Limit, c.Algorithm, c.Burst)
	// kong has checked the name against its enum, so the index is not -1.
	q.Load.Shape = load.Shape(slices.Index(load.Shapes[:], c.Shape))
	q.Coordination, errs[1] = settings.CoordinationOf(c.Coordination, func(field string) string { return "--coordination " + field })
	// The default of on_deny depends on the algorithm, as in rules.
	if c.Coordination["on_deny"] == "" {
		q.Coordination.OnDeny = q.Limit.Algorithm.OnDeny()
	}
	q.MaxOver, errs[2] = ratelimit.ParseShare(c.MaxOver)
	if errs[2] != nil {
		errs[2] = fmt.Errorf("--max-over: %w", errs[2])
	}
	// A recording has its own rate and keys, so those flags have no effect with it.
	if c.Trace != "" {
		q.Recorded, errs[3] = readTrace(c.Trace)
		if q.Recorded != nil {
			q.Load = q.Recorded.Load()
		}
	}
	return q, errors.Join(errs[:]...)
}

// readTrace reads a CSV with a line of column names: time, key, hits, node.
func readTrace(name string) (*load.Recorded, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--trace: %w", err)
	}
	r, err := load.ReadRecorded(f)
	_ = f.Close() // it was only read
	if err != nil {
		return nil, fmt.Errorf("--trace %s: %w", name, err)
	}
	return r, nil
}

// parseLimit reads a limit as people write it: 6000/minute. A token_bucket without --burst has the limit as its burst,
// as in rules.
func parseLimit(text, algorithm string, burst int64) (ratelimit.Limit, error) {
	count, per, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(count, 10, 64)
	unit, ok := ratelimit.ParseUnit(per)
	if err != nil || !ok || n == 0 || n > uint64(ratelimit.MaxLimit) {
		return ratelimit.Limit{}, fmt.Errorf("the limit is %q, must be like 6000/minute: a number from 1 to %d, and second, minute, hour, day, week, month or year", text, ratelimit.MaxLimit)
	}
	if burst < 0 || burst > int64(ratelimit.MaxLimit) {
		return ratelimit.Limit{}, fmt.Errorf("--burst is %d, must be 0 to %d", burst, ratelimit.MaxLimit)
	}
	l := ratelimit.Limit{Unit: unit, Requests: ratelimit.Tokens(n), Algorithm: ratelimit.Algorithm(slices.Index(ratelimit.Algorithms[:], algorithm))}
	if l.Algorithm == ratelimit.TokenBucket {
		l.Burst = cmp.Or(ratelimit.Tokens(burst), l.Requests)
	}
	return l, nil
}
