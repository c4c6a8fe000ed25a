package leasing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Stepped is a Fleet that somebody else drives, in whatever time they keep: it
// has no goroutine, reads no clock but the one it is given, and does the same
// in every run that asks it the same. The simulator's nodes are Stepped. It
// decides as a Fleet does, by the same code; only who waits is different. It is
// not safe for concurrent use.
//
// Its driver calls Ask for each request, Answer with what the ledger said or with
// why it did not, Sweep every SweepEvery, and what after was given; after each of
// these, Advance of all that waits, and Batch until there is none.
type Stepped struct {
	fleet *Fleet
	part  int
	busy  int // batches under way
}

// What a driver must keep to.
const (
	SweepEvery   = sweepEvery
	ClaimTimeout = claimTimeout // after which a batch that was not answered has failed
)

// NewStepped makes a node. after must call its function when the node's clock
// has gone on by that much; random is for pauses.
func NewStepped(
	holder ratelimit.Holder, maxKeys int, clock ratelimit.Clock, wall time.Time,
	after func(time.Duration, func()), random func() float64,
) *Stepped {
	f := NewFleet(nil, holder, maxKeys, clock, wall)
	f.Hash = keytable.Hasher{}
	f.fallback.predictable()
	f.after, f.Random, f.RawNames = after, random, true
	return &Stepped{fleet: f}
}

// Hears has the node listen for the epochs of a [ratelimit.Epochal] ledger, which
// its driver then answers with (Batch.AnswerIn).
func (s *Stepped) Hears() { s.fleet.beats = true }

// Recalls has the node be one of a ledger that can recall leases; its driver calls
// Recalled then.
func (s *Stepped) Recalls() { s.fleet.recalls = true }

// Gathers has claims for which nobody waits wait for others to travel with, as they do to a ledger
// that is a server.
func (s *Stepped) Gathers() { s.fleet.gathers = true }

// KeepBusy has the node pack what it knows of keys that were not used lately as soon as
// more than n of a shard are busy, which changes nothing but memory.
func (s *Stepped) KeepBusy(n int) {
	for i := range s.fleet.shards {
		s.fleet.shards[i].busy.most = n
	}
}

// Recalled takes in that the ledger asks for what is leased of an account.
func (s *Stepped) Recalled(account string) { s.fleet.Recalled(account) }

// Epoch tells what is known of the ledger's epochs; see Fleet.Epoch.
func (s *Stepped) Epoch() ratelimit.EpochKnown { return s.fleet.Epoch() }

// Alone is the node's own budgets for outages; see Fleet.Alone.
func (s *Stepped) Alone() *Local { return s.fleet.Alone() }

// SetDrift lets rules of mode approx spend before the ledger has answered.
func (s *Stepped) SetDrift(d Drift) { s.fleet.Drift = d }

// Stats returns the counts so far.
func (s *Stepped) Stats() ratelimit.LimiterStats { return s.fleet.Stats() }

// Ask decides what can be decided at once; if that is not all, the rest waits.
// The slices are the Wait's until it has ended.
func (s *Stepped) Ask(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) *Wait {
	inside := s.fleet.atLedger(asks)
	if !s.fleet.decide(now, asks, verdicts) {
		if inside {
			whole(asks, verdicts)
		}
		return nil
	}
	w := &Wait{waiting: newWaiting(asks, verdicts), node: s}
	if !w.Advance(now) {
		return nil
	}
	return w
}

// Drifting tells whether it has spent what the ledger has not confirmed; see
// Fleet.Drifting.
func (s *Stepped) Drifting() bool { return s.fleet.Drifting() }

// Undo takes back what verdicts charged.
func (s *Stepped) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	s.fleet.Undo(now, asks, verdicts)
}

// Wait is a request that waits for the ledger.
type Wait struct {
	*waiting
	node *Stepped
}

// Patience is how long after the request its time is over, at first.
func (w *Wait) Patience() time.Duration { return w.check }

// Advance decides what can be decided now. It reports whether anything waits.
func (w *Wait) Advance(now ratelimit.Instant) bool {
	more := w.advance(context.Background(), w.node.fleet, now)
	if !more {
		whole(w.asks, w.verdicts)
	}
	return more
}

// Decided tells whether one ask is decided: what it was charged, it was then.
func (w *Wait) Decided(i int) bool { return !errors.Is(w.verdicts[i].Err, errUndecided) }

// TimeOver takes in that the request's time is over, and returns how much more
// there is; 0: none, the next Advance ends it.
func (w *Wait) TimeOver() time.Duration {
	const gone = false
	if w.impatient(gone) {
		return w.deadline - w.check
	}
	return 0
}

// Batch is claims that travel together. It is answered once.
type Batch struct {
	*batch
	node *Stepped
}

// Batch takes claims to be sent; nil when there are none, or as many batches
// are under way as may be.
func (s *Stepped) Batch() *Batch {
	l := &s.fleet.lanes[0]
	for s.busy < senders {
		if len(l.queue) == 0 && !l.rung() {
			return nil
		}
		flights := l.take()
		if len(flights) == 0 {
			return nil
		}
		b := s.fleet.pack(l, flights)
		// As the senders do: the breaker lets one batch through to see, and answers the others.
		if b.allowed() {
			s.busy++
			return &Batch{b, s}
		}
		b.refused(make([]ratelimit.Grant, len(b.flights)))
	}
	return nil
}

// Claims are the batch's; there may be none, if the ledger is only to be heard.
func (b *Batch) Claims() []ratelimit.Claim { return b.claims }

// Query is what the batch asks about the ledger's data.
func (b *Batch) Query() ratelimit.EpochQuery { return b.query }

// Answer takes in what the ledger said, a grant for each claim.
func (b *Batch) Answer(grants []ratelimit.Grant) { b.AnswerIn(ratelimit.Epoch{}, 0, grants) }

// AnswerIn is Answer by a [ratelimit.Epochal] ledger.
func (b *Batch) AnswerIn(epoch ratelimit.Epoch, at ratelimit.LedgerTime, grants []ratelimit.Grant) {
	b.node.busy--
	b.settled(grants, nil)
	b.answered(grants, epochAnswer{epoch: epoch, at: at})
}

// Fail takes in that the batch was not answered, and why.
func (b *Batch) Fail(err error) {
	grants := make([]ratelimit.Grant, len(b.claims))
	fillErrors(grants, err)
	b.node.busy--
	b.settled(grants, err)
	b.answered(grants, epochAnswer{err: err})
}

// Sweep looks after a part of the leases; see SweepEvery.
func (s *Stepped) Sweep(now ratelimit.Instant) {
	s.fleet.sweepPart(now, s.part)
	s.part++
}

// Release writes the claims that give back all that is unspent: a node's last
// words. They are not answered.
func (s *Stepped) Release(now ratelimit.Instant) []ratelimit.Claim {
	var claims []ratelimit.Claim
	for w, more := (walk{}), true; more; {
		var some map[*lane][]*flight
		// In steps, as a node that ends does it, so that what is under way is bounded.
		some, more = s.fleet.releases(now, &w)
		for l, flights := range some {
			claims = append(claims, s.fleet.pack(l, flights).claims...)
		}
	}
	return claims
}

// Check says which invariant of the node's lease on a key does not hold, if one
// does not. share is how much it may have spent unconfirmed.
func (s *Stepped) Check(key []byte, share ratelimit.Tokens) error {
	shard, _, h := s.fleet.locked(key)
	defer shard.mu.Unlock()
	if h == nil {
		return nil
	}
	l := &h.Lease
	switch {
	case l.Spent < 0 || l.Returned < 0 || l.Granted < 0:
		return fmt.Errorf("the lease has granted %d, spent %d, returned %d: none may be negative", l.Granted, l.Spent,
			l.Returned)
	case l.Drifted() > share:
		return fmt.Errorf("the node has spent %d and given back %d of %d granted: %d unconfirmed, and its share is %d",
			l.Spent, l.Returned, l.Granted, l.Drifted(), share)
	}
	return nil
}
