package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/sluice-gate/sluice/bench"
)

type benchEmptyCmd struct {
	Address string `required:"" help:"host:port"`
}

// Run serves until interrupted.
func (c *benchEmptyCmd) Run(s streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return bench.ServeEmpty(ctx, c.Address, s.out)
}
