package declare

import (
	"math/bits"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Bounds are the worst case that a rule declares before it runs, for each key and window. For a token_bucket,
// a window is the time in which the bucket fills. In an outage, that is the node's own share of the bucket,
// which may fill faster by rounding. Each bound is a number with its unit.
//
// The zero Bounds promise no fault of any kind; only a limit of 0 has them. Bounds are a value: copies are
// independent.
type Bounds struct {
	Unlimited bool     `json:"unlimited,omitempty"` // the rule has no limit: all else is zero
	Over      Over     `json:"over_admission"`
	Under     Under    `json:"under_admission"`
	Wait      Wait     `json:"longest_wait"`
	StoreOps  StoreOps `json:"store_operations"`
	OnOutage  Outage   `json:"outage"`
	// Debt is what charges after the fact bring beyond the limit, and until when it counts.
	Debt DebtLasts `json:"debt"`
	// OnLoss is the over-admission of each loss of the store's data, without the usage of nodes that cannot
	// restore it.
	OnLoss ratelimit.Tokens `json:"data_loss_tokens"`
}

// Storage says where the nodes of a fleet count.
type Storage bool

const (
	// OwnMemory has each node count in its own memory.
	OwnMemory Storage = false
	// SharedStore is one store for all nodes.
	SharedStore Storage = true
)

// Of states a rule's bounds on so many nodes, which count where storage says.
// It does not block, and does not allocate.
func Of(r *ratelimit.Rule, nodes int, storage Storage) Bounds {
	b := Bounds{Debt: debt(r)}
	switch {
	case r.Unlimited:
		return Bounds{Unlimited: true}
	case r.Limit.Algorithm == ratelimit.Concurrency:
		b = slots(r, nodes, storage)
		b.OnOutage.Edges = edgesOf(r, &b)
		return b
	case storage == OwnMemory:
		b.Over = overApart(r, nodes)
	case r.RefusesAll(): // without asking anybody
		return Bounds{OnOutage: Outage{Of: StoreOutage, Policy: ratelimit.FailClosed}}
	case r.Limit.Capacity() == 0: // only keys with an override pass
		b.Wait = wait(r)
		b.StoreOps = storeOps(r, nodes)
		b.OnOutage = outage(r, StoreOutage, nodes)
	default:
		b.Over = over(r, nodes)
		b.Under = under(r)
		b.Wait = wait(r)
		b.StoreOps = storeOps(r, nodes)
		b.OnOutage = outage(r, StoreOutage, nodes)
		b.OnLoss = lossShare(r)
	}
	// Other modes start from the bounds of leasing, and change what differs.
	if of, is := modes[r.Coordination.Mode]; is && !r.RefusesAll() {
		b = of.bounds(r, nodes, storage, b)
	}
	b.OnOutage.Edges = edgesOf(r, &b)
	return b
}

// edgesOf is the sum of the grants before and after an outage and of the admissions of nodes in it. A node continues
// from the sum that it read last. It may have read it when nothing was used, or never.
func edgesOf(r *ratelimit.Rule, b *Bounds) Amount {
	edges := b.OnOutage.Fleet()
	if b.OnOutage.Nodes > 0 && edges.Bounded() {
		edges.Tokens += r.Limit.Capacity() + b.Over.Tokens + b.Over.EachOwner
	}
	return edges
}

// debt is until when charges beyond the limit count. Holds settle after the fact, also under on_deny: refund.
func debt(r *ratelimit.Rule) DebtLasts {
	switch {
	case r.Coordination.OnDeny == ratelimit.DenyRefunds && r.Hold == nil:
		return NoDebt
	case r.Limit.Algorithm == ratelimit.FixedWindow:
		return UntilWindowEnds
	}
	return UntilRefilled
}

// over is what silent nodes can cause where others reclaim their tokens: each may have spent one lease that it had not
// reported.
func over(r *ratelimit.Rule, nodes int) (o Over) {
	if r.Reclaims() {
		o.EachSilent = r.LeaseAhead()
		if r.Limit.Algorithm == ratelimit.SlidingWindow { // the previous window counts, too
			o.EachSilent *= 2
		}
		o.Tokens = o.EachSilent * ratelimit.Tokens(nodes)
	}
	return o
}

// overApart is for nodes without a common store: each admits the whole limit.
func overApart(r *ratelimit.Rule, nodes int) Over {
	limit := r.Limit.Capacity()
	return Over{Tokens: limit * ratelimit.Tokens(nodes-1), EachNode: limit}
}

// under is out of reach of the requests that other nodes refuse. A lease of plenty strands its part of the
// limit. Any other strands the demand that it was sized by. It also
// strands the rest of the lease before: at its renewal, at most half was left.
func under(r *ratelimit.Rule) Under {
	u := Under{
		Crashed: Amount{Demand: ratelimit.LeaseHorizon + ratelimit.LeaseHorizon/2}, Lasts: longest(&r.Limit),
	}
	size := r.Coordination.Lease
	if size.Fixed > 0 {
		u.Crashed = Amount{Tokens: size.Fixed + size.Fixed/2}
	} else if r.Stretched() {
		u.Crashed.Tokens = r.Limit.Capacity() / ratelimit.PlentyPart
	}
	if r.Reclaims() {
		u.Lasts = min(u.Lasts, ratelimit.ReclaimedWithin)
	}
	return u
}

// wait is for the store, at most for the rule's deadline.
func wait(r *ratelimit.Rule) Wait { return Wait{For: StoresAnswer, Longest: r.Coordination.Deadline()} }

// storeOps depend on the sizing of leases. A lease by demand is renewed when half of it is spent, or half of its time
// is over, at the earliest. One with a fixed size is renewed when half of it is spent, at the earliest. Leases near the
// end of a budget are parts of the rest, so that their number grows with its logarithm. bench/sim compares the sum with
// the claims of fleets in virtual time.
func storeOps(r *ratelimit.Rule, nodes int) StoreOps {
	c := &r.Coordination
	s := StoreOps{
		Nodes:   nodes,
		Steady:  2 / min(ratelimit.LeaseHorizon, r.Limit.Period()).Seconds(),
		Refused: 1/ratelimit.ClaimBackOff.Seconds() + ratelimit.RecallsPerSecond,
		Window:  10 * max(1, bits.Len64(uint64(r.Limit.Capacity()))-1),
	}
	if r.Limit.Algorithm != ratelimit.FixedWindow {
		// Tokens come back bit by bit. A claim fetches what gathers in a pause, and is
		// renewed when half of that is spent: in half a pause.
		s.Short = 2 / ratelimit.ClaimBackOff.Seconds()
	}
	if size := c.Lease.Fixed; size > 0 {
		s.Each = max(1, size/2)
	}
	return s
}

// outage is what a node admits by on_store_failure, in each window in which neither the store nor the owner answers.
func outage(r *ratelimit.Rule, of OutageOf, nodes int) Outage {
	c := &r.Coordination
	o := Outage{Of: of, Policy: c.OnStoreFailure, Nodes: nodes}
	switch c.OnStoreFailure {
	case ratelimit.FailOpen:
		o.Node = Amount{Demand: AllDemand}
	case ratelimit.FailLocal:
		o.Node = Amount{Tokens: r.LocalShare(0).Limit.Capacity()}
		if of == StoreOutage { // a node divides by how many it has seen, and by max_nodes where it has seen none
			o.Node.Tokens = max(o.Node.Tokens, r.LocalShare(nodes).Limit.Capacity())
		}
	case ratelimit.FailClosed:
	}
	return o
}

// lossShare is the total grant of a key by a ledger that lost its data, until every holder has restored its
// total. It is a twentieth of the limit, and at least one token.
func lossShare(r *ratelimit.Rule) ratelimit.Tokens {
	return max(1, r.Limit.Capacity()/ratelimit.LossPart)
}

// longest is how long charged tokens count at most. The longest window is a month of 31 days, in which clocks go back
// by an hour.
func longest(l *ratelimit.Limit) time.Duration {
	switch {
	case l.Unit.OfCalendar():
		return 31*24*time.Hour + time.Hour
	case l.Algorithm == ratelimit.SlidingWindow: // also in the next window
		return 2 * l.Period()
	case l.Algorithm == ratelimit.TokenBucket:
		return l.Refill(l.Burst)
	}
	return l.Period()
}
