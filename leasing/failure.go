package leasing

import (
	"context"
	"errors"

	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/ratelimit"
)

// failLocked decides without the ledger: from this node's share, if the rule drifts, or by its on_store_failure. Its
// admissions are booked, and reported when the store is back. k is nil if the table is full.
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
		policy = ratelimit.FailLocal // the store has not failed
	}
	*v = verdict{}
	if a.Kind == ratelimit.Peek && k != nil && now < k.Till && a.Rule.Limit.Algorithm == ratelimit.FixedWindow &&
		(policy != ratelimit.FailOpen || c.lane(*k).alive(now)) {
		k.Take(now, a, hold.Reply{Waited: true}, v) // debt that was read refuses until the window ends
	}
	switch {
	case v.OverLimit:
	case a.Kind == ratelimit.Refund && k != nil && k.Deadline != 0:
		// Before the first answer the window of a refund is unknown: in the window that the answer names, it could
		// credit the charge of another one.
		k.Refund(a.Cost)
	case a.Kind.Settles() && k != nil:
		k.Settle(a, v)
	case a.Kind != ratelimit.Spend && (a.Kind != ratelimit.Peek || policy == ratelimit.FailOpen): // nothing is decided
	case policy == ratelimit.FailOpen:
		v.Charged = a.Cost
	case policy == ratelimit.FailClosed:
		v.OverLimit = true
	default:
		own := *a
		own.Rule = a.Rule.LocalShare(c.Nodes())
		var alone [1]verdict
		c.alone.Decide(context.Background(), now, []ask{own}, alone[:])
		*v = alone[0]
		v.Debt = 0 // it is the debt of that budget
	}
	if k != nil && a.Kind == ratelimit.Spend && v.Charged > 0 {
		k.Admitted(v.Charged)
	}
	if k != nil {
		v.Booked = k.account(&a.Rule.Limit)
		w.countUnder(*k)
	}
	v.Source, v.Reason = ratelimit.FromFallback, why
	if v.ResetAfter == 0 {
		v.ResetAfter = a.Rule.Limit.Period()
	}
}

// undoAlone takes back a charge of this node's own budget by a verdict without the ledger.
func (f *Fleet) undoAlone(now instant, a *ask, v *verdict) {
	policy := a.Rule.Coordination.OnStoreFailure
	spent := policy == ratelimit.FailLocal || v.Reason == ratelimit.FallbackTableFull && policy != ratelimit.FailClosed
	if !spent || v.Charged <= 0 {
		return
	}
	own, at := *a, *v
	own.Rule, at.Source = a.Rule.LocalShare(f.Nodes()), ratelimit.FromLease
	f.alone.Undo(now, []ask{own}, []verdict{at})
}

// reason is why the ledger did not decide.
func reason(err error) ratelimit.FallbackReason {
	if errors.Is(err, errBreaker) {
		return ratelimit.FallbackBreaker
	}
	return ratelimit.FallbackError
}
