package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/sluice-gate/sluice/bench/overload"
)

type benchOverloadCmd struct {
	measured    `embed:""`
	Step        time.Duration `default:"2s" help:"Length of each measurement."`
	Rounds      int           `default:"3" help:"Repetitions of each measurement. The median round is shown."`
	Times       []float64     `default:"0.5,1,2,5,10" help:"Offered load as multiples of the capacity."`
	Patience    time.Duration `default:"20ms" help:"Time after which callers give up. The default is that of Envoy."`
	Connections int           `default:"4" help:"Connections of the callers."`
	Callers     int           `default:"128" help:"Concurrent calls while the capacity is measured."`
	Outstanding int           `default:"1024" help:"Maximum of concurrent calls, like Envoy's circuit breaker. Further calls fail at the caller."`
	MaxWait     time.Duration `default:"100ms" help:"MAX_WAIT of the server (0: no call is shed)."`
	Traced      bool          `help:"Send a different traceparent with each call, like an Envoy that traces all calls. Such calls cost more to refuse."`
	Least       float64       `default:"0" help:"Failure threshold for goodput beyond the capacity, as a part of it, such as 0.8."`
	output      `embed:""`
}

// Help is what `sluicelab bench overload --help` says below its summary.
func (*benchOverloadCmd) Help() string {
	return `Examples:

  sluicelab bench overload`
}

// Run fails if goodput is below Least.
func (c *benchOverloadCmd) Run(s streams) error {
	sluice, done, err := c.find()
	if err != nil {
		return err
	}
	defer done()
	o := overload.Options{
		Binary: sluice, Step: c.Step, Rounds: c.Rounds, Times: c.Times, Patience: c.Patience, Connections: c.Connections, Callers: c.Callers,
		Outstanding: c.Outstanding, MaxWait: c.MaxWait, Traced: c.Traced,
	}
	if out := s.progress(); out != nil {
		count := o.Count()
		o.Progress = func(done int, what string) { fmt.Fprintf(out, "\r%d of %d: %-30s", done+1, count, what) }
		defer fmt.Fprintln(out)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r, err := overload.Run(ctx, o)
	if err != nil {
		return err
	}
	if err := c.show(s, r, r.Page(), r.Took); err != nil {
		return err
	}
	if bad := r.Beyond(c.Least); len(bad) > 0 {
		return fmt.Errorf("at %g times the capacity goodput is %.0f%% of it, less than --least %.0f%%", bad[0].Times, 100*bad[0].Share, 100*c.Least)
	}
	return nil
}
