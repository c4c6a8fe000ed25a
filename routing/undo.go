package routing

import (
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// fail decides without the key's owner, by the rule's on_store_failure.
func (c *core) fail(now instant, a *ask) verdict {
	c.stats.fallbacks.Add(1)
	var v verdict
	switch policy := a.Rule.Coordination.OnStoreFailure; {
	case a.Kind == ratelimit.Peek && policy == ratelimit.FailOpen:
	// There is no decision to make: a refund is reported later.
	case a.Kind >= ratelimit.Refund && (!a.OfSlot() || policy != ratelimit.FailLocal):
	case policy == ratelimit.FailOpen:
		v.Charged = a.Cost
		if a.OfSlot() {
			v.Window = a.Window // by which it is given back
		}
	case policy == ratelimit.FailLocal:
		// Each node of the fleet may be deciding for itself now, so that each has a part of the
		// limit only.
		v = c.fallback.DecideShare(now, a, 0)
	default: // the remainder is unknown
		v.OverLimit = true
	}
	v.Source, v.Reason = ratelimit.FromFallback, ratelimit.FallbackPeer
	if v.ResetAfter == 0 {
		v.ResetAfter = a.Rule.Limit.Period()
	}
	return v
}

// Undo implements [ratelimit.Limiter]. The owner of a charge is asked to take it back, without a wait.
func (c *core) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		if asks[i].Kind == ratelimit.Spend {
			c.undo(now, asks[i:i+1], verdicts[i:i+1])
		}
	}
}

func (c *core) undo(now instant, asks []ask, verdicts []verdict) {
	a, v := &asks[0], &verdicts[0]
	owner := c.elsewhere(a)
	switch {
	// This comes first, for any present owner: no owner was ever charged.
	case v.Source == ratelimit.FromFallback && v.Reason == ratelimit.FallbackPeer:
		c.undoFallback(now, a, v)
	// The owner of now has the account, even if another charged it: accounts move with their keys.
	case v.Source == ratelimit.FromOwner && owner != "":
		c.undoAt(owner, a, v)
	case v.Source == ratelimit.FromLease && owner != "" && !c.inStore(): // from the tokens in hand of a hot key
		if !c.hotHere.Untake(a.Key, v) {
			c.undoAt(owner, a, v)
		}
	case v.Source != ratelimit.FromOverflow && c.onItsWay(a.Key): // and this node's own by now
		c.undoLater(a, v)
	case v.Source == ratelimit.FromOwner: // it is this node's own by now
		own := *v
		// The base has no owners; to it this is a charge of its own.
		own.Source = ratelimit.FromLease
		c.base.Undo(now, asks, []verdict{own})
		if c.observe != nil { // the owner at that time had reported its decision
			c.observe.undone(a, v)
		}
	default:
		c.base.Undo(now, asks, verdicts)
	}
}

// undoFallback gives back the charge to this node's share, without an owner, and reduces the report to the
// owner.
func (c *core) undoFallback(now instant, a *ask, v *verdict) {
	switch owner := c.elsewhere(a); {
	case c.inStore(), v.OverLimit:
	case !a.OfSlot():
		c.hotHere.Refund(a, c.windowHere(now, a))
	case owner != "": // which may have taken it too late
		c.undoAt(owner, a, v)
	}
	if a.Rule.Coordination.OnStoreFailure == ratelimit.FailLocal {
		c.fallback.UndoShare(now, a, v, 0)
	}
}

func (c *core) undoAt(owner string, a *ask, v *verdict) {
	m := &wire.Ask{
		Window: int64(v.Window), OverLimit: v.OverLimit, Charged: int64(v.Charged), Debt: int64(v.Debt),
	}
	call := c.callFor(a, m, nil)
	m.Kind = undo
	late, at := *a, *v
	late.Key = m.Key
	call.after(func() {
		if !c.inStore() && (call.status() == notOwner || !call.sent) {
			c.undoLater(&late, &at)
		}
	})
	c.view.Load().peers[owner].post(call)
}

// onItsWay tells whether a key's account may be at another node, or in a parcel.
func (c *core) onItsWay(key []byte) bool {
	return !c.inStore() && !c.local.Has(key) && (c.ownerOf(key) != c.options.Addr || !c.view.Load().stable.Load())
}

// undoLater has a charge taken back with the next report on its key, by who has the account then. It reports false if
// there is no room, the window is another, or it is a slot, which returns at the end of its time.
func (c *core) undoLater(a *ask, v *verdict) bool {
	late := *a
	late.Cost = v.Charged + v.Debt
	if late.Cost == 0 || a.OfSlot() || !c.hotHere.Credit(&late, v.Window) {
		return false
	}
	if c.observe != nil {
		c.observe.undone(a, v)
	}
	c.hands.wake()
	return true
}

// undo is the wire's fourth kind of ask. The first three are those of ratelimit.Kind. It is none of
// them, because it takes back a verdict instead of asking for one.
const undo = 3
