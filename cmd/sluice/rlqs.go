package main

import (
	"log/slog"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/server"
)

func quotaNode(store *config.Store, l ratelimit.Limiter, o rlqs.Options) *rlqs.Node {
	return rlqs.NewNode(rlqs.Source{Rules: store.Rules, Limiter: l, Wall: time.Now}, o)
}

// quotaService serves the node's streams; nil: RLQS is off.
func (c *serveCmd) quotaService(n *rlqs.Node, clock ratelimit.Clock, log *slog.Logger) server.Streams {
	if !c.RLQS {
		return nil
	}
	return rlqs.NewService(n, clock, log)
}
