package transport

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Budget is the memory for all unfinished calls of callers. It counts the actions of the bounds. It is safe for
// concurrent use.
type Budget struct {
	// connections closed for newer ones, or at once
	Crowded atomic.Uint64 `metric:"sluice_callers_ended_total,reason=crowded"`
	// connections and bodies ended because too many bytes were held
	Heaviest atomic.Uint64 `metric:"sluice_callers_ended_total,reason=heaviest"`
	// connections closed because they did not go on
	Stalled atomic.Uint64 `metric:"sluice_callers_ended_total,reason=stalled"`
	// connections closed for far more calls, or idle frames, than they may send
	Excess atomic.Uint64 `metric:"sluice_callers_ended_total,reason=excess"`

	most int64
	// Invariant: held is the sum of the bytes of all holders and of ending, except changes in progress. Without ending,
	// it is at most most once a charge has returned.
	held atomic.Int64
	// ending is the part of handlers whose calls have ended. They give it back when they find that. No holder can end
	// for it.
	ending atomic.Int64

	mu      sync.Mutex
	holders map[holder]struct{} // guarded by mu
}

// holder is a connection, or the body of an HTTP request. None of its methods may charge the budget while it is asked.
type holder interface {
	// holds returns how many bytes it holds, and has held since then.
	holds(since int64) (now, long int64)
	// end has it let go of all of it, at once.
	end()
}

// moment is how long a caller may take between the beginning of a call and its end before it is one of those that are
// looked at first. Envoy waits 20 ms for a decision by default, so that its calls are younger in a node that keeps up.
const moment = 250 * time.Millisecond

// NewBudget makes a budget of so many bytes.
func NewBudget(most int64) *Budget {
	return &Budget{most: most, holders: map[holder]struct{}{}}
}

// orAll is the budget, or one without a bound for nil.
func (b *Budget) orAll() *Budget {
	if b == nil {
		return NewBudget(math.MaxInt64)
	}
	return b
}

// Held is how many bytes are held now.
func (b *Budget) Held() int64 { return b.held.Load() }

// join adds a holder, before it is charged for the first time.
func (b *Budget) join(h holder) {
	b.mu.Lock()
	b.holders[h] = struct{}{}
	b.mu.Unlock()
}

// leave removes a holder. When it returns, none of its methods is called any more.
func (b *Budget) leave(h holder) {
	b.mu.Lock()
	delete(b.holders, h)
	b.mu.Unlock()
}

// charge notes that a holder holds more, or less. No lock of a holder may be
// held: it may end any of them, also the one that is charged.
func (b *Budget) charge(bytes int64) {
	if bytes == 0 {
		return
	}
	b.held.Add(bytes)
	if bytes > 0 && b.left() < 0 {
		b.makeRoom()
	}
}

// left is how many bytes may be held in addition. What handlers of ended calls hold does not count: no connection that
// ends gives it back. Method full bounds it instead.
func (b *Budget) left() int64 { return b.most - (b.held.Load() - b.ending.Load()) }

// full reports whether handlers whose calls have ended hold so much that a connection has one at most. Without it, a
// caller that opens and resets calls of services adds a handler each time. A reset frees the memory of its connection,
// and the handler goes on until it looks at its context.
func (b *Budget) full() bool { return b.ending.Load() > b.most/8 }

// ended notes that a handler whose call had ended has found that. Until then the bytes were in both sums:
// leaveHandlerLocked adds them to ending, and held has them since the call began.
func (b *Budget) ended(bytes int64) {
	b.ending.Add(-bytes)
	b.held.Add(-bytes)
}

// makeRoom ends holders until an eighth is free, so that it need not be done for each byte of an attack.
//
// The steps: ask all holders, and end the heaviest first. Stop where the next one is much lighter than the first, ask
// again, and go on until there is room or no holder has any bytes.
func (b *Budget) makeRoom() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left() >= 0 {
		return // another did
	}
	// Holders may have grown since they were asked, and are asked again.
	for all := b.heaviestLocked(); len(all) > 0 && all[0].now > 0; all = b.heaviestLocked() {
		for _, w := range all {
			// A much lighter holder is not ended in this round. A flood on many connections grows while the first of
			// them ends, and would be behind an honest caller with one call.
			if w.now == 0 || w.weight < all[0].weight/similar || b.left() >= b.most/8 {
				break
			}
			// It is taken out before it ends, so that it is not chosen again while it does.
			delete(b.holders, w.holder)
			b.Heaviest.Add(1)
			w.end()
		}
		if b.left() >= b.most/8 {
			return
		}
	}
}

// similar is how many times as much the first holder may have as the last one that ends in the same round.
const similar = 4

// weight is what a holder held when it was asked.
type weight struct {
	holder
	now    int64
	weight int64 // long or now, by which they are compared first
}

// heaviestLocked are all holders, in the order in which they are ended. Holders of more than a moment come first, by
// size, if together they hold enough of the budget to be the reason that it is full. Otherwise the largest come first.
// Each is visited once, for any number of ends, because larger holders wait in the meantime.
func (b *Budget) heaviestLocked() []weight {
	since := nanotime() - int64(moment)
	all := make([]weight, 0, len(b.holders))
	var allLong int64
	for h := range b.holders {
		now, long := h.holds(since)
		all = append(all, weight{h, now, long})
		allLong += long
	}
	// On a node with too little of a processor, honest calls also wait for longer than a moment, while a
	// flooding caller begins anew each time that it was ended. Those few calls do not fill the budget.
	if allLong < b.most/8 {
		for i := range all {
			all[i].weight = all[i].now
		}
	}
	// An honest caller ends its calls within a moment. Calls that are held for longer show the others,
	// however much a burst of honest calls holds just now.
	slices.SortFunc(all, func(x, y weight) int {
		return cmp.Or(cmp.Compare(y.weight, x.weight), cmp.Compare(y.now, x.now))
	})
	return all
}

var started = time.Now()

// nanotime is the time on the monotonic clock, in nanoseconds since the process began. In fields, 0 stands for never.
func nanotime() int64 { return int64(time.Since(started)) }
