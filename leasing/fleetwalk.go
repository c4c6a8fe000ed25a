package leasing

import (
	"slices"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
)

// Walks through all keys of a Fleet. Each step is a few hundred keys under one lock, so
// that no decision waits long, however many there are.

// walk is how far one has come. The zero walk is its start.
type walk struct {
	shard int
	at    keytable.Cursor
}

// step shows the next few keys, and reports whether there may be more. see must not add
// or forget keys; it may make them busy.
func (f *Fleet) step(w *walk, see func(*fleetShard, *heldCell)) bool {
	s := &f.shards[w.shard]
	s.mu.Lock()
	w.at = s.keys.Walk(w.at, func(c *heldCell) { see(s, c) })
	s.mu.Unlock()
	// The lock is free between two steps. A shard that is done is not gone back to: what was added
	// there meanwhile is the next walk's.
	if w.at.Done {
		w.shard, w.at = w.shard+1, keytable.Cursor{}
	}
	return w.shard < len(f.shards)
}

// eachBusy shows a chunk of busy keys, and returns which is the next; -1: there is none.
func (s *fleetShard) eachBusy(chunk int, see func(*busyKey)) (next int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if chunk >= len(s.busy.chunks) {
		return -1
	}
	for i := range s.busy.chunks[chunk].slots {
		// Slots that are free stay between those in use, for chunks do not move.
		if h := &s.busy.chunks[chunk].slots[i].busyKey; h.shard != nil {
			see(h)
		}
	}
	return chunk + 1
}

// sweeper is how far sweeps have come.
type sweeper struct {
	swept  walk // in this round
	behind bool // the last round's time is over, and it is not
}

// sweepMost bounds the steps of one sweep: with a large table a round takes longer.
const sweepMost = 512

// sweepPart looks through one of sweepParts of the keys, and after the ledger.
func (f *Fleet) sweepPart(now instant, part int) {
	f.beat(now)
	f.lapseLate(now)
	f.tell(now)
	// The ledger goes first: a loss of data that it tells of, and a clock that was set, are urgent.
	part %= sweepParts
	upTo := (len(f.shards)*(part+1) + sweepParts - 1) / sweepParts
	// Where a round has not ended in its time, the rest is caught up without a pause between parts.
	// Otherwise the keys at the end would be looked at less and less often.
	if f.behind = f.behind || part == 0 && f.swept != (walk{}) && f.swept.shard < len(f.shards); f.behind {
		upTo = len(f.shards)
	} else if part == 0 {
		f.swept = walk{}
	}
	for steps := 0; f.swept.shard < upTo && steps < sweepMost; steps++ {
		f.step(&f.swept, func(s *fleetShard, c *heldCell) { f.sweepKey(now, s, c) })
	}
	if f.behind && f.swept.shard == len(f.shards) {
		f.behind, f.swept = false, walk{} // the next round begins with the next sweep
	}
}

// sweepKey looks after one key: it ends its window, and gives back what is idle.
func (f *Fleet) sweepKey(now instant, s *fleetShard, c *heldCell) {
	wasCold := c.Val.slot == 0
	// Most cold keys have nothing to do now, and are left packed.
	if wasCold && !s.dueCold(now, c) {
		return
	}
	h := s.warm(c)
	// The answer will say what is to be done.
	if h.flight != nil {
		return
	}
	ended := h.Sweep(now, s.roomy())
	f.do(h, now)
	mayCool := wasCold || s.busy.crowded(h)
	// A key that was asked for since the last sweep has a second chance to stay busy.
	if mayCool && h.touched {
		h.touched = false
		return
	}
	if mayCool && s.cool(h) && ended { // nothing more is to be done until it is asked for
		c.Mark &^= coldUntold
		c.Val.over = lease.NeverDue
	}
}

// releaseMost bounds how long a node that ends gives back for: what is left then is
// stranded, as a crash would have left it.
const releaseMost = 5 * time.Second

// releaseAll returns what is unspent before the process ends.
func (f *Fleet) releaseAll() {
	f.ended.Store(true)
	now := f.clock()
	for w, more := (walk{}), true; more && f.clock().Sub(now) < releaseMost; {
		var some map[*lane][]*flight
		// The claims of all parts of the ledger go at once, so that one that is dead does not use
		// up the others' time.
		some, more = f.releases(now, &w)
		var wg sync.WaitGroup
		for l, flights := range some {
			wg.Go(func() {
				for batch := range slices.Chunk(flights, batchSize) {
					f.settle(l, batch)
				}
			})
		}
		wg.Wait()
	}
}

// releaseSteps is how many steps of keys are released together: what is under way for
// them takes memory.
const releaseSteps = 64

// releases are the flights that return what is unspent of the next keys; it reports
// whether there may be more.
func (f *Fleet) releases(now instant, w *walk) (all map[*lane][]*flight, more bool) {
	all, more = map[*lane][]*flight{}, true
	for steps := 0; more && steps < releaseSteps; steps++ {
		more = f.step(w, func(s *fleetShard, c *heldCell) {
			var scratch busyKey
			h := s.view(c, &scratch)
			if !h.Unsaid(now) && h.Next == nil {
				return
			}
			h = s.warm(c)
			h.Turn(now)
			f.do(h, now)
			if h.Unsaid(now) {
				f.release(all, h, lease.Errand{GiveUp: true, Last: true})
			}
			if h.Next != nil {
				f.release(all, h, lease.Errand{GiveUp: true, Last: true, Ahead: true})
			}
		})
	}
	for i := range f.lanes { // what was just said, and what has not left
		l := &f.lanes[i]
		if words := l.lastWords(); len(words) > 0 {
			all[l] = append(words, all[l]...)
		}
	}
	return all, more
}

// release adds the flight that returns a key's lease, or that of the next window.
func (f *Fleet) release(all map[*lane][]*flight, h *busyKey, errand lease.Errand) {
	// The ledger may fold the record of a holder that has said its last (docs/protocol.md, section
	// 4.14).
	fl := f.newFlight(h, &lease.Flight{Errand: errand})
	h.takes(fl)
	l := f.laneOf(fl.name)
	all[l] = append(all[l], fl)
}
