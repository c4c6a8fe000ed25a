package leasing

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Stepped is a Fleet that somebody else drives, in whatever time they keep: it has no goroutine, reads no clock but the
// one it is given, and does the same in every run that asks it the same. It decides as a Fleet does, by the same code;
// only who waits is different. It is not safe for concurrent use.
//
// Its driver calls Ask for each request, Answer with what the ledger said or Fail with why it did not, Sweep every
// SweepEvery, and what after was given; after each of these, Advance of all that waits, and Batch until there is none.
type Stepped struct {
	*Fleet
	busy []int // batches under way, to each part of the ledger
}

// NewStepped makes a node. after must call its function when the node's clock has gone on by that much; random is for
// pauses.
func NewStepped(
	holder ratelimit.Holder, maxKeys int, clock ratelimit.Clock, wall time.Time,
	after func(time.Duration, func()), random func() float64,
) *Stepped {
	f := NewFleet(nil, holder, maxKeys, clock, wall)
	f.Hash = keytable.Hasher{}
	f.alone = NewLocal(max(OverflowSlots, maxKeys/8), clock(), wall).Predictable()
	f.after, f.Random, f.RawNames = after, random, true
	return &Stepped{f, make([]int, 1)}
}

// Divide has the node know the parts of its ledger, before it is used. Its driver settles what is for each part there
// (Batch.Part); Settle is not called.
func (s *Stepped) Divide(ledger Partitioned) {
	s.ledger, s.busy = ledger, make([]int, ledger.Partitions())
	s.openLanes()
}

// Ask decides what can be decided at once; if that is not all, the rest waits. The slices are the Wait's until it has
// ended.
func (s *Stepped) Ask(now instant, asks []ask, verdicts []verdict) *Wait {
	atLedger(asks)
	if c := s.begin(now, asks, verdicts); c != nil {
		return &Wait{c, asks, verdicts}
	}
	whole(asks, verdicts)
	return nil
}

// Wait is a request that waits for the ledger.
type Wait struct {
	call     *call
	asks     []ask
	verdicts []verdict
}

// Patience is how long after the request its time is over, at first.
func (w *Wait) Patience() time.Duration { return w.call.check }

// Advance decides what can be decided now. It reports whether anything waits.
func (w *Wait) Advance(now instant) bool {
	more := w.call.advance(now)
	if !more {
		whole(w.asks, w.verdicts)
	}
	return more
}

// Decided tells whether one ask is decided: what it was charged, it was then.
func (w *Wait) Decided(i int) bool {
	for j := range w.call.waits {
		if p := &w.call.waits[j]; p.verdict == &w.verdicts[i] {
			return p.done || p.booking
		}
	}
	return true
}

// TimeOver takes in that the request's time is over, and returns how much more there is; 0: none, the next Advance ends
// it.
func (w *Wait) TimeOver() time.Duration {
	const gone = false
	return w.call.timeOver(gone)
}

// Batch is messages that travel together. It is answered once.
type Batch struct {
	*batch
	node *Stepped
	part int
}

// Part is the part of the ledger that the batch is for.
func (b *Batch) Part() int { return b.part }

// Batch takes messages to be sent to a part of the ledger; nil when there are none, or as many batches are under way as
// may be.
func (s *Stepped) Batch() *Batch {
	for i := range s.lanes {
		if b := s.batch(i); b != nil {
			return b
		}
	}
	return nil
}

func (s *Stepped) batch(part int) *Batch {
	l := &s.lanes[part]
	for s.busy[part] < senders {
		var flights []*flight
		select {
		case first := <-l.queue:
			flights = l.take(first)
		default:
			return nil
		}
		if len(flights) == 0 {
			continue
		}
		b := s.pack(l, flights)
		// As the senders do: the breaker lets one batch through to see, and answers the others.
		if b.allowed() {
			s.busy[part]++
			return &Batch{b, s, part}
		}
		b.failed(errBreaker)
	}
	return nil
}

// Claims are the batch's; there may be none, if the ledger is only to be heard.
func (b *Batch) Claims() []account.Claim { return b.claims }

// Answer takes in what the ledger said, a grant for each claim, and the epoch and time right after.
func (b *Batch) Answer(epoch ratelimit.Epoch, at ledgerTime, grants []account.Grant) {
	b.node.busy[b.part]--
	b.answered(grants, epoch, at, at, nil)
}

// Fail takes in that the batch was not answered, and why.
func (b *Batch) Fail(err error) {
	b.node.busy[b.part]--
	b.failed(err)
}

// Lost is an override that the ledger has lost, for the driver to set again; ok is false where there is none.
func (s *Stepped) Lost() (c account.OverrideChange, ok bool) {
	select {
	case c = <-s.lost:
		return c, true
	default:
		return c, false
	}
}

// Sweep looks after a part of the keys; see SweepEvery.
func (s *Stepped) Sweep(now instant) { s.sweep(now) }

// Release writes the messages that give back all that is unspent: a node's last words. They are not answered, and
// overtake what is under way.
func (s *Stepped) Release() []account.Claim {
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
				for flights := l.take(nil); len(flights) > 0; flights = l.take(nil) {
					claims = append(claims, s.pack(l, flights).claims...)
				}
			}
		}
	}
	s.ended.Store(true)
	return claims
}
