package leasing

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// shard is a part of the keys. It is guarded by its mutex.
type shard struct {
	mu   sync.Mutex
	keys *keytable.Table[key] // guarded by mu
	// uses are the recent uses, by number. They are pointers, because entries keep theirs while the slice grows.
	// Guarded by mu.
	uses  []*use
	free  []uint32    // guarded by mu; numbers of unused uses
	most  int         // maximum of uses, while some of them may be dropped
	hand  int         // guarded by mu; position of the search for a use to drop
	rules ruleNumbers // guarded by mu
	// seq and sent begin anew with the process, and so does the holder's name.
	seq  uint64        // guarded by mu: of claims
	sent uint32        // guarded by mu: number of the last message
	ends *atomic.Int64 // instant from which this node's registration may be over
	// The shards of an array share no line of a processor's cache: 192 bytes are three.
	_ [32]byte
}

type cell = keytable.Cell[key]

// key is the state of a key that must not be lost. It has no pointers, so that tens of millions of keys cost the
// garbage collector nothing.
type key struct {
	lease.Key
	rule uint32 // its number
	use  uint32 // its number, plus 1; 0: no recent use
	// alias differs for each life of the key in the table. Under its old name, a key that returns with a total of 0
	// would take back the usage that the ledger has of it.
	alias        uint32 // index of this node's name in the ledger
	reportedLife uint8  // life of the epoch in which it was reported, the last bits
	lane         uint8  // the way of its messages
}

// use is the recent use of a key, and its message in flight. A key that has one is busy.
type use struct {
	lease.Use
	id      keytable.ID // Invariant: of the key that has this use; zero: no key has it
	flight  *keyMessage // sent, or to be sent; nil: there is none
	timed   bool        // a timer gives back its lease
	touched bool        // since the last visit of the search for one to drop
}

// busyShare is the divisor of a table's keys that gives its busy keys; there are at least busyLeast.
const (
	busyShare = 16
	busyLeast = 64
	// tries bounds the search for a use to drop.
	tries = 16
)

// open makes an empty shard that tracks at most maxKeys keys.
func (s *shard) open(arena *keytable.Arena, maxKeys int, ends *atomic.Int64) {
	s.ends = ends
	s.keys, s.most = keytable.New[key](arena, maxKeys), max(busyLeast, maxKeys/busyShare)
}

// entry is the complete state of one key, while its shard is locked. It is made for each visit, and must not outlive
// it: the cell moves when another key comes or goes.
type entry struct {
	lease.Entry
	shard *shard
	cell  *cell
	use   *use
}

// account is the account's name in verdicts, for Undo. A bucket is one account, though its Window is that of its lease.
func (k *entry) account(l *ratelimit.Limit) window {
	if l.Algorithm == ratelimit.TokenBucket {
		return 1
	}
	return k.Window
}

// rule is that of the key's last request.
func (k *entry) rule() *ratelimit.Rule { return k.shard.rules.of(k.cell) }
func (k *entry) key() []byte           { return k.shard.keys.Key(k.cell) }
func (k *entry) id() keytable.ID       { return k.use.id }

// find returns the key's shard, its ID, and its cell, which is nil if the key is not tracked. The caller then holds
// the shard's lock and must release it.
func (f *Fleet) find(key []byte) (*shard, keytable.ID, *cell) {
	id := f.Hash.ID(key)
	s := &f.shards[f.ShardOf(id)]
	s.mu.Lock()
	return s, id, s.keys.Get(id)
}

// visit calls do with the state of a key, under its lock. It reports whether the key is tracked.
func (f *Fleet) visit(now instant, key []byte, do func(k entry)) bool {
	s, id, c := f.find(key)
	defer s.mu.Unlock()
	if c != nil {
		do(s.entry(now, id, c))
	}
	return c != nil
}

// entry is the state of a cell. It makes the key busy.
func (s *shard) entry(now instant, id keytable.ID, c *cell) entry {
	if c.Val.use == 0 {
		c.Val.use = s.take(id) + 1
		k := s.with(c, s.uses[c.Val.use-1])
		k.Remember(now, &k.rule().Limit)
		return k
	}
	u := s.uses[c.Val.use-1]
	u.touched = true
	return s.with(c, u)
}

// with is the state of a cell, with its use. The registration's end is read anew for each visit, because it moves while
// the key does not change.
func (s *shard) with(c *cell, u *use) entry {
	s.endLocked(c)
	return entry{lease.Entry{Key: &c.Val.Key, Use: &u.Use}, s, c, u}
}

// endLocked sets the end of a lease that ends with this node's registration.
func (s *shard) endLocked(c *cell) {
	if c.Val.lapses() && c.Val.Deadline != 0 {
		c.Val.Deadline = instant(s.ends.Load())
	}
}

// take finds a use for a key: a free one, a new one, or one of a key that is no longer busy. The uses grow beyond most
// if all are in use: a flood of waiting requests must not fail.
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

// forgetOne drops a use, in turn: one touched since the last visit only if there is no other in tries (second chance,
// as in the CLOCK algorithm). All have keys. If none can go, the table of uses grows.
func (s *shard) forgetOne() {
	found := -1
	for range min(tries, len(s.uses)) {
		s.hand = (s.hand + 1) % len(s.uses)
		u := s.uses[s.hand]
		if u.flight != nil || u.Kept() {
			continue
		}
		found = s.hand
		if !u.touched {
			break
		}
		u.touched = false
	}
	if found >= 0 {
		s.leave(uint32(found))
	}
}

// leave takes a use from its key. The key keeps what must not be lost. Its next request begins without refusals and
// with an unmeasured demand.
func (s *shard) leave(n uint32) {
	s.keys.Get(s.uses[n].id).Val.use = 0
	*s.uses[n] = use{}
	s.free = append(s.free, n)
}

// trackLocked makes a cell for a key; nil: there is no room. Its alias is the present number of dropped keys: so it
// differs from that of its earlier life in the table.
func (f *Fleet) trackLocked(s *shard, now instant, id keytable.ID, a *ask) *cell {
	c := s.keys.Add(id, a.Key, func(c *cell) bool { return f.mayGoLocked(s, now, c) })
	if c != nil {
		c.Val = key{
			alias: aliasOf(a.Rule, f.dropped.Load()), rule: s.rules.number(a.Rule), lane: f.laneNumber(a.Key),
		}
	}
	return c
}

// mayGoLocked reports whether a key can be dropped without a loss: the ledger has its total, and nothing is in hand. If
// the key returns, it has another name: under the old one it would take back its usage. A key with usage in its
// window is dropped from a full table only, and not in a young epoch: no other node can state it again.
func (f *Fleet) mayGoLocked(s *shard, now instant, c *cell) bool {
	k := &c.Val
	if k.unreported(now) {
		return false
	}
	counts := k.Counts(now, &s.rules.of(c).Limit)
	if counts && (s.keys.Len() < s.keys.Limit() || f.Young()) {
		return false
	}
	if k.use != 0 {
		if u := s.uses[k.use-1]; u.flight != nil || u.Kept() {
			return false
		}
		s.leave(k.use - 1)
	}
	s.rules.leave(k.rule)
	f.dropped.Add(1)
	if counts {
		f.stats.evicted.Add(1)
	}
	return true
}

// ruleNumbers are short numbers for the rules of keys. A rule that a reload has replaced keeps its number while keys
// use it. A number has four bytes in a key, and a pointer would make the collector scan all keys.
type ruleNumbers struct {
	numbers map[*ratelimit.Rule]uint32
	uses    []ruleUse // by number
	free    []uint32
}

type ruleUse struct {
	rule *ratelimit.Rule
	keys int
}

func (n *ruleNumbers) of(c *cell) *ratelimit.Rule { return n.uses[c.Val.rule].rule }

// number is the rule's, for one more key.
func (n *ruleNumbers) number(r *ratelimit.Rule) uint32 {
	number, ok := n.numbers[r]
	if !ok {
		if n.numbers == nil {
			n.numbers = map[*ratelimit.Rule]uint32{}
		}
		if last := len(n.free) - 1; last >= 0 {
			number, n.free = n.free[last], n.free[:last]
		} else {
			number, n.uses = uint32(len(n.uses)), append(n.uses, ruleUse{})
		}
		n.numbers[r], n.uses[number] = number, ruleUse{rule: r}
	}
	n.uses[number].keys++
	return number
}

// leave counts one key fewer under the rule.
func (n *ruleNumbers) leave(number uint32) {
	u := &n.uses[number]
	u.keys--
	if u.keys == 0 {
		delete(n.numbers, u.rule)
		*u = ruleUse{}
		n.free = append(n.free, number)
	}
}

// move changes the rule of a key. The tokens and the refusals of the key stay: they were computed for the old limit, so
// Spend and spendOrRefuse compare limits.
func (s *shard) move(c *cell, is *ratelimit.Rule) {
	old, was := c.Val.rule, s.rules.of(c)
	c.Val.rule = s.rules.number(is)
	if u := c.Val.use; u != 0 {
		u := s.uses[u-1]
		if is.Limit.Capacity() < was.Limit.Capacity() {
			u.Drifted, u.Outage = 0, 0 // the larger limit admitted it: it breaks no bound
		}
		// Nor does drift under a larger share. It counts now, because the ledger may not confirm it.
		more := max(0, u.Drifted-is.DriftShare())
		u.Drifted -= more
		if is.Counters != nil {
			is.Counters.OverAdmitted.Add(uint64(more))
		}
	}
	s.rules.leave(old)
}
