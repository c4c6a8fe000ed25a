package keytable

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"
)

type value struct{ n, _, _, _, _ int64 }

func never(*Cell[value]) bool { return false }

// idOf spreads keys as a hash would.
func idOf(n uint64) ID {
	r := rand.New(rand.NewPCG(n, 7))
	return ID{r.Uint64(), r.Uint64()}
}

// Random additions and removals, against a map. There are few hashes, so that tags
// and places collide, and probes are long.
func TestTableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 60).Draw(t, "limit")
		table := New[value](NewArena(), limit)
		id := func(n int) ID { return ID{uint64(n%3) << 50, uint64(n%2)<<31 | uint64(n)<<40} }
		model, dead := map[int]int64{}, map[int]bool{}
		isDead := func(c *Cell[value]) bool {
			for n := range dead {
				if id(n) == c.ID() {
					delete(model, n)
					delete(dead, n)
					return true
				}
			}
			return false
		}
		for step := range rapid.IntRange(1, 400).Draw(t, "steps") {
			n := rapid.IntRange(0, 80).Draw(t, "key")
			key := fmt.Appendf(nil, "%0*d", 1+n%40, n)
			c := table.Get(id(n))
			want, ok := model[n]
			if ok != (c != nil) || ok && (c.Val.n != want || string(table.Key(c)) != string(key)) {
				t.Fatalf("%d: got %+v, want %d %v", n, c, want, ok)
			}
			switch {
			case c == nil:
				if c = table.Add(id(n), key, isDead); c != nil {
					c.Val.n, model[n] = int64(step), int64(step)
				} else if len(model) < limit {
					t.Fatalf("no room for %d among %d", n, len(model))
				}
			case rapid.Bool().Draw(t, "dies"):
				dead[n] = true
			default:
				table.Remove(id(n))
				delete(model, n)
				delete(dead, n)
			}
			if table.Len() != len(model) || table.Len() > limit {
				t.Fatalf("%d keys, want %d, and at most %d", table.Len(), len(model), limit)
			}
		}
	})
}

// A walk shows what was there all the time once, whatever is added meanwhile.
func TestWalkGoesOnWhileTheTableGrows(t *testing.T) {
	for _, first := range []uint64{0, 1, 7, 300, 5_000} {
		table := New[value](NewArena(), 1<<20)
		for n := range first {
			table.Add(idOf(n), nil, never).Val.n = int64(n)
		}
		seen, next := map[int64]int{}, first
		for at := (Cursor{}); !at.Done; {
			steps := 0
			at = table.Walk(at, func(c *Cell[value]) { seen[c.Val.n]++; steps++ })
			if steps > SegmentCells {
				t.Fatalf("%d keys in one step", steps)
			}
			for range 500 {
				if next < 60_000 {
					table.Add(idOf(next), nil, never).Val.n = int64(next)
					next++
				}
			}
		}
		for n := range first {
			if seen[int64(n)] != 1 {
				t.Fatalf("key %d of %d was shown %d times", n, first, seen[int64(n)])
			}
		}
		for n, times := range seen {
			if times != 1 {
				t.Fatalf("key %d was shown %d times", n, times)
			}
		}
	}
}

// What is dead makes room before a segment grows: keys that come and go take as much
// memory as those that are there at once.
func TestDeadKeysMakeRoom(t *testing.T) {
	arena := NewArena()
	table := New[value](arena, 1<<30)
	oldest := int64(0)
	for n := range uint64(300_000) {
		oldest = int64(n) - 1000
		table.Add(idOf(n), []byte("0123456789"), func(c *Cell[value]) bool { return c.Val.n < oldest }).Val.n = int64(n)
	}
	if table.Len() > 10_000 || arena.Size() > 2<<20 {
		t.Errorf("%d keys in %d bytes, and 1,000 were alive", table.Len(), arena.Size())
	}
}

// A full table looks at two dozen keys for room at most, for clients may send new keys as fast as they can. It
// finds all dead keys in the end, and most of the time at once if one in ten is dead. It has no room for more than
// its limit.
func TestFullTable(t *testing.T) {
	const limit = 5_000
	table := New[value](NewArena(), limit)
	for n := range uint64(limit) {
		table.Add(idOf(n), nil, never).Val.n = int64(n % 10)
	}
	looked := 0
	if table.Add(idOf(limit), nil, func(*Cell[value]) bool { looked++; return false }) != nil || looked > 24 {
		t.Fatalf("it looked at %d keys", looked)
	}
	added, failed := 0, 0
	for n := uint64(limit); n < 2*limit; n++ {
		tries := 0
		for table.Add(idOf(n), nil, func(c *Cell[value]) bool { return c.Val.n == 0 }) == nil && tries <= limit {
			tries++
		}
		if tries > limit {
			break
		}
		table.Get(idOf(n)).Val.n = 1
		added++
		if added <= 100 {
			failed += tries
		}
	}
	if added != limit/10 || failed > 4 {
		t.Errorf("%d keys found room, of %d dead ones; the first 100 after %d tries more", added, limit/10, failed)
	}
}

func TestCellIsOneCacheLine(t *testing.T) {
	if n := unsafe.Sizeof(Cell[value]{}); n != line {
		t.Errorf("a cell is %d bytes", n)
	}
	table := New[value](NewArena(), 1000)
	if at := uintptr(unsafe.Pointer(table.Add(idOf(1), nil, never))); at%line != 0 {
		t.Errorf("a cell is at %x", at)
	}
}

// Bytes for each key, at any number of keys: cells, tags, keys of 40 bytes and what
// is free between them. A table alone grows in steps of two, and so is at its worst
// right after one; several of different sizes take the mean.
func TestBytesForEachKey(t *testing.T) {
	arena := NewArena()
	table := New[value](arena, 1<<30)
	key := make([]byte, 40)
	worst, mean, looks := 0.0, 0.0, 0
	for n := range uint64(600_000) {
		binary.LittleEndian.PutUint64(key, n)
		table.Add(idOf(n), key, never)
		if n >= 150_000 && n%10_000 == 0 {
			arena.mu.Lock()
			free := len(arena.rest)
			for size, all := range arena.free {
				free += size * len(all)
			}
			each := float64(arena.taken-free) / float64(n)
			arena.mu.Unlock()
			worst, mean, looks = max(worst, each), mean+each, looks+1
		}
	}
	mean /= float64(looks)
	t.Logf("%.0f bytes a key in the mean, %.0f at worst", mean, worst)
	if mean > 135 || worst > 150 {
		t.Errorf("%.0f bytes a key in the mean, %.0f at worst", mean, worst)
	}
}

// Keys whose hashes begin alike are separated as far as the directory may grow. Then there is no room for more of
// them, and all others continue.
func TestKeysOfOnePrefix(t *testing.T) {
	table := New[value](NewArena(), 1<<20)
	alike := func(n, differ uint64) ID { return ID{High: differ << (52 - mostDepth), Low: idOf(n).Low} }
	n, groups := uint64(0), [2]int{}
	for i := range groups { // which the last bit of the directory tells apart
		for table.Add(alike(n, uint64(i)), nil, never) != nil {
			groups[i]++
			n++
		}
	}
	if most := full(SegmentCells); groups != [2]int{most, most} || len(table.dir) != 1<<24 {
		t.Errorf("%v keys of two prefixes are in a directory of %d, want %d each", groups, len(table.dir), most)
	}
	if table.Add(ID{High: 1 << 51}, nil, never) == nil || table.Get(alike(0, 0)) == nil {
		t.Error("others have no room, or what was there is gone")
	}
}

// The values are out of the collector's sight: a type with pointers is refused, wherever they are in it, and any
// other is taken.
func TestNoPointers(t *testing.T) {
	refused := []func(){
		of[struct{ p *int }], of[[2]struct{ p *int }], of[struct{ m map[int]int }], of[struct{ s string }],
		of[struct{ f func() }], of[struct{ i any }], of[struct{ s []int }], of[struct{ c chan int }], of[uintptr],
	}
	taken := []func(){of[bool], of[int8], of[uint64], of[float32], of[complex128], of[[3]struct{ a, b uint16 }]}
	panics := func(f func()) (says any) {
		defer func() { says = recover() }()
		f()
		return nil
	}
	for i, f := range refused {
		if panics(f) == nil {
			t.Errorf("type %d has pointers, and is taken", i)
		}
	}
	for i, f := range taken {
		if says := panics(f); says != nil {
			t.Errorf("type %d has no pointers, and New says %v", i, says)
		}
	}
}

// of makes a table of a type.
func of[T any]() { New[T](NewArena(), 1) }

// Keys whose lengths change over time: a page is free only after its last place. If none stays, they take the bytes
// of two generations, and not of all. The worst case is a client that chooses the lengths of its keys, and keeps an
// eighth of all earlier keys in use. The bounds are those that package leasing declares (KeyBytes; local.KeyBytes),
// without a fleet's busy keys.
func TestKeysThatStay(t *testing.T) {
	t.Run("none", func(t *testing.T) { keysThatStay(t, 430, 1, func(v *value) *int64 { return &v.n }) })
	t.Run("alone", func(t *testing.T) { keysThatStay(t, 550, 8, func(v *value) *int64 { return &v.n }) })
	t.Run("fleet", func(t *testing.T) { keysThatStay(t, 780, 8, func(v *ofFleet) *int64 { return &v[0] }) })
}

// ofFleet is as large as the state of a fleet's key.
type ofFleet [13]int64

// keysThatStay has tables of keys, of which one in so many stays; 1: none. number is the place of the key's number
// in its value.
func keysThatStay[T any](t *testing.T, most int, share uint64, number func(*T) *int64) {
	const limit = 40_000
	arena := NewArena()
	table := New[T](arena, limit)
	next := uint64(0)
	for round, size := range []int{8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128} {
		key := make([]byte, size)
		begins := int64(round) * 3 * limit
		dead := func(c *Cell[T]) bool { return *number(&c.Val) < begins && (share == 1 || c.id.Low%share != 0) }
		for range 3 * limit {
			next++
			if c := table.Add(idOf(next), key, dead); c != nil {
				*number(&c.Val) = int64(next)
			}
		}
		each := (arena.taken - len(arena.rest)) / limit
		if t.Logf("keys of %d bytes: %d bytes a key", size, each); each > most {
			t.Errorf("keys of %d bytes, after others: %d bytes a key, and %d are declared", size, each, most)
		}
	}
}

// A table has as many locks as it is large, up to 256, and none for fewer than a thousand keys.
func TestShardsForSoManyKeys(t *testing.T) {
	for keys, want := range map[int]int{
		0: 1, 1: 1, 2047: 1, 2048: 2, 4095: 2, 4096: 4, 1 << 18: 256, 1<<18 - 1: 128, 1 << 30: 256,
	} {
		if got := ShardCount(keys); got != want {
			t.Errorf("%d keys are in %d shards, and not in %d", keys, got, want)
		}
	}
}

// A key's shard goes by the first bits of its hash: shards follow one another, and none is left out. Each has room
// for its part of the hashes, and together they have room for the limit.
func TestShardOfAKey(t *testing.T) {
	for _, limit := range []int{1, 10, 100, 1 << 12, 1_000_000, 1 << 20} {
		s, shares := NewSharding(limit)
		counts := make([]int, len(shares))
		last := uint8(0)
		for i := range 1 << shardBits {
			shard := s.ShardOf(ID{High: uint64(i) << (64 - shardBits), Low: ^uint64(0)})
			if shard < last || int(shard) >= len(shares) {
				t.Fatalf("of %d shards, %d follows %d", len(shares), shard, last)
			}
			last = shard
			counts[shard]++
		}
		sum := 0
		for shard, n := range counts {
			sum += shares[shard]
			if want := limit * n >> shardBits; n == 0 || shares[shard] < want || shares[shard] > want+1 {
				t.Errorf("shard %d of %d has %d of %d hashes, and room for %d of %d keys",
					shard, len(shares), n, 1<<shardBits, shares[shard], limit)
			}
		}
		if sum != limit {
			t.Errorf("shards of %d keys have room for %d", limit, sum)
		}
	}
	a, _ := NewSharding(1)
	b, _ := NewSharding(1)
	if a.Hash.ID([]byte("k")) == b.Hash.ID([]byte("k")) {
		t.Error("clients know where their keys are")
	}
}

// A hasher of its own puts keys elsewhere than any other does, in both halves of their ID, and always
// in the same place. The zero hasher is the same everywhere, and yet tells keys apart by either half.
func TestHashers(t *testing.T) {
	k := []byte("key")
	a, b := NewHasher(), NewHasher()
	if a.Of(k) == b.Of(k) || a.ID(k).High == b.ID(k).High || a.ID(k).Low == b.ID(k).Low || a.ID(k).High == a.ID(k).Low {
		t.Error("two hashers are the same, or two halves")
	}
	if again := a; again.Of(k) != a.Of(k) || again.ID(k) != a.ID(k) {
		t.Error("a hasher puts a key elsewhere the second time")
	}
	var zero Hasher
	if zero.Of(k) != xxhash.Sum64(k) || zero.ID(k).Low != xxhash.Sum64(k) {
		t.Error("simulations play otherwise elsewhere")
	}
	shards, places, tags := map[uint64]bool{}, map[uint32]bool{}, map[uint64]bool{}
	for i := range 4096 {
		id := zero.ID([]byte{byte(i), byte(i >> 8)})
		shards[id.High>>(64-shardBits)], places[id.prefix()], tags[id.Low] = true, true, true
	}
	// Of 4096 that are thrown into as many places, 63 % of the places have one.
	if n := len(shards); n < 2500 || n > 2700 || len(places) != 4096 || len(tags) != 4096 {
		t.Errorf("%d shards, %d places and %d tags for 4096 keys", n, len(places), len(tags))
	}
}
