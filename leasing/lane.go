package leasing

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
)

// fleetLane is the way to one part of the ledger: its messages, its breaker, its clock and its epoch. The order of
// locks is a shard's mu, then a lane's, then its queue's. Each part has its own queue, senders and breaker, so that a
// dead part delays no other (docs/adr, decision 6).
type fleetLane struct {
	lane.Queue[message]
	lane.Breaker
	part int

	mu     sync.Mutex
	clock  lease.LedgerClock // guarded by mu
	epochs                   // guarded by mu
	beat   *beat             // guarded by mu; nil: there is none
	// answered is the instant of the last answer; 0: there was none. Guarded by mu.
	answered instant

	trip atomic.Int64 // a round trip of late without others in flight, in nanoseconds; 0: unknown
}

// roundTrip is the distance of the ledger: the time that a round trip takes, of late; 0: it is unknown.
func (l *fleetLane) roundTrip() time.Duration { return time.Duration(l.trip.Load()) }

// took notes the time of a round trip. A longer one counts for an eighth, because this node's own delays pass. So the
// distance follows a nearer ledger at once, and a farther one after some trips.
func (l *fleetLane) took(d time.Duration) {
	was := l.roundTrip()
	if was > 0 && d > was {
		d = was + (d-was)/8
	}
	l.trip.Store(int64(d))
}

// flights is the maximum of batches in flight. With 80 ms to a ledger, 16 batches are in flight, one each 5 ms.
func (l *fleetLane) flights() int { return max(flights, min(int(l.roundTrip()/fanned), mostFlights)) }

// epochs is the current epoch of a part. It is guarded by its lane's mu. A life begins with a new epoch, and with each
// complete restatement of totals (restateIfDue). A key has the life in which the ledger last had its total
// (reportedLife), and sweeps state it again if that is an earlier one.
type epochs struct {
	epoch ratelimit.Epoch
	life  uint8 // counts the epochs, and complete restatements
	began uint8 // life in which the epoch began
	// asked is when the last message was sent that showed this epoch. All events of the ledger before it were in this
	// epoch, or in an earlier one.
	asked instant
	first bool // this process has read no other
	peers int  // number of nodes that may admit a part in it (FleetOptions.Peers)
}

// part is what this node may admit of a key in a young epoch: a twentieth of the limit is for all nodes.
func (e *epochs) part(l *ratelimit.Limit) tokens {
	if e.peers == 0 {
		return 0
	}
	return l.Capacity() / tokens(ratelimit.LossPart*e.peers)
}

// had reports whether the epoch was reported in a life. Numbers of lives have eight bits and wrap around, so they are
// compared by their distances. A key that 256 lives pass without a statement may count as stated.
func (e *epochs) had(stated uint8) bool { return e.life-stated <= e.life-e.began }

// aliveFor is the time after its last answer for which the ledger counts as alive.
const aliveFor = 250 * time.Millisecond

// FoundWithin is the maximum time until a node uses a store that answers again, plus the duration of a call. A call
// that began earlier has then failed, and the longest pauses have passed: of the breaker, and of the client of Redis,
// which dials once a second.
const FoundWithin = lane.TimeLimit + time.Second + 3*lane.BreakLongest/2

func (l *fleetLane) time() lease.LedgerClock {
	there, _ := l.read()
	return there
}

// read returns the ledger's time and its epoch, as last answered.
func (l *fleetLane) read() (lease.LedgerClock, epochs) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock, l.epochs
}

// young is the epoch, and whether the ledger may lack totals. The earliest possible time at the ledger counts: in
// doubt, the epoch is still young, and nothing is granted.
func (l *fleetLane) young(now instant) (epochs, bool) {
	there, is := l.read()
	early, _ := there.Between(now)
	return is, is.epoch.Young(early)
}

// alive reports whether the ledger answers other messages. A store that answers others is late for this key only, and
// its last answer decides (Overdue).
func (l *fleetLane) alive(now instant) bool {
	if l.Open() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock.At != 0 && now.Sub(l.answered) <= aliveFor
}

// lane is the lane of a key's messages.
func (f *Fleet) lane(k entry) *fleetLane { return &f.lanes[k.cell.Val.lane] }

// laneNumber is the lane of a new key: the part of the ledger that has its accounts never changes. It is computed once
// for a key, because a Cluster's slot costs a hash of its name.
func (f *Fleet) laneNumber(key []byte) uint8 {
	if len(f.lanes) == 1 {
		return 0
	}
	return uint8(f.laneOf(f.keyName(key)).part)
}

// joinLocked returns the key's message, or a new one. If it is not yet written, it leaves soon. nil: no message can be
// sent, for the reason. A background message that waits becomes urgent when a request joins it: it is queued a second
// time, and the second copy finds it written.
func (f *Fleet) joinLocked(k entry) (*keyMessage, ratelimit.FallbackReason) {
	l := f.lane(k)
	wait := lane.GatherFor(k.rule())
	// A key has one message in flight: later requests look again when it is answered.
	if m := k.use.flight; m != nil {
		if m.background && !m.written && l.Send(m, wait) {
			m.background = false
		}
		return m, 0
	}
	if l.Refuses(f.clock()) {
		return nil, ratelimit.FallbackBreaker
	}
	m := newKeyMessage(k)
	if !l.Send(m, wait) {
		return nil, ratelimit.FallbackQueueFull
	}
	k.use.flight = m
	return m, 0
}

// launchLocked sends a background message, unless the key has a message: it waits for a while to share a round trip.
// Without room, it is not sent: the next sweep or request tries again.
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

// timeLocked sets a timer that gives back the lease of a bucket: sweeps are too rare for that. The key has at most one
// timer (use.timed), which finds the key again by its ID: it may have left the table, or its lease may be another one.
func (f *Fleet) timeLocked(now instant, k entry) {
	at, id := k.Renews(k.rule()), k.id()
	if at == lease.Never || k.use.timed {
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

// sendLater sends a background message after a wait; false: there is no room, or the store is dead.
func (f *Fleet) sendLater(l *fleetLane, m message, wait time.Duration) bool {
	return !l.Refuses(f.clock()) && l.Later(m, wait)
}

// Answered notes that the ledger has answered a message outside of the lanes, such as a probe at start. A part that
// counts as dead stays dead until its own answer, but is tried now.
func (f *Fleet) Answered() {
	for i := range f.lanes {
		f.lanes[i].Probe()
	}
	f.Beat()
}

// Beat asks each part of the ledger for its time and epoch, without a waiting request.
func (f *Fleet) Beat() {
	for i := range f.lanes {
		_, _ = f.beat(&f.lanes[i])
	}
}

// beat returns a part's beat in flight, or a new one. nil: there can be none, and why. Calls that wait for the same
// part share its beat.
func (f *Fleet) beat(l *fleetLane) (*flight, ratelimit.FallbackReason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.beat != nil {
		return &l.beat.flight, 0
	}
	if l.Refuses(f.clock()) {
		return nil, ratelimit.FallbackBreaker
	}
	const alone = 0 // it waits for no others
	m := &beat{flight: newFlight()}
	if !l.Send(m, alone) {
		return nil, ratelimit.FallbackQueueFull
	}
	l.beat = m
	return &m.flight, 0
}

// rest is a flight without a message, which ends after a while.
func (f *Fleet) rest(d time.Duration) *flight {
	fl := newFlight()
	f.after(d, func() { close(fl.done) })
	return &fl
}
