package keytable

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
	"unsafe"

	"github.com/cespare/xxhash/v2"
)

// MaxKeyLen is the longest key that a table keeps, in bytes.
const MaxKeyLen = 128

// mostDepth bounds the directory. A keyed hash stays far below it.
const mostDepth = 24

// Table is a bounded table from keys to values of a type without pointers. It is not
// safe for concurrent use.
type Table[T any] struct {
	arena *Arena
	// Several prefixes can lead to one segment, which has fewer bits in common than the directory has.
	dir   []*segment[T] // by the first depth bits of a prefix
	depth uint8
	size  int
	limit int
	keys  keys
	hand  hand
}

// hand is the position of the search for a dead key in a full table. It goes on from where the last search ended, so
// that all keys have their turn.
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
// its dead keys, as reported by dead. In a full table, it checks some keys. The key must have at most MaxKeyLen bytes.
// dead is called for keys in the table, and must not change it. The key must not be in the table.
func (t *Table[T]) Add(id ID, key []byte, dead func(*Cell[T]) bool) *Cell[T] {
	if t.size >= t.limit && !t.evict(dead) {
		return nil
	}
	s := t.segment(id.prefix())
	// A segment that is split may leave all keys in one half, which is then full as well.
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

// purge drops the dead keys of a segment, and reports whether they are at least an eighth: then it need not grow. With
// less room, the next few keys would purge again.
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

// grow makes room for a full segment: a larger one, or two. It is false only for keys whose hashes have mostDepth bits
// in common, which random hashes do not have.
func (t *Table[T]) grow(s *segment[T], prefix uint32) bool {
	if len(s.tags) < SegmentCells {
		t.put(prefix, t.copied(s, s.depth, func(ID) bool { return true }))
		s.free(t.arena)
		return true
	}
	if s.depth == mostDepth {
		return false
	}
	// The directory doubles: each entry leads to where its half did before.
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

// put points the directory to a segment, for all of its prefixes. A segment of depth d has 2^(depth-d) entries of the
// directory, one after the other.
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

// drop removes the key at a place, and its bytes.
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

// placesFor is the smallest size for n keys and some more. The spare sixteenth keeps a new segment from growing with
// its next key.
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

// home is the place at which the search for a key begins: a fraction of the segment, by the low 32 bits. They are not
// those of the shard or of the directory, which are the same for all keys here.
func (s *segment[T]) home(id ID) int { return int(uint64(uint32(id.Low)) * uint64(len(s.tags)) >> 32) }

func (s *segment[T]) after(at int) int {
	at++
	if at == len(s.tags) {
		return 0
	}
	return at
}

// get finds a key's cell, or nil. A search ends at the first empty place, and full leaves some. A tag excludes most
// other keys without a read of their cells.
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

// remove empties the place at gap, and moves up the keys that were pushed past it. A gap between a key's home and its
// place would end the search for it early. So keys move, in place of marks for removed ones, which would lengthen all
// searches.
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

// Sharding divides keys by their hashes, for concurrent access: each shard has its own table under its own lock.
//
// The shares of shards differ by up to a factor of two, so that their tables grow at different times: equal shards
// would all be full at once.
type Sharding struct {
	Hash  Hasher
	which [1 << shardBits]uint8 // the shard of a key, by the first bits of its hash
}

// shardBits is the number of hash bits that select a key's shard.
const shardBits = 12

// NewSharding is for maxKeys keys. It also returns the maximum of each shard.
func NewSharding(maxKeys int) (s Sharding, shares []int) {
	s.Hash = NewHasher()
	n := ShardCount(maxKeys)
	shares = make([]int, n)
	ends := shardEnds(n)
	for shard, from, before := 0, 0, 0; shard < n; shard++ {
		for i := from; i < ends[shard]; i++ {
			s.which[i] = uint8(shard)
		}
		upTo := maxKeys * ends[shard] >> shardBits
		shares[shard] = upTo - before
		from, before = ends[shard], upTo
	}
	return s, shares
}

// ShardOf is the number of a key's shard.
func (s *Sharding) ShardOf(id ID) uint8 { return s.which[id.High>>(64-shardBits)] }

// shardEnds divides the values of shardBits bits into n shards: the last is about twice as large as the first.
func shardEnds(n int) []int {
	ends, sum, total := make([]int, n), 0.0, 0.0
	for i := range n {
		total += math.Exp2(float64(i) / float64(n))
	}
	for i := range n {
		sum += math.Exp2(float64(i) / float64(n))
		ends[i] = int(math.Round(sum / total * (1 << shardBits)))
	}
	return ends
}

// ShardCount is the number of locks for a map of n keys: a power of two, with shards large enough for random
// differences.
func ShardCount(n int) int {
	shards := 1
	for shards < 256 && n/(2*shards) >= 1024 {
		shards *= 2
	}
	return shards
}

// Hasher hashes keys, differently in each process: clients choose keys, and must not be able to choose their places.
// The zero hasher is the same in all processes, for simulations.
type Hasher struct {
	seed, second maphash.Seed
	keyed        bool
}

// NewHasher makes one with its own secret.
func NewHasher() Hasher { return Hasher{maphash.MakeSeed(), maphash.MakeSeed(), true} }

// Of returns 64 bits. It does not allocate.
func (h Hasher) Of(key []byte) uint64 {
	if !h.keyed {
		return xxhash.Sum64(key)
	}
	return maphash.Bytes(h.seed, key)
}

// ID returns 128 bits: two hashes with separate seeds. It replaces the key, so two keys with the same ID would share
// a budget. By chance, that takes some 2^64 keys. On purpose, it takes the seeds.
func (h Hasher) ID(key []byte) ID {
	if !h.keyed {
		low := xxhash.Sum64(key)
		high := (low ^ low>>29) * 0xbf58476d1ce4e5b9 // the bits that separate shards and places
		return ID{High: high ^ high>>32, Low: low}
	}
	return ID{High: maphash.Bytes(h.seed, key), Low: maphash.Bytes(h.second, key)}
}
