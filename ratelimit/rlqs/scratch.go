package rlqs

import "github.com/sluice-gate/sluice/ratelimit"

// scratch is what a session needs while it takes something in, and not between: ten thousand
// sessions share what a few of them use at a time, and a message leaves nothing for the collector
// but its answer.
type scratch struct {
	name     []byte // of a BucketId
	asks     []ratelimit.Ask
	verdicts []ratelimit.Verdict
	of       []int // of each ask, whose it is
	budgets  []budget
	got      []tokens
	want     []*bucket
	demands  []demand
	ends     []instant
}

// mostScratches is how many a node keeps while nobody uses them.
const mostScratches = 64

// begin has a session use a scratch until end.
func (s *Session) begin() {
	select {
	case s.scratch = <-s.node.scratches:
	default:
		s.scratch = new(scratch)
	}
}

func (s *Session) end() {
	x := s.scratch
	s.scratch = nil
	// What a large message has grown is dropped, so that memory follows what is typical.
	if cap(x.asks) > mostActions || cap(x.want) > mostActions {
		return
	}
	// Buckets of streams that end must not be kept.
	clear(x.want[:cap(x.want)])
	clear(x.demands[:cap(x.demands)])
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
