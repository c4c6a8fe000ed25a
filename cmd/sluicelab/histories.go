package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/bench/sim"
	"github.com/sluice-gate/sluice/cmd/cli"
)

// historiesCmd plays random histories. A history follows from its seed alone, so a failure is found again with --trace.
type historiesCmd struct {
	Count int64  `default:"1000" help:"Number of histories."`
	Seed  uint64 `default:"1" help:"Seed of the first history."`
	Cores int    `default:"0" help:"Concurrent histories (0: one for each core)."`
	Kind  string `default:"" enum:",leasing,routing,approx,storeless,envoys" help:"Histories of a mode (leasing, routing or approx), of rings without a store (storeless), or of Envoys that lease parts of limits over RLQS (envoys). Other seeds are skipped."`
	Trace bool   `help:"Simulate the history of --seed alone, and print all its events."`
	JSON  bool   `help:"Print JSON."`
}

// Run fails if a history does. An interrupted run prints its sums, and fails all the same, so that a script does not
// count it as a success.
func (c *historiesCmd) Run(s cli.Streams) error {
	if c.Count < 1 || c.Cores < 0 {
		return fmt.Errorf("--count is %d, must be at least 1; --cores is %d, must not be negative", c.Count, c.Cores)
	}
	which := sim.Kind(c.Kind)
	// A trace has one history: with several at a time, their events would mix.
	if c.Trace {
		return c.replay(s, which)
	}
	debug.SetGCPercent(sim.GCPercent)
	if c.Cores == 0 {
		c.Cores = runtime.GOMAXPROCS(0)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	start := time.Now()
	sum, err := sim.Histories(ctx, which, c.Seed, c.Count, c.Cores, report.Progress(s.Progress(), c.Count, "histories"))
	if err != nil && !errors.Is(err, context.Canceled) { // an interrupted run reports the played histories
		return err
	}
	write := func() error {
		return historiesText.Write(s.Out, map[string]any{"Sum": sum, "Seed": c.Seed, "Closest": 100 * sum.Closest})
	}
	if c.JSON {
		write = func() error { return s.JSON(sum) }
	}
	if err := write(); err != nil {
		return err
	}
	// Results are on Out, and the trace of a failure on Err.
	if f := sum.Failure; f != nil {
		fmt.Fprintf(s.Err, "the last events:\n%s", f.Trace)
		return f
	}
	if err != nil {
		return err
	}
	if !c.JSON {
		took := time.Since(start)
		fmt.Fprintf(s.Out, "no invariant was broken and no bound exceeded; %.1f million decisions a second on %d cores, every step checked\n",
			float64(sum.Decisions)/took.Seconds()/1e6, c.Cores)
	}
	return nil
}

var historiesText = cli.NewText(`{{define "counts"}}{{$comma := ""}}{{range $name, $n := .}}{{$comma}}{{$name}} {{$n}}{{$comma = ", "}}{{end}}{{end -}}
{{with .Sum -}}
{{.Histories}} histories from seed {{$.Seed}}: {{.Decisions}} decisions, {{.Claims}} claims; mode approx used at most {{printf "%.0f" $.Closest}}% of a declared bound
faults and changes: {{template "counts" .Events}}
histories with: {{template "counts" .Played}}
{{end -}}
`, nil)

// replay plays one history with all of its events, and prints its result as JSON.
func (c *historiesCmd) replay(s cli.Streams, which sim.Kind) error {
	o, _ := which.History(c.Seed)
	o.Trace, o.Decisions = s.Out, true
	r, err := sim.Run(o)
	if err != nil {
		return err
	}
	if r.Violation != nil {
		return r.Violation
	}
	return s.JSON(r)
}
