package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/server"
)

// healthy tells whether the node can answer.
func (c *serveCmd) healthy(p *parts) bool {
	return p.ready() && (c.ForceStart && !c.HealthyWithOne || p.store.Rules() != nil) && (p.ring == nil || p.ring.Ready())
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
