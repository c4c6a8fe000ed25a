package leasing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/ratelimit"
)

// send settles batches, each in one round trip, until stop and until nothing waits.
func (f *Fleet) send(part int, stop chan struct{}) {
	l := &f.lanes[part]
	for more := true; more; {
		var flights []*flight
		flights, more = f.collect(l, stop)
		f.settle(part, flights)
	}
}

// collect waits for flights, and takes all of them when the next batch may leave. Under load, the interval puts more
// messages into a round trip. A sender takes its turn before the flights: a flight that it took first would wait for
// the turns of the other senders, while later ones leave. After stop, nothing left means that there is no more.
func (f *Fleet) collect(l *lane, stop chan struct{}) (flights []*flight, more bool) {
	l.pace <- struct{}{}
	defer func() { <-l.pace }()
	select {
	case first := <-l.queue:
		if wait := l.left.Add(batchEvery).Sub(f.clock()); l.left != 0 && wait > 0 {
			time.Sleep(wait)
		}
		l.left = f.clock()
		return l.take(first), true
	case <-stop: // for the last reports
		flights = l.take(nil)
		return flights, len(flights) > 0
	}
}

// settle settles messages and applies the answers. It holds no lock in the meantime.
func (f *Fleet) settle(part int, flights []*flight) {
	// A greeting travels alone: it reaches all servers of the part, and claims only the servers of their accounts.
	if i := slices.IndexFunc(flights, func(fl *flight) bool { return fl.greet }); i >= 0 && len(flights) > 1 {
		defer f.settle(part, []*flight{flights[i]})
		flights = slices.Delete(flights, i, i+1)
	}
	if len(flights) == 0 {
		return
	}
	b := f.pack(&f.lanes[part], flights)
	grants := make([]account.Grant, len(b.claims))
	if !b.allowed() {
		b.failed(errBreaker)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), TimeLimit)
	defer cancel()
	var epoch ratelimit.Epoch
	var from, to ledgerTime
	var err error
	if p, ok := f.ledger.(Partitioned); ok && len(b.claims) == 0 {
		epoch, from, to, err = p.Ask(ctx, part)
	} else {
		epoch, from, err = f.ledger.Settle(ctx, b.claims, grants)
		to = from
	}
	f.stats.storeTime.Observe(int64(f.clock().Sub(b.sent) / time.Microsecond))
	b.answered(grants, epoch, from, to, err)
}

// batch is a list of messages for one round trip.
type batch struct {
	*Fleet
	lane    *lane
	claims  []account.Claim
	carried []*flight // one for each claim
	greeted []*flight
	sent    instant
}

// pack writes the messages of flights.
func (f *Fleet) pack(l *lane, flights []*flight) *batch {
	b := &batch{Fleet: f, lane: l, sent: f.clock()}
	there, is := l.read()
	early, _ := there.Between(b.sent)
	q := hold.Asking{Now: b.sent, Epoch: is.epoch, Young: is.epoch.Young(early)}
	for _, fl := range flights {
		if fl.greet {
			b.greeted = append(b.greeted, fl)
			continue
		}
		if c, ok := f.write(&q, &there, fl); ok {
			b.claims, b.carried = append(b.claims, c), append(b.carried, fl)
		}
	}
	return b
}

// allowed asks the breaker whether the batch may be sent.
func (b *batch) allowed() bool {
	b.lane.mu.Lock()
	defer b.lane.mu.Unlock()
	return b.lane.breaker.Allow(b.sent)
}

// write makes a flight's message. It returns false if there is nothing left to send.
func (f *Fleet) write(q *hold.Asking, there *hold.LedgerClock, fl *flight) (account.Claim, bool) {
	if fl.late != nil {
		return fl.late.write(q, fl.rule, &fl.message), true
	}
	s := fl.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if fl.written { // it has been sent with other flights
		return account.Claim{}, false
	}
	at := s.keys.Get(fl.id) // a key with a flight stays
	k := s.entry(q.Now, fl.id, at)
	fl.written, k.use.flight = true, nil
	certain := f.enterLocked(q.Now, there, k)
	k.use.flight = fl
	if !certain { // the window may be over: that is certain in a moment
		k.use.flight, fl.err = nil, errNoAnswer
		close(fl.done)
		return account.Claim{}, false
	}
	rule := k.rule()
	fl.rule = rule
	s.seq++
	s.sent = max(1, s.sent+1) // 0 means no message
	c := account.Claim{Key: f.keyName(k.key()), Limit: rule.Limit, Holder: f.as(k), Seq: s.seq}
	size := f.sizing(rule)
	c.Need = k.Needs()
	c.Want, c.Unit = k.Wants(q.Now, c.Need, size)
	if f.leaving.Load() {
		c.Want = c.Need
	}
	fl.beyond = k.Beyond
	k.Write(&fl.message, s.sent, c, q)
	return fl.message.Claim, true
}

// failed handles a batch without an answer.
func (b *batch) failed(err error) {
	b.answered(make([]account.Grant, len(b.claims)), ratelimit.Epoch{}, 0, 0, err)
}

// answered applies the answers of a batch. The ledger's time at the part is between from and to; 0: unknown.
func (b *batch) answered(grants []account.Grant, e ratelimit.Epoch, from, to ledgerTime, err error) {
	now := b.clock()
	b.lane.observe(b, now, from, to, e, err)
	b.count(grants, err)
	for i, fl := range b.carried {
		b.apply(now, fl, &grants[i], hold.Answer{Now: now, Epoch: e}, err)
	}
	for _, fl := range b.greeted {
		b.lane.mu.Lock()
		b.lane.greeting = nil
		b.lane.mu.Unlock()
		fl.err = err
		close(fl.done)
	}
}

// observe applies the ledger's time and its epoch.
func (l *lane) observe(b *batch, now instant, from, to ledgerTime, e ratelimit.Epoch, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if !errors.Is(err, errBreaker) && !errors.Is(err, account.ErrMoved) {
			l.breaker.Failure(now, b.Random())
		}
		return
	}
	l.breaker.Success()
	l.answered = now
	if e.ID != l.epoch.ID {
		l.first = l.epoch.ID == 0
		l.peers = 0
		if !l.first {
			b.stats.recoveries.Add(1)
			l.peers = b.Peers()
		}
		l.life++
		l.began = l.life
	}
	l.epoch, l.asked = e, b.sent
	if from > 0 && !l.waits(from) {
		b.stepped(l.clock.Observe(b.sent, now, from, to))
	}
}

// firstWait is a beat of nodes that have read another epoch, and the trip in which they say so.
const firstWait = 3 * greetEvery / 2

// waits tells whether the first epoch of this process is so new that nodes which have read another may not have said so
// yet. Until then, the lane has no clock, so that nothing is claimed.
func (e *epochs) waits(at ledgerTime) bool {
	return e.first && e.epoch.Began.Add(-ratelimit.YoungMost) <= at && at < e.epoch.Began.Add(firstWait)
}

// stepLeast is the smallest change of the ledger's clock that is reported.
const stepLeast = time.Second

func (f *Fleet) stepped(by time.Duration) {
	switch {
	case by >= stepLeast:
		f.stats.clockSteps[0].Add(1)
	case by <= -stepLeast:
		f.stats.clockSteps[1].Add(1)
	default:
		return
	}
	f.OnWarning(fmt.Errorf("%w (by at least %v)", ErrClockSet, by.Round(time.Millisecond)))
}

// apply applies the answer to a flight, and wakes waiting requests.
func (b *batch) apply(now instant, fl *flight, g *account.Grant, a hold.Answer, err error) {
	if err != nil && g.Err == nil {
		g.Err = err
	}
	b.audit(fl.rule, &fl.message.Claim, g)
	if fl.late != nil {
		b.applyLate(fl, g, &a)
		return
	}
	s := fl.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(fl.done)
	k := s.entry(now, fl.id, s.keys.Get(fl.id)) // a key with a flight stays
	k.use.flight = nil
	_, is := b.lane.read()
	life, known := is.life, is.epoch.ID == a.Epoch.ID
	fl.err = errNoAnswer
	if !k.Awaits(&fl.message) { // the window has turned: a late report states the rest
		return
	}
	b.evicted(k, &fl.message.Claim, g, known && is.had(k.cell.Val.stated) && fl.message.In(a.Epoch))
	had := k.Unspent() + k.Granted
	c := &fl.message.Claim
	if inWindow(c) && g.Err == nil && now < k.Till && g.At >= c.Limit.WindowEnd(c.Window) {
		g.Err = account.ErrOver // its tokens are of a window that has ended there
	}
	applied := k.Apply(&fl.message, g, &a)
	fl.granted = k.Unspent()+k.Granted > had
	if errors.Is(g.Err, account.ErrOver) { // the ledger's clock was set: read again which window is current
		k.Till = 0
	}
	switch {
	case g.Err != nil:
		fl.err = g.Err
	case applied:
		fl.err = nil
		if known {
			k.cell.Val.stated = life
		}
		b.applyLocked(now, k, fl, g)
	case known && fl.message.In(a.Epoch) && a.Epoch.Young(g.At) && !fl.message.Claim.Draws():
		k.cell.Val.stated = life
	}
	if fl.again {
		b.recallLocked(now, k)
	}
	if err == nil {
		b.renewLocked(now, k)
	}
}

// inWindow tells whether a message is about an account of a window.
func inWindow(c *account.Claim) bool { return c.Limit.Algorithm != ratelimit.TokenBucket }

// audit records an answer before the key uses it, so that tokens are on record before they are spent.
func (f *Fleet) audit(r *ratelimit.Rule, c *account.Claim, g *account.Grant) {
	if r.Coordination.Audit && f.OnAudit != nil {
		f.OnAudit(r, c, g)
	}
}

// applyLocked applies an answer that counts.
func (f *Fleet) applyLocked(now instant, k entry, fl *flight, g *account.Grant) {
	c, rule := &fl.message.Claim, k.rule()
	k.Judged(now, &fl.message, g, rule)
	// A draw does not show the tokens in hand of others. A claim does.
	short := !c.Draws() && g.Granted < c.Need
	recalls := g.InHand > 0 && inWindow(c)
	fl.refused, fl.recalling = short && !recalls, short && recalls
	fl.most = c.Limit.Capacity() - g.Sum + k.Unspent()
	if inWindow(c) { // leases of buckets end by themselves
		fl.most += max(0, g.InHand)
	}
	if !c.Draws() && g.Granted < c.Want && g.InHand > 0 {
		f.noteShort(rule, c)
	}
	if inWindow(c) && g.Granted > 0 && c.Need > k.Waiting { // for the ledger, all of the need is spent
		k.Restate()
	}
	reconcile(rule, &k.Beyond, fl, g)
	k.Drifted, k.Unasked = min(k.Drifted, k.Drift()), min(k.Unasked, k.Drift()) // the rest is confirmed
	f.timeLocked(now, k)
}

func (b *batch) count(grants []account.Grant, err error) {
	f := b.Fleet
	f.stats.roundTrips.Add(1)
	f.stats.claims.Add(uint64(len(grants)))
	if err != nil {
		f.stats.failed.Add(1)
		f.OnFailure(err)
	}
	for i := range grants {
		g := &grants[i]
		f.stats.claimsBy[b.carried[i].reason()].Add(1)
		switch {
		case errors.Is(g.Err, account.ErrAnswer):
			f.stats.rejected.Add(1)
			f.OnWarning(g.Err)
		case errors.Is(g.Err, account.ErrOvertaken):
			f.stats.stale.Add(1)
		case g.Granted > 0:
			f.stats.leaseSizes.Observe(int64(g.Granted))
		}
	}
}

// evicted counts an account that the ledger lost alone: a draw finds less than this life of the ledger had.
func (f *Fleet) evicted(k entry, c *account.Claim, g *account.Grant, stated bool) {
	had := k.Reported()
	if stated && c.Draws() && g.Err == nil && g.Total < had+c.Want {
		f.stats.missing.Add(1)
		f.stats.missingTokens.Add(uint64(max(0, had)))
		f.OnWarning(ErrEvicted)
	}
}

// reason is the purpose of a message.
func (fl *flight) reason() ratelimit.ClaimReason {
	c := &fl.message.Claim
	switch {
	case fl.late != nil:
		return ratelimit.ClaimFinal
	case !fl.background:
		return ratelimit.ClaimWaiting
	case c.Want == 0:
		return ratelimit.ClaimReturn
	}
	return ratelimit.ClaimRenewal
}

// reconcile counts the over-admission that an answer shows: of the usage that its message reported, in that window.
// After a draw that covered only a part, a claim repeats all of it, but not after that of a late report.
func reconcile(rule *ratelimit.Rule, is *hold.Beyond, fl *flight, g *account.Grant) {
	m, drift := &fl.message.Claim, fl.message.Drift()
	if fl.late != nil {
		drift += m.Want // of a draw: of a late claim it is 0
	}
	if is.Charged = max(0, is.Charged-fl.beyond.Charged); drift <= 0 {
		return
	}
	limit := m.Limit.Capacity()
	// The account does not show which of its tokens refusals charged. So drift counts first, and the over-admission
	// of a window is never reported too low.
	over := min(drift, max(0, g.Sum-limit))
	drifted := min(over, fl.beyond.Drifted, is.Drifted) // without that under a larger limit
	byPolicy := min(over-drifted, fl.beyond.Unasked, is.Unasked)
	bounded(rule, is, max(is.Over, drifted), max(is.ByPolicy, byPolicy))
}
