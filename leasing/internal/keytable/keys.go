package keytable

import (
	"runtime"
	"sync"
	"unsafe"
)

// keys are the bytes of keys, in grains of 8 bytes. A page has places of one number of
// grains. When its last place is removed, the page is free for places of any length. So keys whose lengths
// change over time take at most the size of two generations. The number of a place is its page, and its first
// grain there.
type keys struct {
	pages []page
	// room is by number of grains: a page with room, plus 1, the first of a list; 0 is none. room[0] has the pages
	// without places.
	room [mostGrains + 1]uint32
}

// page is 128 grains. Free places are a list through their first byte. A page of keys of one length has no gaps between
// its places, and needs no lengths. Its list is that of room[grains], unless it is full.
type page struct {
	bytes      *[pageGrains * grain]byte
	next, prev uint32 // pages of the same list, plus 1
	grains     uint8  // of a place; 0: it has none
	live       uint8  // places
	used       uint8  // grains used since it got its first place
	free       uint8  // the first grain of a free place, plus 1; 0: none
}

const (
	grain      = 8
	pageGrains = 128 // 1 KiB
	mostGrains = MaxKeyLen / grain
)

// grainsFor n bytes: at least one, so that each key has a place.
func grainsFor(n int) uint8 { return uint8(max(1, (n+grain-1)/grain)) }

// bytes are all bytes of a place.
func (k *keys) bytes(number uint32) []byte {
	p := &k.pages[number/pageGrains]
	at := number % pageGrains * grain
	return p.bytes[at : at+uint32(p.grains)*grain]
}

// add finds a place for a key's bytes, and returns its number. Keys of one length share pages. Removed places are used
// first.
func (k *keys) add(a *Arena, key []byte) uint32 {
	n := grainsFor(len(key))
	if k.room[n] == 0 {
		k.begin(a, n)
	}
	number := k.room[n] - 1
	p := &k.pages[number]
	at := p.used
	if p.free != 0 {
		at = p.free - 1
		p.free = p.bytes[int(at)*grain]
	} else {
		p.used += n
	}
	p.live++
	// A page in a list of room always has some.
	if p.free == 0 && p.used+n > pageGrains {
		k.unlink(number, n) // it is full
	}
	copy(p.bytes[int(at)*grain:], key)
	return number*pageGrains + uint32(at)
}

// begin makes a page for places of n grains, from an empty one or a new one.
func (k *keys) begin(a *Arena, n uint8) {
	number := k.room[0]
	if number != 0 {
		k.unlink(number-1, 0)
	} else {
		type room [pageGrains * grain]byte
		k.pages = append(k.pages, page{bytes: (*[pageGrains * grain]byte)(a.take(int(unsafe.Sizeof(room{}))))})
		number = uint32(len(k.pages))
	}
	k.pages[number-1].grains = n
	k.link(number-1, n)
}

// remove frees a place. An empty page goes to the list of all lengths, and a page that was full returns to that of its
// own.
func (k *keys) remove(number uint32) {
	of, at := number/pageGrains, uint8(number%pageGrains)
	p := &k.pages[of]
	n := p.grains
	full := p.free == 0 && p.used+n > pageGrains
	p.bytes[int(at)*grain] = p.free
	p.free = at + 1
	p.live--
	switch {
	case p.live == 0:
		if !full {
			k.unlink(of, n)
		}
		p.grains = 0
		p.used = 0
		p.free = 0
		k.link(of, 0)
	case full:
		k.link(of, n)
	}
}

// link puts a page first in a list.
func (k *keys) link(number uint32, list uint8) {
	p := &k.pages[number]
	p.prev, p.next = 0, k.room[list]
	if p.next != 0 {
		k.pages[p.next-1].prev = number + 1
	}
	k.room[list] = number + 1
}

// unlink takes a page out of its list.
func (k *keys) unlink(number uint32, list uint8) {
	p := &k.pages[number]
	if p.next != 0 {
		k.pages[p.next-1].prev = p.prev
	}
	if p.prev != 0 {
		k.pages[p.prev-1].next = p.next
	} else {
		k.room[list] = p.next
	}
}

// Arena is memory for tables. It is safe for concurrent use, and must be reachable while its memory is used: tables
// keep theirs.
type Arena struct {
	mu     sync.Mutex
	blocks *blocks                  // guarded by mu
	rest   []byte                   // of the last block; guarded by mu
	next   int                      // bytes of the next block; guarded by mu
	free   map[int][]unsafe.Pointer // returned memory, by size; guarded by mu
	taken  int                      // bytes of all blocks; guarded by mu
}

// blocks are the operating system's memory. They are separate from the arena, which must be unreachable when they are
// given back. The cleanup of the arena holds them, and would keep the arena alive if it held that.
type blocks struct{ all [][]byte }

// Blocks double from firstBlock to mostBlock, so that a small table takes little, and a large one has few blocks.
const (
	firstBlock = 32 << 10
	mostBlock  = 16 << 20
	line       = 64 // bytes of a cache line, the alignment
)

// NewArena makes an arena, without memory yet.
func NewArena() *Arena {
	a := &Arena{blocks: new(blocks), next: firstBlock, free: map[int][]unsafe.Pointer{}}
	runtime.AddCleanup(a, func(b *blocks) {
		for _, block := range b.all {
			giveBack(block)
		}
	}, a.blocks)
	return a
}

// Size is the number of bytes from the operating system. Unused pages take no memory.
func (a *Arena) Size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.taken
}

// take returns n zero bytes. Like make, it panics if the system has no more. Returned memory of another size is not
// divided: sizes are few (sizes), and each is used again soon.
func (a *Arena) take(n int) unsafe.Pointer {
	n = (n + line - 1) / line * line
	a.mu.Lock()
	defer a.mu.Unlock()
	if free := a.free[n]; len(free) > 0 {
		p := free[len(free)-1]
		a.free[n] = free[:len(free)-1]
		clear(unsafe.Slice((*byte)(p), n))
		return p
	}
	// The rest of the last block is left unused. Its pages were never touched, and take no memory.
	if len(a.rest) < n {
		a.rest = fromSystem(max(a.next, n))
		keepSmall(a.rest)
		a.blocks.all = append(a.blocks.all, a.rest)
		a.taken += len(a.rest)
		a.next = min(2*a.next, mostBlock)
	}
	p := unsafe.Pointer(unsafe.SliceData(a.rest))
	a.rest = a.rest[n:]
	return p
}

// put takes back n bytes that the caller no longer uses.
func (a *Arena) put(p unsafe.Pointer, n int) {
	n = (n + line - 1) / line * line
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free[n] = append(a.free[n], p)
}
