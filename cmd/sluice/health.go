package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/server"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// healthy reports whether the node can answer. It takes three things: the store has answered or its grace time is over
// (ready), there are rules, and the ring is ready. It is a condition of the start. Later, only two settings make health
// follow it.
func (c *serveCmd) healthy(p *assembled) bool {
	rules := p.store.Rules()
	// Without rules a call fails with an error, unless FORCE_START_WITHOUT_INITIAL_CONFIG accepts that.
	loaded := rules.Domains() > 0 || !c.HealthyWithOne && (rules != nil || c.ForceStart)
	return p.ready() && loaded && (p.ring == nil || p.ring.Ready())
}

// startGrace is after which the gRPC port opens although the node is not healthy: its store does not answer, so that
// on_store_failure decides.
const startGrace = 5 * time.Second

// keepHealthy makes the server healthy once it is ready, and opens the gRPC port then, or after startGrace. It looks
// each 20 milliseconds, because a rolling restart waits for it. Once healthy it stays so, and the loop ends. An outage
// of the store must not take all nodes from their load balancer at once.
func keepHealthy(ctx context.Context, v *server.Server, healthy func() bool, open func()) {
	ctx, ready := context.WithCancel(ctx)
	defer ready()
	late := time.AfterFunc(startGrace, open)
	defer late.Stop()
	look := func() {
		if healthy() {
			v.SetHealthy(true)
			open()
			ready()
		}
	}
	look()
	upkeep.Every(ctx, 20*time.Millisecond, look)
}

// watchStore has health follow the store: REDIS_HEALTH_CHECK_ACTIVE_CONNECTION. Without this setting an outage leaves
// the node healthy, and on_store_failure decides.
func watchStore(ctx context.Context, v *server.Server, healthy func() bool, ping func(context.Context) error, log *slog.Logger) {
	up := true
	upkeep.Every(ctx, 250*time.Millisecond, func() {
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		err := ping(bounded)
		if now := err == nil; now != up && ctx.Err() == nil {
			up = now
			log.Warn("health changed with the store (REDIS_HEALTH_CHECK_ACTIVE_CONNECTION)", "up", up, "error", err)
		}
		v.SetHealthy(up && healthy())
	})
}
