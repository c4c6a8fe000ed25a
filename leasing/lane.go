package leasing

import (
	"errors"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// flight is a message, sent or to be sent, with its waiting requests.
type flight struct {
	id    keytable.ID
	shard *shard // nil: no key
	// late is the last report on an account whose window is over; nil: the message is about the key.
	late       *lateReport
	greet      bool // it asks only for the time
	background bool // guarded by shard.mu: it waits for others to share a round trip
	written    bool // guarded by shard.mu: it can take no more requests
	again      bool // guarded by shard.mu: the key was recalled since it was written
	statement
	done    chan struct{}
	outcome // read after done
}

// statement is the message of a flight, when it is written.
type statement struct {
	rule    *ratelimit.Rule // under which it was written
	message hold.Message
	beyond  hold.Beyond // usage that the message reports
}

// outcome is the result of a flight.
type outcome struct {
	err       error  // nil: the answer counts, and the node's totals in the message are booked
	granted   bool   // it brought tokens
	refused   bool   // the ledger has less than the need, and others have no tokens in hand
	recalling bool   // others have tokens in hand, and were recalled
	most      tokens // free tokens if all others gave back theirs
}

func newFlight(k entry) *flight {
	return &flight{id: k.id(), shard: k.shard, done: make(chan struct{})}
}

func (fl *flight) ended() bool {
	select {
	case <-fl.done:
		return true
	default:
		return false
	}
}

var (
	errNoAnswer = errors.New("the answer is not valid for this claim")
	errBreaker  = errors.New("the store does not answer: the breaker is open")
)

// lane sends messages to one part of the ledger. It has the part's queue, breaker, clock and epoch.
type lane struct {
	queue chan *flight // a nil flight only starts a batch

	mu sync.Mutex
	gathering
	clock hold.LedgerClock // guarded by mu
	epochs
	breaker  Breaker // guarded by mu
	greeting *flight // guarded by mu: a message without a claim, for a first answer
	answered instant // guarded by mu

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
	later  []*flight // Invariant: at most queueSize
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

// joinLocked returns the key's flight, or a new one. If its message is not yet written, it leaves at once. nil: no
// message can be sent, for the reason.
func (f *Fleet) joinLocked(k entry) (*flight, ratelimit.FallbackReason) {
	l := f.lane(k)
	// A key has one message in flight: later requests look again when it has ended.
	if fl := k.use.flight; fl != nil {
		if fl.background && !fl.written && l.send(fl) {
			fl.background = false
		}
		return fl, 0
	}
	if l.refuses(f.clock()) {
		return nil, ratelimit.FallbackBreaker
	}
	fl := newFlight(k)
	if !l.send(fl) {
		return nil, ratelimit.FallbackQueueFull
	}
	k.use.flight = fl
	return fl, 0
}

// send puts a flight into the next batch, if there is room.
func (l *lane) send(fl *flight) bool {
	select {
	case l.queue <- fl:
		return true
	default:
		return false
	}
}

// launchLocked sends a background message, unless the key has a message: it waits for a while to share a round trip.
func (f *Fleet) launchLocked(k entry, wait time.Duration) {
	if k.use.flight == nil {
		fl := newFlight(k)
		fl.background = true
		k.use.flight = f.sendLater(f.lane(k), fl, wait)
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

// sendLater adds a flight to the background messages; nil: there is no room, or the store is dead.
func (f *Fleet) sendLater(l *lane, fl *flight, wait time.Duration) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := f.clock()
	if len(l.later) >= queueSize || l.breaker.Refuses(now) {
		return nil
	}
	l.later = append(l.later, fl)
	switch at := now.Add(wait); {
	case len(l.later) == batchSize:
		l.send(nil)
	case len(l.later) == 1 || at < l.latest:
		l.latest = at
		f.after(wait, func() { l.flush(at) })
	}
	return fl
}

// flush sends the background messages at their latest time. If they left earlier, their time is void.
func (l *lane) flush(at instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.later) > 0 && l.latest == at {
		l.send(nil)
	}
}

// take collects a batch after a first flight, which may be nil: the queue, then the background messages.
func (l *lane) take(first *flight) (flights []*flight) {
	add := func(fl *flight) {
		if fl != nil {
			flights = append(flights, fl)
		}
	}
	add(first)
	for more := true; more && len(flights) < batchSize; {
		select {
		case fl := <-l.queue:
			add(fl)
		default:
			more = false
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.later), batchSize-len(flights))
	flights = append(flights, l.later[:n]...)
	l.later = append(l.later[:0], l.later[n:]...)
	if l.latest = 0; len(l.later) > 0 {
		l.send(nil)
	}
	return flights
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
		return l.greeting, 0
	}
	if l.breaker.Refuses(f.clock()) {
		return nil, ratelimit.FallbackBreaker
	}
	fl := &flight{greet: true, done: make(chan struct{})}
	if !l.send(fl) {
		return nil, ratelimit.FallbackQueueFull
	}
	l.greeting = fl
	return fl, 0
}

// rest is a flight without a message, which ends after a while.
func (f *Fleet) rest(d time.Duration) *flight {
	fl := &flight{done: make(chan struct{})}
	f.after(d, func() { close(fl.done) })
	return fl
}

// lateReport is the last report on an account whose window is over.
type lateReport struct {
	hold.Part
	name  string
	as    ratelimit.Holder
	tries int
	until instant // it is tried until then, because its usage counts in the next window; 0: lateTries times
}

// lateTries bounds the reports on an account whose window is over. Of one that still counts, the pauses double up to
// lateDoublings times. mostLate bounds the number of these, which take memory outside of the table of keys.
const lateTries, lateDoublings, mostLate = 3, 5, 10_000

// lastSeq is the first number of late reports: above those of all other claims, and exact as a double in a script.
const lastSeq = 1 << 50

func (l *lateReport) write(q *hold.Asking, rule *ratelimit.Rule, m *hold.Message) account.Claim {
	l.GiveBack(0)
	c := account.Claim{Key: l.name, Limit: rule.Limit, Holder: l.as, Seq: lastSeq + uint64(l.tries)}
	l.Write(m, uint32(l.tries+1), c, q)
	return m.Claim
}

// reportLocked reports an account whose window is over, if the ledger's total differs, or may differ because of a
// message in flight, whose answer will not count. Tokens in hand go back where the next window counts them as usage.
func (f *Fleet) reportLocked(k entry, ended hold.Part, beyond hold.Beyond) {
	limit := &k.rule().Limit
	counts := limit.Algorithm == ratelimit.SlidingWindow // in the next window
	hand := counts && ended.Taken > ended.Spent
	if ended.Deadline == 0 || !ended.Unreported() && !ended.InFlight() && !hand {
		return
	}
	fl := newFlight(k)
	fl.beyond = beyond
	ended.Deadline = hold.Never // nothing of it is spent any more
	fl.late = &lateReport{Part: ended, name: f.keyName(k.key()), as: f.as(k)}
	fl.rule = k.rule()
	if counts {
		fl.late.until = f.clock().Add(limit.Period()) // the account is kept as long
	}
	f.reportLate(fl)
}

// as is this node's name for a key in the ledger.
func (f *Fleet) as(k entry) ratelimit.Holder { return f.name + ratelimit.Holder(k.cell.Val.as) }

func (f *Fleet) reportLate(fl *flight) {
	if f.sendLater(f.laneOf(fl.late.name), fl, hold.Batch) == nil {
		f.retryLate(fl)
	}
}

// retryLate repeats a late report later. After lateTries it is lost, or when its account is over.
func (f *Fleet) retryLate(fl *flight) {
	l := fl.late
	pause := SweepEvery << min(l.tries, lateDoublings)
	if l.tries++; l.tries == lateTries {
		f.stats.late.Add(1)
	}
	if l.tries < lateTries || f.clock() < l.until && f.stats.late.Load() <= mostLate {
		f.after(pause, func() { f.reportLate(fl) })
		return
	}
	f.stats.unreported.Add(1)
	f.endLate(fl)
}

func (f *Fleet) endLate(fl *flight) {
	if fl.late.tries >= lateTries {
		f.stats.late.Add(-1)
	}
	close(fl.done)
}

func (f *Fleet) applyLate(fl *flight, g *account.Grant, a *hold.Answer) {
	l := fl.late
	if !l.Apply(&fl.message, g, a) && !errors.Is(g.Err, account.ErrOver) {
		l.Lost(&fl.message)
		f.retryLate(fl)
		return
	}
	if g.Err == nil {
		beyond := fl.beyond
		reconcile(fl.rule, &beyond, fl, g)
	}
	f.endLate(fl)
}

// Breaker stops calls to a dead store. The zero Breaker is closed. It is not safe for concurrent use.
//
//	closed --breakAfter failures in a row--> open --its time--> probing
//	   ^                                      ^                   |
//	   +----------------- success ------------|------ failure ----+
type Breaker struct {
	failures int
	openTill instant // until then, calls are refused
	probing  bool    // a probe is in flight
	wait     time.Duration
}

const (
	breakAfter   = 3
	breakFirst   = 50 * time.Millisecond
	breakLongest = 250 * time.Millisecond // so that a store that is back is found within a beat
)

// FoundWithin is the maximum time until a node uses a store that answers again, plus the duration of a call. A call
// that began earlier has then failed, and the longest pauses have passed: of the breaker, and of the client of Redis,
// which dials once a second.
const FoundWithin = TimeLimit + time.Second + 3*breakLongest/2

// Allow tells whether a call may be made now. After the pause, the first caller is the probe.
func (b *Breaker) Allow(now instant) bool {
	if b.Refuses(now) {
		return false
	}
	b.probing = b.Open()
	return true
}

// Open tells whether the store counts as dead.
func (b *Breaker) Open() bool { return b.failures >= breakAfter }

// Refuses tells whether Allow would return false now.
func (b *Breaker) Refuses(now instant) bool {
	return b.Open() && (now < b.openTill || b.probing)
}

// Success books a call that was answered.
func (b *Breaker) Success() { *b = Breaker{} }

// Failure books a failed call. jitter is from 0 to 1, so that nodes do not probe at the same time.
func (b *Breaker) Failure(now instant, jitter float64) {
	b.failures++
	b.probing = false
	if b.failures < breakAfter {
		return
	}
	b.wait = min(max(breakFirst, 2*b.wait), breakLongest)
	b.openTill = now.Add(b.wait/2 + time.Duration(jitter*float64(b.wait)))
}
