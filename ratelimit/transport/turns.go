package transport

import (
	"runtime"
	"sync"
)

// callsATurn is the number of calls of a connection, for each processor, that gRPC gets before the earlier ones
// have run.
//
// One read can bring a hundred calls, and gRPC gives each to a goroutine at once. The first go to waiting
// goroutines, whose stacks have grown (workersEach in package server). The others go to new ones, whose stacks
// are copied twice. On a busy node that was a fifth of the cost of calls, and each ran when its memory had long
// left the processor's caches. In turns, the same few goroutines answer all calls. With fewer calls a turn,
// answers leave in more and smaller writes.
const callsATurn = 8

// turns hands over what gRPC is to read, some calls at a time. It is the reader's alone.
type turns struct {
	most  int // calls of a turn
	begun int // calls of this read
	whole *[]byte
	rest  []byte // of whole: what gRPC did not have yet
	each  int    // bytes of it that it gets next. Invariant: at least 1 while there is a rest
}

func newTurns() turns { return turns{most: callsATurn * runtime.GOMAXPROCS(0)} }

var wholes = sync.Pool{New: func() any { b := make([]byte, 0, 2*readBuffer); return &b }}

// next has gRPC read the next of the rest; false: there is none.
func (t *turns) next(p []byte) (n int, ok bool) {
	if len(t.rest) == 0 {
		return 0, false
	}
	// Calls that gRPC has been told of run now, and this goroutine goes on behind them.
	runtime.Gosched()
	n = copy(p, t.rest[:min(t.each, len(t.rest))])
	if t.rest = t.rest[n:]; len(t.rest) == 0 {
		*t.whole = spare(*t.whole, 4*readBuffer)
		wholes.Put(t.whole)
		t.whole, t.rest = nil, nil
	}
	return n, true
}

// first keeps all but the first turn of what gRPC is to read: the first n bytes of p, and more, which
// had no room there. It returns how many bytes of p are that turn. Bytes stand for calls, for those of
// one connection are much alike. A frame may be cut anywhere: gRPC reads on until it has all of it.
func (t *turns) first(p []byte, n int, more []byte) int {
	begun, all := t.begun, n+len(more)
	t.begun, t.each = 0, all
	if begun > t.most {
		// Of few bytes and many calls a turn would have no byte at all: a reader that is given nothing asks
		// again at once, for ever.
		t.each = all*t.most/begun + 1
	}
	if t.each >= all && len(more) == 0 {
		return n
	}
	turn := min(n, t.each)
	t.whole = wholes.Get().(*[]byte)
	*t.whole = append(append((*t.whole)[:0], p[turn:n]...), more...)
	if t.rest = *t.whole; turn > 0 {
		return turn
	}
	n, _ = t.next(p)
	return n
}
