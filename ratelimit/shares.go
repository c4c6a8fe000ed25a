package ratelimit

import (
	"math/bits"
	"time"
)

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
	alone.Limit.Requests = shareOf(alone.Limit.Requests, nodes)
	alone.Limit.Carries = false // debt is the account's
	if alone.Limit.Algorithm == TokenBucket {
		alone.Limit.Burst = shareOf(alone.Limit.Burst, nodes)
	}
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

// shareOf is one node's part, at least a token where there is one.
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

// A rule may hold back a part of its limit, its reserve (lease.reserve), so that the first request of a key
// need not wait for the ledger. The ledger counts up to the limit less the reserve. The reserve is divided into
// max_nodes shares, one for each seat. A node with a seat spends its share like one of mode approx, before the
// ledger has answered (docs/protocol.md, section 13). This drift is beyond the ledger's count, but within the
// limit. The price is not over-admission but unused tokens: those of free seats, and of nodes that do not need
// them.

// Reserve is the part of the limit that the ledger does not grant: whole tokens for each of max_nodes, up to
// lease.reserve. It is 0 for rules without one. It is for fixed windows. A rule of mode approx has a drift
// budget instead, an audit needs all spending on record, and debt is beyond the whole limit. A limit that a
// request brings is no rule, so that nodes could not agree on its reserve.
func (r *Rule) Reserve() Tokens {
	c := &r.Coordination
	if c.Lease.Reserve == (Share{}) || !r.reserves() {
		return 0
	}
	nodes := Tokens(max(1, c.MaxNodes))
	return r.heldBack() / nodes * nodes
}

// heldBack is lease.reserve in tokens, at most the part that a rule may hold back.
func (r *Rule) heldBack() Tokens {
	limit := r.Limit.Capacity()
	return min(r.Coordination.Lease.Reserve.Of(limit), Share{PPM: MostReserve}.Of(limit))
}

// MostReserveName is the longest name, domain and path together, of a rule that may have a reserve, in bytes: under
// mode routing it goes with each ask.
const MostReserveName = 1 << 10

// reserves tells whether the rule is one that may have a reserve.
func (r *Rule) reserves() bool {
	c := &r.Coordination
	return !c.Mode.Spec().Drifts && !c.Audit && r.Limit.Algorithm == FixedWindow && !r.Limit.Carries && !r.Override &&
		!r.Unlimited && len(r.Domain)+len(r.Path) <= MostReserveName
}

// reserved is the link from a rule for the ledger to its original. The zero reserved is no rule's for a
// ledger.
type reserved struct {
	of     *Rule
	tokens Tokens
}

// AtLedger is the rule for the ledger: with a limit that is less by the reserve, which drifts. Without a
// reserve it is the rule itself. It does not allocate if Prepare was called.
func (r *Rule) AtLedger() *Rule {
	if r.Coordination.Lease.Reserve == (Share{}) {
		return r
	}
	// A copy of a prepared rule may have been changed since: its rule for the ledger is its own.
	if at := r.atLedger; at != nil && at.held.of == r {
		return at
	}
	n := r.Reserve()
	if n == 0 {
		return r
	}
	at := *r
	at.atLedger, at.held = nil, reserved{of: r, tokens: n}
	at.Limit.Requests -= n
	at.Limit.Ceiling = 0 // first requests are answered from the reserve, which an override may not have
	at.Coordination.Lease.Reserve, at.Coordination.DriftBudget = Share{}, Share{Tokens: n}
	// If little is left by a node's last answer, it waits for the ledger like any other, and others may give
	// back.
	at.Coordination.CheckTimeout = r.Coordination.Deadline()
	return &at
}

// Prepare makes what AtLedger returns. It is called once, before others have the rule.
func (r *Rule) Prepare() {
	if at := r.AtLedger(); at != r {
		r.atLedger = at
	}
}

// Whole is the rule that a rule for a ledger was made of; nil, if it is none.
func (r *Rule) Whole() *Rule { return r.held.of }

// Remaining scales the rest of a ledger's part to the whole limit. It is 0 only if nothing of that part is
// left.
func (r *Rule) Remaining(left Tokens) Tokens {
	at := uint64(r.Limit.Capacity())
	if r.held.tokens == 0 || left <= 0 || at == 0 {
		return left
	}
	hi, lo := bits.Mul64(uint64(left), at+uint64(r.held.tokens))
	lo, carry := bits.Add64(lo, at-1, 0)
	whole, _ := bits.Div64(hi+carry, lo, at)
	return Tokens(whole)
}
