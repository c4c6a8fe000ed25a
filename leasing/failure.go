package leasing

import (
	"context"
	"errors"

	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/ratelimit"
)

// failLocked decides without the ledger: from this node's share, if the rule drifts, or as its on_store_failure says.
// What it admits is booked, and told as soon as the store is back. k is nil where the table is full.
func (c *call) failLocked(now instant, w *waiter, k *entry, why ratelimit.FallbackReason) {
	w.done = true
	if k != nil {
		w.waitsLocked(*k, 0)
		if there := c.lane(*k).time(); now < k.Till && c.driftLocked(now, &there, *k, w, hold.Fully) {
			return
		}
	}
	c.stats.fallbacks[why].Add(1)
	a, v := w.ask, w.verdict
	policy := a.Rule.Coordination.OnStoreFailure
	if why == ratelimit.FallbackTableFull && policy != ratelimit.FailClosed {
		policy = ratelimit.FailLocal // it is not the store that fails
	}
	*v = verdict{}
	switch {
	case a.Kind == ratelimit.Refund && k != nil && k.Deadline != 0:
		// Before the first answer it is not known which window it is of: in the one that the answer names, it would
		// credit what was charged in another.
		k.Refund(a.Cost)
	case a.Kind.Settles() && k != nil:
		k.Settle(a, v)
	case a.Kind != ratelimit.Spend: // nothing is known, nothing is taken
	case policy == ratelimit.FailOpen:
		v.Charged = a.Cost
	case policy == ratelimit.FailClosed:
		v.OverLimit = true
	default:
		own := *a
		own.Rule = a.Rule.LocalShare(c.seen())
		var alone [1]verdict
		c.alone.Decide(context.Background(), now, []ask{own}, alone[:])
		*v = alone[0]
		v.Debt = 0 // which is that budget's
	}
	if k != nil && a.Kind == ratelimit.Spend && v.Charged > 0 {
		k.Admitted(v.Charged)
	}
	if k != nil {
		v.Booked = k.account(&a.Rule.Limit)
		w.under(*k)
	}
	v.Source, v.Reason = ratelimit.FromFallback, why
	if v.ResetAfter == 0 {
		v.ResetAfter = a.Rule.Limit.Period()
	}
}

// undoAlone takes back what a verdict without the ledger took of this node's own budget, if it was one that does.
func (f *Fleet) undoAlone(now instant, a *ask, v *verdict) {
	policy := a.Rule.Coordination.OnStoreFailure
	spent := policy == ratelimit.FailLocal || v.Reason == ratelimit.FallbackTableFull && policy != ratelimit.FailClosed
	if !spent || v.Charged <= 0 {
		return
	}
	own, at := *a, *v
	own.Rule, at.Source = a.Rule.LocalShare(f.seen()), ratelimit.FromLease
	f.alone.Undo(now, []ask{own}, []verdict{at})
}

// reason says why the ledger did not decide.
func reason(err error) ratelimit.FallbackReason {
	if errors.Is(err, errBreaker) {
		return ratelimit.FallbackBreaker
	}
	return ratelimit.FallbackError
}
