package leasing

import (
	"sync"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/ratelimit"
)

// lane sends messages to one part of the ledger. It has the part's queue, breaker, clock and epoch.
type lane struct {
	queue chan message // nil only starts a batch

	mu sync.Mutex
	gathering
	clock hold.LedgerClock // guarded by mu
	epochs
	breaker  Breaker   // guarded by mu
	greeting *greeting // guarded by mu; nil: there is none
	answered instant   // guarded by mu

	pace chan struct{} // has one element while a sender collects a batch
	left instant       // of that sender: time of the last batch
}

// epochs is the current epoch of a part. It is guarded by its lane's mu.
type epochs struct {
	epoch ratelimit.Epoch
	life  uint8   // counts the epochs, and complete restatements
	began uint8   // life in which the epoch began
	asked instant // time of the first message that showed this epoch
	first bool    // this process has read no other
	peers int     // number of nodes that may admit a part in it (FleetOptions.Peers)
}

// part is what this node may admit of a key in a young epoch: a twentieth of the limit is for all nodes.
func (e *epochs) part(l *ratelimit.Limit) tokens {
	if e.peers == 0 {
		return 0
	}
	return l.Capacity() / tokens(ratelimit.LossPart*e.peers)
}

// had tells whether the epoch was reported in a life.
func (e *epochs) had(stated uint8) bool { return e.life-stated <= e.life-e.began }

// gathering is background messages that wait for others to share a round trip. It is guarded by its lane's mu.
type gathering struct {
	later  []message // Invariant: at most queueSize
	latest instant   // latest time to leave
}

const (
	// batchEvery is the interval of batches.
	batchEvery = time.Millisecond
	// aliveFor is the time after its last answer for which the ledger counts as alive.
	aliveFor = 250 * time.Millisecond
)

func (l *lane) time() hold.LedgerClock {
	there, _ := l.read()
	return there
}

// read returns the ledger's time and its epoch, as last answered.
func (l *lane) read() (hold.LedgerClock, epochs) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock, l.epochs
}

// young is the epoch, and whether the ledger may lack totals.
func (l *lane) young(now instant) (epochs, bool) {
	there, is := l.read()
	early, _ := there.Between(now)
	return is, is.epoch.Young(early)
}

func (l *lane) refuses(now instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breaker.Refuses(now)
}

// dead tells whether the ledger does not answer, by the breaker.
func (l *lane) dead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breaker.Open()
}

// alive tells whether the ledger answers other messages.
func (l *lane) alive(now instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock.At != 0 && now.Sub(l.answered) <= aliveFor && !l.breaker.Open()
}

// lane is the lane of a key's messages.
func (f *Fleet) lane(k entry) *lane {
	if len(f.lanes) == 1 {
		return &f.lanes[0]
	}
	return f.laneOf(f.keyName(k.key()))
}

// joinLocked returns the key's message, or a new one. If it is not yet written, it leaves at once. nil: no
// message can be sent, for the reason.
func (f *Fleet) joinLocked(k entry) (*keyMessage, ratelimit.FallbackReason) {
	l := f.lane(k)
	// A key has one message in flight: later requests look again when it is answered.
	if m := k.use.flight; m != nil {
		if m.background && !m.written && l.send(m) {
			m.background = false
		}
		return m, 0
	}
	if l.refuses(f.clock()) {
		return nil, ratelimit.FallbackBreaker
	}
	m := newKeyMessage(k)
	if !l.send(m) {
		return nil, ratelimit.FallbackQueueFull
	}
	k.use.flight = m
	return m, 0
}

// send puts a message into the next batch, if there is room.
func (l *lane) send(m message) bool {
	select {
	case l.queue <- m:
		return true
	default:
		return false
	}
}

// launchLocked sends a background message, unless the key has a message: it waits for a while to share a round trip.
func (f *Fleet) launchLocked(k entry, wait time.Duration) {
	if k.use.flight != nil {
		return
	}
	m := newKeyMessage(k)
	m.background = true
	if f.sendLater(f.lane(k), m, wait) {
		k.use.flight = m
	}
}

// timeLocked sets a timer that gives back the lease of a bucket: sweeps are too rare for that.
func (f *Fleet) timeLocked(now instant, k entry) {
	at, id := k.Renews(k.rule()), k.id()
	if at == hold.Never || k.use.timed {
		return
	}
	k.use.timed = true
	f.after(max(0, at.Sub(now)), func() {
		s := k.shard
		s.mu.Lock()
		defer s.mu.Unlock()
		c := s.keys.Get(id)
		if c == nil {
			return
		}
		now := f.clock()
		k := s.entry(now, id, c)
		k.use.timed = false
		f.renewLocked(now, k)
		if k.use.flight == nil && k.Renews(k.rule()) > now { // it was renewed in the meantime
			f.timeLocked(now, k)
		}
	})
}

// sendLater adds a message to the background messages; false: there is no room, or the store is dead.
func (f *Fleet) sendLater(l *lane, m message, wait time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := f.clock()
	if len(l.later) >= queueSize || l.breaker.Refuses(now) {
		return false
	}
	l.later = append(l.later, m)
	switch at := now.Add(wait); {
	case len(l.later) == batchSize:
		l.send(nil)
	case len(l.later) == 1 || at < l.latest:
		l.latest = at
		f.after(wait, func() { l.flush(at) })
	}
	return true
}

// flush sends the background messages at their latest time. If they left earlier, their time is void.
func (l *lane) flush(at instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.later) > 0 && l.latest == at {
		l.send(nil)
	}
}

// take collects a batch after a first message, which may be nil: the queue, then the background messages.
func (l *lane) take(first message) (all []message) {
	add := func(m message) {
		if m != nil {
			all = append(all, m)
		}
	}
	add(first)
	for more := true; more && len(all) < batchSize; {
		select {
		case m := <-l.queue:
			add(m)
		default:
			more = false
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.later), batchSize-len(all))
	all = append(all, l.later[:n]...)
	l.later = append(l.later[:0], l.later[n:]...)
	l.latest = 0
	if len(l.later) > 0 {
		l.send(nil)
	}
	return all
}

// Answered notes that the ledger has answered a message outside of the lanes, such as a probe at start. A part that
// counts as dead stays dead until its own answer, but is tried now.
func (f *Fleet) Answered() {
	for i := range f.lanes {
		l := &f.lanes[i]
		l.mu.Lock()
		l.breaker.openTill = 0
		l.mu.Unlock()
	}
	f.Greet()
}

// Greet asks each part of the ledger for its time and epoch, without a waiting request.
func (f *Fleet) Greet() {
	for i := range f.lanes {
		_, _ = f.greet(&f.lanes[i])
	}
}

// greet returns a part's greeting in flight, or a new one. nil: there can be none, and why.
func (f *Fleet) greet(l *lane) (*flight, ratelimit.FallbackReason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.greeting != nil {
		return &l.greeting.flight, 0
	}
	if l.breaker.Refuses(f.clock()) {
		return nil, ratelimit.FallbackBreaker
	}
	m := &greeting{flight: newFlight()}
	if !l.send(m) {
		return nil, ratelimit.FallbackQueueFull
	}
	l.greeting = m
	return &m.flight, 0
}

// rest is a flight without a message, which ends after a while.
func (f *Fleet) rest(d time.Duration) *flight {
	fl := newFlight()
	f.after(d, func() { close(fl.done) })
	return &fl
}
