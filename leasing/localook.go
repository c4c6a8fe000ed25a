package leasing

import (
	"context"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What people see of a Local, and may do to it.

// Look implements [ratelimit.Inspector]. It decides as if at now, and changes nothing.
func (l *Local) Look(_ context.Context, now ratelimit.Instant, a *ratelimit.Ask) ratelimit.Look {
	v := ratelimit.Look{Account: KeyName(a.Key)}
	at := l.ledgerNow(now)
	s, id, c := l.tracked.locked(a.Key)
	defer s.mu.Unlock()
	switch {
	case c == nil:
	case c.Mark&isShared != 0:
		k := s.shared[id]
		v.Ledger = k.account.Look(at, &a.Rule.Limit, func(h ratelimit.Holder) bool { return h == ledger.LocalHolder })
	default:
		v.Ledger = c.Val.look(at, a.Rule)
		v.Ledger.Holders = []ratelimit.HolderLook{{
			Holder: ledger.LocalHolder, Here: true, Granted: v.Ledger.Charged,
			Spent: v.Ledger.Charged,
		}}
	}
	return v
}

// look is the counter as of now.
func (c *counter) look(now ledgerTime, r *ratelimit.Rule) *ratelimit.AccountLook {
	copied, v := *c, verdict{}
	copied.decide(now, &ask{Rule: r, Kind: ratelimit.Peek}, &v)
	limit := r.Limit.Capacity()
	return &ratelimit.AccountLook{Window: v.Window, Limit: limit, Free: v.Remaining, Charged: limit - v.Remaining}
}

// Hottest implements [ratelimit.Inspector]. This node does not measure rates:
// keys are those that spent most in their windows, and the rate is 0.
func (l *Local) Hottest(now ratelimit.Instant, n int) []ratelimit.HotKey {
	var all hottest
	at := l.ledgerNow(now)
	l.tracked.walk(func(s *counterShard, c *counterCell) {
		spent, fence := c.Val.spent, ratelimit.Fence(0)
		if c.Mark&isShared != 0 {
			k := s.shared[c.ID()]
			spent, fence = k.account.Charged(), k.account.Fence()
		} else if at >= c.Val.dead(algorithmOf(c)) {
			return
		}
		limit := l.tracked.limits.limit(c.Note)
		all.add(n, float64(spent), func() ratelimit.HotKey {
			return ratelimit.HotKey{
				Account: KeyName(s.keys.Key(c)), Spent: spent, Unspent: max(0, limit-spent),
				Limit: limit, Fence: fence,
			}
		})
	})
	return all.keys()
}

// Drop implements [ratelimit.Inspector]: a node that decides alone has no leases to
// give back.
func (l *Local) Drop(_ ratelimit.Instant, key []byte) bool { return l.Has(key) }

// Reset implements [ratelimit.Inspector].
func (l *Local) Reset(_ context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	at := l.at(now)
	s, id, c := l.tracked.locked(a.Key)
	defer s.mu.Unlock()
	switch {
	case c == nil: // it has its whole limit
	// Others may hold leases of the key: the account credits what is charged, and keeps their records.
	case c.Mark&isShared != 0:
		k := s.shared[id]
		k.seq++
		m := k.lease.Claim(now, k.seq, a.Rule, 0, 0, lease.Returns)
		m.Reset = true
		k.settle(at, &m)
		// What this node had concluded from the state before holds no more.
		k.lease.Retry, k.lease.Debt = 0, 0
	default:
		c.Val.decide(at.ledger, &ask{Rule: a.Rule, Key: a.Key, Kind: ratelimit.Peek}, new(verdict)) // in this window
		c.Val.empty(&a.Rule.Limit)
	}
	return nil
}
