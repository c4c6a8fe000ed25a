package leasing

import (
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
)

// company is claims for which nobody waits, such as renewals. They leave with the next claim for which
// somebody does, or when their patience is over: a round trip of its own costs Redis several times what
// a claim costs in one that is made anyway.
type company struct {
	calm    chan *flight
	bell    chan struct{}  // has them leave at once
	waiting [2]atomic.Bool // for lease.Company, and for lease.LongCompany: the bell will ring by itself
}

func newCompany(size int) company {
	return company{calm: make(chan *flight, size), bell: make(chan struct{}, 1)}
}

// put queues a flight: if it has patience, among those that wait for others. It reports false when
// the queue is full. It does not block. The caller holds the lock of the key's shard, if it is a key's.
func (l *lane) put(f *Fleet, fl *flight, patience time.Duration) bool {
	if f.gathers && patience > 0 {
		select {
		case l.calm <- fl:
			fl.Lingers = true
			l.ringAfter(f, patience)
			return true
		default: // there is no room to wait in
		}
	}
	select {
	case l.queue <- fl:
		return true
	default:
		return false
	}
}

// ringAfter has the bell ring then, at the latest, or when there are as many as travel together.
func (l *lane) ringAfter(f *Fleet, d time.Duration) {
	if len(l.calm) >= batchSize {
		l.ring()
	}
	waiting := &l.waiting[0]
	if d > lease.Company {
		waiting = &l.waiting[1]
	}
	if waiting.CompareAndSwap(false, true) {
		f.after(d, func() {
			waiting.Store(false)
			l.ring()
		})
	}
}

// ring has all that is queued leave. It does not block.
func (l *lane) ring() {
	select {
	case l.bell <- struct{}{}:
	default:
	}
}

// rung tells whether the bell has been rung.
func (l *lane) rung() bool {
	select {
	case <-l.bell:
		return true
	default:
		return false
	}
}

// hurry has the claim that is under way for a key leave, if it has not: somebody waits for its
// answer. The caller holds the shard's lock.
func (f *Fleet) hurry(h *busyKey) {
	if fl := h.flight; fl != nil && h.Lingers() {
		f.laneOf(fl.name).ring()
	}
}

// take takes what waits, up to a batch, behind what was taken already. Up to half is of what waited for
// others to travel with, so that neither keeps the other from leaving.
func (l *lane) take(flights ...*flight) []*flight {
	flights = taken(l.calm, flights, len(flights)+batchSize/2)
	flights = taken(l.queue, flights, batchSize)
	flights = taken(l.calm, flights, batchSize)
	if len(flights) == batchSize { // there may be more
		l.ring()
	}
	return flights
}

// taken adds what is in a queue, until there are so many, or a batch.
func taken(queue chan *flight, flights []*flight, most int) []*flight {
	for len(flights) < min(most, batchSize) {
		select {
		case fl := <-queue:
			flights = append(flights, fl)
		default:
			return flights
		}
	}
	return flights
}

// lastWords are those that have not left when the node ends, and nobody would say again.
func (l *lane) lastWords() (words []*flight) {
	for {
		flights := l.take()
		if len(flights) == 0 {
			return words
		}
		for _, fl := range flights {
			if fl.Final != nil {
				words = append(words, fl)
			}
		}
	}
}
