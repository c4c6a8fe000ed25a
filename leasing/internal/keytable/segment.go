package keytable

import "unsafe"

// ID is a key's hash, of 128 bits.
type ID struct{ High, Low uint64 }

// prefix orders keys in a table: its first bits are the index into the directory. The bits above it are for owners of
// several tables.
func (id ID) prefix() uint32 { return uint32(id.High >> 20) }

// tag is never 0, and independent of the place in a segment.
func (id ID) tag() uint8 { return uint8(id.Low>>56) | 1 }

// Cell is one key of a table. It moves when another key is added or removed.
type Cell[T any] struct {
	id   ID
	key  uint32 // the number of its place; see keys
	len  uint8
	Mark uint8  // the owner's
	Note uint16 // the owner's
	Val  T
}

// ID is the key's.
func (c *Cell[T]) ID() ID { return c.id }

// segment is a small table with open addressing and linear probing over one-byte tags. Its memory is from the arena.
type segment[T any] struct {
	tags  []uint8 // 0 is empty
	cells []Cell[T]
	size  int
	depth uint8 // number of prefix bits that its keys have in common
}

// SegmentCells is the number of places of the largest segment.
const SegmentCells = 512

// sizes are the numbers of places of segments. The steps are small where most segments of a large table are, so that
// few of their places are empty.
var sizes = [...]int{8, 64, 256, 320, 384, 448, SegmentCells}

// full is the maximum of keys of a segment with that many places: probes must be short and must end.
func full(places int) int { return places / 8 * 7 }

// placesFor is the smallest size for n keys and some more.
func placesFor(n int) int {
	for _, places := range sizes {
		if n+places/16 < full(places) {
			return places
		}
	}
	return SegmentCells
}

func bytesOf[T any](places int) int { return places * (int(unsafe.Sizeof(Cell[T]{})) + 1) }

func newSegment[T any](a *Arena, places int, depth uint8) *segment[T] {
	p := a.take(bytesOf[T](places))
	cells := unsafe.Slice((*Cell[T])(p), places)
	tags := unsafe.Slice((*uint8)(unsafe.Add(p, places*int(unsafe.Sizeof(Cell[T]{})))), places)
	return &segment[T]{tags: tags, cells: cells, depth: depth}
}

// free gives the segment's memory back.
func (s *segment[T]) free(a *Arena) {
	a.put(unsafe.Pointer(unsafe.SliceData(s.cells)), bytesOf[T](len(s.cells)))
	s.cells, s.tags = nil, nil
}

func (s *segment[T]) home(id ID) int { return int(uint64(uint32(id.Low)) * uint64(len(s.tags)) >> 32) }

func (s *segment[T]) after(at int) int {
	if at++; at == len(s.tags) {
		return 0
	}
	return at
}

func (s *segment[T]) get(id ID) *Cell[T] {
	tag := id.tag()
	for at := s.home(id); s.tags[at] != 0; at = s.after(at) {
		if s.tags[at] == tag && s.cells[at].id == id {
			return &s.cells[at]
		}
	}
	return nil
}

// place finds room for a new ID. The segment must not be full.
func (s *segment[T]) place(id ID) *Cell[T] {
	at := s.home(id)
	for s.tags[at] != 0 {
		at = s.after(at)
	}
	s.tags[at] = id.tag()
	s.size++
	return &s.cells[at]
}

// remove empties the place at gap, and moves up the keys that were pushed past it.
func (s *segment[T]) remove(gap int) {
	n := len(s.tags)
	for at := s.after(gap); s.tags[at] != 0; at = s.after(at) {
		fromHome := (at - s.home(s.cells[at].id) + n) % n
		if fromHome >= (at-gap+n)%n {
			s.tags[gap], s.cells[gap] = s.tags[at], s.cells[at]
			gap = at
		}
	}
	s.tags[gap], s.cells[gap] = 0, Cell[T]{}
	s.size--
}
