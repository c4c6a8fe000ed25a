package leasing

import (
	"sync"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// counters is a bounded table of counters, of the keys that this node alone decides
// about. Keys that other nodes lease from it (mode routing without a store) have an
// account besides, for as long as they do: see shared. It is safe for concurrent use.
type counters struct {
	keytable.Sharding
	shards []counterShard
	limits limitNotes
	// before, if set, is what a key that finds room was charged while it found none.
	before func(*ask) counter
}

type counterShard struct {
	mu     sync.Mutex
	keys   *keytable.Table[counter]   // guarded by mu
	shared map[keytable.ID]*sharedKey // guarded by mu; of cells that have isShared
	floor  ratelimit.Fence            // guarded by mu; at least every fence of an account that is gone
	// dropped is when the last key was dropped whose window was over: a clock that goes
	// back to before it must not have that window given again. Guarded by mu.
	dropped ledgerTime
	_       [16]byte
}

// counterCell is a key's place: Mark is its algorithm and whether it isShared, Note the
// number of its limit.
type counterCell = keytable.Cell[counter]

const isShared = 0x80

func algorithmOf(c *counterCell) ratelimit.Algorithm { return ratelimit.Algorithm(c.Mark &^ isShared) }

func newCounters(arena *keytable.Arena, maxKeys int) *counters {
	parts, shares := keytable.NewSharding(maxKeys)
	p := &counters{Sharding: parts, shards: make([]counterShard, len(shares))}
	for i, share := range shares {
		p.shards[i].keys = keytable.New[counter](arena, share)
		p.shards[i].shared = map[keytable.ID]*sharedKey{}
	}
	return p
}

// locked finds a key's shard, whose lock the caller now holds and must release, the
// key's ID, and its cell, nil if it is not there.
func (p *counters) locked(key []byte) (*counterShard, keytable.ID, *counterCell) {
	id := p.Hash.ID(key)
	s := &p.shards[p.ShardOf(id)]
	s.mu.Lock()
	return s, id, s.keys.Get(id)
}

// decide answers, or reports that there is no room for the key. The verdict must be zero.
func (p *counters) decide(at moment, key []byte, a *ask, v *verdict) bool {
	s, id, c := p.locked(key)
	defer s.mu.Unlock()
	switch {
	case c == nil && a.Kind != ratelimit.Spend: // nothing is known of it, nor need be
		fresh := counter{}
		fresh.decide(at.ledger, a, v)
		return true
	case c == nil:
		if c = p.add(s, at.ledger, id, key, a.Rule.Limit.Algorithm); c == nil {
			return false
		}
		c.Note = p.limits.note(a.Rule.Limit.Capacity())
		if p.before != nil {
			c.Val = p.before(a)
		}
		at.ledger = s.since(at.ledger, &a.Rule.Limit)
	case c.Mark&isShared != 0:
		*v = p.decideShared(s, at, c, a)
		return true
	case at.ledger >= c.Val.ends:
		c.Note = p.limits.note(a.Rule.Limit.Capacity()) // which may have changed
	}
	// it was not known; see account.counter
	if was, now := algorithmOf(c), uint8(a.Rule.Limit.Algorithm); c.Mark != now {
		if c.Mark = now; algorithmOf(c) == ratelimit.TokenBucket || was == ratelimit.TokenBucket {
			c.Val = counter{} // an account that no node can have written for this key
		}
		c.Val.extra = 0
	}
	c.Val.decide(at.ledger, a, v)
	return true
}

// add makes room for a key that is not there. Nothing in use is dropped for it.
func (p *counters) add(
	s *counterShard, now ledgerTime, id keytable.ID, key []byte, algorithm ratelimit.Algorithm,
) *counterCell {
	c := s.keys.Add(id, key, func(c *counterCell) bool { return s.dead(c, now) })
	if c != nil {
		c.Mark = uint8(algorithm)
	}
	return c
}

// dead tells whether a key means the same as a new one; it is about to be dropped.
func (s *counterShard) dead(c *counterCell, now ledgerTime) bool {
	if c.Mark&isShared == 0 {
		dead := c.Val.dead(algorithmOf(c))
		if now < dead {
			return false
		}
		if c.Val.charged() {
			s.dropped = max(s.dropped, now)
		}
		return true
	}
	k := s.shared[c.ID()]
	if now < k.account.Dead() {
		return false
	}
	s.dropped = max(s.dropped, now)
	s.floor = max(s.floor, k.account.Fence())
	delete(s.shared, c.ID())
	return true
}

// since is the time that a new key goes by: not before keys were dropped, unless the
// clock went back by more than a period. Then waiting would refuse for longer than a
// window. A bucket that was dropped was full.
func (s *counterShard) since(now ledgerTime, l *ratelimit.Limit) ledgerTime {
	if l.Algorithm != ratelimit.TokenBucket && now < s.dropped && s.dropped.Sub(now) < l.Period() {
		return s.dropped
	}
	return now
}

// since is the time that a key goes by for which there is no room here.
func (p *counters) since(now ledgerTime, a *ask) ledgerTime {
	s, _, _ := p.locked(a.Key)
	defer s.mu.Unlock()
	return s.since(now, &a.Rule.Limit)
}

// undo takes back what a verdict charged, if its key is still here.
func (p *counters) undo(key []byte, a *ask, v *verdict) {
	s, id, c := p.locked(key)
	defer s.mu.Unlock()
	switch {
	case c == nil:
	case c.Mark&isShared != 0:
		s.shared[id].lease.Undo(a, v, lease.Returns)
	default:
		c.Val.undo(a, v)
	}
}

// len is how many keys there are. It takes every lock once.
func (p *counters) len() (n int) {
	for i := range p.shards {
		p.shards[i].mu.Lock()
		n += p.shards[i].keys.Len()
		p.shards[i].mu.Unlock()
	}
	return n
}

// walk shows all keys, a bounded number of them under one lock.
func (p *counters) walk(see func(*counterShard, *counterCell)) {
	for i := range p.shards {
		s := &p.shards[i]
		for at := (keytable.Cursor{}); !at.Done; {
			s.mu.Lock()
			at = s.keys.Walk(at, func(c *counterCell) { see(s, c) })
			s.mu.Unlock()
		}
	}
}

// limitNotes are the numbers of limits, for people who look at keys: a cell has room
// for a number of 16 bits. It is safe for concurrent use.
type limitNotes struct {
	mu      sync.RWMutex
	numbers map[tokens]uint16
	limits  []tokens
}

// mostNotes bounds them, for clients may bring limits along. Those beyond are not known.
const mostNotes = 1 << 12

func (n *limitNotes) note(limit tokens) uint16 {
	n.mu.RLock()
	number, ok := n.numbers[limit]
	n.mu.RUnlock()
	if ok {
		return number
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if number, ok = n.numbers[limit]; ok || len(n.limits) >= mostNotes {
		return number
	}
	if n.numbers == nil {
		n.numbers, n.limits = map[tokens]uint16{}, []tokens{0}
	}
	number = uint16(len(n.limits))
	n.numbers[limit], n.limits = number, append(n.limits, limit)
	return number
}

// limit is the one with a number; 0 if it is not known.
func (n *limitNotes) limit(number uint16) tokens {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if int(number) < len(n.limits) {
		return n.limits[number]
	}
	return 0
}
