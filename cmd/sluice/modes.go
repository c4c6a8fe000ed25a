package main

import (
	"context"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/leasing/slots"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing"
)

// modeTable has a line for each mode: its declaration, and its limiter. A mode that decides by the ledger or by the ring
// is a package and a line here. It has a [ratelimit.ModeSpec] at the end of the table of package ratelimit, and its
// bounds in package declare. One with a limiter of its own also changes newByMode and the methods of byMode.
var modeTable = []modeLine{
	{ratelimit.Leasing, byLedger},
	{ratelimit.Routing, byOwner},
	{ratelimit.Approx, byLedger},
}

// modeLine has decides make the limiter of a mode. The ledger's limiter leases from the store, or counts in this
// process's memory where there is none; ring is nil where PEERS is not set.
type modeLine struct {
	mode    ratelimit.Mode
	decides func(ledger ratelimit.Limiter, ring *routing.Router) ratelimit.Limiter
}

// byLedger has the ledger's limiter decide. It reads in the rule by which share it may drift.
func byLedger(ledger ratelimit.Limiter, _ *routing.Router) ratelimit.Limiter { return ledger }

// byOwner has the owner of a key decide; without a ring each node leases.
func byOwner(ledger ratelimit.Limiter, ring *routing.Router) ratelimit.Limiter {
	if ring == nil {
		return ledger
	}
	return ring
}

// byMode has each ask decided by its mode's limiter. With a store, slots decides concurrency limits. The
// base is the limiter of the ledger.
type byMode struct {
	split
	ratelimit.Inspector // of the base
	base                ratelimit.NodeLimiter
	ring                *routing.Router // nil: there is none
	slots               *slots.Limiter  // nil: there is no store
}

func newByMode(
	ledger ratelimit.NodeLimiter, ring *routing.Router, slots *slots.Limiter,
) ratelimit.NodeLimiter {
	m := &byMode{Inspector: ledger, base: ledger, ring: ring, slots: slots}
	m.of = func(a *ratelimit.Ask) int { return int(a.Rule.Coordination.Mode) }
	m.all = make([]ratelimit.Limiter, len(ratelimit.ModeNames()))
	plain := slots == nil
	for _, line := range modeTable {
		l := line.decides(ledger, ring)
		m.all[line.mode], plain = l, plain && l == ratelimit.Limiter(ledger)
	}
	if plain {
		return ledger
	}
	if slots != nil {
		last := len(m.all)
		m.all = append(m.all, slots)
		m.of = func(a *ratelimit.Ask) int {
			if a.OfSlot() {
				return last
			}
			return int(a.Rule.Coordination.Mode)
		}
	}
	return m
}

// Alone has the node's own budgets for outages, below a ring with a store.
func (m *byMode) Alone() *local.Limiter { return m.slots.Alone }

// Stats adds the decisions for which an owner did not answer, and the work of concurrency limits.
func (m *byMode) Stats() ratelimit.LimiterStats {
	s := m.base.Stats()
	if m.ring != nil {
		s.Fallbacks[ratelimit.FallbackPeer] += m.ring.Fallbacks()
	}
	if m.slots != nil {
		s.Add(m.slots.Stats())
	}
	return s
}

// Look implements [ratelimit.Inspector]. A key's owner has the figures of its own keys.
func (m *byMode) Look(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) ratelimit.Look {
	if m.slots != nil && a.OfSlot() {
		return m.slots.Look(ctx, now, a)
	}
	v := m.base.Look(ctx, now, a)
	if m.ring != nil && a.Rule.Coordination.Mode.Spec().Owned {
		v.Owner = m.ring.Owner(a)
	}
	return v
}

// Reset implements [ratelimit.Inspector].
func (m *byMode) Reset(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	if m.slots != nil && a.OfSlot() {
		return m.slots.Reset(ctx, now, a)
	}
	if m.slots == nil && a.Rule.Coordination.Mode.Spec().Owned {
		return m.ring.Reset(ctx, now, a)
	}
	return m.base.Reset(ctx, now, a)
}

// SyncClock implements [ratelimit.NodeLimiter]. The ring has budgets of its own for outages.
func (m *byMode) SyncClock(now ratelimit.Instant, wall time.Time) {
	m.base.SyncClock(now, wall)
	if m.ring != nil {
		m.ring.SyncClock(now, wall)
	}
}
