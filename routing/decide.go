package routing

import (
	"context"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

// The way of a request, one ask after the other:
//
//	Decide -- all keys are this node's own --> base.decide with a store, own without: no wait
//	   '----- else --> waiting.advance, again and again, until all asks are decided:
//
//	   the owner is   with a store                   without
//	   this node      here: base.decide              here: own, or a fetch of the account, and then own
//	   another node   a hot key: base.decide         a hot key: fromHand, from the tokens in hand
//	                  else forward; without an       else forward; without an answer in time,
//	                  answer, in its place           failed: the rule's policy
//
// answerTo does the same for asks of a peer, which are not forwarded again.

// The reply to an ask.
const (
	answered  = 0
	notOwner  = 1
	malformed = 2
	notInTime = 3
)

// undo is the wire's fourth kind of ask. The first three are those of ratelimit.Kind. It is none of
// them, because it takes back a verdict instead of asking for one.
const undo = 3

// askAgain is the wait before another attempt at a node that is not the owner in its own view. Nodes do not see
// a change of the ring at the same time.
const askAgain = time.Millisecond

// Decide implements [ratelimit.Limiter]. It blocks for at most the longest store_deadline of their rules beyond what
// this node's own limiter does. Asks of other nodes travel while this one decides its own.
func (c *core) Decide(
	ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict,
) {
	if w := c.decide(ctx, now, asks, verdicts); w != nil {
		ratelimit.Waits(ctx)
		// The bell may ring for nothing, so that all that waits is looked at again each time.
		for open := true; open; open = w.advance(c.clock()) {
			c.hands.sleep(w)
		}
	}
}

// decide decides as much as possible at once. The result, if any, waits. It does not allocate where all asks
// are this node's own.
func (c *core) decide(ctx context.Context, now instant, asks []ask, verdicts []verdict) *waiting {
	if !c.inStore() {
		return c.decideStoreless(ctx, now, asks, verdicts)
	}
	for i := range asks {
		if c.elsewhere(&asks[i]) != "" {
			return c.wait(ctx, now, asks, verdicts, 0)
		}
	}
	// All asks are this node's own, so that the base decides them in one call, and can claim for
	// them together.
	c.base.decide(ctx, now, 0, asks, verdicts)
	return nil
}

// decideStoreless decides asks one by one: own keys do not wait.
func (c *core) decideStoreless(ctx context.Context, now instant, asks []ask, verdicts []verdict) *waiting {
	for i := range asks { // first, because a request that waits goes on elsewhere
		if a := &asks[i]; a.OfSlot() && a.Kind == ratelimit.Release {
			c.giveFallback(ctx, now, a)
		}
	}
	for i := range asks {
		// What has been decided so far stays decided; the request waits with the rest from here on.
		if c.own(ctx, now, asks[i:i+1], verdicts[i:i+1], nil, nil) != decided {
			return c.wait(ctx, now, asks, verdicts, i)
		}
	}
	return nil
}

// elsewhere is the other node that decides, "" if it is this one.
func (c *core) elsewhere(a *ask) string {
	// A settlement that an owner books late, or that its answer is lost of, would be booked twice or never. Where the
	// account is in a store, any node can book it.
	if a.Kind.Settles() && c.inStore() {
		return ""
	}
	// An empty ring has no owner, which reads as "this node" here. With a store that is right, for
	// the store decides. Without one, own looks at the ring itself and decides nothing.
	if owner := c.ownerOf(a.Key); owner != c.options.Addr {
		return owner
	}
	return ""
}

func (c *core) ownerOf(key []byte) string { return c.view.Load().ring.Owner(ring.HashOf(key)) }

// errand is what an owner does for an ask instead of a decision alone. reply adds what came of it to the answer.
type errand interface {
	do(now instant, l *leasing.Local, a *ask, v *verdict)
	reply(r *wire.Reply)
}

// owned is what came of an ask for a key that may be this node's own.
type owned uint8

const (
	decided owned = iota
	another       // node decides, perhaps
	unsure        // whether others have the account
)

// own decides on one key of this node's, if it can: where it has the account, where no other node can have
// it, or where a search found none.
func (c *core) own(
	ctx context.Context, now instant, asks []ask, verdicts []verdict, found *fetch, x errand,
) owned {
	hash := ring.HashOf(asks[0].Key)
	c.gate.RLock()
	defer c.gate.RUnlock()
	v := c.view.Load()
	switch {
	// This comes before the look at the account. A node that has slept still has its accounts, but others may
	// own their keys by now and count anew. Before all have acknowledged this node, another may decide as
	// well.
	case v.ring.Owner(hash) != c.options.Addr, c.lapsed(now), c.unconfirmed.Load():
		return another
	// Possession decides (docs/internals/peers.md). Each of these excludes that another node has the account.
	// All have handed over; it is here; the key has always been this node's own; or all nodes have stated, for
	// this ring, that they do not have it.
	case v.stable.Load() || c.local.Has(asks[0].Key) || v.kept(hash, c.options.Addr) ||
		found != nil && found.view == v && found.state == fetchAbsent:
		if x == nil {
			c.local.Decide(ctx, now, asks, verdicts)
		} else {
			x.do(now, c.local, &asks[0], &verdicts[0])
		}
		return decided
	}
	return unsure
}
