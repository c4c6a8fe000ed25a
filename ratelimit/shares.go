package ratelimit

import "time"

// LossShare is what a ledger that has lost its data grants of a key, in all, until
// every holder has told it what it had spent: a twentieth of the limit, and at
// least one token.
func (r *Rule) LossShare() Tokens { return max(1, r.Limit.Capacity()/LossPart) }

// LocalShare is the rule for a node that must decide alone, under
// on_store_failure: local: local_cap, or the limit's share of one of so many nodes, as were last seen alive. 0: that is
// not known, and there may be max_nodes.
func (r *Rule) LocalShare(nodes int) *Rule {
	alone := *r
	c := &alone.Coordination
	share := func(n Tokens) Tokens {
		if c.LocalCap > 0 {
			return min(n, c.LocalCap)
		}
		return max(1, n/Tokens(nodes))
	}
	if nodes <= 0 {
		nodes = c.MaxNodes
	}
	alone.Limit.Requests = share(alone.Limit.Requests)
	alone.Limit.Carries = false // what is owed is the account's
	if alone.Limit.Algorithm == TokenBucket {
		alone.Limit.Burst = share(alone.Limit.Burst)
	}
	return &alone
}

// PerRequest is the rule for a node that leases for single requests only, and keeps
// nothing between them: where another node is the one to lease.
func (r *Rule) PerRequest() *Rule {
	own := *r
	own.Coordination.Lease.Fixed = 1
	return &own
}

// SyncInterval is how old what a node knows of what is left may be for it to spend its
// share without waiting, under mode approx.
func (r *Rule) SyncInterval() time.Duration { return min(2*time.Second, r.Limit.Period()/2) }

// DriftShare is what one node of max_nodes may spend of a key, under mode
// approx, before the ledger has answered; 0 if that is less than a token.
func (r *Rule) DriftShare() Tokens {
	c := &r.Coordination
	return c.DriftBudget.Of(r.Limit.Capacity()) / Tokens(c.MaxNodes)
}

// Drifts tells whether a node may spend of a key before the ledger has answered. A rule of mode approx
// of whose drift budget no node has a token is as one of mode leasing.
func (r *Rule) Drifts() bool {
	return (r.Coordination.Mode.Spec().Drifts || r.held.tokens > 0) && r.DriftShare() > 0
}

// LargestLease is the most that one holder is granted at once under reclaim:
// eager, but for a single request that costs more: half of a whole budget, or
// what the rule fixes.
func (r *Rule) LargestLease() Tokens {
	most := max(1, r.Limit.Capacity()/2)
	if size := r.Coordination.Lease.Fixed; size > 0 {
		return min(most, size)
	}
	return most
}
