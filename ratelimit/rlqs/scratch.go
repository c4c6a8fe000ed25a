package rlqs

import (
	"bytes"

	"github.com/sluice-gate/sluice/ratelimit"
)

// scratch is the memory of a session while it handles a message. Ten thousand sessions share the scratches of
// the few that are active, and a message leaves only its answer to the collector.
type scratch struct {
	report   report
	name     []byte // of a BucketId
	next     []byte // what the next answer has
	asks     []ratelimit.Ask
	verdicts []ratelimit.Verdict
	of       []int // of each ask, whose it is
	budgets  []budget
	got      []tokens
	want     []*bucket
	demands  []demand
	excess   []demand
	ends     []instant
}

// mostScratches is the number of unused ones that a node keeps, and mostBytes the length of buffers for later messages.
const mostScratches, mostBytes = 64, 64 << 10

// begin has a session use a scratch until end.
func (s *Session) begin() {
	select {
	case s.scratch = <-s.node.scratches:
	default:
		s.scratch = new(scratch)
	}
	// An answer that waits goes on being written.
	s.scratch.next = append(s.scratch.next[:0], s.next...)
}

// end gives the scratch back to the node, and keeps the answer that waits.
func (s *Session) end() {
	x := s.scratch
	s.scratch = nil
	// The answer gets bytes of its own, and no more than it has: it may wait, and gRPC keeps it.
	if len(x.next) > len(s.next) {
		s.next = bytes.Clone(x.next)
	}
	// Memory of an unusually large message is released.
	if cap(x.asks) > mostActions || cap(x.want) > mostActions || cap(x.excess) > mostActions ||
		cap(x.next) > mostBytes || cap(x.name) > mostBytes {
		return
	}
	// The message in which the strings of its last report lie is not the session's any more.
	x.report = report{}
	// Buckets of streams that end must not be kept.
	clear(x.want[:cap(x.want)])
	clear(x.demands[:cap(x.demands)])
	clear(x.excess[:cap(x.excess)])
	select {
	case s.node.scratches <- x:
	default:
	}
}

// sized is a slice of so many zeros, in the place of another if that has room.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// reset begins a call of the limiter.
func (x *scratch) reset() { x.asks, x.of = x.asks[:0], x.of[:0] }

// ask adds an ask of the one at a place.
func (x *scratch) ask(of int, a ratelimit.Ask) { x.asks, x.of = append(x.asks, a), append(x.of, of) }
