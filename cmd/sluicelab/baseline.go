package main

import (
	"context"
	"os"
	"os/signal"
	"time"

	"github.com/sluice-gate/sluice/bench/store"
)

type benchBaselineCmd struct {
	Address string        `required:"" help:"host:port"`
	Redis   string        `required:"" help:"host:port"`
	Limit   int64         `required:"" help:"Key of the descriptor."`
	Window  time.Duration `required:"" help:"Unit of the limit."`
}

// Run serves until interrupted.
func (c *benchBaselineCmd) Run(s streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return store.Baseline{Address: c.Address, Redis: c.Redis, Limit: c.Limit, Window: c.Window}.Serve(ctx, s.out)
}
