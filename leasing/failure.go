package leasing

import (
	"context"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// fail decides without the ledger, as the rule's on_store_failure says, and
// counts why.
func (f *Fleet) fail(ctx context.Context, now instant, a *ask, reason ratelimit.FallbackReason) verdict {
	if v, ok := f.drift(now, a, lease.Fully); ok {
		return v
	}
	f.stats.fallbacks[reason].Add(1)
	policy := a.Rule.Coordination.OnStoreFailure
	if reason == ratelimit.FallbackTableFull && policy != ratelimit.FailClosed {
		policy = ratelimit.FailLocal // it is not the store that fails
	}
	var v verdict
	switch {
	case a.Kind != ratelimit.Spend: // nothing is known, nothing is taken
	case policy == ratelimit.FailOpen:
		v = verdict{Charged: a.Cost}
	case policy == ratelimit.FailClosed:
		v = verdict{OverLimit: true}
	case policy == ratelimit.FailCached:
		v = f.cached(now, a)
	default:
		v = f.local(ctx, now, a)
	}
	if v.Charged > 0 && policy != ratelimit.FailCached {
		v.Booked = f.bookUnasked(now, a, v.Charged)
	}
	v.Source, v.Reason = ratelimit.FromFallback, reason
	if v.ResetAfter == 0 {
		v.ResetAfter = a.Rule.Limit.Period()
	}
	return v
}

// Alone is this node's own budgets for outages. A node has one of a key, whatever
// it cannot ask: who decides for it where another node is out of reach
// (package routing) spends from the same.
func (f *Fleet) Alone() *Local { return f.fallback }

// SpendAlone has this node's budgets for outages be those that another limiter of the node
// spends from already. It must be called before the Fleet is used, which holds no lock for it.
func (f *Fleet) SpendAlone(budgets *Local) { f.fallback = budgets }

// local spends from a budget of this node alone: local_cap, or the limit's
// share of one of max_nodes.
func (f *Fleet) local(ctx context.Context, now instant, a *ask) verdict {
	own := *a
	own.Rule = a.Rule.LocalShare()
	var v [1]verdict
	f.fallback.Decide(ctx, now, []ask{own}, v[:])
	return v[0]
}

// bookUnasked books what was admitted without the ledger as spent, so that it is told:
// what a short outage admitted is taken from what the limit still has. It returns
// the window, if that is known.
func (f *Fleet) bookUnasked(now instant, a *ask, n tokens) window {
	s, _, h := f.locked(a.Key)
	defer s.mu.Unlock()
	if h == nil {
		return 0 // a key beyond the table: nobody will claim for it
	}
	return h.Book(now, a, n)
}

// undoFallback takes back what fail charged: from what is booked for the ledger,
// and from the budget of this node alone.
func (f *Fleet) undoFallback(now instant, a *ask, v *verdict) {
	policy := a.Rule.Coordination.OnStoreFailure
	if v.Charged <= 0 {
		return
	}
	if policy != ratelimit.FailOpen && policy != ratelimit.FailCached || v.Reason == ratelimit.FallbackTableFull {
		own, at := *a, *v
		own.Rule, at.Source = a.Rule.LocalShare(), ratelimit.FromLease
		f.fallback.Undo(now, []ask{own}, []verdict{at})
	}
	s, _, h := f.locked(a.Key)
	defer s.mu.Unlock()
	if h != nil {
		h.Unbook(a, v)
	}
}

// cached goes on against what the ledger last said was left, for at most
// max_staleness. What is so spent is reported as drift when the ledger is back.
func (f *Fleet) cached(now instant, a *ask) verdict {
	s, _, h := f.locked(a.Key)
	defer s.mu.Unlock()
	if h == nil {
		return verdict{OverLimit: true}
	}
	return h.Cached(now, a)
}
