package ratelimit

import "time"

// LocalShare is the rule for a node that must decide alone, under
// on_store_failure: local: the limit's share of one of so many nodes, as were last seen alive. 0: that is not known,
// and there may be max_nodes.
func (r *Rule) LocalShare(nodes int) *Rule {
	alone := *r
	if nodes <= 0 {
		nodes = r.Coordination.MaxNodes
	}
	l := &alone.Limit
	if l.Algorithm == TokenBucket {
		// With fewer tokens in a period than nodes, a token for each would be more than the bucket refills: the period
		// is longer.
		requests := int64(max(1, l.Requests))
		periods := (int64(nodes) + requests - 1) / requests
		l.Multiplier = uint32(min(int64(max(1, l.Multiplier))*periods, int64(l.Unit.MostMultiplier())))
		l.Burst = shareOf(l.Burst, nodes)
	}
	l.Requests = shareOf(l.Requests, nodes)
	return &alone
}

// ShareOfRest is the part of one of so many nodes, as in LocalShare, of what is left of the limit if sum was used a
// while ago. A bucket has been refilled since. The tokens that return to a sliding window are not in it: their time is
// unknown. It is 0 or less if more than the limit was used.
func (r *Rule) ShareOfRest(sum Tokens, since time.Duration, nodes int) Tokens {
	left := r.Limit.Capacity() - sum
	if r.Limit.Algorithm == TokenBucket {
		left += Tokens(float64(r.Limit.Requests) * float64(max(0, since)) / float64(r.Limit.Period()))
	}
	if nodes <= 0 {
		nodes = r.Coordination.MaxNodes
	}
	return shareOf(left, nodes)
}

// shareOf is one node's part, at least a token where there is one: with more nodes than tokens, all parts together are
// more than n.
func shareOf(n Tokens, nodes int) Tokens { return max(min(1, n), n/Tokens(nodes)) }

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

// Drifts reports whether a node may spend of a key before the ledger has answered. A rule of mode approx
// of whose drift budget no node has a token is as one of mode leasing.
func (r *Rule) Drifts() bool {
	return r.Coordination.Mode.Spec().Drifts && r.DriftShare() > 0
}

// LeaseAhead is the maximum of a node's tokens in hand of a key, without those of waiting requests.
func (r *Rule) LeaseAhead() Tokens {
	most := max(1, r.Limit.Capacity()/PlentyPart)
	if size := r.Coordination.Lease.Fixed; size > 0 {
		return min(most, size)
	}
	return most
}

// LargestLease is the largest grant to one Envoy at once. It is half of a whole budget, or the size that the rule
// fixes.
func (r *Rule) LargestLease() Tokens {
	most := max(1, r.Limit.Capacity()/2)
	if size := r.Coordination.Lease.Fixed; size > 0 {
		return min(most, size)
	}
	return most
}
