package leasing

import (
	"errors"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
)

// message is a message to the ledger, sent or to be sent. Each kind has its own handler: keyMessage, lateReport and
// beat.
type message interface {
	// write makes the claim, when the batch leaves; false: there is none.
	write(f *Fleet, q *lease.Asking, there *lease.LedgerClock) (account.Claim, bool)
	// apply applies the answer; if g.Err is set, there is none.
	apply(b *batch, now instant, g *account.Grant, a *lease.Answer)
	stated() *statement
	reason() ratelimit.ClaimReason
}

// statement is a message as it was written.
type statement struct {
	rule    *ratelimit.Rule // under which it was written
	message lease.Message
	beyond  lease.Excess // usage that the message reports
}

func (s *statement) stated() *statement { return s }

// flight is the time until the answer to a message, or another event. A flight has many readers, and ends once.
type flight struct {
	done chan struct{}
	err  error // read after done; nil: the answer counts, and the node's totals in the message are booked
}

func newFlight() flight { return flight{done: make(chan struct{})} }

func (fl *flight) ended() bool {
	select {
	case <-fl.done:
		return true
	default:
		return false
	}
}

var errNoAnswer = errors.New("the answer is not valid for this claim")

// beat asks a part of the ledger only for its time and epoch.
type beat struct {
	flight
	statement
}

func (m *beat) write(*Fleet, *lease.Asking, *lease.LedgerClock) (account.Claim, bool) {
	return account.Claim{}, false
}

func (m *beat) apply(b *batch, _ instant, g *account.Grant, _ *lease.Answer) {
	b.lane.mu.Lock()
	b.lane.beat = nil
	b.lane.mu.Unlock()
	m.err = g.Err
	close(m.done)
}

func (m *beat) reason() ratelimit.ClaimReason { return ratelimit.ClaimWaiting }

// keyMessage is a message about a key, with its waiting requests.
type keyMessage struct {
	flight
	statement
	outcome
	id         keytable.ID
	shard      *shard
	background bool // guarded by shard.mu: it waits for others to share a round trip
	written    bool // guarded by shard.mu: it can take no more requests
	again      bool // guarded by shard.mu: the key was recalled since it was written
}

// outcome is the result of a message about a key. It is read after done.
type outcome struct {
	granted   bool   // it brought tokens
	refused   bool   // the ledger has less than the need, and others have no tokens in hand
	recalling bool   // others have tokens in hand, and were recalled
	elsewhere tokens // that others could give back
}

func newKeyMessage(k entry) *keyMessage {
	return &keyMessage{flight: newFlight(), id: k.id(), shard: k.shard}
}

// reason is why the message was sent, for metrics: for requests that wait, to give tokens back, or to renew a lease.
func (m *keyMessage) reason() ratelimit.ClaimReason {
	switch {
	case !m.background:
		return ratelimit.ClaimWaiting
	case m.message.Claim.Want == 0:
		return ratelimit.ClaimReturn
	}
	return ratelimit.ClaimRenewal
}

// write makes the claim at the last moment, so that it includes all requests that wait by then, and states the totals
// of now. The epoch in q is that before the round trip: an answer from another one does not count.
func (m *keyMessage) write(f *Fleet, q *lease.Asking, there *lease.LedgerClock) (account.Claim, bool) {
	s := m.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.written { // it has been sent with other messages
		return account.Claim{}, false
	}
	k := s.entry(q.Now, m.id, s.keys.Get(m.id)) // a key with a message stays
	// If the window is not certain, the key must be free for another message.
	m.written, k.use.flight = true, nil
	if !f.enterLocked(q.Now, there, k) { // the window may be over: that is certain in a moment
		m.err = errNoAnswer
		close(m.done)
		return account.Claim{}, false
	}
	k.use.flight = m
	if k.LastAnswer == 0 && s.keys.Len() >= s.keys.Limit() {
		// The key may come and go. Only claims have the ledger drop the records of its earlier names.
		k.Restate()
	}
	m.rule, m.beyond = k.rule(), k.Excess
	// The number is the shard's, so that a key needs none of its own.
	s.seq++
	s.sent = max(1, s.sent+1) // 0 means no message
	c := account.Claim{Key: f.keyName(k.key()), Limit: m.rule.Limit, Holder: f.as(k), Seq: s.seq, Need: k.Needs()}
	if !q.Young {
		// It refunds what requests left unused, less the refill since then. So this very message must state it.
		k.ReturnVain(q.Now, &m.rule.Limit)
	}
	c.Want, c.Unit = k.Wants(q.Now, c.Need, f.sizing(m.rule, f.lane(k)))
	if f.leaving.Load() {
		// A node that ends takes nothing ahead.
		c.Want = c.Need
	}
	if !f.mayAsk(q.Now, k) { // it only states what it has spent
		c.Need, c.Want = 0, 0
	}
	k.Write(&m.message, s.sent, c, q)
	return m.message.Claim, true
}

// apply applies the answer, and wakes all that wait for it. done is closed under the lock, so they see the result. Its
// steps:
//
//  1. An answer that the key no longer awaits is left out: its window has ended, or its lease has lapsed.
//  2. A total that is too small shows that the ledger has lost this account alone.
//  3. Part.Apply judges whether the answer counts. Then judge updates refusals and counts over-admission.
//  4. The key may have been recalled meanwhile, or a new report may be due.
func (m *keyMessage) apply(b *batch, now instant, g *account.Grant, a *lease.Answer) {
	s := m.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(m.done)
	k := s.entry(now, m.id, s.keys.Get(m.id)) // a key with a message stays
	k.use.flight = nil
	m.err = errNoAnswer
	if !k.Awaits(&m.message) { // the window has turned: a late report states the rest
		return
	}
	if errors.Is(b.err, lane.ErrOpen) {
		// The breaker kept the message here, so a bucket's refund in it is not lost.
		k.Unsent(&m.message)
	}
	_, is := b.lane.read()
	known := is.epoch.ID == a.Epoch.ID
	if known && m.message.In(a.Epoch) && is.had(k.cell.Val.reportedLife) {
		b.noteEvicted(k, m, g)
	}
	c, had := &m.message.Claim, k.Unspent()+k.Granted
	// By this node's bounds of the ledger's clock the window goes on, and by the ledger's own clock it has ended: the
	// clock was set. The next request must read the window anew.
	if inWindow(c) && g.Err == nil && now < k.CurrentUntil && g.At >= c.Limit.WindowEnd(c.Window) {
		g.Err = account.ErrOver // its tokens are of a window that has ended there
	}
	counts := k.Apply(&m.message, g, a)
	// These are compared, because a draw's answer has no Granted, and tokens that confirm drift are spent already.
	m.granted = k.Unspent()+k.Granted > had
	switch {
	case counts:
		m.err = nil
		b.judge(now, k, m, g)
	case errors.Is(g.Err, account.ErrOver): // the ledger's clock was set: read again which window is current
		k.CurrentUntil, m.err = 0, g.Err
	case g.Err != nil:
		m.err = g.Err
	}
	// In a young epoch the answer does not count, but the ledger has the totals.
	young := g.Err == nil && !c.Draws() && m.message.In(a.Epoch) && a.Epoch.Young(g.At)
	if known && (counts || young) {
		k.cell.Val.reportedLife = is.life
	}
	if m.again {
		b.recallLocked(now, k)
	}
	// After a failed trip, the next message would fail as well, without a request that needs it.
	if b.err == nil {
		b.renewLocked(now, k)
	}
}

// judge applies an answer that counts.
func (f *Fleet) judge(now instant, k entry, m *keyMessage, g *account.Grant) {
	c, rule := &m.message.Claim, k.rule()
	k.UpdateRefusals(now, &m.message, g, rule)
	// A draw does not show the tokens in hand of others. A claim does.
	short := !c.Draws() && g.Granted < c.Need
	recalls := g.InHand > 0 && inWindow(c)
	m.refused, m.recalling = short && !recalls, short && recalls
	if inWindow(c) { // leases of buckets end by themselves
		m.elsewhere = max(0, g.InHand)
	}
	if !c.Draws() && g.Granted < c.Want && (g.InHand > 0 || c.Limit.Algorithm == ratelimit.SlidingWindow) {
		f.noteShort(rule, c)
	}
	if inWindow(c) && g.Granted > 0 && c.Need > k.Waiting { // for the ledger, all of the need is spent
		// A request left before its answer. Its part is in hand again only after the next claim says so.
		k.Restate()
	}
	k.trimLocked()
	m.reconcile(rule, &k.Excess, m.message.Drift(), g)
	k.Drifted, k.Outage = min(k.Drifted, k.Drift()), min(k.Outage, k.Drift()) // the rest is confirmed
	f.timeLocked(now, k)
}

// noteEvicted counts an account that the ledger lost alone: a draw finds less than this life of the ledger had.
func (f *Fleet) noteEvicted(k entry, m *keyMessage, g *account.Grant) {
	had, c := k.Reported(), &m.message.Claim
	if c.Draws() && g.Err == nil && g.Total < had+c.Want {
		f.stats.missing.Add(1)
		f.stats.missingTokens.Add(uint64(max(0, had)))
		f.OnWarning(ErrEvicted)
	}
}

// reconcile counts the over-admission that an answer shows: of the usage that its message reported, in that window.
// After a draw that covered only a part, a claim repeats all of it, but not after that of a late report.
func (s *statement) reconcile(rule *ratelimit.Rule, is *lease.Excess, drift tokens, g *account.Grant) {
	is.Charged = max(0, is.Charged-s.beyond.Charged)
	if drift <= 0 {
		return
	}
	limit := s.message.Claim.Limit.Capacity()
	// The account does not show which of its tokens refusals charged. So drift counts first, and the over-admission
	// of a window is never reported too low.
	over := min(drift, max(0, g.Sum-limit))
	drifted := min(over, s.beyond.Drifted, is.Drifted) // without that under a larger limit
	byPolicy := min(over-drifted, s.beyond.Outage, is.Outage)
	bounded(rule, is, max(is.OverByDrift, drifted), max(is.OverByOutage, byPolicy))
}
