package main

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/leasing/audit"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/leasing/slots"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/routing"
)

// decider is a limiter and what belongs to it.
//
// The limiters lie above each other. From below: the store's or this process's (ledger), the ring, the choice by mode
// (newByMode), the audit, and overrides. A request passes them from above.
type decider struct {
	ratelimit.NodeLimiter
	ring  *routing.Router    // nil: there is none
	slots *slots.Limiter     // concurrency limits in the store; nil: there is no store
	seat  func() (int, bool) // the drift seat, and whether one is wanted; nil: there are none
	// run must run for it to decide. It returns when ctx is done and all is given back,
	// or why it cannot go on.
	run  func(context.Context) error
	who  *registry // who shares the store; nil: there is none
	ping func(context.Context) error
	// ready reports whether the first request would be answered by the store. Until then the node is not healthy. Its
	// gRPC port stays closed, too, at most for startGrace.
	ready func() bool
	// safety is how the store keeps its data; nil: there is none.
	safety func() metrics.StoreSafety
	now    func() metrics.StoreNow // nil: there is none
	pool   *metrics.Pool           // connections to Redis; nil: there is none

	shared    store.Store   // of all limits; nil: there is none
	record    *audit.Record // of audited rules; nil: there is none
	storeTime wallTime      // the store's, 0 if it is not known yet; nil: there is no store
	overrides *overrides.Book
}

// decider makes what decides, from below: the ledger (STORE_URL, REDIS_URL; this process's memory where neither is
// set), the ring over it (PEERS), and the modes of rules over both. The order has reasons. The ring decides its own
// keys by the limiter below it. The audit is above both, so that it records each decision once. Overrides come last of
// all, so that everything below sees rules with the limits in force.
func (c *serveCmd) decider(clock ratelimit.Clock, rules *config.Store, log *slog.Logger) (d *decider, err error) {
	d, err = c.ledger(clock, rules, log)
	if err != nil {
		return nil, err
	}
	limits := overrides.NewTable()
	if c.Ring.Peers != "" {
		d.ring, d.run, err = c.Ring.route(&c.caps, newByMode(d.NodeLimiter, nil, d.slots), limits, d.run, clock, log)
		if err != nil {
			return nil, err
		}
	}
	// The ring got a limiter without a ring above: a request that another node forwards must be decided here, and not
	// be forwarded again.
	d.NodeLimiter = newByMode(d.NodeLimiter, d.ring, d.slots)
	here := wallTimes(clock)
	d.audit(here)
	d.override(limits, rules, here, time.Now, clock, log)
	return d, nil
}

// ledger leases from the store that the settings name, or counts in this process. In this process's memory there is
// nothing to run, to ping or to wait for, so its functions do nothing.
func (c *serveCmd) ledger(clock ratelimit.Clock, rules *config.Store, log *slog.Logger) (*decider, error) {
	if !c.Store.Shared() {
		return &decider{
			NodeLimiter: local.New(c.MaxKeys, clock(), time.Now()),
			ping:        func(context.Context) error { return nil },
			ready:       func() bool { return true },
			run: func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			},
		}, nil
	}
	d := new(decider)
	if c.Store.OnRedis() {
		// The pool is made before the store, which counts its connections from the first one on.
		d.pool = new(metrics.Pool)
	}
	opened, err := store.Open(store.Options{Flags: c.Store, Log: log, Pool: d.pool})
	if err != nil {
		return nil, err
	}
	// Without AUDIT_FILE, events is nil, and audited rules are decided without a record.
	events, err := audit.OpenRecord(c.AuditFile, log)
	if err != nil {
		return nil, err
	}
	// The registry needs the holder, which shared makes, and shared needs the registry's counts. So the counts are set
	// afterwards, before anything runs.
	s := c.shared(opened, plans(rules), clock, log)
	d.who = newRegistry(opened, s.holder)
	s.Nodes = func() int { return d.who.count() }
	s.Peers = func() int { return d.who.peers(time.Now()) }
	s.slots.Nodes = d.who.count
	// The record needs the ledger's answers as well: they say which total the store has after a claim.
	if events != nil {
		s.OnAudit = events.Answer
	}
	d.NodeLimiter = s.Fleet
	d.storeTime = s.LedgerTime
	d.slots = s.slots
	d.shared = opened
	d.record = events
	d.seat = s.keeper.Seat
	d.run = s.run
	d.ping = opened.Ping
	d.ready = s.ready
	d.safety, d.now = s.watch.safety, func() metrics.StoreNow { return *s.now.Load() }
	return d, nil
}

// plans returns the drift plan of the rules as they are now. It is made once for each version of them. The keeper calls
// the function again and again.
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

// seatNote is what /healthcheck says of a node that may not drift. It is a remark only: without a seat, the node
// decides as in mode leasing, so it stays healthy.
func seatNote(seat func() (int, bool)) func() string {
	return func() string {
		// A node without a store has no seats, and nothing to remark.
		if seat == nil {
			return ""
		}
		if n, wanted := seat(); !wanted || n >= 0 {
			return ""
		}
		return "no drift seat (all max_nodes are taken, or the store does not answer): rules of mode approx run as leasing here"
	}
}

// audit has the decisions of the limiter recorded, if there is a record. The record is written before an answer is
// given, by the decisions' limiter. Its loop runs as long as the limiter does. Decisions without an account are in the
// windows of the store, whose other events are there, as soon as its time is known.
func (d *decider) audit(here wallTime) {
	if d.record == nil {
		return
	}
	a := audit.NewDecisions(d.NodeLimiter, d.record, d.who.holder, func(now ratelimit.Instant) ratelimit.LedgerTime {
		return cmp.Or(d.storeTime(now), here(now))
	})
	d.NodeLimiter = a
	d.beside(a.Run)
}

// wallTime is this node's time at an instant, without corrections since its start.
type wallTime = func(ratelimit.Instant) ratelimit.LedgerTime

// wallTimes pairs both clocks once. A correction of the wall clock must not move times of the audit, or those that the
// store's are compared with, back.
func wallTimes(clock ratelimit.Clock) wallTime {
	start, began := clock(), ratelimit.LedgerTime(time.Now().UnixMicro())
	return func(now ratelimit.Instant) ratelimit.LedgerTime { return began.Add(now.Sub(start)) }
}

// beside also does something for as long as the limiter runs. It ends after the limiter: run has returned all tokens by
// then. An error of run is passed on.
func (d *decider) beside(also func(context.Context)) {
	run := d.run
	d.run = func(ctx context.Context) error {
		// If run fails, also has to end as well, and not only with ctx.
		ctx, cancel := context.WithCancel(ctx)
		var all sync.WaitGroup
		all.Go(func() { also(ctx) })
		err := run(ctx)
		cancel()
		all.Wait()
		return err
	}
}
