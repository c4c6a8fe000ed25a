package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"strings"

	"github.com/sluice-gate/sluice/bench"
	"github.com/sluice-gate/sluice/bench/baseline"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/cmd/cli"
)

// benchCmd has a command for each measurement of package bench, and one that measurements start as a process of their
// own (Baseline).
type benchCmd struct {
	Cost     measuring[bench.CostOptions, *bench.CostOptions]         `cmd:"" help:"Compare the CPU of a call with an empty gRPC server."`
	Envoy    measuring[bench.EnvoyOptions, *bench.EnvoyOptions]       `cmd:"" help:"Measure latency and CPU of a request through Envoy: each mode, an empty server, no filter."`
	Fleets   measuring[bench.FleetsOptions, *bench.FleetsOptions]     `cmd:"" help:"Measure fleets on a Redis in each mode, a service that asks Redis for each request, envoyproxy/ratelimit and gubernator: CPU, latency, and the work of Redis."`
	Overload measuring[bench.OverloadOptions, *bench.OverloadOptions] `cmd:"" help:"Measure the goodput of a server at up to ten times its capacity."`
	Tokens   measuring[bench.TokensOptions, *bench.TokensOptions]     `cmd:"" help:"Measure limits in tokens whose cost is known when a request is done: what is over, what is refused, and the work of Redis."`
	Baseline benchBaselineCmd                                         `cmd:"" hidden:"" help:"Run the server that Sluice is compared with."`
}

// measuring is the command of a measurement: its options are flags. A measurement is a struct of options with a method
// Measure. P is its pointer, which has the method.
type measuring[T any, P interface {
	*T
	report.Measurement
}] struct {
	measured `embed:""`
	Options  T    `embed:""`
	JSON     bool `help:"Print JSON."`
}

// Help is what `--help` says below the summary. The examples are in a tag of the field Setup, divided by |.
func (m *measuring[T, P]) Help() string {
	setup, _ := reflect.TypeFor[T]().FieldByName("Setup")
	return "Examples:\n\n  " + strings.ReplaceAll(setup.Tag.Get("examples"), "|", "\n  ")
}

// Run measures, shows the result, and fails if something is beyond its bound. The result is printed before it is
// judged, so that a failure shows its figures.
func (m *measuring[T, P]) Run(s cli.Streams) error {
	options := P(&m.Options)
	given := options.Given()
	path, done, err := m.find()
	if err != nil {
		return err
	}
	defer done()
	given.Binary = path
	// Some measurements start this program again, as the server to compare with.
	given.Lab, err = os.Executable()
	if err != nil {
		return fmt.Errorf("finding this binary: %w", err)
	}
	// A run takes minutes, so a terminal shows how far it is. In a file there is only the result.
	if out := s.Progress(); out != nil {
		given.Progress = func(done, of int, what string) { fmt.Fprintf(out, "\r%d of %d: %-70s", done+1, of, what) }
		defer fmt.Fprintln(out)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r, err := options.Measure(ctx)
	if err != nil {
		return err
	}
	// JSON has the measured values, and the page the rows and the judgement.
	page := r.Page()
	if m.JSON {
		err = s.JSON(r)
	} else {
		err = page.WriteText(s.Out)
	}
	if err != nil {
		return err
	}
	return page.Problems()
}

type benchBaselineCmd struct {
	baseline.Server `embed:""`
}

// Run serves until interrupted.
func (c *benchBaselineCmd) Run(s cli.Streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return c.Serve(ctx, s.Out)
}
