package ratelimit

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// StoreDeadline is the longest a decision waits for the store where its rule says
// nothing else ([Coordination.StoreDeadline]): less than Envoy's own default of 20 ms.
const StoreDeadline = 15 * time.Millisecond

// EnvoyTimeout is how long Envoy's rate limit filter waits for an answer where its
// configuration does not say (timeout).
const EnvoyTimeout = 20 * time.Millisecond

// Bounds are the worst case that a rule declares before it runs, for each key
// and window (token_bucket: for each time to fill the bucket).
type Bounds struct {
	Over     Tokens // admitted beyond the limit, over the whole fleet
	OverNote string // what else there is to say about it, or ""
	Under    string // what may be refused while tokens were left
	Wait     string // the longest wait for a decision
	StoreOps string // store operations
	OnOutage string // what is admitted in a window without a store
	// OnLoss is what may be admitted beyond the limit each time that the store
	// loses its data, beside what those nodes had spent that cannot tell it.
	OnLoss    Tokens
	Unlimited bool
}

// OverPercent is Over as a share of limit.
func (b Bounds) OverPercent(limit Tokens) float64 {
	if limit == 0 {
		return 0
	}
	return 100 * float64(b.Over) / float64(limit)
}

// DeclaredOver is what the rule declares to over-admit at most, for each key and
// window, on max_nodes nodes that share a store. It does not allocate.
func (r *Rule) DeclaredOver() Tokens { return r.over(r.Coordination.MaxNodes) }

func (r *Rule) over(nodes int) Tokens {
	over := Tokens(0)
	if r.Coordination.Eager() {
		over = r.LargestLease() * Tokens(nodes)
	}
	if r.Coordination.Mode == Approx {
		over += r.Coordination.DriftBudget.Of(r.Limit.Capacity())
	}
	return over
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
func (r *Rule) Declare(nodes int, storage Storage) Bounds {
	if r.Unlimited {
		return Bounds{Unlimited: true}
	}
	limit := r.Limit.Capacity()
	if storage == OwnMemory {
		b := Bounds{Over: limit * Tokens(nodes-1), Under: "0", Wait: "none", StoreOps: "0", OnOutage: "no store"}
		if nodes > 1 {
			b.OverNote = "each node counts alone"
		}
		if r.Coordination.Mode == Routing {
			b.Over, b.Wait = 0, "one hop to the key's owner, at most "+r.Coordination.Deadline().String()
			b.OverNote = "with PEERS; after an owner's crash at most the limit once more, and halves that cannot see " +
				"each other count apart"
			b.OnOutage = r.outage(nodes, limit) // of the owner
		}
		return b
	}
	c := r.Coordination
	b := Bounds{
		Over:     r.over(nodes),
		Under:    "a crashed node's lease, until the window ends",
		Wait:     "one store round trip, at most " + c.Deadline().String(),
		StoreOps: fmt.Sprintf("at most 1/s a key a node, and %d a window", 10*max(1, bits.Len64(uint64(limit))-1)),
		OnOutage: r.outage(nodes, limit),
		OnLoss:   r.LossShare(),
	}
	if limit == 0 { // refused without asking anybody
		b.Under, b.Wait, b.StoreOps, b.OnOutage, b.OnLoss = "0", "none", "0", "0", 0
		return b
	}
	if c.Eager() {
		b.Under = "0"
		b.OverNote = fmt.Sprintf("%d, or one larger request, for each node that goes silent", r.LargestLease())
	}
	switch c.Mode {
	case Approx:
		b.Wait = fmt.Sprintf("%v, and none above the watermark; without a share as leasing", c.CheckTimeout)
		b.StoreOps += fmt.Sprintf(", and one each %v", r.SyncInterval())
	case Routing:
		b.Under = "0 (after an owner's crash: the lease it held)"
		b.Wait = "one hop to the key's owner, at most " + c.Deadline().String()
		b.StoreOps = "a block for each owner, not for each request"
	}
	return b
}

// LossShare is what a ledger that has lost its data grants of a key, in all, until
// every holder has told it what it had spent: a twentieth of the limit, and at
// least one token.
func (r *Rule) LossShare() Tokens { return max(1, r.Limit.Capacity()/20) }

func (r *Rule) outage(nodes int, limit Tokens) string {
	c := r.Coordination
	switch c.OnStoreFailure {
	case FailOpen:
		return "all demand"
	case FailClosed:
		return "leases in hand, then 0"
	case FailCached:
		return fmt.Sprintf("what was left, times %d nodes, for %v", nodes, c.MaxStaleness)
	default:
		share := c.LocalCap
		if share == 0 {
			share = max(1, limit/Tokens(c.MaxNodes))
		}
		return fmt.Sprintf("%d (%d a node)", share*Tokens(nodes), share)
	}
}

// LocalShare is the rule for a node that must decide alone, under
// on_store_failure: local: local_cap, or the limit's share of one of max_nodes.
func (r *Rule) LocalShare() *Rule {
	alone := *r
	c := &alone.Coordination
	share := func(n Tokens) Tokens {
		if c.LocalCap > 0 {
			return min(n, c.LocalCap)
		}
		return max(1, n/Tokens(c.MaxNodes))
	}
	alone.Limit.Requests = share(alone.Limit.Requests)
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

// Doubts says what is odd about the rule's coordination: settings that are
// valid, and cannot do what they are for.
func (r *Rule) Doubts() []string {
	c, limit := &r.Coordination, r.Limit.Capacity()
	if r.Unlimited {
		return nil
	}
	var doubts []string
	if d := c.Deadline(); d >= EnvoyTimeout {
		doubts = append(doubts,
			fmt.Sprintf("store_deadline %v is not below %v, for which Envoy waits by default: set the "+
				"timeout of its rate_limit filter above the deadline, or it goes on without the answer, and the "+
				"request is "+
				"charged and not limited (failure_mode_deny: refused) while the store is slow", d, EnvoyTimeout))
	}
	if r.Limit.Requests > math.MaxUint32 {
		doubts = append(doubts,
			fmt.Sprintf("requests_per_unit is %d, and RLS has 32 bits for it: it is counted exactly, "+
				"and answers say %d of it, and of what is left while that is more; headers say both exactly",
				r.Limit.Requests, uint32(math.MaxUint32)))
	}
	if c.Mode != Approx {
		return doubts
	}
	if r.DriftShare() < 1 {
		doubts = append(doubts, fmt.Sprintf("drift_budget %v of %d is %d tokens, less than one for each of max_nodes "+
			"%d: the rule waits like leasing; raise the budget to %d tokens, or lower max_nodes",
			c.DriftBudget, limit, c.DriftBudget.Of(limit), c.MaxNodes, c.MaxNodes))
	}
	if period := r.Limit.Period(); c.SyncInterval > period && c.SyncInterval != DefaultCoordination().SyncInterval {
		doubts = append(doubts, fmt.Sprintf("sync_interval %v is longer than the window, %v: %v is used",
			c.SyncInterval, period, r.SyncInterval()))
	}
	if c.LowWatermark.Of(limit) >= limit {
		doubts = append(doubts, fmt.Sprintf("low_watermark %v is the whole limit of %d: every request without a "+
			"lease waits up to %v; lower it below 100%%", c.LowWatermark, limit, c.CheckTimeout))
	}
	if c.CheckTimeout >= c.Deadline() {
		doubts = append(doubts, fmt.Sprintf("check_timeout %v is not below the store deadline of %v: the rule waits "+
			"like leasing", c.CheckTimeout, c.Deadline()))
	}
	return doubts
}

// SyncInterval is how late a node's report may be while its key is in use: half
// a window at most.
func (r *Rule) SyncInterval() time.Duration {
	return min(r.Coordination.SyncInterval, r.Limit.Period()/2)
}

// DriftShare is what one node of max_nodes may spend of a key, under mode
// approx, before the ledger has answered; 0 if that is less than a token.
func (r *Rule) DriftShare() Tokens {
	c := &r.Coordination
	return c.DriftBudget.Of(r.Limit.Capacity()) / Tokens(c.MaxNodes)
}

// LargestLease is the most that one holder is granted at once under reclaim:
// eager, but for a single request that costs more: half of a whole budget, or
// what the rule fixes.
func (r *Rule) LargestLease() Tokens {
	size := r.Coordination.Lease
	most := max(1, r.Limit.Capacity()/2)
	if size.Fixed > 0 {
		return min(most, size.Fixed)
	}
	if size.Max > 0 {
		return min(most, size.Max)
	}
	return most
}
