package routing

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/ring"
)

// Without a store, a key's owner alone decides about it.
//
//	the owner is   this node, and no other may have the account --> it decides, without a wait
//	               this node, and another may have it           --> after a search (fetch.go)
//	               another                                      --> that; without an answer, the rule's policy

// owned is what came of an ask for a key that may be this node's own.
type owned uint8

const (
	ownDecided owned = iota
	another          // node decides, perhaps
	unsure           // whether others have the account
)

// own decides on one key of this node's, if it can: where it has the account, where no other node can have it, or where
// a search found none. The gate keeps the ring and the account in their places until the decision is made.
func (c *core) own(ctx context.Context, now instant, asks []ask, verdicts []verdict, found *fetch) owned {
	hash := ring.HashOf(asks[0].Key)
	c.gate.RLock()
	defer c.gate.RUnlock()
	v := c.view.Load()
	owner := v.ring.Owner(hash)
	switch {
	// This comes before the look at the account. A node that has slept still has its accounts, but others may
	// own their keys by now and count anew. Before all have acknowledged this node, another may decide as
	// well.
	case owner != "" && owner != c.options.Addr, c.lapsed(now), c.unconfirmed.Load():
		return another
	// Possession decides (see the package's documentation). Each of these excludes that another node has the account.
	// All have handed over; it is here; the key has always been this node's own; or all nodes have stated, for
	// this ring, that they do not have it. In an empty ring, so decides the node that has left as the last one.
	// Slots do not move.
	case owner != "" && (v.stable.Load() || asks[0].OfSlot()), c.local.Has(asks[0].Key), v.kept(hash, c.options.Addr),
		found != nil && found.view == v && found.state == fetchAbsent:
		c.local.Decide(ctx, now, asks, verdicts)
		return ownDecided
	case owner == "":
		return another
	}
	return unsure
}

// decideStoreless decides about asks one by one: own keys do not wait. A request is made at the first ask that cannot
// be decided here at once, and has the rest.
func (c *core) decideStoreless(ctx context.Context, now instant, asks []ask, verdicts []verdict) {
	for i := range asks { // first, because a request that waits goes on elsewhere
		if a := &asks[i]; a.OfSlot() && a.Kind == ratelimit.Release {
			c.fallback.DecideShare(now, a, 0)
		}
	}
	for i := range asks {
		if c.own(ctx, now, asks[i:i+1], verdicts[i:i+1], nil) != ownDecided {
			c.newRequest(ctx, now, asks[i:], verdicts[i:]).storeless(now)
			return
		}
	}
}

func (r *request) storeless(now instant) {
	all := make([]errand, len(r.asks))
	for i := range all { // what others do for one ask goes on while they do it for the next
		all[i] = r.begin(now, i, nil)
	}
	ratelimit.Waits(r.ctx) // after the asks have left: what it wakes competes with them
	for i := range all {
		r.finish(i, all[i])
	}
}

// errand is what others do for an ask: its owner decides it, or all look for its account. Of the zero errand it is
// unknown who decides: the ring is changing.
type errand struct {
	call    *call
	search  *fetch
	decided bool
}

// begin decides about an own key, or begins the errand for another.
func (r *request) begin(now instant, i int, found *fetch) errand {
	a := &r.asks[i]
	if owner := r.elsewhere(a); owner != "" {
		return errand{call: r.forward(a, owner)}
	}
	switch r.own(r.ctx, now, r.asks[i:i+1], r.verdicts[i:i+1], found) {
	case ownDecided:
		return errand{decided: true}
	case unsure:
		// Beyond maxFetches it gets its turn later, or runs out of time.
		return errand{search: r.fetch(a.Key, r.bell)}
	default:
		return errand{}
	}
}

// finish waits for an errand, and decides about its ask. The node that was asked may not be the owner, or not any more:
// then this node asks again, by its own ring. It ends at the end of the request's time at the latest.
func (r *request) finish(i int, e errand) {
	for !e.decided {
		now, found := r.ends(&e)
		switch {
		case e.call != nil && (now >= r.until || e.call.ended()):
			if r.decided(now, i, e.call) {
				return
			}
		case now >= r.until:
			r.alone(now, i, failedCall(errPeerGone))
			return
		}
		if found == nil {
			now = r.sleep(min(now.Add(askAgain), r.until))
		}
		e = r.begin(now, i, found)
	}
}

// ends waits for the end of an errand, or of the request's time. found is a search that found no account.
func (r *request) ends(e *errand) (now instant, found *fetch) {
	if e.call != nil {
		return r.await(e.call, r.until), nil
	}
	now = r.clock()
	if e.search == nil {
		return now, nil
	}
	for r.outcome(e.search) == fetching && now < r.until {
		now = r.sleep(r.until)
	}
	if r.outcome(e.search) == fetchAbsent {
		found = e.search
	}
	return now, found
}

// decided handles the end of a call, or of its time. It reports false if the node that was asked is not the owner. An
// answer that is there counts, even if the time is over: the owner has charged for it.
func (r *request) decided(now instant, i int, call *call) bool {
	v, ok := r.read(now, &r.asks[i], call)
	switch {
	case ok:
		r.verdicts[i] = v
	case call.status() == notOwner && now < r.until:
		return false
	default:
		r.alone(now, i, call)
	}
	return true
}

// alone decides an ask without its owner, which is to book it later.
func (r *request) alone(now instant, i int, call *call) {
	r.without(now, i, call, r.byPolicy(now, &r.asks[i]))
	r.verdicts[i].Booked = r.windowHere(now, &r.asks[i])
	r.later(&r.asks[i], &r.verdicts[i], call)
}

// askAgain is the wait before another attempt at a node that is not the owner in its own view. Nodes do not see
// a change of the ring at the same time.
const askAgain = time.Millisecond

// resetTime is the time for which a reset waits for the account of its key.
const resetTime = time.Second

var (
	errAway  = errors.New("the key's account is on its way between nodes, or its owner does not answer: try again")
	errMoved = errors.New("another node owns the key now: reset it there")
)

// Reset clears the usage of a key of this node's own, without a store. The account may be on its way here.
func (c *core) Reset(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	peek, v := []ask{{Rule: a.Rule, Key: a.Key, Kind: ratelimit.Peek}}, make([]verdict, 1)
	r := c.newRequest(ctx, now, peek, v)
	r.until = now.Add(resetTime)
	r.storeless(now)
	c.gate.RLock() // the account does not move meanwhile
	defer c.gate.RUnlock()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case v[0].Source == ratelimit.FromFallback:
		return errAway
	case c.ownerOf(a.Key) != c.options.Addr:
		return errMoved
	}
	return c.local.Reset(ctx, now, a)
}
