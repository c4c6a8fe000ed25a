package local

import (
	"sync"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// counters is a bounded table of counters, for keys that this node alone decides about. It is safe for concurrent use.
// Each key is decided under the lock of its shard. No call holds two shards' locks, except before, which may lock one
// of another table.
type counters struct {
	keytable.Sharding
	shards []counterShard
	limits limitNotes
	// before is the usage of a key that is not tracked.
	before func(*ask) counter
}

type counterShard struct {
	mu   sync.Mutex
	keys *keytable.Table[counter] // guarded by mu
	// taken has the slots of keys under a concurrency limit, which are outside of the arena: their number varies.
	// Guarded by mu.
	taken map[keytable.ID]*account.Slots
	// dropped is the time of the last drop of a key with an ended window: a clock that goes back to before it must
	// not grant that window again. Guarded by mu.
	dropped ledgerTime
	slots   int        // guarded by mu; number of all in taken
	swept   ledgerTime // guarded by mu; when it was full, and ended slots were dropped
	// The shards of an array share no line of a processor's cache.
	_ [16]byte
}

// counterCell is a key's place. Mark has its algorithm and isOwned, and Note the number of its limit.
type counterCell = keytable.Cell[counter]

// isOwned is of keys whose accounts move with a ring (mode routing). Slots do not move.
const isOwned = 0x80

func algorithmOf(c *counterCell) ratelimit.Algorithm { return ratelimit.Algorithm(c.Mark &^ isOwned) }

func setAlgorithm(c *counterCell, a ratelimit.Algorithm) { c.Mark = c.Mark&isOwned | uint8(a) }

// setOwned notes whether the key's account moves with a ring, by its current rule.
func setOwned(c *counterCell, r *ratelimit.Rule) {
	c.Mark &^= isOwned
	if r.Coordination.Mode.Spec().Owned && r.Limit.Algorithm != ratelimit.Concurrency {
		c.Mark |= isOwned
	}
}

func newCounters(arena *keytable.Arena, maxKeys int) *counters {
	parts, shares := keytable.NewSharding(maxKeys)
	p := &counters{Sharding: parts, shards: make([]counterShard, len(shares))}
	p.before = func(*ask) counter { return counter{} }
	for i, share := range shares {
		p.shards[i].keys = keytable.New[counter](arena, share)
		p.shards[i].taken = map[keytable.ID]*account.Slots{}
	}
	return p
}

// locked finds a key's shard, its ID, and its cell, which is nil if the key is missing. The caller then holds the
// shard's lock and must release it.
func (p *counters) locked(key []byte) (*counterShard, keytable.ID, *counterCell) {
	id := p.Hash.ID(key)
	s := &p.shards[p.ShardOf(id)]
	s.mu.Lock()
	return s, id, s.keys.Get(id)
}

// decide answers, or reports that there is no room for the key. The verdict must be zero.
func (p *counters) decide(now ledgerTime, a *ask, v *verdict) bool {
	if a.OfSlot() {
		return p.decideSlot(now, a, v)
	}
	s, id, c := p.locked(a.Key)
	defer s.mu.Unlock()
	// The key is new, and needs no counter, unless it shares a budget.
	if c == nil && a.Kind != ratelimit.Spend && a.Kind != ratelimit.Charge {
		fresh := p.before(a)
		// It must go to the shared budget, which the key has used while it was not tracked.
		if a.Kind != ratelimit.Peek && now < fresh.dead(a.Rule.Limit.Algorithm) {
			return false
		}
		fresh.decide(now, a, v)
		return true
	}
	now, c = p.enter(s, now, id, c, a)
	if c == nil {
		return false
	}
	c.Val.decide(now, a, v)
	return true
}

// enter finds room for a key, and counts it by the rule's algorithm. It returns the effective time, and no cell if
// there is no room. A rule may have another algorithm after a reload. Then the key's usage goes on if both count in
// windows.
func (p *counters) enter(
	s *counterShard, now ledgerTime, id keytable.ID, c *counterCell, a *ask,
) (ledgerTime, *counterCell) {
	l := &a.Rule.Limit
	switch {
	case c == nil:
		return s.since(now, l), p.begin(s, now, id, a)
	case now >= c.Val.ends:
		c.Note = p.limits.note(l.Capacity()) // it may have changed
	}
	setOwned(c, a.Rule)
	// The algorithm has changed: windows may lack a previous sum, and others have nothing in common with them.
	if was := algorithmOf(c); was != l.Algorithm {
		setAlgorithm(c, l.Algorithm)
		if !windowed(l.Algorithm) || !windowed(was) {
			c.Val = counter{}
			s.forget(id)
		}
		c.Val.extra = 0
	}
	return now, c
}

// windowed reports whether an algorithm counts in windows.
func windowed(a ratelimit.Algorithm) bool {
	return a == ratelimit.FixedWindow || a == ratelimit.SlidingWindow
}

// begin makes room for an ask's new key; nil: there is none. The key continues the usage of the budget that it may have
// shared until now.
func (p *counters) begin(s *counterShard, now ledgerTime, id keytable.ID, a *ask) *counterCell {
	c := p.add(s, now, id, a.Key, a.Rule.Limit.Algorithm)
	if c != nil {
		c.Note = p.limits.note(a.Rule.Limit.Capacity())
		setOwned(c, a.Rule)
		c.Val = p.before(a)
	}
	return c
}

// add makes room for a new key. It drops no key in use.
func (p *counters) add(
	s *counterShard, now ledgerTime, id keytable.ID, key []byte, algorithm ratelimit.Algorithm,
) *counterCell {
	c := s.keys.Add(id, key, func(c *counterCell) bool { return s.dead(c, now) })
	if c != nil {
		c.Mark = uint8(algorithm)
	}
	return c
}

// dead reports whether a key equals a new one, and can be dropped.
func (s *counterShard) dead(c *counterCell, now ledgerTime) bool {
	if now < c.Val.dead(algorithmOf(c)) {
		return false
	}
	if c.Val.charged() {
		s.dropped = max(s.dropped, now)
	}
	s.forget(c.ID())
	return true
}

// since is the effective time of a new key: not before keys were dropped, unless the clock went back by more than a
// period. Then a wait would refuse for longer than a window. A dropped bucket was full.
func (s *counterShard) since(now ledgerTime, l *ratelimit.Limit) ledgerTime {
	if l.Algorithm != ratelimit.TokenBucket && now < s.dropped && s.dropped.Sub(now) < l.Period() {
		return s.dropped
	}
	return now
}

// since is the effective time of a key without room here.
func (p *counters) since(now ledgerTime, a *ask) ledgerTime {
	s, _, _ := p.locked(a.Key)
	defer s.mu.Unlock()
	return s.since(now, &a.Rule.Limit)
}

// undo takes back the bookings of a verdict, if its key is still here.
func (p *counters) undo(key []byte, a *ask, v *verdict) {
	if a.OfSlot() {
		p.undoSlot(a)
		return
	}
	s, _, c := p.locked(key)
	defer s.mu.Unlock()
	if c != nil {
		c.Val.undo(&a.Rule.Limit, v)
	}
}

// len is the number of keys. It takes every lock once.
func (p *counters) len() (n int) {
	for i := range p.shards {
		p.shards[i].mu.Lock()
		n += p.shards[i].keys.Len()
		p.shards[i].mu.Unlock()
	}
	return n
}

// walk visits all keys, a bounded number of them under one lock. Others can add and remove keys between two steps.
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

// limitNotes are the numbers of limits, for views of keys: a cell has room for 16 bits. They are safe for concurrent
// use.
type limitNotes struct {
	mu      sync.RWMutex
	numbers map[tokens]uint16
	limits  []tokens
}

// mostNotes bounds them, because clients can send limits. Further limits have no number. 0 stands for them.
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
	number, ok = n.numbers[limit]
	if ok || len(n.limits) >= mostNotes {
		return number
	}
	if n.numbers == nil {
		n.numbers, n.limits = map[tokens]uint16{}, []tokens{0}
	}
	number = uint16(len(n.limits))
	n.numbers[limit], n.limits = number, append(n.limits, limit)
	return number
}

// limit is the one with a number, or 0.
func (n *limitNotes) limit(number uint16) tokens {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if int(number) < len(n.limits) {
		return n.limits[number]
	}
	return 0
}
