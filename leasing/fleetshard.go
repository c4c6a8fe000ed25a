package leasing

import (
	"encoding/binary"
	"sync"
	"time"
	"unsafe"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
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
	_     [24]byte
}

// heldCell is a key's place. Its Mark says what a walk must know of a cold key.
type heldCell = keytable.Cell[heldPlace]

// heldPlace says where what is known of a key is: in a busy slot, or beside the key.
type heldPlace struct {
	slot uint32 // of busyKeys, plus 1; 0: the key is cold
	over ticks  // when a sweep must look at a cold key because its window is over
}

const (
	coldDrifts    = 1 << iota // it has drift that may still count
	coldUntold                // when it is idle, there is something to tell, or to give back
	coldStretched             // but only if room is scarce
)

// ticks are instants in steps of an eighth of a second, rounded up.
type ticks uint32

const (
	tick             = time.Second / 8
	neverDue   ticks = 1<<32 - 1
	packedMost       = keytable.MaxKept
)

func ticksOf(at instant) ticks {
	if n := (at + instant(tick) - 1) / instant(tick); n < instant(neverDue) {
		return ticks(max(0, n))
	}
	return neverDue
}

// busyKeys are slots for what is known of busy keys, in chunks that do not move. There
// are as many as were ever needed at once: most, and beyond that those that have claims
// under way or the lease of a next window.
type busyKeys struct {
	chunks []*[busyChunk]heldLines
	free   []uint32 // slots
	size   int
	most   int // from here on, when one becomes busy others become cold that were not used lately
	hand   int // where the search for those goes on
}

// heldLines is a held that ends with a line of the processor's cache.
type heldLines struct {
	held
	_ [(64 - unsafe.Sizeof(held{})%64) % 64]byte
}

const (
	busyChunk = 64
	// coldTries bounds that search.
	coldTries = 16
	// busyShare is for how many keys of a table one may be busy for no other reason than
	// that it was.
	busyShare = 128
	// busyLeast are always.
	busyLeast = 8
)

func (b *busyKeys) at(slot uint32) *held { return &b.chunks[slot/busyChunk][slot%busyChunk].held }

// take finds a slot, and makes it the key's.
func (b *busyKeys) take(s *fleetShard, id keytable.ID) *held {
	if len(b.free) == 0 {
		first := uint32(len(b.chunks) * busyChunk)
		b.chunks = append(b.chunks, new([busyChunk]heldLines))
		for i := range uint32(busyChunk) {
			b.free = append(b.free, first+busyChunk-1-i)
		}
	}
	slot := b.free[len(b.free)-1]
	b.free = b.free[:len(b.free)-1]
	b.size++
	h := b.at(slot)
	h.id, h.shard, h.slot = id, s, slot
	return h
}

// leave empties a slot.
func (b *busyKeys) leave(h *held) {
	slot := h.slot
	*h = held{}
	b.free = append(b.free, slot)
	b.size--
}

// open has an empty shard track at most maxKeys keys.
func (s *fleetShard) open(arena *keytable.Arena, maxKeys int, name ratelimit.Holder) {
	s.keys, s.name = keytable.New[heldPlace](arena, maxKeys), name
	s.busy.most = max(busyLeast, maxKeys/busyShare)
}

// find is what is known of a key, which is busy then; nil if it is not held. What find
// has returned before may be another key's from here on.
func (s *fleetShard) find(id keytable.ID) *held {
	if c := s.keys.Get(id); c != nil {
		return s.warm(c)
	}
	return nil
}

// warm makes a key busy.
func (s *fleetShard) warm(c *heldCell) *held {
	if c.Val.slot != 0 {
		return s.busy.at(c.Val.slot - 1)
	}
	s.coolSome()
	h := s.busy.take(s, c.ID())
	h.unpack(s.keys.Kept(c))
	s.rules.leave(h.rule)
	c.Val.slot = h.slot + 1
	return h
}

// view is what is known of a key, for a walk: scratch if it is cold, which becomes busy
// only where the walk has something to do.
func (s *fleetShard) view(c *heldCell, scratch *held) *held {
	if c.Val.slot != 0 {
		return s.busy.at(c.Val.slot - 1)
	}
	*scratch = held{busySlot: busySlot{id: c.ID(), shard: s}}
	scratch.unpack(s.keys.Kept(c))
	return scratch
}

// add makes room for a key that is not there; nil where there is none. The key is busy.
func (s *fleetShard) add(id keytable.ID, key []byte, dead func(*heldCell) bool) *held {
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
func (s *fleetShard) forget(c *heldCell, h *held) {
	h.gauges.set(nil, 0, 0, 0)
	if c.Val.slot != 0 {
		s.busy.leave(h)
		return
	}
	s.rules.leave(h.rule)
}

// coolSome packs busy keys until there are fewer than most, as the clock's hand finds
// them: one that was used since the hand last came by has a second chance.
func (s *fleetShard) coolSome() {
	b := &s.busy
	for tries := 0; b.size > 0 && b.size >= b.most && tries < coldTries; tries++ {
		if b.hand++; b.hand >= len(b.chunks)*busyChunk {
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
func (s *fleetShard) cool(h *held) bool {
	var room [packedMost]byte
	if !h.packable() {
		return false
	}
	kept := h.pack(room[:0], s.rules.number(h.rule))
	if len(kept) > packedMost {
		s.rules.leave(h.rule)
		return false
	}
	c := s.keys.Get(h.id)
	s.keys.Keep(c, kept)
	c.Val, c.Mark = heldPlace{over: ticksOf(h.overDue())}, 0
	if h.lease.drifted() > 0 || h.carried > 0 {
		c.Mark |= coldDrifts
	}
	if h.untold() {
		c.Mark |= coldUntold
	}
	if h.stretched {
		c.Mark |= coldStretched
	}
	s.busy.leave(h)
	return true
}

// packable tells whether a key may be cold: nothing is under way for it, it has no lease
// of the next window, which has an instant to look at, and its rule says the rest.
func (h *held) packable() bool {
	return h.flight == nil && h.next == nil && (h.resting == nil || h.resting.ended()) &&
		h.rule != nil && (h.gauges.of == nil || h.gauges.of == h.rule.Counters) &&
		(h.limited() || h.lease.limit() == ratelimit.Limit{})
}

// overDue is when a sweep must look at a key because its window is over.
func (h *held) overDue() instant {
	if h.gauges.of != nil || h.owesLastWord() {
		return h.lease.reset
	}
	return never
}

// dueCold tells whether a sweep must look at a cold key.
func (s *fleetShard) dueCold(now instant, c *heldCell) bool {
	if ticksOf(now) >= c.Val.over {
		return true
	}
	mayReturn := c.Mark&coldUntold != 0 && (c.Mark&coldStretched == 0 || !s.roomy())
	return mayReturn && now.Sub(lastUsedCold(s.keys.Kept(c))) > idleAfter
}

// spendCold answers an ask from the lease of a cold key, where nothing else is to be
// done: as held.lease.take does, and Fleet.take after it.
func (s *fleetShard) spendCold(c *heldCell, now instant, a *ask) (v verdict, ok bool) {
	kept := s.keys.Kept(c)
	if a.Kind != ratelimit.Spend || a.Cost <= 0 || s.rules.ofCold(kept) != a.Rule {
		return verdict{}, false
	}
	if v, ok = spendPacked(kept, now, a); ok {
		c.Mark |= coldUntold
	}
	return v, ok
}

// key is the key's bytes, good until its shard's table changes.
func (h *held) key() []byte { return h.shard.keys.Key(h.shard.keys.Get(h.id)) }

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
func (n *ruleNumbers) ofCold(kept []byte) *ratelimit.Rule {
	number, _ := binary.Uvarint(kept[packedHeader:])
	return n.uses[number].rule
}

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
