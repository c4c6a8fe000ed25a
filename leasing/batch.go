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
	flights = slices.DeleteFunc(flights, func(fl *flight) bool { return fl.Beat })
	b := &batch{Fleet: f, lane: l, flights: flights, claims: make([]ratelimit.Claim, len(flights)), sent: f.clock()}
	// Leases are counted from sent, which is before anything leaves (docs/protocol.md, section
	// 4.7).
	b.query, b.known = l.query(b.sent), l.known(b.sent)
	there, set := l.time(), l.justSet(b.sent)
	for i, fl := range flights {
		c := f.write(b.sent, there, fl)
		// A ledger that is being told what it has lost lets nobody draw. Nor does this node draw while it tells
		// what it had before the ledger's clock was set, and before it knows whose data there is.
		if c.Learning = b.known.Learning; c.Learning > 0 || set || f.beats && b.known.ID == 0 {
			c.Draw = 0
		}
		// The claim that is sent is a copy. The answer is judged by the flight's own.
		fl.Claim.Learning, fl.Claim.Draw = c.Learning, c.Draw
		b.claims[i] = c
	}
	return b
}

// refused answers claims that the breaker does not let pass.
func (b *batch) refused(grants []ratelimit.Grant) {
	for _, fl := range b.flights {
		fl.Claim.Draw = 0 // nothing was sent
	}
	fillErrors(grants, errBreaker)
	b.answered(grants, epochAnswer{err: errBreaker})
}

// allowed asks the breaker whether the batch may be sent.
func (b *batch) allowed() bool {
	b.lane.mu.Lock()
	defer b.lane.mu.Unlock()
	return b.lane.breaker.Allow(b.sent)
}

// settled counts that the batch was sent, and tells the breaker how it went.
func (b *batch) settled(grants []ratelimit.Grant, err error) {
	// What cannot be true becomes an error here, before anything is counted or believed
	// (docs/protocol.md, section 4.16).
	b.timely = b.reject(grants)
	b.stats.claims.Add(uint64(len(b.claims)))
	b.stats.roundTrips.Add(1)
	for i, fl := range b.flights {
		b.stats.claimsBy[fl.Reason()].Add(1)
		g := &grants[i]
		// A stale or void claim is no failure of the store: it has answered. Each has a count of
		// its own.
		switch got := fl.Got(g); {
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
		fillErrors(grants, lease.ErrYoung)
	}
	// A draw tells its ledger nothing, so that one with older data would not show it: nothing is taken that was
	// drawn of another epoch than the one known, or of one that is not known.
	if b.beats && (b.known.ID == 0 || in.epoch.ID != b.known.ID) {
		for i := range grants {
			if grants[i].Drawn {
				grants[i] = ratelimit.Grant{Err: lease.ErrYoung}
			}
		}
	}
	for i, fl := range b.flights {
		// The audit hears of a grant before the lease has it, so that nothing is spent that is not
		// on record.
		if fl.Claim.Audit != "" && b.OnAudit != nil {
			b.OnAudit(&fl.Claim, &grants[i])
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
func (l *lane) heard(
	sent, answered instant, grants []ratelimit.Grant, at ledgerTime,
) (known lease.LedgerClock, step time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range grants {
		// Of several times the latest counts, for an account's clock may be behind the ledger's.
		if g := &grants[i]; g.Err == nil && g.At > at {
			at = g.At
		}
	}
	if at > 0 {
		step = l.clock.Heard(sent, answered, at)
	}
	return l.clock, step
}

// errBreaker answers the claims that were not sent.
var errBreaker = errors.New("the ledger does not answer, and is not asked for a while")

// write makes the claim of a flight from what is known now.
func (f *Fleet) write(now instant, there lease.LedgerClock, fl *flight) ratelimit.Claim {
	s := f.shard(fl.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	// Sequence numbers are the shard's and not the key's. A key that was dropped from the table and
	// comes back goes on above what the ledger has seen of it; from 1 its claims would be refused
	// as old (docs/protocol.md, section 4.2). Every second number is left out: with it the ledger says
	// that a holder has drawn, and which of its claims came before that (section 4.17).
	s.seq += 2
	if fl.Final != nil {
		// The last word on a window was written when the window ended: the key may be another
		// window's by now, or gone.
		fl.Claim.Seq = s.seq
		return fl.Claim
	}
	h := s.find(fl.id) // it is not evicted while in flight
	fl.Claim = h.Write(now, there, s.seq, &fl.Flight, f.recalls)
	fl.Claim.Key = fl.name
	f.do(h, now)
	return fl.Claim
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
		l.breaker.Failure(now, f.Random())
		// When it answers again, it may be another server with older data: the next batch has the
		// epoch verified.
		l.memory.failed = true
	} else {
		l.breaker.Success()
		l.answered = now
		f.heard.Store(int64(now))
	}
}

// read takes in an answer, wakes those who wait, and tells what it settled of
// drift.
func (f *Fleet) read(
	sent, now instant, there lease.LedgerClock, fl *flight, g *ratelimit.Grant,
) (r Reconciliation, drifted bool) {
	s := f.shard(fl.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if fl.Final != nil {
		// Nobody waits for a last word, and the lease has gone on to another window.
		r, drifted = fl.Reconciled(fl.Final.Rule, g, fl.Final.Unasked)
		r.Key = fl.name
		return r, drifted
	}
	h := s.find(fl.id)
	h.lands()
	// The flight ends when everything of the answer is in the lease, for those who wait look there.
	fl.err = g.Err
	defer close(fl.done)
	if g.Err == nil {
		f.knows(sent, now, &fl.Claim, g)
	}
	r, drifted = h.Answer(sent, now, there, &fl.Flight, g, f.Random)
	r.Key = fl.name
	f.do(h, now)
	return r, drifted
}

// knows takes in what an answer tells of the ledger's data.
func (f *Fleet) knows(sent, now instant, c *ratelimit.Claim, g *ratelimit.Grant) {
	// The claim knew of tokens that the account did not. While the ledger learns after a loss, that
	// is expected. Later it means that this account was lost alone, which no epoch tells.
	if g.Missing && f.beats && c.Learning <= g.At {
		f.missed(sent, now, c)
	}
	// A ledger without epochs tells of a loss in no other way. Many accounts tell of the same loss:
	// it counts once in ledger.RelearnTime, and has all leases told again.
	if g.Relearning && !f.beats {
		if now.Sub(instant(f.forgot.Swap(int64(now)))) > ledger.RelearnTime {
			f.stats.recoveries.Add(1)
			f.doubtAll(sent)
		}
	}
}
