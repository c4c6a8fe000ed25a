package main

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// limiter is what decides, and what must run for it to.
type limiter interface {
	ratelimit.Limiter
	ratelimit.Inspector
	Stats() ratelimit.LimiterStats
	SyncClock(ratelimit.Instant, time.Time)
}

// decider is a limiter and what belongs to it.
type decider struct {
	limiter
	seat func() (int, bool) // the drift seat, and whether one is wanted; nil: there are none
	// run must run for it to decide. It returns when ctx is done and all is given back,
	// or why it cannot go on.
	run  func(context.Context) error
	who  *registry // who shares the store; nil: there is none
	ping func(context.Context) error
	// ready tells whether the first request would be answered by the store.
	ready func() bool
	// safety is how the store keeps its data; nil: there is none. refused counts its
	// connections that were closed.
	safety  func() metrics.StoreSafety
	refused atomic.Uint64
	pools   map[string]*metrics.Pool // connections, by the pool's name
}

// decider chooses by REDIS_URL: leases from a shared ledger and a drift seat, or
// budgets in this process.
func (c *serveCmd) decider(clock ratelimit.Clock, store *config.Store, log *slog.Logger) (*decider, error) {
	other, err := c.Redis.perSecond()
	if err != nil {
		return nil, err
	}
	if c.Redis.URL == "" {
		for _, r := range store.Rules().All() {
			if r.Coordination.Audit {
				log.Warn("a rule asks for an audit, and without REDIS_URL there is no record", "first", r.Domain+"."+r.Path)
				break
			}
		}
		return &decider{
			limiter: leasing.NewLocal(c.MaxKeys, clock(), time.Now()),
			run:     func(context.Context) error { return nil }, ping: func(context.Context) error { return nil }, ready: func() bool { return true },
		}, nil
	}
	reconciled, err := c.reconciled(log)
	if err != nil {
		return nil, err
	}
	record, err := c.record(log)
	if err != nil {
		return nil, err
	}
	redis.SetLogger(redisLog{log})
	d := &decider{pools: map[string]*metrics.Pool{"redis_pool": {}}}
	c.Redis.refused, c.Redis.pool = &d.refused, d.pools["redis_pool"]
	seats := plans(store)
	s, err := c.shared(&c.Redis, seats, reconciled, clock, log)
	if err != nil {
		return nil, err
	}
	d.seat, d.safety = s.keeper.Seat, s.watch.safety
	d.who = newRegistry(s.client, c.Redis.KeyPrefix, s.holder)
	nodes := func() int { return d.who.count() }
	s.OnAudit, s.Nodes = record, nodes
	d.limiter, d.run, d.ready, d.ping = s.Fleet, s.run, s.ready, s.ping
	if other == nil {
		return d, nil
	}
	d.pools["redis_per_second_pool"] = &metrics.Pool{}
	other.refused, other.pool = &d.refused, d.pools["redis_per_second_pool"]
	brief, err := c.shared(other, seats, reconciled, clock, log)
	if err != nil {
		return nil, err
	}
	brief.OnAudit, brief.Nodes = record, nodes
	d.limiter = newByUnit(s.Fleet, brief.Fleet)
	d.who = newRegistry(s.client, c.Redis.KeyPrefix, s.holder, brief.holder)
	d.run = func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return brief.run(ctx) })
		g.Go(func() error { return s.run(ctx) })
		return g.Wait()
	}
	d.ping = func(ctx context.Context) error { return errors.Join(s.ping(ctx), brief.ping(ctx)) }
	d.ready = func() bool { return s.ready() && brief.ready() }
	d.safety = func() metrics.StoreSafety { return worse(s.watch.safety(), brief.watch.safety()) }
	return d, nil
}

// plans returns the drift plan of the rules as they are now. It is made once for
// each version of them.
func plans(store *config.Store) func() approx.Plan {
	type made struct {
		of   *config.Rules
		plan approx.Plan
	}
	var last atomic.Pointer[made]
	return func() approx.Plan {
		rules := store.Rules()
		if m := last.Load(); m != nil && m.of == rules {
			return m.plan
		}
		m := &made{rules, approx.NewPlan(rules.Coordinated())}
		last.Store(m)
		return m.plan
	}
}

// seatNote is what /healthcheck says of a node that may not drift.
func seatNote(seat func() (int, bool)) func() string {
	return func() string {
		if seat == nil {
			return ""
		}
		if n, wanted := seat(); !wanted || n >= 0 {
			return ""
		}
		return "no drift seat (all max_nodes are taken, or the store does not answer): rules of mode approx run as leasing here, and first requests under rules with a lease.reserve wait for the store"
	}
}
