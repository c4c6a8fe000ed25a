package ratelimit

import "time"

// MaxConcurrency is the most requests of one key that a rule lets be in flight at once.
const MaxConcurrency Tokens = 10_000

// concurrencyRetry is after what time a refused request may come again: a slot is free as soon as any request ends.
const concurrencyRetry = time.Second

// AtOnce is a limit of so many requests in flight at once. Each has a slot for hold at most: whole seconds, up to
// MaxHoldTTL.
func AtOnce(n Tokens, hold time.Duration) Limit {
	return Limit{Algorithm: Concurrency, Unit: Second, Multiplier: uint32(hold / time.Second), Requests: n}
}

// HoldsSlot is the hold of a request under a concurrency limit.
func (l Limit) HoldsSlot() *Hold {
	return &Hold{Amount: 1, TTL: l.Period(), OnUnknown: UnknownReleases}
}

// OfSlot reports whether an ask is about a slot.
func (a *Ask) OfSlot() bool { return a.Rule.Limit.Algorithm == Concurrency }

// SlotHeld says whether an ask's slot is among those that are taken.
type SlotHeld bool

// NoSlot says that it is not.
const NoSlot SlotHeld = false

// DecideSlot answers an ask under a concurrency limit, where so many slots are taken: before the ask, or after it where
// it took or gave back one. has reports whether the ask's own slot is, or was, among them.
func (a *Ask) DecideSlot(taken Tokens, has SlotHeld) (v Verdict) {
	limit := a.Rule.Limit.Requests
	v.Remaining, v.Window = max(0, limit-taken), a.Window
	switch {
	case bool(has):
		v.Charged = 1
	case a.Kind == Spend, a.Kind == Peek && taken > limit:
		v.OverLimit, v.ResetAfter = true, concurrencyRetry
	}
	return v
}

// declareSlots states the bounds of a concurrency limit.
func (r *Rule) declareSlots(nodes int, storage Storage) Bounds {
	limit := r.Limit.Requests
	b := Bounds{Under: Under{Slots: limit, Lasts: r.Limit.Period()}}
	if storage == OwnMemory {
		b.Over = r.overApart(nodes)
		if r.Coordination.Mode.Spec().Owned {
			b.Over, b.OnOutage = Over{EachOwner: limit, EachMove: limit}, r.outage(OwnerOutage, nodes)
			b.Wait = Wait{For: OwnersAnswer, Longest: r.Coordination.Deadline()}
		}
		return b
	}
	b.Wait = r.wait()
	b.StoreOps = StoreOps{Nodes: nodes, EachSlot: 2}
	b.OnLoss = limit
	b.OnOutage = r.outage(StoreOutage, nodes)
	return b
}

// doubtSlots returns valid settings without an effect on a concurrency limit.
func (r *Rule) doubtSlots() (doubts []string) {
	c, none := &r.Coordination, DefaultCoordination()
	if !c.Mode.Spec().Drifts {
		none.Mode = c.Mode
	}
	for _, field := range []string{"mode", "audit", "lease.size"} {
		if value := c.Get(field); value != none.Get(field) {
			doubts = append(doubts, field+" "+value+" has no effect under a concurrency limit: remove it")
		}
	}
	return doubts
}
