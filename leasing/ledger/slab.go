package ledger

import "github.com/sluice-gate/sluice/ratelimit"

// slab is a bounded map from a key to a T by value: open addressing with
// linear probing over one-byte tags, and a cell at the same position. The tags
// of a million keys fit a processor's cache, the cell holds key and value
// together, and so a look-up misses the cache about once. Where T has no
// pointers, a million keys cost the garbage collector nothing.
//
// A pointer to a cell is good until the next add or remove. The zero slab is
// not usable; it is not safe for concurrent use.
type slab[T any] struct {
	tags  []uint8 // 0 is empty
	cells []cell[T]
	hand  int // where the search for a cell to evict goes on
	size  int
	limit int
}

// The value comes first, and what is read of it each time should lie in its
// first 56 bytes: then a look-up reads two cache lines, one of them the key's.
type cell[T any] struct {
	hash uint32 // the lower half, for home
	len  uint8
	hot  bool // used since the hand last came by
	val  T
	high uint32  // the upper half of the hash
	_    [4]byte // a lease's key starts a cache line
	key  [ratelimit.MaxKeyLen]byte
}

// fullHash is the key's hash.
func (c *cell[T]) fullHash() uint64 { return uint64(c.high)<<32 | uint64(c.hash) }

// Invariant: at most 7 of 8 tags are taken, so that probes are short and end.
const firstSlots = 8

func newSlab[T any](limit int) slab[T] {
	return slab[T]{tags: make([]uint8, firstSlots), cells: make([]cell[T], firstSlots), limit: limit}
}

// home is where a key is looked for first. The lower half of the hash spreads
// keys over a slab, the upper half over shards.
func (s *slab[T]) home(hash uint32) int {
	return int(uint64(hash) * uint64(len(s.tags)) >> 32)
}

// tagOf is never 0, and independent of home.
func tagOf(hash uint64) uint8 { return uint8(hash>>56) | 1 }

func (s *slab[T]) after(at int) int {
	if at++; at == len(s.tags) {
		return 0
	}
	return at
}

// get returns the key's cell, or nil. It does not allocate.
func (s *slab[T]) get(hash uint64, key []byte) *cell[T] {
	tag := tagOf(hash)
	for at := s.home(uint32(hash)); s.tags[at] != 0; at = s.after(at) {
		if s.tags[at] != tag {
			continue
		}
		// len(key), not c.len, so that the key's line is fetched beside the other.
		c := &s.cells[at]
		if c.hash == uint32(hash) && int(c.len) == len(key) && string(c.key[:len(key)]) == string(key) {
			return c
		}
	}
	return nil
}

// add makes a cell for a key that is not there, or returns nil when all that
// the slab may hold are in use. The key must be at most MaxKeyLen long.
func (s *slab[T]) add(hash uint64, key []byte) *cell[T] {
	if s.size >= s.limit {
		return nil
	}
	s.size++
	if 8*s.size > 7*len(s.tags) {
		s.grow()
	}
	c := s.place(uint32(hash), tagOf(hash))
	*c = cell[T]{hash: uint32(hash), high: uint32(hash >> 32), len: uint8(len(key))}
	copy(c.key[:], key)
	return c
}

func (s *slab[T]) place(hash uint32, tag uint8) *cell[T] {
	at := s.home(hash)
	for s.tags[at] != 0 {
		at = s.after(at)
	}
	s.tags[at] = tag
	return &s.cells[at]
}

// grow makes room for half as many again, or for all there may ever be.
func (s *slab[T]) grow() {
	tags, cells := s.tags, s.cells
	n := min(len(tags)+len(tags)/2, s.limit+s.limit/7+firstSlots)
	s.tags, s.cells, s.hand = make([]uint8, n), make([]cell[T], n), 0
	for i := range tags {
		if tags[i] != 0 {
			*s.place(cells[i].hash, tags[i]) = cells[i]
		}
	}
}

// remove empties the cell at gap, and moves up those that were pushed past it.
func (s *slab[T]) remove(gap int) {
	n := len(s.tags)
	for at := s.after(gap); s.tags[at] != 0; at = s.after(at) {
		fromHome := (at - s.home(s.cells[at].hash) + n) % n
		if fromHome >= (at-gap+n)%n {
			s.tags[gap], s.cells[gap] = s.tags[at], s.cells[at]
			gap = at
		}
	}
	s.tags[gap], s.cells[gap] = 0, cell[T]{}
	s.size--
}

// evict frees one cell that drop agrees to, looking at no more than tries
// cells from where it last stopped. Cells used since it last came by get a
// second chance.
func (s *slab[T]) evict(tries int, drop func(*cell[T]) bool) bool {
	for range min(tries, len(s.tags)) {
		i := s.hand
		s.hand = s.after(i)
		c := &s.cells[i]
		switch {
		case s.tags[i] == 0:
		case c.hot:
			c.hot = false
		case drop(c):
			s.remove(i)
			return true
		}
	}
	return false
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
