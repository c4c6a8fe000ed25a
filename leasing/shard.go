package leasing

import (
	"strings"
	"sync"

	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// shard is a part of the keys. It is guarded by its mutex.
type shard struct {
	mu    sync.Mutex
	keys  *keytable.Table[key] // guarded by mu
	uses  []*use               // guarded by mu; by number
	free  []uint32             // guarded by mu; numbers of uses that no key has
	most  int                  // uses, as far as those there are may be forgotten
	hand  int                  // guarded by mu; where the search for a use to forget goes on
	rules ruleNumbers          // guarded by mu
	// overs are overrides as last heard, also that one was removed. Guarded by mu.
	overs map[keytable.ID]*ratelimit.Override
	seq   uint64 // guarded by mu: of claims
	sent  uint32 // guarded by mu: number of the last message
	_     [32]byte
}

type cell = keytable.Cell[key]

// key is what the table has of a key: what must not be forgotten. It has no pointers, so that tens of millions of them
// cost the garbage collector nothing.
type key struct {
	hold.Key
	rule uint32 // its number
	use  uint32 // its number, plus 1; 0: it was not used lately
	as   uint32 // which of this node's names the ledger knows it by
	told uint8  // of the epoch in which the ledger was told of it, the last bits
}

// use is how a key is used of late, and its message under way. There is one for each key that is busy.
type use struct {
	hold.Use
	id      keytable.ID
	flight  *flight // under way, or to be sent; nil: there is none
	timed   bool    // a timer looks after its eager lease
	touched bool    // since the search for one to forget last came by
}

// busyShare is for how many keys of a table one may be busy; there are at least busyLeast.
const (
	busyShare = 16
	busyLeast = 64
	// tries bounds the search for a use that may be forgotten.
	tries = 16
)

// open has an empty shard track at most maxKeys keys.
func (s *shard) open(arena *keytable.Arena, maxKeys int) {
	s.keys, s.most = keytable.New[key](arena, maxKeys), max(busyLeast, maxKeys/busyShare)
	s.overs = map[keytable.ID]*ratelimit.Override{}
}

// entry is all that is known of one key, while its shard is locked.
type entry struct {
	hold.Entry
	shard *shard
	cell  *cell
	use   *use
}

// account is what verdicts name the account by, for Undo. A bucket has no window, but is another one for this node each
// time that its key was forgotten: what one was charged, the next was not.
func (k *entry) account(l *ratelimit.Limit) window {
	if l.Algorithm == ratelimit.TokenBucket {
		return window(k.cell.Val.as) + 1
	}
	return k.Window
}

// rule is the one in force.
func (k *entry) rule() *ratelimit.Rule { return k.shard.rules.of(k.cell).rule }
func (k *entry) key() []byte           { return k.shard.keys.Key(k.cell) }
func (k *entry) id() keytable.ID       { return k.use.id }

// find returns the key's shard, whose lock the caller now holds and must release, its ID, and its cell, nil if it is
// not tracked.
func (f *Fleet) find(key []byte) (*shard, keytable.ID, *cell) {
	id := f.Hash.ID(key)
	s := &f.shards[f.ShardOf(id)]
	s.mu.Lock()
	return s, id, s.keys.Get(id)
}

// entry is what is known of a cell. The key is busy then.
func (s *shard) entry(now instant, id keytable.ID, c *cell) entry {
	if c.Val.use == 0 {
		c.Val.use = s.take(id) + 1
		k := entry{hold.Entry{Key: &c.Val.Key, Use: &s.uses[c.Val.use-1].Use}, s, c, s.uses[c.Val.use-1]}
		k.Remember(now, &k.rule().Limit)
		return k
	}
	u := s.uses[c.Val.use-1]
	u.touched = true
	return entry{hold.Entry{Key: &c.Val.Key, Use: &u.Use}, s, c, u}
}

// take finds a use for a key: a free one, a new one, or one of a key that is not busy any more.
func (s *shard) take(id keytable.ID) uint32 {
	if len(s.free) == 0 && len(s.uses) >= s.most {
		s.forgetOne()
	}
	var n uint32
	if last := len(s.free) - 1; last >= 0 {
		n, s.free = s.free[last], s.free[:last]
	} else {
		n, s.uses = uint32(len(s.uses)), append(s.uses, new(use))
	}
	s.uses[n].id, s.uses[n].touched = id, true
	return n
}

// forgetOne forgets a use, in turn: one that was used since it was last looked at has another chance.
func (s *shard) forgetOne() {
	for range min(tries, len(s.uses)) {
		s.hand = (s.hand + 1) % len(s.uses)
		switch u := s.uses[s.hand]; {
		case u.touched:
			u.touched = false
		case u.flight == nil && !u.Kept() && u.id != (keytable.ID{}):
			s.leave(uint32(s.hand))
			return
		}
	}
}

// leave takes a use from its key.
func (s *shard) leave(n uint32) {
	if c := s.keys.Get(s.uses[n].id); c != nil && c.Val.use == n+1 {
		c.Val.use = 0
	}
	*s.uses[n] = use{}
	s.free = append(s.free, n)
}

// track makes a cell for a key; nil: there is no room.
func (f *Fleet) trackLocked(s *shard, now instant, id keytable.ID, a *ask) *cell {
	c := s.keys.Add(id, a.Key, func(c *cell) bool { return f.mayGoLocked(s, now, c) })
	if c != nil {
		c.Val = key{as: uint32(f.forgotten.Load() & (1<<28 - 1)), rule: s.rules.number(ruleKey{asked: a.Rule})}
	}
	return c
}

// mayGoLocked tells whether nothing is lost with the key: the ledger knows all of it, and nothing is in hand. It is
// about to be forgotten then. If it comes back it has another name: under the old one it would take back what it spent.
// A key that counts goes from a full table only: after a loss of data no other node can state it.
func (f *Fleet) mayGoLocked(s *shard, now instant, c *cell) bool {
	k := &c.Val
	if k.untold(now) {
		return false
	}
	counts := k.Counts(now, &s.rules.of(c).rule.Limit)
	if (counts || s.remembers(now, c)) && s.keys.Len() < s.keys.Limit() {
		return false
	}
	if k.use != 0 {
		if u := s.uses[k.use-1]; u.flight != nil || u.Kept() {
			return false
		}
		s.leave(k.use - 1)
	}
	s.rules.leave(k.rule)
	delete(s.overs, c.ID())
	f.forgotten.Add(1)
	if counts {
		f.stats.evicted.Add(1)
	}
	return true
}

// ruleNumbers are short names for the rules of keys, with their limits in force. A rule that a reload has replaced has
// one for as long as there are keys that were last asked for under it.
type ruleNumbers struct {
	numbers map[ruleKey]uint32
	uses    []ruleUse // by number
	free    []uint32
}

// ruleKey is the rule that a key is asked under, and of a key in overs the limit in force: keys share it.
type ruleKey struct {
	asked *ratelimit.Rule
	limit ratelimit.Limit // the zero one: there is no override
}

type ruleUse struct {
	ruleKey
	rule *ratelimit.Rule // in force: the asked one, or one that has the override's limit
	keys int
}

func (n *ruleNumbers) of(c *cell) *ruleUse { return &n.uses[c.Val.rule] }

// number is the rule's, for one more key.
func (n *ruleNumbers) number(r ruleKey) uint32 {
	number, ok := n.numbers[r]
	if !ok {
		if n.numbers == nil {
			n.numbers = map[ruleKey]uint32{}
		}
		if last := len(n.free) - 1; last >= 0 {
			number, n.free = n.free[last], n.free[:last]
		} else {
			number, n.uses = uint32(len(n.uses)), append(n.uses, ruleUse{})
		}
		n.numbers[r], n.uses[number] = number, ruleUse{ruleKey: r, rule: r.asked}
		if none := (ratelimit.Limit{}); r.limit != none && r.limit != r.asked.Limit {
			own := *r.asked
			own.Limit = r.limit
			n.uses[number].rule = &own
		}
	}
	n.uses[number].keys++
	return number
}

// leave says that one key less has the rule.
func (n *ruleNumbers) leave(number uint32) {
	u := &n.uses[number]
	if u.keys--; u.keys == 0 {
		delete(n.numbers, u.ruleKey)
		*u = ruleUse{}
		n.free = append(n.free, number)
	}
}

// under has a key be asked for under a rule.
func (s *shard) under(c *cell, r *ratelimit.Rule) {
	if is := s.rules.of(c); is.asked != r {
		s.move(c, r, s.over(c))
	}
}

// over is the override of a key as last heard; one that is not Set: none.
func (s *shard) over(c *cell) (o ratelimit.Override) {
	if s.rules.of(c).limit.Ceiling > 0 {
		o = *s.overs[c.ID()]
	}
	return o
}

// move has a key be judged under another rule, or by another override; one that is not Set: none.
func (s *shard) move(c *cell, asked *ratelimit.Rule, over ratelimit.Override) {
	old, to := c.Val.rule, ruleKey{asked: asked}
	if over.Set > 0 && asked.Limit.Overridable() {
		over.By, over.Reason = strings.Clone(over.By), strings.Clone(over.Reason) // they are a part of an answer
		s.overs[c.ID()], to.limit = &over, asked.Limit.Under(&over)
	} else {
		delete(s.overs, c.ID())
	}
	c.Val.rule = s.rules.number(to)
	s.rules.leave(old)
}
