package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/server"
)

// storeSettles is how long a node that starts waits for its store to be heard of,
// and to know all again if it has just lost its data, before it is healthy. After
// that rules decide by on_store_failure.
const storeSettles = 5 * time.Second

// healthy tells whether the node can answer.
func (c *serveCmd) healthy(p *parts) bool {
	if !p.ready() && p.clock().Sub(p.begun) < storeSettles {
		return false
	}
	return (c.ForceStart && !c.HealthyWithOne || p.store.Rules() != nil) && (p.ring == nil || p.ring.Ready())
}

// keepHealthy makes the server healthy once it is ready.
func keepHealthy(ctx context.Context, v *server.Server, healthy func() bool) {
	ctx, ready := context.WithCancel(ctx)
	defer ready()
	v.SetHealthy(healthy())
	every(ctx, 100*time.Millisecond, func() {
		if healthy() {
			v.SetHealthy(true)
			ready()
		}
	})
}

// watchStore has health follow the store: REDIS_HEALTH_CHECK_ACTIVE_CONNECTION.
func watchStore(ctx context.Context, v *server.Server, healthy func() bool, ping func(context.Context) error, log *slog.Logger) {
	up := true
	every(ctx, 250*time.Millisecond, func() {
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		err := ping(bounded)
		if now := err == nil; now != up && ctx.Err() == nil {
			up = now
			log.Warn("health follows the store (REDIS_HEALTH_CHECK_ACTIVE_CONNECTION)", "up", up, "error", err)
		}
		v.SetHealthy(up && healthy())
	})
}
