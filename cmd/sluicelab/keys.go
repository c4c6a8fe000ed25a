package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/sluice-gate/sluice/bench"
)

type benchKeysCmd struct {
	measured  `embed:""`
	Keys      int `default:"5000000" help:"Distinct keys to send."`
	MaxKeys   int `default:"1000000" help:"Keys that the server tracks (0: derived from its memory)."`
	Memory    int `help:"GOMEMLIMIT of the server in MiB (0: none)."`
	MaxMemory int `default:"1536" help:"Failure threshold for resident memory in MiB."`
}

// Help is what `sluicelab bench keys --help` says below its summary.
func (*benchKeysCmd) Help() string {
	return `Examples:

  sluicelab bench keys`
}

// fewSeries may come after the first tenth of the keys: of what happens then for the
// first time. A series for each key, or for one in a hundred, would be more.
const fewSeries = 50

// Run fails if memory went above MaxMemory, a limited key was admitted, or
// metrics grew.
func (c *benchKeysCmd) Run(s streams) error {
	if c.Keys < 1000 || c.MaxKeys < 0 || c.Memory < 0 {
		return fmt.Errorf("--keys is %d, must be at least 1000; --max-keys is %d and --memory %d, must not be negative", c.Keys, c.MaxKeys, c.Memory)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	sluice, done, err := c.find()
	if err != nil {
		return err
	}
	defer done()
	points, err := bench.Keys(ctx, bench.KeysOptions{Binary: sluice, Keys: c.Keys, MaxKeys: c.MaxKeys, Memory: c.Memory, Progress: s.progress()})
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
		case i > 1 && p.Series > points[1].Series+fewSeries:
			return fmt.Errorf("after %d keys there were %d lines of metrics, %d after %d", p.Keys, p.Series, points[1].Series, points[1].Keys)
		}
	}
	return nil
}
