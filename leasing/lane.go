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

// flight is a message under way, or to be sent, with those who wait behind it.
type flight struct {
	id    keytable.ID
	shard *shard // nil: no key's
	// late is an account whose window is over, and what is to be told of it; nil: the key's own.
	late    *lateReport
	greet   bool // it asks for nothing but the time
	early   bool // it asks for tokens of the next window
	calm    bool // guarded by shard.mu: nobody waits for it, so that it waits for others to travel with
	written bool // guarded by shard.mu: what comes now cannot go with it
	again   bool // guarded by shard.mu: the key was recalled since it was written
	message hold.Message
	beyond  hold.Beyond // that the message tells of
	done    chan struct{}
	outcome // read after done
}

// outcome is what became of a flight.
type outcome struct {
	err       error
	heard     bool   // the answer counts
	told      bool   // what the node had when it was written is booked
	refused   bool   // the ledger has less than is needed, and others have nothing that they could give back
	recalling bool   // others have, and were asked
	most      tokens // that there would be if all gave back what they have in hand
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

// lane is the way to one part of the ledger: what waits to be sent there, whether it counts as dead, what time it is
// there, and whose data it has.
type lane struct {
	queue chan *flight // nil flights only have a batch leave

	mu sync.Mutex
	gathering
	clock hold.LedgerClock // guarded by mu
	epochs
	breaker  Breaker // guarded by mu
	greeting *flight // guarded by mu: a message without a claim, for a first answer
	answered instant // guarded by mu

	pace chan struct{} // has one while a sender waits for its turn
	left instant       // of that sender: when the last batch left
}

// epochs is which epoch of a part goes on. It is guarded by its lane's mu.
type epochs struct {
	epoch ratelimit.Epoch
	life  uint8   // counts the epochs, and how often all was told again
	began uint8   // the life in which the epoch began
	asked instant // when the first question left that told of this epoch
}

// gathering is messages for which nobody waits, which wait for others to travel with. It is guarded by its lane's mu.
type gathering struct {
	company []*flight // Invariant: at most queueSize
	rings   instant   // when it leaves at the latest
}

const (
	// companyWaits is how long a message for which nobody waits does, for others to travel with, for a round trip costs
	// Redis more than a message; and longWaits, if it is of no use to anybody soon.
	companyWaits, longWaits = 20 * time.Millisecond, time.Second
	// batchEvery is from when one batch leaves to the next.
	batchEvery = time.Millisecond
	// aliveFor is for how long after its last answer the ledger counts as one that answers others.
	aliveFor = 250 * time.Millisecond
)

func (l *lane) time() hold.LedgerClock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock
}

func (l *lane) refuses(now instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breaker.Refuses(now)
}

// alive tells whether the ledger answers others.
func (l *lane) alive(now instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answered != 0 && now.Sub(l.answered) <= aliveFor && !l.breaker.Open()
}

// is tells whether an epoch is the one last heard of. It reads life for its caller, who holds no lock of the lane.
func (l *lane) is(e ratelimit.Epoch) (life uint8, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.life, l.epoch.ID == e.ID
}

// had tells whether the epoch was told in a life, and goes on.
func (l *lane) had(told uint8, e ratelimit.Epoch) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch.ID == e.ID && l.life-told <= l.life-l.began
}

// lane is the way that a key's messages go.
func (f *Fleet) lane(k entry) *lane {
	if len(f.lanes) == 1 {
		return &f.lanes[0]
	}
	return f.laneOf(f.keyName(k.key()))
}

// joinLocked returns the key's flight that is still to be written, or a new one; nil: there can be none, and why. It
// leaves at once.
func (f *Fleet) joinLocked(k entry) (*flight, ratelimit.FallbackReason) {
	l := f.lane(k)
	// One message at a time: those who come when it is written look again when it has ended.
	if fl := k.use.flight; fl != nil {
		if fl.calm && !fl.written && l.send(fl) {
			fl.calm = false
		}
		return fl, 0
	}
	if l.refuses(f.clock()) {
		return nil, ratelimit.FallbackBreaker
	}
	fl := &flight{id: k.id(), shard: k.shard, done: make(chan struct{})}
	if !l.send(fl) {
		return nil, ratelimit.FallbackError
	}
	k.use.flight = fl
	return fl, 0
}

// send has a flight leave with the next batch, if there is room.
func (l *lane) send(fl *flight) bool {
	select {
	case l.queue <- fl:
		return true
	default:
		return false
	}
}

// launchLocked has a message leave for which nobody waits. It does so in company, or alone after a while.
func (f *Fleet) launchLocked(k entry) {
	if k.use.flight == nil {
		fl := &flight{id: k.id(), shard: k.shard, calm: true, done: make(chan struct{})}
		k.use.flight = f.calm(f.lane(k), fl, companyWaits)
	}
}

// launchLongLocked has a message leave that is of no use to anybody soon.
func (f *Fleet) launchLongLocked(now instant, k entry) {
	switch {
	case k.use.flight != nil:
	case k.Till.Sub(now) < 2*longWaits:
		f.launchLocked(k)
	default:
		fl := &flight{id: k.id(), shard: k.shard, calm: true, done: make(chan struct{})}
		k.use.flight = f.calm(f.lane(k), fl, longWaits)
	}
}

// launchEarlyLocked has tokens of the next window be asked for.
func (f *Fleet) launchEarlyLocked(k entry) {
	k.use.flight = f.calm(f.lane(k),
		&flight{id: k.id(), shard: k.shard, calm: true, early: true, done: make(chan struct{})}, companyWaits)
}

// dueLocked has a message leave for which nobody waits: in company, but for one that renews an eager lease, whose time
// is short.
func (f *Fleet) dueLocked(now instant, k entry) {
	if now >= k.Renews(k.rule()) {
		_, _ = f.joinLocked(k)
		return
	}
	f.launchLocked(k)
}

// timeLocked sees to it that an eager lease is renewed in time, if it is spent of: sweeps come too seldom for that.
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
		if k.use.flight == nil && k.Renews(k.rule()) > now { // it was renewed meanwhile
			f.timeLocked(now, k)
		}
	})
}

// calm adds a flight to the company; nil: there is no room, or the store is dead.
func (f *Fleet) calm(l *lane, fl *flight, wait time.Duration) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := f.clock()
	if len(l.company) >= queueSize || l.breaker.Refuses(now) {
		return nil
	}
	l.company = append(l.company, fl)
	switch at := now.Add(wait); {
	case len(l.company) == batchSize:
		l.send(nil)
	case len(l.company) == 1 || at < l.rings:
		l.rings = at
		f.after(wait, func() { l.ring(at) })
	}
	return fl
}

// ring has the company leave whose time has come: one that left meanwhile with others takes its time along.
func (l *lane) ring(at instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.company) > 0 && l.rings == at {
		l.send(nil)
	}
}

// take gathers a batch behind a first flight, which may be nil: what waits, and then the company.
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
	n := min(len(l.company), batchSize-len(flights))
	flights = append(flights, l.company[:n]...)
	l.company = append(l.company[:0], l.company[n:]...)
	if l.rings = 0; len(l.company) > 0 {
		l.send(nil)
	}
	return flights
}

// Answered takes in that the ledger has answered somebody else. A part of it that counts as dead still does until it
// has answered itself, but is asked now.
func (f *Fleet) Answered() {
	for i := range f.lanes {
		l := &f.lanes[i]
		l.mu.Lock()
		l.breaker.openTill = 0
		l.mu.Unlock()
	}
	f.Greet()
}

// Greet has each part of the ledger asked what time it is, and whose data it has, though nobody waits for it.
func (f *Fleet) Greet() {
	for i := range f.lanes {
		_ = f.greet(&f.lanes[i])
	}
}

func (f *Fleet) greet(l *lane) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.greeting != nil {
		return l.greeting
	}
	if l.breaker.Refuses(f.clock()) {
		return nil
	}
	fl := &flight{greet: true, done: make(chan struct{})}
	if !l.send(fl) {
		return nil
	}
	l.greeting = fl
	return fl
}

// rest is a flight that carries nothing, and ends after a while.
func (f *Fleet) rest(d time.Duration) *flight {
	fl := &flight{done: make(chan struct{})}
	f.after(d, func() { close(fl.done) })
	return fl
}

// lateReport is the last word on an account whose window is over.
type lateReport struct {
	hold.Part
	name  string
	as    ratelimit.Holder
	rule  *ratelimit.Rule
	tries int
}

// lateTries is how often an account whose window is over is told of.
const lateTries = 3

// lastSeq is where the numbers of late reports begin: above those of all other claims, and small enough that a script's
// doubles hold them.
const lastSeq = 1 << 50

func (l *lateReport) write(q *hold.Asking, m *hold.Message) account.Claim {
	lasting(q, l.rule)
	l.GiveBack(0)
	c := account.Claim{Key: l.name, Limit: l.rule.Limit, Holder: l.as, Seq: lastSeq + uint64(l.tries)}
	c.Audit = account.AuditOf(l.rule)
	l.Write(m, uint32(l.tries+1), c, q)
	return m.Claim
}

// tellLocked has an account told of whose window is over, if the ledger does not know all of it.
func (f *Fleet) tellLocked(k entry, over hold.Part) {
	if over.Deadline == 0 || !over.Untold() {
		return
	}
	late := &lateReport{Part: over, name: f.keyName(k.key()), as: f.as(k), rule: k.shard.rules.of(k.cell).asked}
	f.tellLate(&flight{id: k.id(), shard: k.shard, late: late, done: make(chan struct{})})
}

// as is the name by which the ledger knows this node, of a key.
func (f *Fleet) as(k entry) ratelimit.Holder { return f.name + ratelimit.Holder(k.cell.Val.as) }

func (f *Fleet) tellLate(fl *flight) {
	if f.calm(f.laneOf(fl.late.name), fl, companyWaits) == nil {
		f.retryLate(fl)
	}
}

// retryLate has a late report told again in a while, unless it was tried often enough: then it is lost.
func (f *Fleet) retryLate(fl *flight) {
	if fl.late.tries++; fl.late.tries < lateTries {
		f.after(SweepEvery, func() { f.tellLate(fl) })
		return
	}
	f.stats.unreported.Add(1)
	close(fl.done)
}

func (f *Fleet) heardLate(fl *flight, g *account.Grant, a *hold.Answer) {
	l := fl.late
	if !l.Hear(&fl.message, g, a) && !errors.Is(g.Err, account.ErrOver) {
		l.Lost(&fl.message)
		f.retryLate(fl)
		return
	}
	if limit := &l.rule.Limit; g.Err == nil && limit.Carries && g.Sum > limit.Capacity() {
		f.claimAgain(fl)
	}
	close(fl.done)
}

// claimAgain has a flight's key claim in the window that goes on: what was told of the one before may be debt, and an
// earlier claim has not seen it.
func (f *Fleet) claimAgain(fl *flight) {
	s := fl.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.keys.Get(fl.id); at != nil {
		k := s.entry(f.clock(), fl.id, at)
		k.Doubt()
		f.launchLocked(k)
	}
}
