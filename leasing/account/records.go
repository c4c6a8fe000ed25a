package account

import (
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// record is what an account has of one holder.
type record struct {
	holder ratelimit.Holder
	// taken is what plain increments add to. Invariant: of a holder that has left it is what was drawn since, by
	// draws that came late.
	taken tokens
	// spent is what the holder has said; of one that has left, its total. Invariant: at most total, but for charges
	// that were not counted (MostBooked).
	spent tokens
	seq   uint64 // of its last claim; 0: it has only drawn
	fence ratelimit.Fence
	// expires is when its eager lease is over: safe, closed, or in the past by its amount if the holder has left
	// then. Of a bucket it is the turn in which it claimed.
	expires instant
}

// What a record's expiry may be besides.
const (
	safe   instant = 0  // it never expires
	closed instant = -1 // it was credited: what the holder has in hand is gone
)

// leftKept is how long the name of a holder that has left is kept, for messages of it that are late: a refund would
// otherwise be credited twice. No message is under way for so long.
const leftKept = time.Minute

func (r *record) left() bool { return r.expires < closed }

// total is what the holder has of the account.
func (r *record) total() tokens {
	if r.left() {
		return r.taken + r.spent
	}
	return r.taken
}

// inHand is what it has not spent, as far as it has said.
func (r *record) inHand() tokens { return r.total() - r.spent }

// forgettable tells whether nothing of the holder will come any more.
func (r *record) forgettable(now instant) bool {
	return r.left() && r.taken == 0 && now.Sub(-r.expires) >= leftKept
}

// records are those of all holders of an account. The zero records are none.
type records []record

// find returns the record of a holder, and nil if there is none.
func (rs records) find(h ratelimit.Holder) *record {
	for i := range rs {
		if rs[i].holder == h {
			return &rs[i]
		}
	}
	return nil
}

// findOrAdd returns the record of a holder, which may be new. It moves the others.
func (rs *records) findOrAdd(h ratelimit.Holder) *record {
	if r := rs.find(h); r != nil {
		return r
	}
	*rs = append(*rs, record{holder: h})
	return &(*rs)[len(*rs)-1]
}

// over are the holders whose eager lease is over, and may be credited.
func (rs records) over(now instant) (all []ratelimit.Holder) {
	for i := range rs {
		if r := &rs[i]; r.expires > safe && r.expires <= now {
			all = append(all, r.holder)
		}
	}
	return all
}

// forget drops those of holders that have left a while ago. What they have spent stays in the sum.
func (rs *records) forget(now instant) {
	*rs = slices.DeleteFunc(*rs, func(r record) bool { return r.forgettable(now) })
}
