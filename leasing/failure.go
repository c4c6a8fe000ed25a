package leasing

import (
	"errors"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// failLocked decides without the ledger: from this node's share, if the rule drifts, or by its on_store_failure. Its
// admissions are booked, and reported when the store is back. k is nil if the table is full: then nothing is booked.
// why is counted, and in the verdict.
func (c *call) failLocked(now instant, w *waiter, k *entry, why ratelimit.FallbackReason) {
	w.done = true
	if k != nil {
		w.waitsLocked(*k, 0)
		const waited = true
		// The share is better than the policy: the declared bound of drift covers it.
		there := c.lane(*k).time()
		if now < k.CurrentUntil && c.driftLocked(now, &there, *k, w, waited) {
			return
		}
	}
	c.stats.fallbacks[why].Add(1)
	a, v := w.ask, w.verdict
	policy := policyOf(a.Rule, why)
	*v = verdict{}
	// Debt by the last answer refuses peeks. Under the policy open, that holds only while the ledger answers others.
	if a.Kind == ratelimit.Peek && k != nil && now < k.CurrentUntil &&
		a.Rule.Limit.Algorithm == ratelimit.FixedWindow &&
		(policy != ratelimit.FailOpen || c.lane(*k).alive(now)) {
		k.Take(now, a, lease.Reply{Waited: true}, v) // debt that was read refuses until the window ends
	}
	switch {
	case v.OverLimit:
	case a.Kind == ratelimit.Refund && k != nil && k.Deadline != 0:
		// Before the first answer the window of a refund is unknown: in the window that the answer names, it could
		// credit the charge of another one.
		k.Refund(a.Cost)
	// The cost is due in any case.
	case a.Kind == ratelimit.Charge:
		if k != nil {
			k.Settle(a, v)
		}
		c.chargeAlone(now, a, why)
	case a.Kind != ratelimit.Spend && (a.Kind != ratelimit.Peek || policy == ratelimit.FailOpen): // nothing is decided
	case policy == ratelimit.FailOpen:
		v.Charged = a.Cost
	case policy == ratelimit.FailClosed:
		v.OverLimit = true
	default:
		c.decideAlone(now, a, k, v)
	}
	if k != nil {
		if a.Kind == ratelimit.Spend && v.OverLimit {
			k.Refused(now, a.Cost)
		}
		if a.Kind == ratelimit.Spend && v.Charged > 0 {
			k.Admitted(now, v.Charged)
			if c := a.Rule.Counters; c != nil && !a.Rule.Overridden {
				c.Alone.See(k.Outage)
			}
		}
		v.Booked = k.account(&a.Rule.Limit)
		w.countUnder(*k)
	}
	v.Source, v.Reason = ratelimit.FromFallback, why
	if v.ResetAfter == 0 {
		v.ResetAfter = a.Rule.Limit.Period()
	}
}

// decideAlone decides by this node's own budget for outages, under on_store_failure: local. In a window of which it has
// read the sum, it also refuses what exceeds its part of the rest. Otherwise the whole limit could be admitted in
// addition to what the ledger granted before it failed.
func (c *call) decideAlone(now instant, a *ask, k *entry, v *verdict) {
	left := c.ownPart(now, k, a.Rule)
	if a.Cost > left { // also a peek, after charges beyond the part
		*v = verdict{OverLimit: true, Remaining: max(0, left)}
		return
	}
	*v = c.alone.DecideShare(now, a, c.Nodes())
	v.Remaining = min(v.Remaining, left-v.Charged)
	v.Debt = 0 // it is the debt of that budget
}

// ownPart is what this node may still admit in this window without the ledger: its part of the rest by the last answer,
// less its own usage since. Without an answer about the window, it is unbounded. A window that was never answered may
// be unused, and only the node's own budget bounds it. A sliding window gets nothing back until its period ends
// (docs/adr, decision 38).
func (f *Fleet) ownPart(now instant, k *entry, r *ratelimit.Rule) tokens {
	if k == nil || k.LastAnswer == 0 || now >= k.CurrentUntil {
		return ratelimit.MaxLimit
	}
	return r.ShareOfRest(k.Sum, now.Sub(k.LastAnswer), f.Nodes()) - k.Drift()
}

// policyOf is what decides without the ledger. Under open, each key without a place in the table would be unlimited.
func policyOf(r *ratelimit.Rule, why ratelimit.FallbackReason) ratelimit.FailurePolicy {
	policy := r.Coordination.OnStoreFailure
	if why == ratelimit.FallbackTableFull && policy != ratelimit.FailClosed {
		return ratelimit.FailLocal // the store has not failed
	}
	return policy
}

// chargeAlone charges a cost above its hold to this node's own budget for outages, too. That would otherwise admit
// requests for as long as their holds fit, whatever they cost.
func (f *Fleet) chargeAlone(now instant, a *ask, why ratelimit.FallbackReason) {
	if a.Kind == ratelimit.Charge && policyOf(a.Rule, why) == ratelimit.FailLocal {
		own := *a
		own.Window = 0 // that which goes on
		f.alone.DecideShare(now, &own, f.Nodes())
	}
}

// undoAlone takes back a charge of this node's own budget by a verdict without the ledger.
func (f *Fleet) undoAlone(now instant, a *ask, v *verdict) {
	if policyOf(a.Rule, v.Reason) == ratelimit.FailLocal {
		f.alone.UndoShare(now, a, v, f.Nodes())
	}
}

// ErrClockSet means that the ledger's clock was set.
var ErrClockSet = errors.New("the store's clock stepped: leases are claimed anew")

// ErrEvicted means that a single account was lost.
var ErrEvicted = errors.New("the store lost an account in use, by eviction (maxmemory-policy) or deletion: its " +
	"grants can be repeated")
