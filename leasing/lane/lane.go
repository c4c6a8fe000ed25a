// Package lane gathers messages to a store into batches: each batch is one round trip.
//
// Guarantee: a batch leaves as soon as it is due and fewer than the permitted number are in flight. No message is taken
// before its batch leaves, so none waits for another's turn. A batch is due when a message has waited for its time, or
// as many wait as usually come in Gather. Where messages are rare, that is one. The numbers of messages that wait, and
// of batches in flight, are bounded.
package lane

import (
	"slices"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

type instant = ratelimit.Instant

const (
	// BatchSize is the maximum number of messages in a batch.
	BatchSize = 256
	// Gather is the longest time for which a message waits for others.
	Gather = 2 * time.Millisecond
	// TimeLimit is the time after which a round trip has failed.
	TimeLimit = time.Second
	// gathered is the number of messages in a batch that is worth to wait for. A store's work for a round trip is that
	// for some four messages, so that a larger batch saves little.
	gathered = 4
	// batchEvery is the mean time between batches under a load that fills them.
	batchEvery = time.Millisecond
)

// GatherFor is the time for which requests of a rule wait for others to share a round trip: an eighth of the time that
// they wait for the ledger.
func GatherFor(r *ratelimit.Rule) time.Duration {
	wait := r.Coordination.Deadline()
	if r.Drifts() {
		wait = min(wait, r.Coordination.CheckTimeout)
	}
	return wait / 8
}

// Options are the bounds of a queue, and its time.
type Options struct {
	// Size bounds the urgent messages that wait, and Patient the others.
	Size, Patient int
	// Flights is the maximum of batches in flight now. It must not call the queue.
	Flights func() int
	Clock   ratelimit.Clock
	// After calls a function after a time.
	After func(time.Duration, func())
}

// Queue is messages that wait for a round trip to one part of a store. It is safe for concurrent use, and does not
// block. Its options are set before it is used. A message goes from Send or Later into a list, from there into a batch
// (takeLocked), and to settle in a goroutine of the queue. With Take, a driver settles batches by itself, and Start is
// not called.
type Queue[M any] struct {
	Options
	mu         sync.Mutex
	waiting[M]      // guarded by mu
	flying     int  // guarded by mu: batches in flight
	pace       pace // guarded by mu: of urgent messages
	stopped    bool // guarded by mu
	settle     func([]M)
	senders    sync.WaitGroup
}

// waiting is the messages that wait.
type waiting[M any] struct {
	urgent, patient []M
	waits           bool    // some message does
	due             instant // of the next batch
}

// Start has batches settled, each in a goroutine, until Stop.
func (q *Queue[M]) Start(settle func([]M)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.settle = settle
	q.leaveLocked()
}

// Stop sends what waits, and returns when all is settled. Later messages are refused. Messages beyond the permitted
// flights leave as those are answered.
func (q *Queue[M]) Stop() {
	q.mu.Lock()
	q.stopped = true
	q.leaveLocked()
	q.mu.Unlock()
	q.senders.Wait()
}

// Send adds an urgent message, which waits for others for at most a time, and at most Gather; false: there is no room.
// enough is computed with the pace of now, so that a burst leaves as soon as it fills a round trip.
func (q *Queue[M]) Send(m M, wait time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.urgent) >= q.Size || q.stopped {
		return false
	}
	now := q.Clock()
	q.pace.arrival(now)
	q.urgent = append(q.urgent, m)
	if len(q.urgent) >= q.pace.enough() {
		wait = 0
	}
	q.dueLocked(now, min(wait, Gather))
	return true
}

// Later adds a patient message: it leaves with the next batch, after the urgent ones, or after its wait. false: there
// is no room.
func (q *Queue[M]) Later(m M, wait time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.patient) >= q.Patient || q.stopped {
		return false
	}
	q.patient = append(q.patient, m)
	if len(q.patient) >= BatchSize {
		wait = 0
	}
	q.dueLocked(q.Clock(), wait)
	return true
}

// Len is the number of messages that wait.
func (q *Queue[M]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.urgent) + len(q.patient)
}

// dueLocked has a batch leave after a time, unless it leaves earlier. The first message to be due decides for all that
// wait.
func (q *Queue[M]) dueLocked(now instant, wait time.Duration) {
	if !q.waits || now.Add(wait) < q.due {
		q.waits, q.due = true, now.Add(wait)
		if wait > 0 {
			q.wakeAtLocked(now, q.due)
		}
	}
	q.leaveLocked()
}

// wakeAtLocked has a batch leave at its time. A timer may be early or late. If the batch left before, its time is void.
func (q *Queue[M]) wakeAtLocked(now, due instant) {
	q.After(due.Sub(now), func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if now := q.Clock(); q.waits && q.due == due && now < due {
			q.wakeAtLocked(now, due)
			return
		}
		q.leaveLocked()
	})
}

// leaveLocked starts a sender if a batch may leave.
func (q *Queue[M]) leaveLocked() {
	if q.settle == nil {
		return
	}
	if batch := q.takeLocked(); batch != nil {
		q.senders.Go(func() { q.send(batch) })
	}
}

// send settles a batch, and those that may leave when it is answered. So a goroutine settles one batch after the other
// while there are any, instead of one for each.
func (q *Queue[M]) send(batch []M) {
	for batch != nil {
		q.settle(batch)
		q.Settled()
		batch = q.Take()
	}
}

// Take takes the messages of a batch, if it is due and may leave. The caller calls Settled after its answer.
func (q *Queue[M]) Take() []M {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.takeLocked()
}

func (q *Queue[M]) takeLocked() []M {
	due := q.stopped || q.due <= q.Clock()
	if !q.waits || !due || q.flying >= q.Flights() {
		return nil
	}
	q.flying++
	batch := q.nextLocked()
	q.leaveLocked() // the rest is due, too
	return batch
}

// Rest takes messages without regard to the time; nil: there are none. They are in no batch in flight.
func (q *Queue[M]) Rest() []M {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.nextLocked()
}

// nextLocked takes the oldest messages: of the patient ones up to a half, and more if there is room. So a flood of
// urgent messages leaves half of each batch to patient ones, and patient ones take no more than that.
func (q *Queue[M]) nextLocked() []M {
	urgent := min(len(q.urgent), BatchSize-min(len(q.patient), BatchSize/2))
	patient := min(len(q.patient), BatchSize-urgent)
	batch := slices.Concat(q.urgent[:urgent], q.patient[:patient])
	q.urgent = cut(q.urgent, urgent)
	q.patient = cut(q.patient, patient)
	q.waits, q.due = len(q.urgent)+len(q.patient) > 0, q.Clock()
	return batch
}

// Alone reports whether one batch is in flight: none delays another. It is called with a batch that has left.
func (q *Queue[M]) Alone() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.flying == 1
}

// Settled notes the answer to a batch, or its failure.
func (q *Queue[M]) Settled() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flying--
}

// cut drops the first n messages. It keeps the room, unless that is large.
func cut[M any](all []M, n int) []M {
	if n == len(all) && cap(all) > 4*BatchSize {
		return nil
	}
	rest := copy(all, all[n:])
	clear(all[rest:])
	return all[:rest]
}

// pace is how often urgent messages come: the mean of their distances, in which each counts for a sixteenth.
type pace struct {
	last instant
	mean time.Duration
}

// rare is the longest distance that counts, so that a few messages after a pause show their pace.
const rare = 4 * Gather

func (p *pace) arrival(now instant) {
	distance := min(now.Sub(p.last), rare)
	if p.last == 0 {
		p.mean = rare
	}
	p.last = now
	p.mean += (distance - p.mean) / 16
}

// enough is the number of urgent messages with which a batch leaves: those that come in a little less than Gather, so
// that the last one seldom is too late.
func (p *pace) enough() int {
	mean := max(1, p.mean)
	return max(min(1+int(7*Gather/8/mean), gathered), min(int(batchEvery/mean), BatchSize))
}
