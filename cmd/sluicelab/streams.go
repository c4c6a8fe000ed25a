package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/sluice-gate/sluice/bench"
)

type benchStreamsCmd struct {
	measured    `embed:""`
	Rounds      int           `default:"3" help:"Rounds of each server, in turn."`
	Round       time.Duration `default:"1m" help:"Length of a round. Streams get new assignments each minute, so that rounds of whole minutes have one turn each."`
	Calls       float64       `default:"1000" help:"RLS calls a second, to each server in its rounds."`
	Connections int           `default:"4" help:"Connections of the callers."`
	Keys        int           `default:"1000" help:"Distinct keys."`
	Streams     int           `default:"10000" help:"RLQS streams to one of the servers."`
	Buckets     int           `default:"10" help:"Buckets of each stream."`
	Reports     float64       `default:"2000" help:"Messages with reports a second, of all streams."`
	JSON        bool          `help:"Print JSON."`
}

// Help is what `sluicelab bench streams --help` says below its summary.
func (*benchStreamsCmd) Help() string {
	return `Examples:

  sluicelab bench streams`
}

// Run measures.
func (c *benchStreamsCmd) Run(s streams) error {
	if c.Rounds < 1 || c.Connections < 1 || c.Keys < 1 || c.Streams < 1 || c.Buckets < 1 || c.Round <= 0 || !(c.Calls > 0) || !(c.Reports > 0) {
		return fmt.Errorf("--rounds %d, --round %v, --calls %v, --connections %d, --keys %d, --streams %d, --buckets %d and --reports %v must all be positive",
			c.Rounds, c.Round, c.Calls, c.Connections, c.Keys, c.Streams, c.Buckets, c.Reports)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	sluice, done, err := c.find()
	if err != nil {
		return err
	}
	defer done()
	report, err := bench.Beside(ctx, bench.BesideOptions{
		Binary: sluice, Rounds: c.Rounds, Round: c.Round, Calls: c.Calls, Connections: c.Connections, Keys: c.Keys,
		Streams: c.Streams, Buckets: c.Buckets, Reports: c.Reports, Progress: s.progress(),
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return report.WriteJSON(s.out)
	}
	return report.WriteTable(s.out)
}
