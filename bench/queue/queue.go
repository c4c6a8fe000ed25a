// Package queue has the future events of a simulation.
package queue

// Queue has the future events, in the order of their time, then of their insertion: a binary heap. The zero Queue is empty.
// It is not safe for concurrent use.
type Queue struct {
	events []event
	count  uint64
}

type event struct {
	at   int64 // nanoseconds
	turn uint64
	do   func()
}

func (e *event) before(f *event) bool {
	return e.at < f.at || e.at == f.at && e.turn < f.turn
}

// Next is the time of the first event, or never.
func (q *Queue) Next() int64 {
	if len(q.events) == 0 {
		return 1<<63 - 1
	}
	return q.events[0].at
}

// Push adds an event.
func (q *Queue) Push(at int64, do func()) {
	q.count++
	q.events = append(q.events, event{at, q.count, do})
	h := q.events
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			return
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

// Pop takes the first event out, of a queue that has one.
func (q *Queue) Pop() func() {
	h := q.events
	first := h[0].do
	last := len(h) - 1
	h[0], h[last] = h[last], event{}
	q.events = h[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return first
		}
		if down+1 < last && h[down+1].before(&h[down]) {
			down++
		}
		if !h[down].before(&h[i]) {
			return first
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}
