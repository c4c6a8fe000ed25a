package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"text/template"

	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/bench/sim"
	"github.com/sluice-gate/sluice/cmd/cli"
)

// outagesCmd compares what sluice check declares for an outage with simulated outages.
type outagesCmd struct {
	Count int64  `default:"1000" help:"Number of outages."`
	Seed  uint64 `default:"1" help:"Seed of the first outage."`
	JSON  bool   `help:"Print JSON."`
}

// Run fails if a window exceeds its declared number. The same seed and count give the same table.
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
	// Rows have one mode and policy each.
	if c.JSON {
		return s.JSON(rows)
	}
	return outagesText.Write(s.Out, map[string]any{"Rows": rows, "Count": c.Count, "Seed": c.Seed})
}

var outagesText = cli.NewText(`MODE	POLICY	OUTAGES	WINDOWS	NORMAL	FIRST AND LAST	BETWEEN	MEDIAN FIRST OR LAST
{{range .Rows}}{{.Mode}}	{{.Policy}}	{{.Outages}}	{{.Windows}}	{{percent .Normal}}	{{percent .Edges}}	{{percent .Between}}	{{percent .Median}} of the limit
{{end}}
The largest admissions of a window, in parts of the declared number (0%: all demand is declared). No window of {{.Count}} outages from seed {{.Seed}} exceeded it.
`, template.FuncMap{"percent": func(part float64) string { return fmt.Sprintf("%.0f%%", 100*part) }})
