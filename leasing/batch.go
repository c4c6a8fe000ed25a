package leasing

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// settle writes the claims of a batch, has them settled and takes in the
// grants. No lock is held meanwhile.
func (f *Fleet) settle(l *lane, flights []*flight) {
	b := f.pack(l, flights)
	grants := make([]ratelimit.Grant, len(b.flights))
	if !b.allowed() {
		b.refused(grants)
		return
	}
	// The time-out is the batch's own and no request's: many requests wait for one batch, and what
	// it brings is of use also when the first of them has gone.
	ctx, cancel := context.WithTimeout(context.Background(), claimTimeout)
	defer cancel()
	var answer epochAnswer
	if f.epochal != nil {
		// The epoch is read behind the claims, in the same round trip. If it is the one that the
		// node knew, nothing was lost before these claims (docs/protocol.md, section 4.9).
		answer.epoch, answer.at, answer.err = f.epochal.SettleEpoch(ctx, b.query, b.claims, grants)
	} else {
		f.ledger.Settle(ctx, b.claims, grants)
	}
	f.stats.storeTime.Observe(int64(f.clock().Sub(b.sent) / time.Microsecond))
	b.settled(grants, answer.err)
	b.answered(grants, answer)
}

// epochAnswer is what a batch was told of the ledger's data.
type epochAnswer struct {
	epoch ratelimit.Epoch // 0: nothing
	at    ledgerTime
	err   error
}

// batch is flights that travel together.
type batch struct {
	*Fleet
	lane    *lane
	flights []*flight // but for beats
	claims  []ratelimit.Claim
	sent    instant
	query   ratelimit.EpochQuery
	known   ratelimit.Epoch // as the claims say it
	timely  bool            // what it was answered says of the time may be believed
}

// pack writes the claims of flights.
func (f *Fleet) pack(l *lane, flights []*flight) *batch {
	// A beat carries no claim. It was queued so that a batch leaves, and the epoch is read.
	flights = slices.DeleteFunc(flights, func(fl *flight) bool { return fl.beat })
	b := &batch{Fleet: f, lane: l, flights: flights, claims: make([]ratelimit.Claim, len(flights)), sent: f.clock()}
	// Leases are counted from sent, which is before anything leaves (docs/protocol.md, section
	// 4.7).
	b.query, b.known = l.query(b.sent), l.known(b.sent)
	for i, fl := range flights {
		c := f.write(b.sent, fl)
		c.Learning = b.known.Learning
		// The claim that is sent is a copy. The answer is judged by the flight's own.
		fl.claim.Learning = c.Learning
		b.claims[i] = c
	}
	return b
}

// refused answers claims that the breaker does not let pass.
func (b *batch) refused(grants []ratelimit.Grant) {
	fillErrors(grants, errBreaker)
	b.answered(grants, epochAnswer{err: errBreaker})
}

// allowed asks the breaker whether the batch may be sent.
func (b *batch) allowed() bool {
	b.lane.mu.Lock()
	defer b.lane.mu.Unlock()
	return b.lane.breaker.allow(b.sent)
}

// settled counts that the batch was sent, and tells the breaker how it went.
func (b *batch) settled(grants []ratelimit.Grant, err error) {
	// What cannot be true becomes an error here, before anything is counted or believed
	// (docs/protocol.md, section 4.16).
	b.timely = b.reject(grants)
	b.stats.claims.Add(uint64(len(b.claims)))
	b.stats.roundTrips.Add(1)
	for i, fl := range b.flights {
		b.stats.claimsBy[fl.reason()].Add(1)
		g := &grants[i]
		// A stale or void claim is no failure of the store: it has answered. Each has a count of
		// its own.
		switch got := g.Granted - b.claims[i].Granted; {
		case errors.Is(g.Err, ratelimit.ErrStaleClaim):
			b.stats.stale.Add(1)
		case g.Err == nil && g.Void:
			b.stats.void.Add(1)
		case g.Err == nil && got > 0:
			b.stats.leaseSizes.Observe(int64(got))
		}
	}
	b.judge(b.lane, grants, err)
}

// answered takes in the grants, and in which epoch they were made.
func (b *batch) answered(grants []ratelimit.Grant, in epochAnswer) {
	now := b.clock()
	in.epoch = plausible(in.epoch, in.at)
	at := in.at
	// A batch in which one answer tells an impossible time says nothing of the ledger's clock.
	if !b.timely || at < 0 || at > ledger.MostFence {
		at = 0
	}
	there, step := b.lane.heard(b.sent, now, grants, at)
	lost := b.lane.learned(b.sent, now, in.epoch)
	if lost {
		b.lost(b.lane, now)
	}
	if step >= stepLeast || step <= -stepLeast {
		b.stepped(b.lane, now, step)
	}
	// These claims were written without knowing that the data was lost. To the accounts their
	// holders looked new, and may have been granted what others had spent. The grants count as
	// answers that were lost: the holder never spends them, and its next claim takes them back
	// (docs/protocol.md, sections 4.3 and 4.9).
	if !trusted(b.known, in.epoch, in.at) {
		fillErrors(grants, errYoung)
	}
	for i, fl := range b.flights {
		// The audit hears of a grant before the lease has it, so that nothing is spent that is not
		// on record.
		if fl.claim.Audit != "" && b.OnAudit != nil {
			b.OnAudit(&fl.claim, &grants[i])
		}
		if r, ok := b.read(b.sent, now, there, fl, &grants[i]); ok && b.OnReconcile != nil {
			b.OnReconcile(r)
		}
	}
}

// fillErrors has all grants say the same.
func fillErrors(grants []ratelimit.Grant, err error) {
	for i := range grants {
		grants[i] = ratelimit.Grant{Err: err}
	}
}

// heard takes in what time it is in that part of the ledger, and returns what
// is known of it, and by how much its clock was set.
func (l *lane) heard(sent, answered instant, grants []ratelimit.Grant, at ledgerTime) (known ledgerClock, step time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range grants {
		// Of several times the latest counts, for an account's clock may be behind the ledger's.
		if g := &grants[i]; g.Err == nil && g.At > at {
			at = g.At
		}
	}
	if at > 0 {
		step = l.clock.heard(sent, answered, at)
	}
	return l.clock, step
}

// errBreaker answers the claims that were not sent.
var errBreaker = errors.New("the ledger does not answer, and is not asked for a while")

// write makes the claim of a flight from what is known now.
func (f *Fleet) write(now instant, fl *flight) ratelimit.Claim {
	s := f.shard(fl.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	// Sequence numbers are the shard's and not the key's. A key that was dropped from the table and
	// comes back goes on above what the ledger has seen of it; from 1 its claims would be refused
	// as old (docs/protocol.md, section 4.2).
	s.seq++
	if fl.final != nil {
		// The last word on a window was written when the window ended: the key may be another
		// window's by now, or gone.
		fl.claim.Seq = s.seq
		return fl.claim
	}
	h := s.find(fl.id) // it is not evicted while in flight
	// From here on no ask joins this flight: the claim says what waits.
	fl.sent, fl.at = true, now
	name := h.name
	switch {
	case fl.ahead:
		// The record of this window must stay beside that of the next one, and so the claim is made
		// under the node's other name (docs/protocol.md, section 4.10).
		fl.claim = h.claimAhead(now, s.seq, fl.giveUp)
		fl.claim.Stretch = f.recalls && !fl.giveUp && h.rule.Stretched()
		name ^= 1
	case fl.giveUp:
		fl.claim = h.lease.Release(now, s.seq)
	default:
		f.turn(h, now)
		// A fixed window of mode approx is over, and none was claimed ahead. The ledger still sums
		// up what all nodes have spent in it, and needs this node's last word for that. The record
		// of that window is left alone: the new window is claimed under the other name.
		if h.next == nil && now >= h.lease.Reset && h.lease.Window != 0 && h.rule.Coordination.Mode == ratelimit.Approx && h.lease.Algorithm == ratelimit.FixedWindow {
			f.finish(h)
			h.lease, h.reported = lease.Lease{}, 0
			h.name ^= 1
		}
		name = h.name
		waiting := fl.most(h.rule)
		if waiting > 0 && h.rule.Limit.Algorithm != ratelimit.FixedWindow {
			// Tokens of these algorithms come back one by one, and the node refuses for a while so
			// that some gather (see plan). Those refused meanwhile would have waited: they are
			// asked for, too, up to the capacity.
			waiting = max(waiting, min(h.demand.refused, h.rule.Limit.Capacity()))
		}
		want := waiting
		// A claim that is repeated because of a recall follows the one before within milliseconds,
		// and the demand was measured for that one.
		if !h.recalling {
			h.demand.measure(now, fl.waiting)
		}
		switch {
		case fl.recall:
			h.giveBack(fl.keep)
		// A renewal fills the lease up to what the demand needs. While others give back for this
		// claim, it asks for no more than what waits.
		case !h.recalling:
			want = h.demand.want(h.rule, fl.waiting) - h.lease.Left(now)
		}
		fl.claim = h.lease.Claim(now, s.seq, h.rule, waiting, max(want, waiting), false)
		// In this window or not at all: if the next has its lease, and if the last
		// word on this one is to come.
		fl.claim.Stretch, fl.claim.Recall = f.recalls && !fl.recall && h.rule.Stretched(), f.recalls
		fl.claim.Ahead = h.next != nil || fl.claim.Tally && fl.claim.Window != 0 && h.lease.Algorithm == ratelimit.FixedWindow
	}
	fl.claim.Key, fl.claim.Holder, fl.claim.Reset, fl.claim.Last = fl.name, name, fl.reset, fl.last
	if h.lease.Algorithm == ratelimit.SlidingWindow {
		// A ledger that has lost the window before cannot know what it charged this holder there.
		fl.claim.Before = h.before
	}
	fl.audited(h.rule)
	return fl.claim
}

// judge tells the breaker how a batch went.
func (f *Fleet) judge(l *lane, grants []ratelimit.Grant, last error) {
	failed := 0
	all := last != nil && len(grants) == 0
	for i := range grants {
		// A claim that came too late was answered: the ledger is well.
		if err := grants[i].Err; err != nil && !errors.Is(err, ratelimit.ErrStaleClaim) {
			failed++
			last = err
		}
	}
	// An error of some claims may be due to their keys. The ledger counts as dead when none of a
	// batch was answered.
	if all = all || len(grants) > 0 && failed == len(grants); all {
		f.stats.failed.Add(1)
		if f.OnFailure != nil {
			f.OnFailure(last)
		}
	}
	now := f.clock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if all {
		l.breaker.failure(now, f.Random())
		// When it answers again, it may be another server with older data: the next batch has the
		// epoch verified.
		l.memory.failed = true
	} else {
		l.breaker.success()
		l.answered = now
		f.heard.Store(int64(now))
	}
}

// read takes in an answer, wakes those who wait, and tells what it settled of
// drift.
func (f *Fleet) read(sent, now instant, there ledgerClock, fl *flight, g *ratelimit.Grant) (r Reconciliation, drifted bool) {
	s := f.shard(fl.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if fl.final != nil {
		// Nobody waits for a last word, and the lease has gone on to another window.
		return fl.reconciled(fl.final.rule, g, fl.final.unasked)
	}
	h := s.find(fl.id)
	h.flight = nil
	// The flight ends when everything of the answer is in the lease, for those who wait look there.
	fl.err = g.Err
	defer close(fl.done)
	if g.Err != nil {
		h.windowOver(now, fl, g)
		if kind, ok := ledger.Rejection(g.Err); ok && kind == ratelimit.RejectedFence {
			// Either this fence was false or the one that the lease has. The lease's is forgotten:
			// otherwise one false fence that was too high would have every honest answer rejected
			// from then on.
			h.lease.Fence = 0
		}
		if h.fruitless(now, fl, g) {
			h.pauses(now, true, f.Random)
		}
		return r, false
	}
	r, drifted = fl.reconciled(h.rule, g, h.unasked)
	h.unasked -= r.ByPolicy
	// The claim knew of tokens that the account did not. While the ledger learns after a loss, that
	// is expected. Later it means that this account was lost alone, which no epoch tells.
	if g.Missing && f.beats && fl.claim.Learning <= g.At {
		f.missed(sent, now, &fl.claim)
	}
	// A ledger without epochs tells of a loss in no other way. Many accounts tell of the same loss:
	// it counts once in relearnTime, and has all leases told again.
	if g.Relearning && !f.beats {
		if now.Sub(instant(f.forgot.Swap(int64(now)))) > ledger.RelearnTime {
			f.stats.recoveries.Add(1)
			f.doubtAll(sent)
		}
	}
	if fl.ahead {
		h.keepNext(sent, now, there, fl, g, f.Random())
		h.gauge()
		return r, drifted
	}
	// The next window's lease has taken the place of the one that this claim was written for.
	if g.Seq != h.lease.Seq {
		return r, drifted
	}
	// The answer is about another window than the claim's totals: a new window has begun.
	if !h.lease.Carries(&fl.claim, g) {
		h.carry(g.Window)
		h.begun()
	}
	h.lease.Apply(sent, &fl.claim, g, lease.Margin(&fl.claim, g.TTL), lasts(sent, now, there, &fl.claim.Limit, g))
	h.eager = fl.claim.Reclaim == ratelimit.ReclaimEager
	if g.Relearning && r.Confirmed > 0 {
		h.keepUsed(now, r.Confirmed)
	}
	// Only now a grant says which window it is, and what on_store_failure admitted meanwhile can be
	// booked in it.
	h.bookUnplaced()
	h.lease.Forgive(h.rule.DriftShare())
	h.heard, h.told, h.elsewhere, h.stranded = now, sent, g.Outstanding, g.Stranded
	h.expires = sent.Add(g.TTL - lease.Margin(&fl.claim, g.TTL))
	// When the next window's lease is here already, this one must end where that may begin.
	h.agree()
	if h.reported = 0; g.Carried {
		h.reported = fl.claim.Spent
	}
	h.gauge()
	// Settled: nothing is left, nothing was spent while the claim was under way, and the answer
	// granted nothing that the ledger would have to hear of.
	h.settled = h.lease.Unspent() == 0 && h.lease.Spent == fl.claim.Spent && g.Granted == fl.claim.Granted
	h.plan(sent, now, fl, g, f.Random())
	// A recall that came while the claim was under way is answered now. What requests have waited
	// for is kept: they spend it in a moment.
	if h.stretched = g.Plenty; h.asked {
		f.giveBackSome(h, fl.claim.Waiting)
	}
	h.again = now.Add(refusalHold)
	h.pauses(now, h.fruitless(now, fl, g), f.Random)
	// Under reclaim: eager what is spent must be reported by half of the lease's time, also where
	// no further request comes.
	f.reportInTime(h, now)
	return r, drifted
}

// windowOver takes in that the ledger did not settle a claim which was about the
// current window or none (claim.Ahead): that window is over there, whatever this
// node thought that it knew of the ledger's clock, which may have been set.
func (h *held) windowOver(now instant, fl *flight, g *ratelimit.Grant) {
	if !errors.Is(g.Err, ratelimit.ErrStaleClaim) || fl.ahead || !fl.claim.Ahead || fl.claim.Window != h.lease.Window {
		return
	}
	// The window is over for this node as well, and the next one's lease may begin: otherwise
	// requests would wait for a turn that the ledger has behind it.
	h.lease.Reset = min(h.lease.Reset, now)
	if n := h.next; n != nil {
		n.over, n.start = min(n.over, now), min(n.start, now)
	}
}

// reconciled is what an answer settled of drift, and counts what was over. Up to
// unasked of that was admitted by on_store_failure.
func (fl *flight) reconciled(rule *ratelimit.Rule, g *ratelimit.Grant, unasked tokens) (Reconciliation, bool) {
	c := &fl.claim
	if g.Err != nil {
		return Reconciliation{}, false
	}
	byPolicy := countBound(rule, g, unasked)
	drift := max(0, c.Spent-(c.Granted-c.Returned))
	return Reconciliation{
		Rule: rule, Key: fl.name, Window: g.Window, Fence: g.Fence, Drift: drift,
		Confirmed: min(drift, g.Granted-c.Granted), Over: g.OverAdmitted, ByPolicy: byPolicy, Available: g.Available,
	}, drift > 0 || g.OverAdmitted > 0
}
