package main

import (
	"context"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing"
)

// routed is a node's limiter as one of a ring.
type routed struct {
	*routing.Router
	base limiter
}

// Stats adds what the ring did.
func (r routed) Stats() ratelimit.LimiterStats {
	s := r.base.Stats()
	s.Fallbacks[ratelimit.FallbackPeer] += r.Fallbacks()
	return s
}

// Look implements [ratelimit.Inspector]: what another node owns, its owner knows.
func (r routed) Look(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) ratelimit.Look {
	v := r.base.Look(ctx, now, a)
	v.Owner = r.Owner(a)
	return v
}

// Hottest implements [ratelimit.Inspector].
func (r routed) Hottest(now ratelimit.Instant, n int) []ratelimit.HotKey {
	return r.base.Hottest(now, n)
}

// Drop implements [ratelimit.Inspector].
func (r routed) Drop(now ratelimit.Instant, key []byte) bool { return r.base.Drop(now, key) }

// Reset implements [ratelimit.Inspector].
func (r routed) Reset(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	return r.base.Reset(ctx, now, a)
}

// SyncClock implements limiter.
func (r routed) SyncClock(now ratelimit.Instant, wall time.Time) {
	r.base.SyncClock(now, wall)
	r.Router.SyncClock(now, wall)
}
