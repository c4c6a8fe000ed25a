package leasing

import (
	"math/bits"
	"sync"
	"unsafe"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What a node knows of a key is some 500 bytes (held) while the key is busy. Most keys
// of a large table are not: they were asked for a moment ago, and may be again. Such a
// key is cold. What is known of it is then packed into some 100 bytes (packed.go), beside
// the key in a table that the garbage collector does not see. A request that finds
// enough in its lease is answered from there (spendCold); whatever else is to be done
// unpacks it. Nothing is lost on the way, so that nobody can tell a cold key from a busy
// one but by its cost.
//
//	          a claim is due, a window over, a recall came, ...
//	cold ------------------------------------------------------> busy
//	     <------------------------------------------------------
//	          not used lately, no claim under way,
//	          and another key becomes busy

// fleetShard is a part of a Fleet's keys. It is guarded by its mutex.
type fleetShard struct {
	mu    sync.Mutex
	keys  *keytable.Table[heldPlace] // guarded by mu
	busy  busyKeys                   // guarded by mu
	rules ruleNumbers                // guarded by mu
	seq   uint64                     // guarded by mu
	name  ratelimit.Holder           // the node's even name; it does not change
	_     [48]byte                   // shards do not share a line of the processor's cache
}

// heldCell is a key's place. Its Mark says what a walk must know of a cold key.
type heldCell = keytable.Cell[heldPlace]

// heldPlace says where what is known of a key is: in a busy slot, or beside the key.
type heldPlace struct {
	slot uint32      // of busyKeys, plus 1; 0: the key is cold
	over lease.Ticks // when a sweep must look at a cold key because its window is over
}

const (
	coldDrifts = 1 << iota // it has drift that may still count
	coldUntold             // when it is idle, there is something to tell, or to give back
	coldKept               // but only if room is scarce
)

// packedMost is how long a packed key may be.
const packedMost = keytable.MaxKept

// busyKeys are slots for what is known of busy keys, in chunks that do not move. From
// most on, when a key becomes busy others become cold; beyond it are those that have
// claims under way or the lease of a next window. Chunks at the end that are empty are
// given back.
type busyKeys struct {
	chunks []*busyChunk
	room   int // no chunk before this one has a free slot
	size   int
	most   int
	hand   int // where the search for a key to pack goes on
}

type busyChunk struct {
	used  uint64 // a bit for each slot
	slots [busySlots]busyLines
}

// busyLines is a busyKey that ends with a line of the processor's cache.
type busyLines struct {
	busyKey
	_ [(64 - unsafe.Sizeof(busyKey{})%64) % 64]byte
}

const (
	busySlots = 64
	// coldTries bounds the search for a key to pack.
	coldTries = 16
	// busyShare is for how many keys of a table one may be busy for no other reason than
	// that it was.
	busyShare = 128
	// busyLeast are always.
	busyLeast = 8
)

func (b *busyKeys) at(slot uint32) *busyKey {
	return &b.chunks[slot/busySlots].slots[slot%busySlots].busyKey
}

// take finds a slot, the first that is free, and makes it the key's.
func (b *busyKeys) take(s *fleetShard, id keytable.ID) *busyKey {
	for b.room < len(b.chunks) && b.chunks[b.room].used == 1<<busySlots-1 {
		b.room++
	}
	if b.room == len(b.chunks) {
		b.chunks = append(b.chunks, new(busyChunk))
	}
	c := b.chunks[b.room]
	free := bits.TrailingZeros64(^c.used)
	c.used |= 1 << free
	b.size++
	slot := uint32(b.room*busySlots + free)
	h := b.at(slot)
	h.id, h.shard, h.slot = id, s, slot
	return h
}

// crowded tells whether a busy key should be packed if it is not used: there are more than
// should be, or it keeps chunks at the end from being given back.
func (b *busyKeys) crowded(h *busyKey) bool {
	return b.size > b.most || int(h.slot)/busySlots > max(b.size, b.most)/busySlots
}

// leave empties a slot. Of the chunks at the end that are empty one is kept, for the next
// key.
func (b *busyKeys) leave(h *busyKey) {
	slot := h.slot
	*h = busyKey{}
	b.size--
	chunk := int(slot / busySlots)
	b.chunks[chunk].used &^= 1 << (slot % busySlots)
	b.room = min(b.room, chunk)
	for n := len(b.chunks); n > 1 && b.chunks[n-1].used == 0 && b.chunks[n-2].used == 0; n-- {
		b.chunks[n-1] = nil
		b.chunks = b.chunks[:n-1]
	}
	b.room = min(b.room, len(b.chunks))
}

// open has an empty shard track at most maxKeys keys.
func (s *fleetShard) open(arena *keytable.Arena, maxKeys int, name ratelimit.Holder) {
	s.keys, s.name = keytable.New[heldPlace](arena, maxKeys), name
	s.busy.most = max(busyLeast, maxKeys/busyShare)
}

// find is what is known of a key, which is busy then; nil if it is not held. What find
// has returned before may be another key's from here on.
func (s *fleetShard) find(id keytable.ID) *busyKey {
	if c := s.keys.Get(id); c != nil {
		return s.warm(c)
	}
	return nil
}

// warm makes a key busy.
func (s *fleetShard) warm(c *heldCell) *busyKey {
	if c.Val.slot != 0 {
		return s.busy.at(c.Val.slot - 1)
	}
	s.coolSome()
	h := s.busy.take(s, c.ID())
	s.unpack(h, c)
	s.rules.leave(h.Rule)
	c.Val.slot = h.slot + 1
	return h
}

// view is what is known of a key, for a walk: scratch if it is cold, which becomes busy
// only where the walk has something to do.
func (s *fleetShard) view(c *heldCell, scratch *busyKey) *busyKey {
	if c.Val.slot != 0 {
		return s.busy.at(c.Val.slot - 1)
	}
	*scratch = busyKey{busySlot: busySlot{id: c.ID(), shard: s}}
	s.unpack(scratch, c)
	return scratch
}

// unpack reads what is known of a cold key.
func (s *fleetShard) unpack(h *busyKey, c *heldCell) {
	kept := s.keys.Kept(c)
	h.Unpack(kept, s.rules.ofCold(kept), s.name)
}

// add makes room for a key that is not there; nil where there is none. The key is busy.
func (s *fleetShard) add(id keytable.ID, key []byte, dead func(*heldCell) bool) *busyKey {
	s.coolSome()
	c := s.keys.Add(id, key, dead)
	if c == nil {
		return nil
	}
	h := s.busy.take(s, id)
	c.Val.slot = h.slot + 1
	return h
}

// forget is for a key that the table is about to drop.
func (s *fleetShard) forget(c *heldCell, h *busyKey) {
	h.Gauges.Set(nil, 0, 0, 0)
	if c.Val.slot != 0 {
		s.busy.leave(h)
		return
	}
	s.rules.leave(h.Rule)
}

// coolSome packs busy keys until there are fewer than most, as the clock's hand finds
// them: one that was used since the hand last came by has a second chance.
func (s *fleetShard) coolSome() {
	b := &s.busy
	for tries := 0; b.size > 0 && b.size >= b.most && tries < coldTries; tries++ {
		if b.hand++; b.hand >= len(b.chunks)*busySlots {
			b.hand = 0
		}
		switch h := b.at(uint32(b.hand)); {
		case h.shard == nil:
		case h.touched:
			h.touched = false
		default:
			s.cool(h)
		}
	}
}

// cool packs a key, and tells whether that could be done.
func (s *fleetShard) cool(h *busyKey) bool {
	var room [packedMost]byte
	if !h.packable() {
		return false
	}
	kept := h.Pack(room[:0], s.rules.number(h.Rule))
	if len(kept) > packedMost {
		s.rules.leave(h.Rule)
		return false
	}
	c := s.keys.Get(h.id)
	s.keys.Keep(c, kept)
	c.Val, c.Mark = heldPlace{over: lease.TicksOf(h.OverDue())}, 0
	if h.MayDrift() {
		c.Mark |= coldDrifts
	}
	if h.Untold() {
		c.Mark |= coldUntold
	}
	if h.KeptIdle() {
		c.Mark |= coldKept
	}
	s.busy.leave(h)
	return true
}

// dueCold tells whether a sweep must look at a cold key.
func (s *fleetShard) dueCold(now instant, c *heldCell) bool {
	if lease.TicksOf(now) >= c.Val.over {
		return true
	}
	mayReturn := c.Mark&coldUntold != 0 && (c.Mark&coldKept == 0 || !s.roomy())
	return mayReturn && now.Sub(lease.LastUsedCold(s.keys.Kept(c))) > lease.IdleAfter
}

// packable tells whether a key may be cold: nobody waits behind a flight of it.
func (h *busyKey) packable() bool {
	return h.flight == nil && (h.recalled == nil || h.recalled.ended()) && h.Packable()
}

// spendCold answers an ask from the lease of a cold key, where nothing else is to be
// done: as Held.Take does.
func (s *fleetShard) spendCold(c *heldCell, now instant, a *ask, v *verdict) bool {
	kept := s.keys.Kept(c)
	if a.Kind != ratelimit.Spend || a.Cost <= 0 || s.rules.ofCold(kept) != a.Rule {
		return false
	}
	if !lease.SpendPacked(kept, now, a, v) {
		return false
	}
	c.Mark |= coldUntold
	return true
}

// key is the key's bytes, good until its shard's table changes.
func (h *busyKey) key() []byte { return h.shard.keys.Key(h.shard.keys.Get(h.id)) }

// roomy tells whether a quarter of what may be held is free.
func (s *fleetShard) roomy() bool { return s.keys.Len() < s.keys.Limit()-s.keys.Limit()/4 }

// ruleNumbers are short names for the rules of cold keys. A rule that a reload has
// replaced has one for as long as there are cold keys that were last asked for under it.
type ruleNumbers struct {
	numbers map[*ratelimit.Rule]uint32
	uses    []ruleUse // by number
	free    []uint32
}

type ruleUse struct {
	rule *ratelimit.Rule
	keys int
}

// ofCold is the rule of a packed key.
func (n *ruleNumbers) ofCold(kept []byte) *ratelimit.Rule { return n.uses[lease.PackedRule(kept)].rule }

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

// leave says that one key less has the rule.
func (n *ruleNumbers) leave(r *ratelimit.Rule) {
	number := n.numbers[r]
	if n.uses[number].keys--; n.uses[number].keys == 0 {
		n.uses[number] = ruleUse{}
		n.free = append(n.free, number)
		delete(n.numbers, r)
	}
}
