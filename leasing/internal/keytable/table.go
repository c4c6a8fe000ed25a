package keytable

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// MaxKeyLen is the longest key that a table keeps, in bytes.
const MaxKeyLen = 128

// mostDepth bounds the directory. A keyed hash stays far below it.
const mostDepth = 24

// Table is a bounded table from keys to values of a type without pointers. It is not
// safe for concurrent use.
type Table[T any] struct {
	arena *Arena
	dir   []*segment[T] // by the first depth bits of a prefix
	depth uint8
	size  int
	limit int
	keys  keys
	hand  hand
}

// hand is the position of the search for a dead key in a full table.
type hand struct {
	prefix uint32
	at     int
}

// New makes a table of at most limit keys. It panics if T is of no fixed size ([binary.Size]): it may have pointers,
// which the collector would not see.
func New[T any](arena *Arena, limit int) *Table[T] {
	if v := *new(T); binary.Size(v) < 0 {
		panic(fmt.Sprintf("keytable: %T may have pointers", v))
	}
	t := &Table[T]{arena: arena, limit: limit}
	t.dir = []*segment[T]{newSegment[T](arena, sizes[0], 0)}
	return t
}

// Len is the number of keys.
func (t *Table[T]) Len() int { return t.size }

// Limit is the maximum of keys.
func (t *Table[T]) Limit() int { return t.limit }

func (t *Table[T]) segment(prefix uint32) *segment[T] { return t.dir[prefix>>(32-t.depth)] }

// Get returns the key's cell, or nil. It does not allocate.
func (t *Table[T]) Get(id ID) *Cell[T] { return t.segment(id.prefix()).get(id) }

// Add makes a cell for a new key, or returns nil if the table is full of live keys. Before a segment grows, Add drops
// its dead keys, as reported by dead. In a full table, it checks some keys. The key must have at most MaxKeyLen
// bytes.
func (t *Table[T]) Add(id ID, key []byte, dead func(*Cell[T]) bool) *Cell[T] {
	if t.size >= t.limit && !t.evict(dead) {
		return nil
	}
	s := t.segment(id.prefix())
	for s.size >= full(len(s.tags)) {
		if t.purge(s, dead) {
			break
		}
		if !t.grow(s, id.prefix()) {
			return nil
		}
		s = t.segment(id.prefix())
	}
	t.size++
	c := s.place(id)
	c.id, c.len = id, uint8(len(key))
	c.key = t.keys.add(t.arena, key)
	return c
}

// purge drops the dead keys of a segment, and tells whether they are at least an eighth: then it need not grow.
func (t *Table[T]) purge(s *segment[T], dead func(*Cell[T]) bool) bool {
	for at := 0; at < len(s.tags); {
		if s.tags[at] != 0 && dead(&s.cells[at]) {
			t.drop(s, at)
			continue // another may have moved here
		}
		at++
	}
	return s.size <= full(len(s.tags))*7/8
}

// grow makes room for a full segment: a larger one, or two.
func (t *Table[T]) grow(s *segment[T], prefix uint32) bool {
	if len(s.tags) < SegmentCells {
		t.put(prefix, t.copied(s, s.depth, func(ID) bool { return true }))
		s.free(t.arena)
		return true
	}
	if s.depth == mostDepth {
		return false
	}
	if s.depth == t.depth {
		dir := make([]*segment[T], 2*len(t.dir))
		for i := range dir {
			dir[i] = t.dir[i/2]
		}
		t.dir, t.depth = dir, t.depth+1
	}
	bit := uint32(1) << (31 - s.depth)
	low := t.copied(s, s.depth+1, func(id ID) bool { return id.prefix()&bit == 0 })
	high := t.copied(s, s.depth+1, func(id ID) bool { return id.prefix()&bit != 0 })
	t.put(prefix&^bit, low)
	t.put(prefix|bit, high)
	s.free(t.arena)
	return true
}

// copied makes a segment of some keys of another, with room for more.
func (t *Table[T]) copied(s *segment[T], depth uint8, wanted func(ID) bool) *segment[T] {
	n := 0
	for at, tag := range s.tags {
		if tag != 0 && wanted(s.cells[at].id) {
			n++
		}
	}
	to := newSegment[T](t.arena, placesFor(n), depth)
	for at, tag := range s.tags {
		if tag != 0 && wanted(s.cells[at].id) {
			*to.place(s.cells[at].id) = s.cells[at]
		}
	}
	return to
}

// put points the directory to a segment, for all of its prefixes.
func (t *Table[T]) put(prefix uint32, s *segment[T]) {
	n := 1 << (t.depth - s.depth)
	first := int(prefix>>(32-t.depth)) &^ (n - 1)
	for i := range n {
		t.dir[first+i] = s
	}
}

// Remove drops a key, which must be there.
func (t *Table[T]) Remove(id ID) {
	s := t.segment(id.prefix())
	c := s.get(id)
	t.drop(s, int((uintptr(unsafe.Pointer(c))-uintptr(unsafe.Pointer(unsafe.SliceData(s.cells))))/unsafe.Sizeof(*c)))
}

func (t *Table[T]) drop(s *segment[T], at int) {
	t.keys.remove(s.cells[at].key)
	s.remove(at)
	t.size--
}

// evictTries bounds the search for room: enough if one key in ten is dead, and cheap enough for a flood of new keys.
const evictTries = 24

// evict drops one dead key. It checks at most evictTries places from its last position.
func (t *Table[T]) evict(dead func(*Cell[T]) bool) bool {
	for range evictTries {
		s := t.segment(t.hand.prefix)
		if t.hand.at >= len(s.tags) {
			t.hand = hand{prefix: t.hand.prefix + 1<<(32-s.depth)} // and from the last to the first
			continue
		}
		at := t.hand.at
		t.hand.at++
		if s.tags[at] != 0 && dead(&s.cells[at]) {
			t.drop(s, at)
			return true
		}
	}
	return false
}

// Key is the key of a cell. The table owns it, and it is valid until the table changes.
func (t *Table[T]) Key(c *Cell[T]) []byte { return t.keys.bytes(c.key)[:c.len:c.len] }

// Cursor is the position of a walk through a table. The zero Cursor is its start.
type Cursor struct {
	prefix uint32
	Done   bool // all keys were shown
}

// Walk shows the next few keys, at most SegmentCells, and returns the next position. see must not change the table.
// Between two steps the table may change: a key that stays from the first step to the last is shown exactly once.
func (t *Table[T]) Walk(from Cursor, see func(*Cell[T])) Cursor {
	s := t.segment(from.prefix) // it begins there: segments are split, and never joined
	for at, tag := range s.tags {
		if tag != 0 {
			see(&s.cells[at])
		}
	}
	first := from.prefix &^ (1<<(32-s.depth) - 1)
	next := first + 1<<(32-s.depth)
	return Cursor{prefix: next, Done: next == 0} // also after the only segment: 1 << 32 is 0 in 32 bits
}
