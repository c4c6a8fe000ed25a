package main

import (
	"time"

	"github.com/sluice-gate/sluice/cmd/sluice/record"
	"github.com/sluice-gate/sluice/ratelimit"
)

// audited is a limiter whose decisions under audited rules are recorded.
type audited struct {
	*record.Decisions
	base limiter
}

// Stats implements limiter.
func (a *audited) Stats() ratelimit.LimiterStats { return a.base.Stats() }

// SyncClock implements limiter.
func (a *audited) SyncClock(now ratelimit.Instant, wall time.Time) { a.base.SyncClock(now, wall) }

// audit has the decisions of the limiter recorded, if there is a record.
func (d *decider) audit(clock ratelimit.Clock) {
	if d.record == nil {
		return
	}
	start, began := clock(), ratelimit.LedgerTime(time.Now().UnixMicro())
	at := func(now ratelimit.Instant) ratelimit.LedgerTime { return began.Add(now.Sub(start)) }
	a := &audited{record.NewDecisions(d.limiter, d.record, d.who.holders[0], at), d.limiter}
	d.limiter = a
	d.beside(a.Run)
}
