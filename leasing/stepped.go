package leasing

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Stepped is a Fleet for a driver with its own time: it has no goroutine, reads only the clock that it is given, and
// repeats its behavior exactly. It decides as a Fleet does, with the same code. Only waiting is different. It is not
// safe for concurrent use.
//
// Its driver calls Ask for each request, Answer or Fail for each batch, Sweep every SweepEvery, and the functions
// passed to after. With rules that reclaim, it also calls RegisterDue, RegisterAnswered and
// Short, as Run does. After each of these, it calls Advance for all waiting requests, and Batch until there is none.
type Stepped struct{ *Fleet }

// NewStepped makes a node. after must call its function after that time of the node's clock. random is for pauses.
func NewStepped(
	holder ratelimit.Holder, maxKeys int, clock ratelimit.Clock, wall time.Time,
	after func(time.Duration, func()), random func() float64,
) *Stepped {
	f := NewFleet(nil, holder, maxKeys, clock, wall)
	// Without a random seed, each run of a simulation puts keys into the same shards.
	f.Hash = keytable.Hasher{}
	f.alone = local.New(max(local.OverflowSlots, maxKeys/8), clock(), wall).Predictable()
	f.after = after
	f.Random = random
	f.RawNames = true
	return &Stepped{f}
}

// Divide sets the parts of the ledger, before the node is used. The driver settles each batch at its part
// (Batch.Part). It does not call Settle.
func (s *Stepped) Divide(ledger account.Partitioned) {
	s.ledger = ledger
	s.openLanes()
}

// Ask decides all asks that can be decided at once. The others wait. The Wait keeps the slices until it has ended.
func (s *Stepped) Ask(now instant, asks []ask, verdicts []verdict) *Wait {
	if c := s.begin(now, asks, verdicts); c != nil {
		return &Wait{c, verdicts}
	}
	return nil
}

// Wait is a request that waits for the ledger.
type Wait struct {
	call     *call
	verdicts []verdict
}

// Patience is the time from the request to its first deadline.
func (w *Wait) Patience() time.Duration { return w.call.patience() }

// Advance decides all asks that can be decided now. It reports whether any still waits.
func (w *Wait) Advance(now instant) bool { return w.call.advance(now) }

// Next is closed when the ledger has answered the first undecided ask. Until then Advance need not be called.
func (w *Wait) Next() <-chan struct{} { return w.call.next() }

// Decided reports whether one ask is decided, and so charged. An ask that was decided at once has no waiter.
func (w *Wait) Decided(i int) bool {
	for j := range w.call.waits {
		if p := &w.call.waits[j]; p.verdict == &w.verdicts[i] {
			return p.done || p.final
		}
	}
	return true
}

// TimeOver notes that the request's deadline has passed, and returns the time to the next; 0: there is none, and the
// next Advance ends it.
func (w *Wait) TimeOver() time.Duration {
	const gone = false
	return w.call.timeOver(gone)
}

// Batch is the messages of one round trip. It is answered once.
type Batch struct{ *batch }

// Part is the part of the ledger that the batch is for.
func (b *Batch) Part() int { return b.lane.part }

// Batch takes messages for a part of the ledger; nil: none are due, or the maximum of batches is in flight. It is
// Fleet.settle up to the round trip, and Answer or Fail are the rest.
func (s *Stepped) Batch() *Batch {
	for i := range s.lanes {
		l := &s.lanes[i]
		for all := l.Take(); all != nil; all = l.Take() {
			b := s.pack(l, all)
			// The breaker lets one batch through as a probe, and fails the others.
			if l.Allow(b.sent) {
				return &Batch{b}
			}
			l.Settled()
			b.failed(lane.ErrOpen)
		}
	}
	return nil
}

// Claims are the batch's. There may be none, if the message asks only for the time and epoch.
func (b *Batch) Claims() []account.Claim { return b.claims }

// Answer applies the ledger's answer: a grant for each claim, and the epoch and time after them.
func (b *Batch) Answer(epoch ratelimit.Epoch, at ledgerTime, grants []account.Grant) {
	b.lane.Settled()
	b.answered(grants, epoch, at, at, nil)
}

// Fail notes that the batch was not answered, and why.
func (b *Batch) Fail(err error) {
	b.lane.Settled()
	b.failed(err)
}

// Sweep looks after a part of the keys; see SweepEvery.
func (s *Stepped) Sweep(now instant) { s.sweep(now) }

// Short calls look with claims without totals, for accounts in which ended nodes may have tokens in hand. The driver
// calls then with the number of other nodes that have some, and of those that it has closed ([account.Closes]).
func (s *Stepped) Short(now instant, look func(c account.Claim, then func(nodes, closed int))) {
	for _, of := range s.takeShort(now) {
		look(of.claim, func(nodes, closed int) { s.looked(of, nodes, closed) })
	}
}

// Release writes the last messages of a node, which give back all unspent tokens. They are not answered, and overtake
// those in flight. It is Fleet.leave without waits: a written message keeps its key busy, so its flight is taken off
// first.
func (s *Stepped) Release() []account.Claim {
	s.leaving.Store(true)
	var claims []account.Claim
	for i := range s.shards {
		for _, u := range s.shards[i].uses {
			if u.flight != nil && u.flight.written {
				u.flight = nil
			}
		}
		for at := (keytable.Cursor{}); !at.Done; {
			at, _ = s.leaveSome(&s.shards[i], at)
			for j := range s.lanes {
				l := &s.lanes[j]
				for all := l.Rest(); all != nil; all = l.Rest() {
					claims = append(claims, s.pack(l, all).claims...)
				}
			}
		}
	}
	s.ended.Store(true)
	return claims
}
