package fleet

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// flight is a message under way, or to be sent, with those who wait behind it.
type flight struct {
	id      keytable.ID
	shard   *shard
	written bool // guarded by shard.mu: what comes now cannot go with it
	message hold.Message
	// late is an account whose window is over, and what is to be told of it; nil: the key's own.
	late *lateReport
	done chan struct{}
	// Read after done: what became of it.
	err       error
	heard     bool   // the answer counts
	told      bool   // what the node had when it was written is booked
	refused   bool   // the ledger has less than is needed, and others have nothing that they could give back
	recalling bool   // others have, and were asked
	most      tokens // that there would be if all gave back what they have in hand
}

type lateReport struct {
	hold.Part
	name  string
	as    ratelimit.Holder
	rule  *ratelimit.Rule
	tries int
}

var (
	errNoAnswer = errors.New("the answer does not count")
	errBreaker  = errors.New("the store does not answer, and is not asked for a while")
)

// lane is the way to the ledger.
type lane struct {
	queue chan *flight

	mu       sync.Mutex
	clock    hold.LedgerClock // guarded by mu
	epoch    ratelimit.Epoch  // guarded by mu
	breaker  leasing.Breaker  // guarded by mu
	greet    *flight          // guarded by mu: a message without a claim, for a first answer
	answered instant          // guarded by mu
}

func (l *lane) time() hold.LedgerClock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock
}

func (l *lane) known() (hold.LedgerClock, ratelimit.Epoch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock, l.epoch
}

func (l *lane) refuses(now instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breaker.Refuses(now)
}

// joinLocked returns the key's flight that is still to be written, or a new one; nil: there can be none, and why.
func (f *Fleet) joinLocked(s *shard, id keytable.ID, k *key) (*flight, ratelimit.FallbackReason) {
	if k.flight != nil { // one message at a time: those who come when it is written look again when it has ended
		return k.flight, 0
	}
	if f.lane.refuses(f.clock()) {
		return nil, ratelimit.FallbackBreaker
	}
	fl := &flight{id: id, shard: s, done: make(chan struct{})}
	select {
	case f.lane.queue <- fl:
		k.flight = fl
		return fl, 0
	default:
		return nil, ratelimit.FallbackError
	}
}

// launchLocked has a message leave for which nobody waits.
func (f *Fleet) launchLocked(s *shard, id keytable.ID, k *key) {
	_, _ = f.joinLocked(s, id, k)
}

// Greet has the ledger asked what time it is, and whose data it has, though nobody waits for it.
func (f *Fleet) Greet() { _ = f.greetLocked() }

// greetLocked has the ledger asked for nothing but what time it is.
func (f *Fleet) greetLocked() *flight {
	l := &f.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.greet != nil {
		return l.greet
	}
	if l.breaker.Refuses(f.clock()) {
		return nil
	}
	fl := &flight{done: make(chan struct{})}
	select {
	case l.queue <- fl:
		l.greet = fl
		return fl
	default:
		return nil
	}
}

// rest is a flight that carries nothing, and ends after a while.
func (f *Fleet) rest(d time.Duration) *flight {
	fl := &flight{done: make(chan struct{}), recalling: false}
	time.AfterFunc(d, func() { close(fl.done) })
	return fl
}

// tellLocked has an account told of whose window is over, if the ledger does not know all of it.
func (f *Fleet) tellLocked(id keytable.ID, k *key, over hold.Part) {
	if over.Deadline == 0 || !over.Untold() {
		return
	}
	late := &lateReport{Part: over, name: k.name, as: k.as, rule: k.rule}
	f.tellLate(&flight{id: id, done: make(chan struct{}), late: late})
}

func (f *Fleet) tellLate(fl *flight) {
	select {
	case f.lane.queue <- fl:
	default:
		f.stats.unreported.Add(1)
	}
}

// send takes all flights that wait, and settles them in one round trip, until stop.
func (f *Fleet) send(stop chan struct{}) {
	for {
		var first *flight
		select {
		case first = <-f.lane.queue:
		case <-stop:
			select {
			case first = <-f.lane.queue: // what is told last
			default:
				return
			}
		}
		flights := []*flight{first}
		for len(flights) < batchSize {
			select {
			case fl := <-f.lane.queue:
				flights = append(flights, fl)
				continue
			default:
			}
			break
		}
		f.settle(flights)
	}
}

// settle writes the messages of flights, has them settled, and takes in the answers. No lock is held meanwhile.
func (f *Fleet) settle(flights []*flight) {
	sent := f.clock()
	there, epoch := f.lane.known()
	claims, carried := make([]account.Claim, 0, len(flights)), flights[:0:0]
	var greeted []*flight
	for _, fl := range flights {
		if fl.shard == nil && fl.late == nil {
			greeted = append(greeted, fl)
			continue
		}
		if c, ok := f.write(sent, &there, epoch, fl); ok {
			claims, carried = append(claims, c), append(carried, fl)
		}
	}
	grants := make([]account.Grant, len(claims))
	epoch, at, err := f.ask(sent, claims, grants)
	now := f.clock()
	f.lane.heard(sent, now, at, epoch, err)
	f.count(grants, err)
	for i, fl := range carried {
		f.hear(now, fl, &grants[i], epoch, at, err)
	}
	for _, fl := range greeted {
		f.lane.mu.Lock()
		f.lane.greet = nil
		f.lane.mu.Unlock()
		fl.err = err
		close(fl.done)
	}
}

// ask has the ledger settle claims, unless it counts as dead.
func (f *Fleet) ask(
	sent instant, claims []account.Claim, grants []account.Grant,
) (e ratelimit.Epoch, at ratelimit.LedgerTime, err error) {
	f.lane.mu.Lock()
	may := f.lane.breaker.Allow(sent)
	f.lane.mu.Unlock()
	if !may {
		return e, 0, errBreaker
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit)
	defer cancel()
	e, at, err = f.ledger.Settle(ctx, claims, grants)
	return e, at, err
}

// heard takes in what time it is at the ledger, and whose data it has.
func (l *lane) heard(sent, now instant, at ratelimit.LedgerTime, e ratelimit.Epoch, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if !errors.Is(err, errBreaker) {
			l.breaker.Failure(now, jitter())
		}
		return
	}
	l.breaker.Success()
	l.answered = now
	if at > 0 {
		l.clock.Heard(sent, now, at)
	}
	l.epoch = e
}

// write makes a flight's message. It is false where there is nothing to say any more.
func (f *Fleet) write(now instant, there *hold.LedgerClock, epoch ratelimit.Epoch, fl *flight) (account.Claim, bool) {
	early, _ := there.Between(now)
	q := hold.Asking{Now: now, There: early, Epoch: epoch, Young: there.At == 0 || epoch.Young(early)}
	if fl.late != nil {
		return fl.late.write(&q, &fl.message), true
	}
	s := fl.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.keys[fl.id]
	if k == nil {
		close(fl.done)
		return account.Claim{}, false
	}
	fl.written = true
	k.flight = nil
	certain := f.enterLocked(now, there, fl.id, k)
	k.flight = fl
	if !certain { // the window may be over: it is clear in a moment
		k.flight, fl.err = nil, errNoAnswer
		close(fl.done)
		return account.Claim{}, false
	}
	c := account.Claim{Key: k.name, Limit: k.rule.Limit, Holder: k.as, Seq: s.nextLocked(), Need: k.Waiting}
	c.Audit = account.AuditOf(k.rule)
	c.Want, q.Share = k.Wants(now, k.Waiting, hold.Sizing{Rule: k.rule, Nodes: f.nodes()})
	lasting(&q, k.rule)
	s.number++
	k.Write(&fl.message, s.number, c, &q)
	return fl.message.Claim, true
}

// lasting says how long what is granted under a rule lasts.
func lasting(q *hold.Asking, r *ratelimit.Rule) {
	q.Eager, q.Audited = r.Coordination.Eager(), r.Coordination.Audit
	bucket := r.Limit.Algorithm == ratelimit.TokenBucket
	q.Deadline = q.Eager || bucket
	switch {
	case q.Eager:
		q.TTL = r.Coordination.Lease.TTL
	case bucket:
		q.TTL = hold.Slot(&r.Limit)
	}
}

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

func (f *Fleet) nodes() int {
	if f.Nodes == nil {
		return 1
	}
	return max(1, f.Nodes())
}

// hear takes in the answer to a flight, and wakes those who wait.
func (f *Fleet) hear(now instant, fl *flight, g *account.Grant, e ratelimit.Epoch, at ratelimit.LedgerTime, err error) {
	if err != nil && g.Err == nil {
		g.Err = err
	}
	f.audit(&fl.message.Claim, g)
	a := hold.Answer{Now: now, Epoch: e, At: at}
	if fl.late != nil {
		f.heardLate(fl, g, &a)
		return
	}
	s := fl.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(fl.done)
	k := s.keys[fl.id]
	if k == nil {
		return
	}
	k.flight = nil
	if k.Window != fl.message.Claim.Window { // the window has turned meanwhile; what it was told is told again as late
		fl.err = errNoAnswer
		return
	}
	fl.heard = k.Hear(&fl.message, g, &a)
	switch {
	case g.Err != nil:
		fl.err = g.Err
	case !fl.heard:
		fl.err = errNoAnswer
	default:
		k.Learned(now, &fl.message, g, k.rule)
		c := &fl.message.Claim
		// A draw that took too little says nothing of what others have in hand: a claim does.
		short := c.Kind == account.States && g.Granted < c.Need
		fl.told, fl.refused, fl.recalling = true, short && g.InHand <= 0, short && g.InHand > 0
		fl.most = c.Limit.Capacity() - g.Sum + max(0, g.InHand) + max(0, k.Taken-k.Spent)
	}
	if k.Due(now, &k.rule.Limit) && err == nil {
		f.launchLocked(s, fl.id, k)
	}
}

// audit has the audit hear of an answer before the key has it, so that nothing is spent that is not on record.
func (f *Fleet) audit(c *account.Claim, g *account.Grant) {
	if c.Audit != "" && f.OnAudit != nil {
		f.OnAudit(c, g)
	}
}

// lateTries is how often an account whose window is over is told of.
const lateTries = 3

func (f *Fleet) heardLate(fl *flight, g *account.Grant, a *hold.Answer) {
	l := fl.late
	if !l.Hear(&fl.message, g, a) && !errors.Is(g.Err, account.ErrOver) {
		l.Lost(&fl.message)
		if l.tries++; l.tries < lateTries {
			time.AfterFunc(sweep, func() { f.tellLate(fl) })
			return
		}
		f.stats.unreported.Add(1)
	}
	close(fl.done)
}
