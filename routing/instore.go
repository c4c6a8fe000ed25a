package routing

import (
	"context"
	"slices"

	"github.com/sluice-gate/sluice/ratelimit"
)

// With a store, owners are a saving: any node may lease any key from the store. So an owner that does not answer is
// passed by, for the rest of the request's time.
//
//	the owner is   this node                       --> this node's base decides
//	               another, and the key is hot     --> likewise
//	               another, silent a moment ago    --> the base, for this request alone
//	               another                         --> the owner; without an answer at half of the time, likewise

// place is who decides about an ask.
type place uint8

const (
	away    place = iota // the owner, or the ask is decided
	here                 // the base: the key is this node's own, or hot
	instead              // the base, in place of the owner
)

// decideInStore decides about asks where accounts are in a store.
func (c *core) decideInStore(ctx context.Context, now instant, asks []ask, verdicts []verdict) {
	for i := range asks {
		if c.elsewhere(&asks[i]) != "" {
			r := c.newRequest(ctx, now, asks, verdicts)
			r.withStore(now)
			return
		}
	}
	// In one call, so that the base can claim for all of them together.
	c.base.decide(ctx, now, 0, asks, verdicts)
}

// withStore decides asks about keys of this node and of others. Its steps:
//
//  1. Send all asks to their owners.
//  2. Decide this node's own and hot keys by the base.
//  3. Wait for the owners, for half of the time.
//  4. Decide by the base, in the other half, in place of owners without an answer.
//  5. Give slots back that an owner may have taken as well.
func (r *request) withStore(now instant) {
	places, calls := make([]place, len(r.asks)), make([]toOwner, len(r.asks))
	half := now.Add(r.until.Sub(now) / 2)
	for i := range r.asks {
		places[i], calls[i] = r.send(now, &r.asks[i])
	}
	ratelimit.Waits(r.ctx) // after the asks have left: what it wakes competes with them
	// What others decide travels while this node decides its own.
	runs(len(places), func(i int) bool { return places[i] == here }, func(from, to int) {
		r.base.decide(r.ctx, now, 0, r.asks[from:to], r.verdicts[from:to])
	})
	for i := range calls {
		if calls[i].call != nil {
			places[i] = r.answered(i, &calls[i], half)
		}
	}
	runs(len(places), func(i int) bool { return places[i] == instead }, r.decideInstead)
	for i := range places { // a slot is the same for the owner and for this node
		if places[i] == instead && calls[i].call != nil && r.asks[i].OfSlot() && r.verdicts[i].OverLimit {
			r.undoWhenAnswered(now, i, calls[i].call)
		}
	}
}

// toOwner is a call to an owner. The zero toOwner is none.
type toOwner struct {
	*call
	owner *link // nil: there is no way to it
}

// send chooses who decides about an ask, and sends it to an owner. A key is hot here if its owner has said so in an
// answer.
func (r *request) send(now instant, a *ask) (place, toOwner) {
	addr := r.elsewhere(a)
	owner := r.view.Load().peers[addr]
	switch {
	case addr == "":
		return here, toOwner{}
	case r.hotHere.Use(now, a.Key):
		r.stats.hot.Add(1)
		return here, toOwner{}
	case mayLease(a) && owner.silent(now):
		return instead, toOwner{}
	}
	return away, toOwner{r.forward(a, addr), owner}
}

// mayLease reports whether this node may decide in place of an owner that may decide as well. A spend may be charged by
// both, and is undone at one. A refund or a charge may not count twice.
func mayLease(a *ask) bool { return a.Kind < ratelimit.Refund }

// answered handles the answer of an owner, or its absence at half of the time.
func (r *request) answered(i int, to *toOwner, half instant) place {
	a, at := &r.asks[i], r.until
	if mayLease(a) {
		at = half
	}
	now := r.await(to.call, at)
	if v, ok := r.read(now, a, to.call); ok {
		r.verdicts[i] = v
		return away
	}
	// A refund credits the account in the store from any node, if it is certainly not booked by the owner.
	unbooked := to.ended() && (!to.sent || to.status() == notOwner)
	if mayLease(a) && now < r.until || a.Kind == ratelimit.Refund && unbooked {
		if !to.ended() {
			to.owner.miss(now)
		}
		r.verdicts[i] = verdict{} // which may be of an earlier request
		if !a.OfSlot() {
			r.undoWhenAnswered(now, i, to.call)
		}
		return instead
	}
	v := verdict{OverLimit: true}
	if !r.doubtful(now, a, to.owner) {
		v = r.byPolicy(now, a)
	}
	r.without(now, i, to.call, v)
	return away
}

// doubtful reports whether a request is refused because its owner is late, and not gone: it may have spent the rest,
// and each node would admit some.
func (r *request) doubtful(now instant, a *ask, owner *link) bool {
	return a.Kind == ratelimit.Spend && a.Rule.Coordination.OnStoreFailure != ratelimit.FailOpen && owner.alive(now)
}

// decideInstead has the base decide in place of owners, in the rest of the time. It leases no more than the request
// costs: tokens that are split among nodes are wasted on requests that cost more than either part.
func (r *request) decideInstead(from, to int) {
	now := r.clock()
	asks := slices.Clone(r.asks[from:to]) // the caller undoes and counts by its own
	for i := range asks {
		asks[i].Rule = asks[i].Rule.PerRequest()
	}
	r.stats.instead.Add(uint64(len(asks)))
	r.base.decide(r.ctx, now, max(1, r.until.Sub(now)), asks, r.verdicts[from:to])
	for i := from; i < to; i++ {
		r.doubt(now, i)
	}
}

// doubt refuses what the base admitted in place of an owner without an answer of the store: the owner may have spent
// the rest, and each node would admit some. It stands if the rule prefers to admit (open), or the store is gone.
func (r *request) doubt(now instant, i int) {
	a, v := &r.asks[i], &r.verdicts[i]
	if a.Kind != ratelimit.Spend || v.OverLimit || v.Source != ratelimit.FromFallback ||
		v.Reason != ratelimit.FallbackDeadline || a.Rule.Coordination.OnStoreFailure == ratelimit.FailOpen {
		return
	}
	r.base.Undo(now, r.asks[i:i+1], r.verdicts[i:i+1]) // it was charged to this node's budget for outages
	v.OverLimit = true
	v.Charged = 0
	v.Booked = 0
	v.Remaining = 0
}
