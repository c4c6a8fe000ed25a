package ratelimit

import (
	"math/bits"
	"time"
)

// StoreDeadline is the longest a decision waits for the store where its rule says
// nothing else ([Coordination.StoreDeadline]): less than Envoy's own default of 20 ms.
const StoreDeadline = 15 * time.Millisecond

// Bounds are the worst case that a rule declares before it runs, for each key and window. For a token_bucket,
// a window is the time in which the bucket fills. In an outage, that is the node's own share of the bucket,
// which may fill faster by rounding. Each bound is a number with its unit. `sluice check`, the console, the
// simulator and the benchmarks derive their output and verdicts from it. docs/reference/bounds.md has the formula and
// the test of each.
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
	OnLoss Tokens `json:"data_loss_tokens"`
}

// Storage says where the nodes of a fleet count.
type Storage bool

const (
	// OwnMemory has each node count in its own memory.
	OwnMemory Storage = false
	// SharedStore is one store for all nodes.
	SharedStore Storage = true
)

// Declare states a rule's bounds on so many nodes, which count where storage says.
// It does not block, and does not allocate.
func (r *Rule) Declare(nodes int, storage Storage) Bounds {
	b := Bounds{Debt: r.debt()}
	switch {
	case r.Unlimited:
		return Bounds{Unlimited: true}
	case r.Limit.Algorithm == Concurrency:
		b = r.declareSlots(nodes, storage)
		b.OnOutage.Edges = r.edgesOf(&b)
		return b
	case storage == OwnMemory:
		b.Over = r.overApart(nodes)
	case r.RefusesAll(): // without asking anybody
		return Bounds{OnOutage: Outage{Of: StoreOutage, Policy: FailClosed}}
	case r.Limit.Capacity() == 0: // only keys with an override pass
		b.Wait = r.wait()
		b.StoreOps = r.storeOps(nodes)
		b.OnOutage = r.outage(StoreOutage, nodes)
	default:
		b.Over = r.over(nodes)
		b.Under = r.under()
		b.Wait = r.wait()
		b.StoreOps = r.storeOps(nodes)
		b.OnOutage, b.OnLoss = r.outage(StoreOutage, nodes), r.LossShare()
	}
	if different := r.Coordination.Mode.Spec().Declare; different != nil && !r.RefusesAll() {
		b = different(r, nodes, storage, b)
	}
	b.OnOutage.Edges = r.edgesOf(&b)
	return b
}

// edgesOf is the sum of the grants before and after an outage and of the admissions of nodes in it. A node continues
// from the sum that it read last. It may have read it when nothing was used, or never.
func (r *Rule) edgesOf(b *Bounds) Amount {
	edges := b.OnOutage.Fleet()
	if b.OnOutage.Nodes > 0 && edges.Bounded() {
		edges.Tokens += r.Limit.Capacity() + b.Over.Tokens + b.Over.EachOwner
	}
	return edges
}

func (r *Rule) debt() DebtLasts {
	switch {
	case r.Coordination.OnDeny == DenyRefunds && r.Hold == nil:
		return NoDebt
	case r.Limit.Algorithm == FixedWindow:
		return UntilWindowEnds
	}
	return UntilRefilled
}

func (r *Rule) over(nodes int) (o Over) {
	if r.Reclaims() {
		o.EachSilent = r.LeaseAhead()
		if r.Limit.Algorithm == SlidingWindow { // the previous window counts, too
			o.EachSilent *= 2
		}
		o.Tokens = o.EachSilent * Tokens(nodes)
	}
	return o
}

// overApart is for nodes without a common store: each admits the whole limit.
func (r *Rule) overApart(nodes int) Over {
	limit := r.Limit.Capacity()
	return Over{Tokens: limit * Tokens(nodes-1), EachNode: limit}
}

// under is out of reach of the requests that other nodes refuse. A lease of plenty strands its part of the
// limit. Any other strands the demand that it was sized by. It also
// strands the rest of the lease before: at its renewal, at most half was left.
func (r *Rule) under() Under {
	u := Under{
		Crashed: Amount{Demand: LeaseHorizon + LeaseHorizon/2}, Lasts: r.Limit.longest(),
	}
	size := r.Coordination.Lease
	if size.Fixed > 0 {
		u.Crashed = Amount{Tokens: size.Fixed + size.Fixed/2}
	} else if r.Stretched() {
		u.Crashed.Tokens = r.Limit.Capacity() / PlentyPart
	}
	if r.Reclaims() {
		u.Lasts = min(u.Lasts, ReclaimedWithin)
	}
	return u
}

func (r *Rule) wait() Wait { return Wait{For: StoresAnswer, Longest: r.Coordination.Deadline()} }

// storeOps depend on the sizing of leases. A lease by demand is renewed when half of it is spent, or half of
// its time is over, at the earliest. One with a fixed size is renewed when half of it is spent, at the earliest.
func (r *Rule) storeOps(nodes int) StoreOps {
	c := &r.Coordination
	s := StoreOps{
		Nodes:   nodes,
		Steady:  2 / min(LeaseHorizon, r.Limit.Period()).Seconds(),
		Refused: 1/ClaimBackOff.Seconds() + RecallsPerSecond,
		Window:  10 * max(1, bits.Len64(uint64(r.Limit.Capacity()))-1),
	}
	if r.Limit.Algorithm != FixedWindow {
		// Tokens come back bit by bit. A claim fetches what gathers in a pause, and is
		// renewed when half of that is spent: in half a pause.
		s.Short = 2 / ClaimBackOff.Seconds()
	}
	if size := c.Lease.Fixed; size > 0 {
		s.Each = max(1, size/2)
	}
	return s
}

func (r *Rule) outage(of OutageOf, nodes int) Outage {
	c := &r.Coordination
	o := Outage{Of: of, Policy: c.OnStoreFailure, Nodes: nodes}
	switch c.OnStoreFailure {
	case FailOpen:
		o.Node = Amount{Demand: AllDemand}
	case FailLocal:
		o.Node = Amount{Tokens: r.LocalShare(0).Limit.Capacity()}
		if of == StoreOutage { // a node divides by how many it has seen, and by max_nodes where it has seen none
			o.Node.Tokens = max(o.Node.Tokens, r.LocalShare(nodes).Limit.Capacity())
		}
	case FailClosed:
	}
	return o
}
