package ratelimit

import "time"

// LossShare is the total grant of a key by a ledger that lost its data, until every holder has restored its
// total. It is a twentieth of the limit, and at least one token.
func (r *Rule) LossShare() Tokens { return max(1, r.Limit.Capacity()/LossPart) }

// LocalShare is the rule for a node that must decide alone, under
// on_store_failure: local: the limit's share of one of so many nodes, as were last seen alive. 0: that is not known,
// and there may be max_nodes.
func (r *Rule) LocalShare(nodes int) *Rule {
	alone := *r
	if nodes <= 0 {
		nodes = r.Coordination.MaxNodes
	}
	share := func(n Tokens) Tokens { return max(min(1, n), n/Tokens(nodes)) } // of a limit of 0, nothing
	alone.Limit.Requests = share(alone.Limit.Requests)
	alone.Limit.Carries = false // debt is the account's
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

// SyncInterval is the largest age of the known remainder at which a node of mode approx spends its share
// without waiting.
func (r *Rule) SyncInterval() time.Duration { return min(2*time.Second, r.Limit.Period()/2) }

// DriftShare is the part of a key that one node of max_nodes may spend under mode approx before the ledger
// answers; 0 if that is less than a token.
func (r *Rule) DriftShare() Tokens {
	c := &r.Coordination
	return c.DriftBudget.Of(r.Limit.Capacity()) / Tokens(c.MaxNodes)
}

// Drifts tells whether a node may spend of a key before the ledger has answered. A rule of mode approx
// of whose drift budget no node has a token is as one of mode leasing.
func (r *Rule) Drifts() bool {
	return (r.Coordination.Mode.Spec().Drifts || r.held.tokens > 0) && r.DriftShare() > 0
}

// LargestLease is the largest grant to one holder at once under reclaim: eager, unless a single request costs
// more. It is half of a whole budget, or the size that the rule fixes.
func (r *Rule) LargestLease() Tokens {
	most := max(1, r.Limit.Capacity()/2)
	if size := r.Coordination.Lease.Fixed; size > 0 {
		return min(most, size)
	}
	return most
}
