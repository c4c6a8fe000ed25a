package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/cmd/sluice/store"
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

// decider chooses by STORE_URL and REDIS_URL: leases from a shared ledger and a drift seat, or budgets in this process.
func (c *serveCmd) decider(clock ratelimit.Clock, rules *config.Store, log *slog.Logger) (*decider, error) {
	if !c.Store.Shared() {
		for _, r := range rules.Rules().All() {
			if r.Coordination.Audit {
				log.Warn("a rule asks for an audit, and without a store there is no record", "first", r.Domain+"."+r.Path)
				break
			}
		}
		if _, err := store.PerSecond(store.Options{Flags: c.Store}); err != nil {
			return nil, err
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
	d := &decider{pools: map[string]*metrics.Pool{}}
	options := store.Options{Flags: c.Store, Log: log, Pool: &metrics.Pool{}, Refused: &d.refused}
	if c.Store.OnRedis() {
		d.pools["redis_pool"] = options.Pool
	}
	usual, err := store.Open(options)
	if err != nil {
		return nil, err
	}
	options.Pool = &metrics.Pool{}
	perSecond, err := store.PerSecond(options)
	if err != nil {
		return nil, err
	}
	setting := "REDIS_URL"
	if c.Store.URL != "" {
		setting = "STORE_URL"
	}
	seats := plans(rules)
	all := []*shared{c.shared(setting, usual, seats, clock, log)}
	if perSecond != nil {
		d.pools["redis_per_second_pool"] = options.Pool
		all = append(all, c.shared("REDIS_PERSECOND_URL", perSecond, seats, clock, log))
	}
	var holders []ratelimit.Holder
	for _, s := range all {
		s.OnReconcile, s.OnAudit, s.Nodes = reconciled, record, func() int { return d.who.count() }
		holders = append(holders, s.holder)
	}
	d.who = newRegistry(usual, holders...)
	d.seat = all[0].keeper.Seat
	if d.limiter = all[0].Fleet; perSecond != nil {
		d.limiter = newByUnit(all[0].Fleet, all[1].Fleet)
	}
	d.run = func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		for _, s := range all {
			g.Go(func() error { return s.run(ctx) })
		}
		return g.Wait()
	}
	d.ping = func(ctx context.Context) (err error) {
		for _, s := range all {
			err = errors.Join(err, s.store.Ping(ctx))
		}
		return err
	}
	d.ready = func() bool { return !slices.ContainsFunc(all, func(s *shared) bool { return !s.ready() }) }
	d.safety = func() metrics.StoreSafety {
		x := all[0].watch.safety()
		for _, s := range all[1:] {
			x = worse(x, s.watch.safety())
		}
		return x
	}
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
