package leasing

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The ledger may lose its data, and its clock may be set. Either way what this
// node has heard may no longer be what the ledger knows, and the node tells it
// again: every account that it has totals of, those that are used up first, for
// their holders ask for nothing and would otherwise be silent until the window
// ends, while a node that is new to the key was granted the limit once more
// (docs/protocol.md, section 4.9).

// memory is what a node knows of the epoch of one part's data.
type memory struct {
	epoch   ratelimit.Epoch
	sent    instant // when the batch was sent that told of it
	heard   instant // when it was last heard of; 0: never
	failed  bool    // a batch failed since: another server may have the data now
	telling bool    // this node still has something to tell
	beating bool    // a batch without claims is under way, only to hear of it
}

// beatEvery is how long a node does without a word from a part of the ledger:
// much less than the time for which a ledger that lost its data learns.
const beatEvery = ledger.RelearnTime / 4

// query is what to ask about the epoch at now.
func (l *lane) query(now instant) ratelimit.EpochQuery {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.memory
	return ratelimit.EpochQuery{
		// The server itself is asked which run it is only when another one may have the data now:
		// at first, and after a batch that failed. While this node has something to tell, it has
		// the learning prolonged when half of it is over.
		Part: l.part, Verify: m.epoch.ID == 0 || m.failed,
		Telling: m.telling && l.notYet(now.Add(ledger.RelearnTime/2), m.epoch.Learning) != l.notYet(now,
			m.epoch.Learning),
	}
}

// notYet tells whether t may be still to come by the ledger's clock; the caller
// holds mu.
func (l *lane) notYet(now instant, t ledgerTime) bool {
	if l.clock.At == 0 {
		return true
	}
	early, _ := l.clock.Between(now)
	return early < t
}

// known is the epoch that claims are written in: with its learning, if that may
// not be over.
func (l *lane) known(now instant) ratelimit.Epoch {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.memory.epoch
	// By the ledger's clock, for the end of the learning is one of its instants.
	if !l.notYet(now, e.Learning) {
		e.Learning = 0
	}
	return e
}

// justSet tells whether the ledger's clock was set so lately that nodes may not have told yet what they had.
func (l *lane) justSet(now instant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.set != 0 && now.Sub(l.set) < ledger.RelearnTime
}

// learned takes in in which epoch a batch was settled, and tells whether the data
// that this node's claims had made was lost.
func (l *lane) learned(sent, now instant, e ratelimit.Epoch) (lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.memory
	m.beating = false
	if e.ID == 0 || e.ID != m.epoch.ID && sent < m.sent { // an answer from before that came late
		return false
	}
	// The first epoch that a node hears of is no loss: it had told this ledger nothing.
	lost = m.epoch.ID != 0 && e.ID != m.epoch.ID
	m.epoch, m.sent, m.heard, m.failed = e, max(m.sent, sent), now, false
	m.telling = m.telling || lost
	return lost
}

// trusted tells whether what a batch was granted may be taken, that was written
// knowing of one epoch and settled in another: not from a ledger that is learning
// if the claims did not say so.
func trusted(known, in ratelimit.Epoch, at ledgerTime) bool {
	return !in.Young(at) || known.ID == in.ID && known.Learning > at
}

// doubtAll has everything told again that was told before now.
func (f *Fleet) doubtAll(now instant) {
	f.doubt.Store(int64(now))
	select {
	case f.tellAtOnce <- struct{}{}:
	default:
	}
}

// Epoch tells what is known of the epochs of the ledger's parts. While a part is
// learning it grants little, and seats are not to be asked for. It blocks for a few
// locks, and does not allocate.
func (f *Fleet) Epoch() ratelimit.EpochKnown {
	if !f.beats {
		return ratelimit.EpochKnown{}
	}
	heard, young := f.parts()
	k := ratelimit.EpochKnown{Learning: heard == 0 || young > 0, Asked: math.MaxInt64}
	for i := range f.lanes {
		l := &f.lanes[i]
		l.mu.Lock()
		// One number stands for the epochs of all parts: it changes when that of any part does.
		k.ID = k.ID*31 + l.memory.epoch.ID
		// All that is known is as old as what is known of the part that was asked first.
		k.Asked = min(k.Asked, l.memory.sent)
		l.mu.Unlock()
	}
	return k
}

// Ready tells whether all parts of the ledger have been heard of, and know all:
// from then on the first request for a key is answered as the ledger says.
func (f *Fleet) Ready() bool {
	heard, young := f.parts()
	return !f.beats || heard == len(f.lanes) && young == 0
}

// Heard tells how many parts of the ledger have been heard of, and how many there are.
func (f *Fleet) Heard() (parts, all int) {
	parts, _ = f.parts()
	return parts, len(f.lanes)
}

// Answered tells the node that the ledger has answered somebody: it is asked at once,
// whatever the breakers say.
func (f *Fleet) Answered() {
	for i := range f.lanes {
		l := &f.lanes[i]
		l.mu.Lock()
		l.breaker.Success()
		l.mu.Unlock()
	}
	f.beat(f.clock())
}

// parts counts the parts of the ledger that were heard of, and those of them that
// may be learning.
func (f *Fleet) parts() (heard, young int) {
	now := f.clock()
	for i := range f.lanes {
		l := &f.lanes[i]
		l.mu.Lock()
		if l.memory.heard != 0 {
			heard++
			if l.notYet(now, l.memory.epoch.Learning) {
				young++
			}
		}
		l.mu.Unlock()
	}
	return heard, young
}

// teller goes through the leases in passes, a bounded number of them at a time.
type teller struct {
	doubt instant // what was told before is told again; 0: all is told
	pass  int     // 0: what is used up; 1: all; then what is left, until nothing is
	walk          // through all keys, in this pass
	rest  int     // that were still to be told in this pass
}

// tell tells again what is in doubt, as much as the queues take.
func (f *Fleet) tell(now instant) {
	t := &f.teller
	// A new doubt begins the passes anew: what was told meanwhile may have been told before it.
	if doubt := instant(f.doubt.Load()); doubt != t.doubt {
		*t = teller{doubt: doubt}
	}
	// One call does a bounded number of steps, for a sweep has other work. The first passes hurry,
	// because the ledger learns for two seconds only.
	most := 2 * len(f.shards)
	if t.pass > 1 { // what is left waits for an answer, or for its part of the ledger
		most = len(f.shards)/sweepParts + 1
	}
	for steps := 0; t.doubt != 0 && steps < most; steps++ {
		from, rest, full := t.walk, 0, false
		more := f.step(&t.walk, func(s *fleetShard, c *heldCell) {
			if !full {
				told, stop := f.tellKey(now, s, c, t)
				if full = stop; !told {
					rest++
				}
			}
		})
		if full {
			// The key at which the queue was half full was not told: the next call goes on there.
			t.walk = from
			return
		}
		if t.rest += rest; more {
			continue
		}
		// The telling ends with a pass that found everything told, by answers that had come.
		if t.pass > 0 && t.rest == 0 {
			f.allTold(t.doubt)
			return
		}
		t.pass, t.walk, t.rest = t.pass+1, walk{}, 0
	}
}

// allTold ends the telling, unless there is a new doubt.
func (f *Fleet) allTold(doubt instant) {
	f.teller = teller{}
	// A loss that was found in the meantime has set another doubt, which must not be cleared.
	if !f.doubt.CompareAndSwap(int64(doubt), 0) {
		return
	}
	for i := range f.lanes {
		f.lanes[i].mu.Lock()
		f.lanes[i].memory.telling = false
		f.lanes[i].mu.Unlock()
	}
}

// tellKey tells what is known of a key. It reports whether that is told already, and
// whether to stop because a queue is half full: the other half is for requests.
func (f *Fleet) tellKey(now instant, s *fleetShard, c *heldCell, t *teller) (told, full bool) {
	var scratch busyKey
	h := s.view(c, &scratch)
	// Most keys end here. They are only looked at and stay cold; see view.
	if h.Next == nil && h.IsTold(now, t.doubt) {
		return true, false
	}
	h = s.warm(c)
	what := h.Tell(now, lease.Retelling{Doubt: t.doubt, Lapsed: instant(f.lapsed.Load()), UsedUp: t.pass == 0})
	f.do(h, now)
	switch what {
	case lease.AllTold:
		return true, false
	case lease.TellLater:
		return false, false
	case lease.TellNow:
	}
	fl := f.newFlight(h, &lease.Flight{Errand: lease.Errand{Tells: true}})
	l := f.laneOf(fl.name)
	if l.refused(now) {
		return false, false // this part of the ledger is dead; a later pass tells it
	}
	if len(l.queue) >= cap(l.queue)/2 {
		return false, true
	}
	f.launch(now, h, fl) // where the queue has filled up since, a later pass tells it
	return false, false
}

// beat hears of the parts of the ledger that nothing was heard of for a while.
func (f *Fleet) beat(now instant) {
	if !f.beats {
		return
	}
	for i := range f.lanes {
		l := &f.lanes[i]
		l.mu.Lock()
		m := &l.memory
		due := !m.beating && (m.heard == 0 || now.Sub(m.heard) >= beatEvery) && !l.breaker.Refuses(now)
		m.beating = m.beating || due
		l.mu.Unlock()
		if !due {
			continue
		}
		select {
		// A beat goes through the queue as claims do, so that one place sends and one reads epochs.
		case l.queue <- &flight{Flight: lease.Flight{Errand: lease.Errand{Beat: true}}}:
		default: // there are claims enough
			l.mu.Lock()
			m.beating = false
			l.mu.Unlock()
		}
	}
}

// stepLeast is by how much the ledger's clock must contradict what was known of
// it to have been set: less is a clock that is slewed, or a busy machine.
const stepLeast = 100 * time.Millisecond
