package keytable

import (
	"runtime"
	"sync"
	"unsafe"
)

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
// given back.
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

// take returns n zero bytes. Like make, it panics if the system has no more.
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
