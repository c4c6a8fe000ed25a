package transport

import (
	"time"

	"golang.org/x/net/http2/hpack"
)

// tableSize is how much of earlier blocks a caller may refer to: HTTP/2's default,
// which gRPC's server does not change.
const tableSize = 4096

// meaning is what of a field matters to the gate.
type meaning struct {
	kind     kind
	gated    bool          // of a path
	patience time.Duration // of a timeout
	size     int           // of the field, as HTTP/2 counts it: at least so much
}

type kind uint8

const (
	other kind = iota
	path
	patient
)

// shelf has the sizes of the fields that header blocks may refer to (RFC 7541, 2.3.2), by their numbers from 1
// on, in the order of insertion. It must be made with newShelf.
type shelf struct {
	sizes          []uint16 // as many as a power of two, of which a field has the one of its number
	added, evicted int64    // numbers of the latest field, and of the latest that had to go
	size, most     int      // in bytes, as HPACK counts them
}

func newShelf() shelf { return shelf{most: tableSize} }

// has tells whether the field of a number is there. None has 0.
func (t *shelf) has(n int64) bool { return n > t.evicted }

// index is that of the field of a number, as header blocks have it: the latest has the lowest.
func (t *shelf) index(n int64) int { return staticFields + int(t.added+1-n) }

// place is where the field of a number is.
func (t *shelf) place(n int64) int { return int(n & int64(len(t.sizes)-1)) }

// add puts a field in, and returns its number. 0 says that it is larger than the table, which is empty
// now.
func (t *shelf) add(size int) (n int64) {
	t.evict(t.most - size)
	if size > t.most {
		return 0
	}
	if t.added-t.evicted == int64(len(t.sizes)) {
		t.grow()
	}
	t.added++
	t.size += size
	t.sizes[t.place(t.added)] = uint16(size)
	return t.added
}

// resize says how large the table may be.
func (t *shelf) resize(most int) {
	t.most = most
	t.evict(most)
}

// evict has the oldest fields go until the others have at most so many bytes.
func (t *shelf) evict(most int) {
	for t.size > most && t.evicted < t.added {
		t.evicted++
		t.size -= int(t.sizes[t.place(t.evicted)])
	}
}

// grow makes twice as many places. There are never more than tableSize / 32, for that is the least size
// of a field.
func (t *shelf) grow() {
	old := *t
	t.sizes = make([]uint16, max(8, 2*len(old.sizes)))
	for n := old.evicted + 1; n <= old.added; n++ {
		t.sizes[t.place(n)] = old.sizes[old.place(n)]
	}
}

// entry is a field in the caller's table, packed as it came.
type entry struct {
	// packed is the name, if static is 0, and from value on the value.
	packed []byte
	value  uint16
	name   uint16 // the length of the name, unpacked
	size   uint16
	static uint8 // the static table's first field with this name
	// told is the number that the field has in gRPC's table, if it is still there. 0: it never was.
	told int64
	meaning
}

// table is the caller's. It must be made with newTable.
type table struct {
	shelf
	slots []entry // as many as there are sizes
}

func newTable() table { return table{shelf: newShelf()} }

// at is the field of an index behind those of the static table; nil: there is none.
func (t *table) at(i int) *entry {
	if n := t.added + 1 - int64(i); i > 0 && t.has(n) {
		return &t.slots[t.place(n)]
	}
	return nil
}

// mostSpare is how many bytes a field that had to go leaves to the one that has its place next.
const mostSpare = 128

// put adds a field of a size. nil: it is larger than the table.
func (t *table) put(size int) *entry {
	before := t.shelf
	n := t.add(size)
	t.forget(&before)
	if n == 0 {
		return nil
	}
	if len(t.slots) < len(t.sizes) {
		old := t.slots
		t.slots = make([]entry, len(t.sizes))
		for i := t.evicted + 1; i < n; i++ {
			t.slots[t.place(i)] = old[before.place(i)]
		}
	}
	return &t.slots[t.place(n)]
}

func (t *table) resize(most int) {
	before := t.shelf
	t.shelf.resize(most)
	t.forget(&before)
}

// forget releases the memory of fields that are gone.
func (t *table) forget(before *shelf) {
	for gone := before.evicted + 1; gone <= t.evicted; gone++ {
		if e := &t.slots[before.place(gone)]; cap(e.packed) > mostSpare {
			e.packed = nil
		}
	}
}

// staticFields is how many fields the static table has (RFC 7541, appendix A).
const staticFields = 61

// staticPath is the first of its two fields that are named :path.
const staticPath = 4

// staticNames are the lengths of its names.
var staticNames = func() (lengths [staticFields + 1]int) {
	i := 0
	d := hpack.NewDecoder(0, func(f hpack.HeaderField) { lengths[i] = len(f.Name) })
	for i = 1; i <= staticFields; i++ {
		_, _ = d.Write([]byte{indexed | byte(i)}) // each of them is there
	}
	return lengths
}()
