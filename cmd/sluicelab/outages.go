package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"

	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/bench/sim"
	"github.com/sluice-gate/sluice/cmd/cli"
)

type outagesCmd struct {
	Count int64  `default:"1000" help:"Number of outages."`
	Seed  uint64 `default:"1" help:"Seed of the first outage."`
	JSON  bool   `help:"Print JSON."`
}

// Run fails if a window exceeds its declared number.
func (c *outagesCmd) Run(s cli.Streams) error {
	if c.Count < 1 {
		return fmt.Errorf("--count is %d, must be at least 1", c.Count)
	}
	debug.SetGCPercent(sim.GCPercent)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	rows, err := sim.Outages(ctx, c.Seed, c.Count, report.Progress(s.Progress(), c.Count, "outages"))
	if err != nil {
		return err
	}
	if c.JSON {
		return s.JSON(rows)
	}
	w := cli.Columns(s.Out)
	fmt.Fprintln(w, "MODE\tPOLICY\tOUTAGES\tWINDOWS\tNORMAL\tFIRST AND LAST\tBETWEEN\tMEDIAN FIRST OR LAST")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.0f%%\t%.0f%%\t%.0f%%\t%.0f%% of the limit\n",
			r.Mode, r.Policy, r.Outages, r.Windows, 100*r.Normal, 100*r.Edges, 100*r.Between, 100*r.Median)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.Out, "\nThe largest admissions of a window, in parts of the declared number (0%%: all demand is declared). "+
		"No window of %d outages from seed %d exceeded it.\n", c.Count, c.Seed)
	return err
}
