package ratelimit

import "time"

// Reclaim says what becomes of a silent holder's tokens.
type Reclaim uint8

const (
	// ReclaimSafe keeps them charged until the window ends.
	ReclaimSafe Reclaim = iota
	// ReclaimEager credits those that were not reported as spent, when the node's registration is over.
	ReclaimEager
)

// Reclaims are the names a config may use, by value.
var Reclaims = [...]string{ReclaimSafe: "safe", ReclaimEager: "eager"}

const (
	// RegisteredFor is the time for which a node that may hold such tokens is registered, by the store's clock.
	RegisteredFor = 10 * time.Second
	// ReclaimedWithin is the time from a node's last registration until its tokens are free for a node that needs them.
	ReclaimedWithin = RegisteredFor + time.Second
)

// Reclaims reports whether tokens of a node that crashed are reclaimed before their window ends. They never are where a
// key has an owner, which is its one holder, and those of a bucket refill.
func (r *Rule) Reclaims() bool {
	c := &r.Coordination
	return c.Reclaim == ReclaimEager && !c.Mode.Spec().Owned && r.Limit.Algorithm != TokenBucket
}

// NamesOfANode is the number of names of a node, by which it counts its keys. They differ in their low bits.
const NamesOfANode = 1 << 27

// lapsing is the bit of a holder's name that says that its leases end with its node's registration.
const lapsing Holder = NamesOfANode

// Lapses reports whether a holder's leases end with its node's registration.
func (h Holder) Lapses() bool { return h&lapsing != 0 }

// Lapsing is the name under which a node holds leases that end with its registration. A name stays what it is, because
// nodes learn of a rule's change one after the other.
func (h Holder) Lapsing() Holder { return h | lapsing }
