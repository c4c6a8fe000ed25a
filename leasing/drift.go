package leasing

import (
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Drift says how much this node may spend of a key before the ledger has
// answered, under rules of mode approx (docs/protocol.md, section 4.12). Package
// approx implements it.
type Drift interface {
	// Share returns that many tokens, of each key under the rule, in a window
	// that began at begins by the ledger's clock; 0 if this node may not now.
	// A bucket does not begin anew: when heir is not 0, and new for the key, one
	// share must first be taken as spent, for another may have spent it. It does
	// not block.
	Share(
		now ratelimit.Instant, rule *ratelimit.Rule, begins ratelimit.LedgerTime,
	) (share ratelimit.Tokens, heir ratelimit.Fence)
}

// Reconciliation is what a claim has settled of a node's drift.
type Reconciliation = lease.Reconciliation

// drift spends from the node's share, if it may. waited says that the ledger
// was asked for as long as the rule waits for it.
func (f *Fleet) drift(now instant, a *ask, waited lease.Waited) (verdict, bool) {
	// What is spent when the node has told all would never be told, and its seat has been left as clean.
	if !a.Rule.Drifts() || f.Drift == nil || a.Kind != ratelimit.Spend || f.ended.Load() {
		return verdict{}, false
	}
	s, id, h := f.locked(a.Key)
	defer s.mu.Unlock()
	if h == nil {
		// Without a place in the table nobody would remember what was spent, and the share would be
		// spent again and again.
		if h = f.admit(s, now, id, a.Key); h == nil {
			return verdict{}, false
		}
	}
	defer f.do(h, now)
	h.Turn(now)
	there := f.laneOf(f.keyName(a.Key)).time()
	begins, ok := h.Drifts(now, there, a, waited)
	if !ok {
		return verdict{}, false
	}
	share, heir := f.Drift.Share(now, a.Rule, begins)
	if waited != lease.InVain {
		f.hurry(h) // what is spent unasked is told at once
	}
	return h.Drift(now, there, a, lease.DriftShare{Tokens: share, Heir: heir}, waited)
}

// Drifting tells whether this node has spent what the ledger has not
// confirmed, in windows that go on. It takes every lock once.
func (f *Fleet) Drifting() bool {
	now, found := f.clock(), false
	for w := (walk{}); !found && f.step(&w, func(s *fleetShard, c *heldCell) {
		if c.Val.slot != 0 || c.Mark&coldDrifts != 0 {
			var scratch busyKey
			found = found || s.view(c, &scratch).Drifting(now)
		}
	}); {
	}
	return found
}
