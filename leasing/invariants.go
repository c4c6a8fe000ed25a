package leasing

import (
	"fmt"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Check looks at the account of a key after a claim under limit was settled, and
// says which invariant of the ledger does not hold, if one does not. It is for
// simulations and tests.
func (m *Memory) Check(key []byte, limit *ratelimit.Limit) error {
	hash := m.hash.of(key)
	s := &m.shards[hash>>32%uint64(len(m.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.accounts.get(hash, key)
	if c == nil {
		return nil
	}
	return c.val.check(limit)
}

func (a *account) check(limit *ratelimit.Limit) error {
	if limit.Algorithm == ratelimit.TokenBucket {
		held := tokens(0)
		a.each(func(r *record) {
			if a.now < r.expires && !r.closed {
				held += r.outstanding()
			}
		})
		if a.level < 0 || a.level+int64(held)*micro > int64(limit.Burst)*micro {
			return fmt.Errorf("the bucket's level is %d micro-tokens, and live leases hold %d tokens: together they must be 0 to %d", a.level, held, limit.Burst)
		}
		return nil
	}
	c := &ratelimit.Claim{Limit: *limit}
	var err error
	for _, at := range [2]window{a.window, a.window + 1} {
		free := a.free(c, at)
		a.each(func(r *record) { // one that has just been granted what it had not spent
			if r.window == at && r.expires.Sub(a.now) > 0 && r.inflight > 0 && r.paid() > r.spent && free < 0 && r.fence == a.fence {
				err = fmt.Errorf("window %d: holder %d was granted %d when %d more than the limit of %d were charged", at, r.holder, r.inflight, -free, limit.Requests)
			}
		})
	}
	return err
}

// Check says which invariant of the node's lease on a key does not hold, if one
// does not. share is how much it may have spent unconfirmed.
func (s *Stepped) Check(key []byte, share ratelimit.Tokens) error {
	shard, _, c := s.fleet.locked(key)
	defer shard.mu.Unlock()
	if c == nil {
		return nil
	}
	l := &c.val.lease
	switch {
	case l.spent < 0 || l.returned < 0 || l.granted < 0:
		return fmt.Errorf("the lease has granted %d, spent %d, returned %d: none may be negative", l.granted, l.spent, l.returned)
	case l.drifted() > share:
		return fmt.Errorf("the node has spent %d and given back %d of %d granted: %d unconfirmed, and its share is %d", l.spent, l.returned, l.granted, l.drifted(), share)
	}
	return nil
}

// Predictable makes a ledger that was not used yet do the same in every run,
// for simulations: its keys' places are then no secret.
func (m *Memory) Predictable() *Memory {
	m.hash = hasher{}
	return m
}

// Forget loses all accounts, as FLUSHALL would.
func (m *Memory) Forget() {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		s.accounts, s.floor = newSlab[account](s.accounts.limit), 0
		s.mu.Unlock()
	}
}
