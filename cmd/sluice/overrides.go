package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// override puts the table of overrides before the limiter: a copy of that in the store, or that of the peers. Times of
// overrides are by the store's clock where there is a store, so that one ends at all nodes at once. Otherwise they are
// by the wall clock: its corrections count, because the end of an override is one of its times.
func (d *decider) override(t *table.Table, rules *config.Store, here wallTime, wall func() time.Time, clock ratelimit.Clock, log *slog.Logger) {
	start := clock()
	at := func(ratelimit.Instant) ratelimit.LedgerTime { return ratelimit.LedgerTime(wall().UnixMicro()) }
	alone := &table.Alone{Table: t, Wall: wall, Clock: clock}
	d.overrides = &overrides.Book{Table: t, Keeper: alone}
	if d.shared == nil {
		// Without a store, no Node drops ended records, so the table does so by itself.
		d.beside(func(ctx context.Context) { upkeep.Every(ctx, time.Minute, alone.Forget) })
	} else {
		node := table.NewNode(t, d.shared.Table(), func() ratelimit.LedgerTime { return here(clock()) }, uint64(here(start)))
		// The store's time is this node's time plus the difference at the last read.
		at = func(now ratelimit.Instant) ratelimit.LedgerTime { return node.Time(here(now)) }
		d.overrides.Keeper = node
		d.follow(node, func() bool { return clock().Sub(start) > storeSettles }, log)
	}
	d.overrides.Now = func() ratelimit.LedgerTime { return at(clock()) }
	d.NodeLimiter = overrides.NewLimiter(d.NodeLimiter, t, at)
	d.beside(func(ctx context.Context) {
		// New rules may drop the rule that a ban was for: then the key is free again, without a word of the operator.
		// It is logged once for each set of rules.
		last := rules.Rules()
		upkeep.Every(ctx, time.Second, func() {
			if is := rules.Rules(); is != last {
				last = is
				warnOfLifted(is, d.overrides, log)
			}
		})
	})
}

// warnOfLifted names a ban that rules lift which were put in force.
func warnOfLifted(rules *config.Rules, book *overrides.Book, log *slog.Logger) {
	if n, one := book.Lifted(rules); n > 0 {
		log.Warn("the new rules lift bans: no rule has their keys, or it is unlimited. See sluice limit list", "bans", n, "one", one)
	}
}

// follow keeps a node's table in step with the store. The first request waits for it, but not for long. A node that
// serves before it has the table would admit keys that are banned. Without an answer for storeSettles it serves all the
// same.
func (d *decider) follow(node *table.Node, late func() bool, log *slog.Logger) {
	ready := d.ready
	d.ready = func() bool { return ready() && (node.Ready() || late()) }
	failed := upkeep.Seldom(time.Minute, func(err error) {
		log.Warn("the store does not answer reads of overrides: this node applies those that it has", "error", err)
	})
	d.beside(func(ctx context.Context) {
		node.Run(ctx, func(err error) {
			if ready() { // a store that does not answer at all says so
				failed(err)
			}
		})
	})
}
