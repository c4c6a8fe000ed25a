package transport

import (
	"runtime"
	"sync"
)

// callsATurn is how many calls of a connection gRPC gets, for each processor, before those that it
// got have run.
//
// One read may bring a hundred, and gRPC gives each to a goroutine at once: first to those
// that wait for calls, whose stacks have grown (workersEach in package server), then to new ones,
// whose stacks are copied twice until they are large enough. On a busy node that was a fifth of what
// calls cost, and each ran when its memory had long left the processor's caches. In turns, the same
// few goroutines answer all calls. Fewer a turn would have answers leave in more and smaller writes.
const callsATurn = 8

// turns hands over what came in one read, some calls at a time. It is the reader's alone.
type turns struct {
	most  int // calls of a turn
	begun int // calls of this read
	whole *[]byte
	rest  []byte // of whole: what gRPC did not have yet
	each  int    // bytes of it that it gets next
}

func newTurns() turns { return turns{most: callsATurn * runtime.GOMAXPROCS(0)} }

var wholes = sync.Pool{New: func() any { b := make([]byte, readBuffer); return &b }}

// next has gRPC read the next of the rest; false: there is none.
func (t *turns) next(p []byte) (n int, ok bool) {
	if len(t.rest) == 0 {
		return 0, false
	}
	// Calls that gRPC has been told of run now, and this goroutine goes on behind them.
	runtime.Gosched()
	n = copy(p, t.rest[:min(t.each, len(t.rest))])
	if t.rest = t.rest[n:]; len(t.rest) == 0 {
		wholes.Put(t.whole)
		t.whole, t.rest = nil, nil
	}
	return n, true
}

// first keeps all but the first turn of what was read, and says how much that is. Bytes
// stand for calls, for those of one connection are much alike. A frame may be cut anywhere:
// gRPC reads on until it has all of it.
func (t *turns) first(read []byte) (n int) {
	begun := t.begun
	t.begun = 0
	if begun <= t.most || len(read) > readBuffer {
		return len(read)
	}
	t.each = len(read) * t.most / begun
	t.whole = wholes.Get().(*[]byte)
	t.rest = (*t.whole)[:copy(*t.whole, read[t.each:])]
	return t.each
}
