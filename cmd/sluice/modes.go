package main

import (
	"context"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/leasing/slots"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing"
)

// byMode has each ask decided by the limiter of its mode: the ledger's, or the ring's for a mode whose keys have
// owners. The ledger's limiter leases from the store, or counts in this process's memory where there is none. It reads
// in the rule by which share it may drift. With a store, slots decides concurrency limits. A mode with a limiter of its
// own also changes the methods here.
type byMode struct {
	split
	ratelimit.Inspector // of the base
	base                ratelimit.NodeLimiter
	ring                *routing.Router // nil: there is none, and each node leases
	slots               *slots.Limiter  // nil: there is no store
}

// Without a ring and slots it returns the store's limiter itself, so that the most frequent setup pays for no choice.
func newByMode(
	ledger ratelimit.NodeLimiter, ring *routing.Router, slots *slots.Limiter,
) ratelimit.NodeLimiter {
	if ring == nil && slots == nil {
		return ledger
	}
	m := &byMode{Inspector: ledger, base: ledger, ring: ring, slots: slots}
	m.of = m.limiter
	return m
}

// limiter decides an ask. A slot comes first: concurrency limits are decided at the store in every mode.
func (m *byMode) limiter(a *ratelimit.Ask) ratelimit.Limiter {
	switch {
	case m.slots != nil && a.OfSlot():
		return m.slots
	case m.ring != nil && a.Rule.Coordination.Mode.Spec().Owned:
		return m.ring
	}
	return m.base
}

// Alone has the node's own budgets for outages, below a ring with a store. It is called only with a store, and then
// slots is not nil.
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

// Reset implements [ratelimit.Inspector]. With a store, any node can reset a key of the ring there, and the command has
// all others drop their leases. Without a store, only the key's owner has its account.
func (m *byMode) Reset(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	if m.slots != nil && a.OfSlot() {
		return m.slots.Reset(ctx, now, a)
	}
	if m.slots == nil && a.Rule.Coordination.Mode.Spec().Owned {
		return m.ring.Reset(ctx, now, a)
	}
	return m.base.Reset(ctx, now, a)
}

// SyncClock implements [ratelimit.NodeLimiter]. Without a store, the ring has budgets of its own for outages.
func (m *byMode) SyncClock(now ratelimit.Instant, wall time.Time) {
	m.base.SyncClock(now, wall)
	if m.ring != nil {
		m.ring.SyncClock(now, wall)
	}
}
