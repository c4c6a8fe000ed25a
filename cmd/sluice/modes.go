package main

import (
	"context"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing"
)

// modeTable has a line for each mode: its declaration, and its limiter. A mode of your own is a package with a
// [ratelimit.ModeSpec] and a limiter, and a line here:
//
//	{ratelimit.AddMode(mine.Spec), mine.New},
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

// byMode has each ask decided by its mode's limiter. With a store, slots decides concurrency limits. All
// other methods are those of the ledger's limiter, the base of every mode.
type byMode struct {
	limiter
	modes split
	ring  *routing.Router      // nil: there is none
	slots *leasing.Concurrency // nil: there is no store
}

func newByMode(ledger limiter, ring *routing.Router, slots *leasing.Concurrency) limiter {
	m := &byMode{limiter: ledger, ring: ring, slots: slots}
	m.modes.of = func(a *ratelimit.Ask) int { return int(a.Rule.Coordination.Mode) }
	m.modes.all = make([]ratelimit.Limiter, len(ratelimit.ModeNames()))
	plain := slots == nil
	for _, line := range modeTable {
		l := line.decides(ledger, ring)
		m.modes.all[line.mode], plain = l, plain && l == ratelimit.Limiter(ledger)
	}
	if plain {
		return ledger
	}
	if slots != nil {
		last := len(m.modes.all)
		m.modes.all = append(m.modes.all, slots)
		m.modes.of = func(a *ratelimit.Ask) int {
			if a.OfSlot() {
				return last
			}
			return int(a.Rule.Coordination.Mode)
		}
	}
	return m
}

// Override implements [ratelimit.Overrider].
func (m *byMode) Override(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) (ratelimit.Override, bool, error) {
	return m.modes.Override(ctx, now, a)
}

// SetOverride implements [ratelimit.Overrider].
func (m *byMode) SetOverride(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask, o *ratelimit.Override, match ratelimit.Match) (ratelimit.Override, error) {
	return m.modes.SetOverride(ctx, now, a, o, match)
}

// Overrides implements [ratelimit.Overrider].
func (m *byMode) Overrides(ctx context.Context, now ratelimit.Instant, prefix, after string, n int) ([]ratelimit.NamedOverride, error) {
	return m.modes.Overrides(ctx, now, prefix, after, n)
}

// Decide implements [ratelimit.Limiter].
func (m *byMode) Decide(ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	m.modes.Decide(ctx, now, asks, verdicts)
}

// Undo implements [ratelimit.Limiter].
func (m *byMode) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	m.modes.Undo(now, asks, verdicts)
}

// Stats adds the decisions for which an owner did not answer.
func (m *byMode) Stats() ratelimit.LimiterStats {
	s := m.limiter.Stats()
	if m.ring != nil {
		s.Fallbacks[ratelimit.FallbackPeer] += m.ring.Fallbacks()
	}
	if m.slots != nil {
		for why, n := range m.slots.Fallbacks() {
			s.Fallbacks[why] += n
		}
	}
	return s
}

// Look implements [ratelimit.Inspector]. A key's owner has the figures of its own keys.
func (m *byMode) Look(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) ratelimit.Look {
	if m.slots != nil && a.OfSlot() {
		return m.slots.Look(ctx, now, a)
	}
	v := m.limiter.Look(ctx, now, a)
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
	return m.limiter.Reset(ctx, now, a)
}

// SyncClock implements limiter. The ring has budgets of its own for outages.
func (m *byMode) SyncClock(now ratelimit.Instant, wall time.Time) {
	m.limiter.SyncClock(now, wall)
	if m.ring != nil {
		m.ring.SyncClock(now, wall)
	}
}
