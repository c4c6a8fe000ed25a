// Package queue has the future events of a simulation.
package queue

import "container/heap"

// Queue has the future events, in the order of their time, then of their insertion. The zero Queue is empty. It is not
// safe for concurrent use. The order of insertion decides between events of one time: a heap alone would choose by its
// shape, and a run would not repeat.
type Queue struct {
	events events
	count  uint64
}

type event struct {
	at   int64 // nanoseconds
	turn uint64
	do   func()
}

// events implement [heap.Interface], which package heap calls: the first event is at 0.
type events []*event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].turn < e[j].turn
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(*event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last], *e = nil, (*e)[:last]
	return x
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
	heap.Push(&q.events, &event{at, q.count, do})
}

// Pop takes the first event out, of a queue that has one.
func (q *Queue) Pop() func() { return heap.Pop(&q.events).(*event).do }
