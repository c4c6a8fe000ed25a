package routing

import (
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// Undo implements [ratelimit.Limiter]. The owner of a charge takes it back, without a wait.
func (c *core) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		switch {
		case asks[i].Kind != ratelimit.Spend:
		case verdicts[i].Source == ratelimit.FromFallback && verdicts[i].Reason == ratelimit.FallbackPeer:
			c.undoAlone(now, &asks[i], &verdicts[i])
		case asks[i].OfSlot() && c.elsewhere(&asks[i]) != "":
			c.giveSlot(&asks[i])
		case c.inStore():
			c.undoInStore(now, asks[i:i+1], verdicts[i:i+1])
		default:
			c.undoStoreless(now, asks[i:i+1], verdicts[i:i+1])
		}
	}
}

// undoAlone takes back an admission without an owner.
func (c *core) undoAlone(now instant, a *ask, v *verdict) {
	switch {
	case c.inStore(), v.OverLimit:
	case a.OfSlot():
		c.giveSlot(a) // the owner may have taken it too late
	case c.windowHere(now, a) == v.Booked: // else the window has turned, and the credit is lost
		c.owe(a, v.Booked, -a.Cost)
	}
	if a.Rule.Coordination.OnStoreFailure == ratelimit.FailLocal {
		c.fallback.UndoShare(now, a, v, 0)
	}
}

// giveSlot has the owner of a slot give it back. If the message is lost, the slot returns at its end. If this node owns
// the key by now, there is none to give: slots do not move.
func (c *core) giveSlot(a *ask) {
	if owner := c.elsewhere(a); owner != "" {
		back := *a
		back.Kind = ratelimit.Release
		c.view.Load().peers[owner].post(c.callFor(&back, &wire.Ask{}))
	}
}

// undoInStore takes back a charge at the owner now: what one has leased, another can give back. A charge that this node
// has leased itself is undone here (undoHere).
func (c *core) undoInStore(now instant, asks []ask, verdicts []verdict) {
	a, v := &asks[0], &verdicts[0]
	if owner := c.elsewhere(a); owner != "" && v.Source == ratelimit.FromOwner {
		m := &wire.Ask{Window: int64(v.Window), OverLimit: v.OverLimit, Charged: int64(v.Charged), Debt: int64(v.Debt)}
		call := c.callFor(a, m)
		m.Kind = undo
		c.view.Load().peers[owner].post(call)
		return
	}
	c.undoHere(now, asks, verdicts)
}

// undoStoreless takes back a charge where its account is by now: accounts move with their keys. Where the account is
// not here, the credit is owed to its owner.
func (c *core) undoStoreless(now instant, asks []ask, verdicts []verdict) {
	a, v := &asks[0], &verdicts[0]
	c.gate.RLock() // the account does not move meanwhile
	defer c.gate.RUnlock()
	elsewhere := c.elsewhere(a) != ""
	has := c.local.Has(a.Key) || !elsewhere && c.view.Load().stable.Load()
	switch {
	case v.Source == ratelimit.FromOverflow, has && (!elsewhere || v.Source != ratelimit.FromOwner):
		c.undoHere(now, asks, verdicts)
	case v.Charged+v.Debt > 0:
		c.owe(a, v.Window, -v.Charged-v.Debt)
		c.undone(a, v)
	}
}

// undoHere takes back a charge at this node. To the base, that of an owner is its own.
func (c *core) undoHere(now instant, asks []ask, verdicts []verdict) {
	own := verdicts[0]
	if own.Source == ratelimit.FromOwner {
		own.Source = ratelimit.FromLease
		c.undone(&asks[0], &own)
	}
	c.base.Undo(now, asks, []verdict{own})
}

// undone shows the observer a charge of an owner that is taken back.
func (c *core) undone(a *ask, v *verdict) {
	if c.observe != nil {
		c.observe.undone(a, v)
	}
}

// undo is the wire's fourth kind of ask. The first three are those of ratelimit.Kind. It is none of
// them, because it takes back a verdict instead of asking for one.
const undo = 3
