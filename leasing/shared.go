package leasing

import (
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// sharedKey is a key of counters that others lease from this node, or that came from a
// process whose clock differs: then its counter is not enough, and the ledger's account
// counts, of which this node is one holder among others. It claims exactly what each
// ask needs, and keeps nothing.
type sharedKey struct {
	account ledger.Account
	lease   lease.Lease // this node's
	seq     uint64
}

// moment is one instant on both clocks.
type moment struct {
	node   instant
	ledger ledgerTime
}

// share returns a cell's account, and makes it first if the cell has none.
func (s *counterShard) share(now ledgerTime, c *counterCell) *sharedKey {
	if c.Mark&isShared == 0 {
		x := c.Val.export(now, algorithmOf(c), s.floor)
		s.shared[c.ID()] = &sharedKey{account: ledger.FromStatement(&x, x.Lag)}
		c.Mark |= isShared
		// From here on the account counts alone. Two places that count could each admit the limit.
		c.Val = counter{}
	}
	return s.shared[c.ID()]
}

// unshare makes a cell a counter again, if nobody else has anything of the account.
func (s *counterShard) unshare(at moment, c *counterCell, l *ratelimit.Limit) {
	k := s.shared[c.ID()]
	// Others may still report or return, and need their records. While the account learns, its
	// counts are not all that was spent. What a reset has credited has no place in a counter.
	if !k.account.Sole(at.ledger, l) {
		return
	}
	// The account has not heard yet of a refund, nor of what a denial gave back.
	k.release(at)
	s.floor = max(s.floor, k.account.Fence())
	delete(s.shared, c.ID())
	x := k.account.Statement()
	x.Charged = k.account.Charged() // by holders that are over, too
	c.Val, c.Mark = counterOf(x, &k.lease, l)
}

// counterOf is an account without other holders than this node, as a counter, and by
// which algorithm it counts as far as that matters.
// Where the limit is not known, a window before that was charged for says sliding_window;
// counters.decide knows better.
func counterOf(x ledger.Statement, own *lease.Lease, l *ratelimit.Limit) (counter, uint8) {
	if x.Window == 0 {
		return counter{}, uint8(ratelimit.FixedWindow)
	}
	// The number of a bucket's window is a time in microseconds, which no window's number is as
	// high as: it tells the algorithm where no limit is at hand.
	if ledger.IsBucket(x.Window) {
		return counter{spent: own.Spent, extra: x.Carry, begins: x.Now + x.Lag, ends: x.Dead, state: x.Level},
			uint8(ratelimit.TokenBucket)
	}
	c := counter{spent: x.Charged, begins: shiftedBy(x.Lag), ends: x.Dead, state: int64(x.Window)}
	if l != nil && l.Algorithm == ratelimit.SlidingWindow || l == nil && x.Previous > 0 {
		c.extra = int64(x.Previous)
		return c, uint8(ratelimit.SlidingWindow)
	}
	// What denials charged beyond the limit (on_deny) is this node's, and is not in the account.
	c.extra = int64(own.Debt)
	return c, uint8(ratelimit.FixedWindow)
}

// export writes a counter down as an account that has no holders.
func (c *counter) export(now ledgerTime, algorithm ratelimit.Algorithm, floor ratelimit.Fence) ledger.Statement {
	// A counter has no fences. The account's begin above all that were given out for accounts of
	// this shard, so that they rise for ever (docs/protocol.md, section 4.6).
	fence := max(floor, ratelimit.Fence(now))
	x := ledger.Statement{Now: now, Fence: fence, Born: fence + 1, Dead: c.dead(algorithm)}
	if algorithm == ratelimit.TokenBucket && c.begins == 0 {
		return x // it is new, and nobody knows yet how full that is
	}
	if algorithm == ratelimit.TokenBucket {
		x.Now, x.Window, x.Level, x.Carry = c.begins, window(max(1, c.begins)), c.state, c.extra
		return x
	}
	x.Now, x.Window, x.Charged = max(now, c.begins), window(c.state), c.spent
	// An account that came from a node whose clock is behind keeps that clock until its window ends
	// (docs/protocol.md, section 4.15).
	if lag, shifted := c.shifted(); shifted {
		x.Now, x.Lag, x.Dead = now-lag, lag, x.Dead-lag
	}
	if algorithm == ratelimit.SlidingWindow {
		x.Previous = tokens(c.extra)
	}
	return x
}

// decideShared answers from an account.
func (p *counters) decideShared(s *counterShard, at moment, c *counterCell, a *ask) verdict {
	k := s.shared[c.ID()]
	waiting := tokens(0)
	if a.Kind == ratelimit.Spend {
		waiting = min(a.Cost, a.Rule.Limit.Capacity()+1) // more makes no difference
	}
	k.claim(at, a.Rule, waiting)
	l := &k.lease
	// A denial that charges takes what is left. This holder keeps nothing between requests, and
	// must first be granted that to spend it. What the refusal said of the next try holds on.
	if waiting > l.Left(at.node) && l.Available > 0 && a.Rule.Coordination.OnDeny == ratelimit.DenyCharges {
		retry, cost := l.Retry, l.RetryCost
		k.claim(at, a.Rule, l.Available) // to be drained
		l.Retry, l.RetryCost = retry, cost
	}
	v := l.Settled(at.node, a, lease.Returns)
	v.Source = ratelimit.FromLease
	// Most keys have no other holders after a while. As counters they are smaller and faster.
	s.unshare(at, c, &a.Rule.Limit)
	return v
}

// claim asks the account for what is to be spent at once.
func (k *sharedKey) claim(at moment, rule *ratelimit.Rule, waiting tokens) {
	k.seq++
	m := k.lease.Claim(at.node, k.seq, rule, waiting, waiting, lease.Returns)
	k.settle(at, &m)
}

// release tells the account what was spent.
func (k *sharedKey) release(at moment) {
	// Nothing was claimed, or its window is over and nobody counts it any more. A bucket's level
	// always counts.
	if k.lease.Window == 0 || at.node >= k.lease.Reset && k.lease.Algorithm != ratelimit.TokenBucket {
		return
	}
	k.seq++
	m := k.lease.Release(at.node, k.seq)
	k.settle(at, &m)
}

func (k *sharedKey) settle(at moment, m *ratelimit.Claim) {
	m.Holder = ledger.LocalHolder
	g := k.account.Settle(at.ledger, m)
	// No margin, for node and account go by one clock, and nothing travels.
	k.lease.Apply(at.node, m, &g, 0, at.node.Add(g.ResetAfter))
}

// settleFor settles a claim of another holder.
func (p *counters) settleFor(at moment, key []byte, m *ratelimit.Claim) ratelimit.Grant {
	s, id, c := p.locked(key)
	defer s.mu.Unlock()
	if c == nil {
		if c = p.add(s, at.ledger, id, key, m.Limit.Algorithm); c == nil {
			return ratelimit.Grant{Seq: m.Seq, Err: ratelimit.ErrLedgerFull}
		}
		// As for a request (decide): the key may have been here before, and been spent from in a window
		// that was over when it was dropped, and that a clock which was set back shows again.
		at.ledger = s.since(at.ledger, &m.Limit)
	}
	c.Note = p.limits.note(m.Limit.Capacity())
	k := s.share(at.ledger, c)
	return k.account.Settle(at.ledger, m)
}

// takeOut takes a key's account away.
func (p *counters) takeOut(at moment, key []byte) (x ledger.Statement, ok bool) {
	s, id, c := p.locked(key)
	defer s.mu.Unlock()
	if c == nil {
		return ledger.Statement{}, false
	}
	if k := s.shared[id]; c.Mark&isShared != 0 {
		// The new owner must know all that was spent here, and nothing is leased to a node that has
		// no part in the key any more.
		k.release(at)
		x, ok = k.account.Statement(), at.ledger < k.account.Dead()
		s.floor = max(s.floor, k.account.Fence())
		delete(s.shared, id)
	} else {
		x, ok = c.Val.export(at.ledger, algorithmOf(c), s.floor), at.ledger < c.Val.dead(algorithmOf(c))
		s.floor = x.Fence
	}
	if !ok {
		s.dropped = max(s.dropped, at.ledger)
	}
	s.keys.Remove(id)
	return x, ok
}

// adopt takes an account in, beside what is known of the key already.
func (p *counters) adopt(at moment, key []byte, x *ledger.Statement, lag ledgerTime) bool {
	s, id, c := p.locked(key)
	defer s.mu.Unlock()
	if c != nil {
		// The key has been counted here before its account came: both have admitted requests, so
		// that both count (merge).
		s.share(at.ledger, c).account.Merge(x, lag)
		s.unshare(at, c, nil)
		return true
	}
	if c = p.add(s, at.ledger, id, key, ratelimit.FixedWindow); c == nil {
		return false
	}
	k := &sharedKey{account: ledger.FromStatement(x, lag)}
	// This node may have had the key before, and given it higher fences than the account brings.
	k.account.RaiseFence(s.floor)
	s.shared[id] = k
	c.Mark |= isShared
	s.unshare(at, c, nil)
	return true
}
