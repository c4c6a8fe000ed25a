package routing

import (
	"context"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The way of a request, one ask after the other:
//
//	Decide -- all keys are this node's own --> base.decide with a store, own without: no wait
//	   '----- else --> waiting.advance, again and again, until all asks are decided:
//
//	   the owner is   with a store                   without
//	   this node      here: base.decide              here: own, or a fetch of the account, and then own
//	   another node   a hot key: base.decide         a hot key: from the tokens in hand
//	                  else forward; without an       else forward; without an answer in time,
//	                  answer, in its place           failed: the rule's policy
//
// answerTo does the same for asks of a peer, which are not forwarded again.

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
			c.fallback.DecideShare(now, a, 0)
		}
	}
	for i := range asks {
		// What has been decided so far stays decided; the request waits with the rest from here on.
		if c.own(ctx, now, asks[i:i+1], verdicts[i:i+1], nil, nil) != ownDecided {
			return c.wait(ctx, now, asks, verdicts, i)
		}
	}
	return nil
}
