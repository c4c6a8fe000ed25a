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
	"github.com/sluice-gate/sluice/cmd/sluice/record"
	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/routing"
)

// decider is a limiter and what belongs to it.
type decider struct {
	limiter
	ring  *routing.Router      // nil: there is none
	slots *leasing.Concurrency // concurrency limits in the store; nil: there is no store
	seat  func() (int, bool)   // the drift seat, and whether one is wanted; nil: there are none
	// run must run for it to decide. It returns when ctx is done and all is given back,
	// or why it cannot go on.
	run  func(context.Context) error
	who  *registry // who shares the store; nil: there is none
	ping func(context.Context) error
	// ready reports whether the first request would be answered by the store.
	ready func() bool
	// safety is how the store keeps its data; nil: there is none. refused counts its
	// connections that were closed.
	safety  func() metrics.StoreSafety
	now     func() metrics.StoreNow // nil: there is none
	refused atomic.Uint64
	pools   map[string]*metrics.Pool // connections, by the pool's name

	shared    store.Store    // of all limits; nil: there is none
	record    *record.Record // of audited rules; nil: there is none
	overrides *overrides.Book
}

// decider makes what decides, from below: the ledger (STORE_URL, REDIS_URL; this process's memory where neither is
// set), the ring over it (PEERS), and the modes of rules over both.
func (c *serveCmd) decider(clock ratelimit.Clock, rules *config.Store, log *slog.Logger) (d *decider, err error) {
	d, err = c.ledger(clock, rules, log)
	if err != nil {
		return nil, err
	}
	limits := overrides.NewTable()
	if c.Ring.Peers != "" {
		d.ring, d.run, err = c.Ring.route(&c.caps, newByMode(d.limiter, nil, d.slots), limits, d.run, clock, log)
		if err != nil {
			return nil, err
		}
	}
	d.limiter = newByMode(d.limiter, d.ring, d.slots)
	d.audit(clock)
	d.override(limits, rules, clock, log)
	return d, nil
}

// ledger leases from the stores that the settings name, or counts in this process.
func (c *serveCmd) ledger(clock ratelimit.Clock, rules *config.Store, log *slog.Logger) (*decider, error) {
	d := &decider{pools: map[string]*metrics.Pool{}}
	stores, err := c.stores(d, plans(rules), clock, log)
	switch {
	case err != nil:
		return nil, err
	case len(stores) == 0:
		d.limiter = leasing.NewLocal(c.MaxKeys, clock(), time.Now())
		d.ping, d.ready = func(context.Context) error { return nil }, func() bool { return true }
		d.run = func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}
		return d, nil
	}
	events, err := record.Open(c.AuditFile, log)
	if err != nil {
		return nil, err
	}
	d.record = events
	var holders []ratelimit.Holder
	for _, s := range stores {
		if events != nil {
			s.OnAudit = events.Answer
		}
		s.Nodes = func() int { return d.who.count() }
		s.Peers = func() int { return d.who.peers(time.Now()) }
		holders = append(holders, s.holder)
	}
	d.who, d.shared = newRegistry(stores[0].store, holders...), stores[0].store
	d.seat = func() (seat int, wanted bool) {
		seat, wanted = stores[0].keeper.Seat()
		for _, s := range stores[1:] { // rules need the seat of their store
			n, _ := s.keeper.Seat()
			seat = min(seat, n)
		}
		return seat, wanted
	}
	d.limiter = stores[0].Fleet
	if len(stores) > 1 {
		d.limiter = newByUnit(stores[0].Fleet, stores[1].Fleet)
	}
	d.slots = stores[0].slots
	d.slots.Nodes = d.who.count
	d.run = func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		for _, s := range stores {
			g.Go(func() error { return s.run(ctx) })
		}
		return g.Wait()
	}
	d.ping = func(ctx context.Context) (err error) {
		for _, s := range stores {
			err = errors.Join(err, s.store.Ping(ctx))
		}
		return err
	}
	d.ready = func() bool { return !slices.ContainsFunc(stores, func(s *shared) bool { return !s.ready() }) }
	d.now = func() metrics.StoreNow {
		x := *stores[0].now.Load()
		for _, s := range stores[1:] {
			x = later(x, *s.now.Load())
		}
		return x
	}
	d.safety = func() metrics.StoreSafety {
		x := stores[0].watch.safety()
		for _, s := range stores[1:] {
			x = worse(x, s.watch.safety())
		}
		return x
	}
	return d, nil
}

// stores opens the stores of all limits and of those for a second, without a connection. Without a store there is none.
func (c *serveCmd) stores(d *decider, seats func() approx.Plan, clock ratelimit.Clock, log *slog.Logger) (all []*shared, err error) {
	first := store.Options{Flags: c.Store, Log: log, Pool: &metrics.Pool{}, Refused: &d.refused}
	second, keys := first, c.MaxKeys
	second.Pool = &metrics.Pool{}
	perSecond, err := store.PerSecond(second)
	if err != nil || !c.Store.Shared() {
		return nil, err
	}
	if perSecond != nil {
		d.pools["redis_per_second_pool"] = second.Pool
		keys = (keys + 1) / 2 // in each of two tables
	}
	usual, err := store.Open(first)
	if err != nil {
		return nil, err
	}
	if c.Store.OnRedis() {
		d.pools["redis_pool"] = first.Pool
	}
	setting, address := "REDIS_URL", c.Store.Redis.URL
	if c.Store.URL != "" {
		setting, address = "STORE_URL", c.Store.URL
	}
	all = []*shared{c.shared(setting, settings.MaskedURL(address), usual, keys, seats, clock, log)}
	if perSecond != nil {
		address = settings.MaskedURL(c.Store.Redis.PerSecond.URL)
		all = append(all, c.shared("REDIS_PERSECOND_URL", address, perSecond, keys, seats, clock, log))
	}
	return all, nil
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
		return "no drift seat (all max_nodes are taken, or the store does not answer): rules of mode approx run as leasing here"
	}
}
