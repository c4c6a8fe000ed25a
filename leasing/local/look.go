package local

import (
	"cmp"
	"context"
	"slices"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Views of a Limiter, and corrections.

// Look implements [ratelimit.Inspector]. It decides as if at now, and changes nothing. A key that is not tracked may
// have used a shared budget, which is shown then.
func (l *Limiter) Look(_ context.Context, now ratelimit.Instant, a *ratelimit.Ask) ratelimit.Look {
	v := ratelimit.Look{Account: ratelimit.KeyName(a.Key)}
	at := l.LedgerNow(now)
	s, _, c := l.tracked.locked(a.Key)
	defer s.mu.Unlock()
	if c == nil {
		if shared := l.tracked.before(a); at < shared.dead(a.Rule.Limit.Algorithm) {
			v.Ledger = shared.look(at, a.Rule)
		}
		return v
	}
	if a.OfSlot() && algorithmOf(c) == ratelimit.Concurrency { // without slots whose time is over
		s.decideSlots(at, c, &ask{Rule: a.Rule, Kind: ratelimit.Peek}, &verdict{})
	}
	v.Ledger = c.Val.look(at, a.Rule)
	here := ratelimit.HolderLook{Here: true, Granted: v.Ledger.Charged, Spent: v.Ledger.Charged}
	v.Ledger.Holders = append(v.Ledger.Holders, here)
	return v
}

// look is the counter at this time. It decides a peek about a copy, so that a look moves no window.
func (c *counter) look(now ledgerTime, r *ratelimit.Rule) *ratelimit.AccountLook {
	copied, v := *c, verdict{}
	copied.decide(now, &ask{Rule: r, Kind: ratelimit.Peek}, &v)
	limit := r.Limit.Capacity()
	free := v.Remaining
	switch {
	case !v.OverLimit:
	case r.Limit.Algorithm == ratelimit.TokenBucket:
		free = tokens((copied.state - account.Micro + 1) / account.Micro) // debt, rounded up
	default:
		// With debt it is below 0, which Remaining never is.
		free = limit - copied.used(now, &r.Limit)
	}
	return &ratelimit.AccountLook{Window: v.Window, Limit: limit, Free: free, Charged: limit - free}
}

// Hottest implements [ratelimit.Inspector]. This node does not measure rates: it returns the keys with the most usage
// in their windows, with a rate of 0.
func (l *Limiter) Hottest(now ratelimit.Instant, n int) []ratelimit.HotKey {
	var all Hottest
	at := l.LedgerNow(now)
	l.tracked.walk(func(s *counterShard, c *counterCell) {
		if at >= c.Val.dead(algorithmOf(c)) {
			return
		}
		limit := l.tracked.limits.limit(c.Note)
		spent := c.Val.sum
		if algorithmOf(c) == ratelimit.TokenBucket {
			spent = limit - max(0, tokens(c.Val.state/account.Micro))
		}
		all.Add(n, float64(spent), func() ratelimit.HotKey {
			return ratelimit.HotKey{
				Account: ratelimit.KeyName(s.keys.Key(c)), Spent: spent, Unspent: max(0, limit-spent), Limit: limit,
			}
		})
	})
	return all.Keys()
}

// Drop implements [ratelimit.Inspector]: a node that decides alone has no leases to give back.
func (l *Limiter) Drop(context.Context, ratelimit.Instant, []byte) (bool, error) { return false, nil }

// Reset implements [ratelimit.Inspector]. A budget that is shared with other keys is not reset: ErrFull.
func (l *Limiter) Reset(_ context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	at := l.LedgerNow(now)
	s, _, c := l.tracked.locked(a.Key)
	defer s.mu.Unlock()
	if c == nil {
		if shared := l.tracked.before(a); at < shared.dead(a.Rule.Limit.Algorithm) {
			return account.ErrFull // others share its budget
		}
		return nil // it has its whole limit
	}
	s.forget(c.ID())
	c.Val.enter(at, &a.Rule.Limit) // in this window
	c.Val.empty(&a.Rule.Limit)
	return nil
}

// Hottest are the keys with the highest rates, in order. The zero Hottest has none.
type Hottest []ratedKey

type ratedKey struct {
	rate float64
	key  ratelimit.HotKey
}

// Keys returns the keys.
func (all Hottest) Keys() []ratelimit.HotKey {
	keys := make([]ratelimit.HotKey, len(all))
	for i := range all {
		keys[i] = all[i].key
	}
	return keys
}

// Add adds a key, if it is one of the n hottest. key makes its view.
func (all *Hottest) Add(n int, rate float64, key func() ratelimit.HotKey) {
	keys := *all
	// Most keys are not among the n hottest. They end here, before their name is made.
	if len(keys) == n && (n == 0 || keys[n-1].rate >= rate) {
		return
	}
	at, _ := slices.BinarySearchFunc(keys, rate,
		func(k ratedKey, rate float64) int { return cmp.Compare(rate, k.rate) })
	// Always sorted, so that the last one is the one to beat.
	keys = slices.Insert(keys, at, ratedKey{rate, key()})
	*all = keys[:min(n, len(keys))]
}
