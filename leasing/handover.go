package leasing

import (
	"github.com/sluice-gate/sluice/ratelimit"
)

// Account is what a ledger in this process knows of a key that nobody else
// holds leases of: enough to go on in another process.
type Account struct {
	Now      ratelimit.LedgerTime // the account's clock
	Fence    ratelimit.Fence
	Window   ratelimit.Window
	Charged  ratelimit.Tokens // in this window
	Previous ratelimit.Tokens // of a sliding_window: in the one before
	Level    int64            // of a token_bucket, in micro-tokens
	Carry    int64
	Dead     ratelimit.LedgerTime // from here on it means the same as none
}

// HandOver takes away the keys that match accepts, and gives each to out,
// which must not keep the key: from here on they are unknown here. It takes
// every lock once, and does not block otherwise.
func (l *Local) HandOver(now ratelimit.Instant, match func(key []byte) bool, out func(key []byte, a Account)) {
	at := moment{now, ledgerTime((int64(now) + l.epoch.Load()) / 1000)}
	l.tracked.handOver(at, match, out)
}

func (p *pool) handOver(at moment, match func([]byte) bool, out func([]byte, Account)) {
	// Leases first: what they have not spent goes back to their accounts.
	for i := range p.shards {
		s := &p.shards[i]
		s.mu.Lock()
		s.leases.drop(func(c *cell[lease]) bool {
			key := c.key[:c.len]
			if !match(key) {
				return false
			}
			p.release(s, at, c.fullHash(), key, &c.val)
			return true
		})
		s.mu.Unlock()
	}
	for i := range p.ledger.shards {
		s := &p.ledger.shards[i]
		s.mu.Lock()
		s.accounts.drop(func(c *cell[account]) bool {
			key := c.key[:c.len]
			if !match(key) {
				return false
			}
			a := &c.val
			s.floor = max(s.floor, a.fence)
			if at.ledger < a.dead {
				out(key, Account{
					Now: a.now, Fence: a.fence, Window: a.window, Charged: a.charged(a.window), Previous: a.prev,
					Level: a.level, Carry: a.carry, Dead: a.dead,
				})
			}
			return true
		})
		s.mu.Unlock()
	}
}

// Adopt goes on with an account from another process. If the key is known here
// already, what was charged there is charged here too. It reports false when
// there is no room: then the key shares a budget, as any beyond the most that
// may be tracked.
func (l *Local) Adopt(now ratelimit.Instant, key []byte, a Account) bool {
	t := ledgerTime((int64(now) + l.epoch.Load()) / 1000)
	m := l.tracked.ledger
	hash := m.hash.of(key)
	s := &m.shards[hash>>32%uint64(len(m.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.accounts.get(hash, key)
	if c == nil {
		if c = s.admit(t, hash, key); c == nil {
			return false
		}
		c.val = account{
			now: a.Now, fence: max(a.Fence, s.floor), window: a.Window, base: a.Charged, prev: a.Previous,
			level: a.Level, carry: a.Carry, dead: a.Dead,
		}
		return true
	}
	here := &c.val
	here.fence = max(here.fence, a.Fence)
	here.dead = max(here.dead, a.Dead)
	switch here.window {
	case a.Window:
		here.base += a.Charged
		here.prev += a.Previous
	case a.Window + 1: // it has rolled since
		here.prev += a.Charged
	}
	here.level = min(here.level, a.Level) // of a bucket: what either has left
	return true
}

// Settle settles claims of other holders, whose Key is the key as it is. What
// this process has leased of such a key goes back first. Grants have an Err
// where there is no room. It never blocks.
func (l *Local) Settle(now ratelimit.Instant, claims []ratelimit.Claim, grants []ratelimit.Grant) {
	at := moment{now, ledgerTime((int64(now) + l.epoch.Load()) / 1000)}
	for i := range claims {
		grants[i] = l.tracked.settleFor(at, []byte(claims[i].Key), &claims[i])
	}
}

func (p *pool) settleFor(at moment, key []byte, c *ratelimit.Claim) ratelimit.Grant {
	hash := p.hash().of(key)
	s := p.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if own := s.leases.get(hash, key); own != nil && own.val.window != 0 {
		p.release(s, at, hash, key, &own.val)
	}
	return p.ledger.settleAt(at.ledger, hash, key, c)
}

// drop removes the cells that f accepts.
func (s *slab[T]) drop(f func(*cell[T]) bool) {
	for i := 0; i < len(s.tags); {
		if s.tags[i] != 0 && f(&s.cells[i]) {
			s.remove(i) // which moves another here, perhaps from further on
			continue
		}
		i++
	}
}
