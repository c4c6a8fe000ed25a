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
