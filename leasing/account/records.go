package account

import (
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// record is an account's state of one holder.
type record struct {
	holder ratelimit.Holder
	// taken is the number that plain increments change. Invariant: for a holder that has left, it is the tokens of
	// late draws since.
	taken tokens
	// spent is the holder's reported usage; for a holder that has left, its total. Invariant: at most total, except
	// for uncounted charges (MostBooked).
	spent tokens
	seq   uint64 // of its last claim; 0: it has only drawn
	fence ratelimit.Fence
	// expires is the end of its eager lease, or safe, or closed. If the holder has left, it is minus the time of
	// that. For a bucket it is the turn of its last claim.
	expires instant
}

// Special values of expires.
const (
	safe   instant = 0  // no end
	closed instant = -1 // it was credited: the holder's tokens in hand are gone
)

// leftKept is the time for which the name of a holder that has left is kept, for its late messages: otherwise a
// refund is credited twice. No message is in flight for so long.
const leftKept = time.Minute

func (r *record) left() bool { return r.expires < closed }

// total is the holder's total of the account.
func (r *record) total() tokens {
	if r.left() {
		return r.taken + r.spent
	}
	return r.taken
}

// inHand is the total less the reported usage.
func (r *record) inHand() tokens { return r.total() - r.spent }

// forgettable tells whether no more messages of the holder can come.
func (r *record) forgettable(now instant) bool {
	return r.left() && r.taken == 0 && now.Sub(-r.expires) >= leftKept
}

// records are the records of all holders of an account. The zero records are none.
type records []record

// find returns the record of a holder, or nil.
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

// over are the holders with an ended eager lease to credit.
func (rs records) over(now instant) (all []ratelimit.Holder) {
	for i := range rs {
		if r := &rs[i]; r.expires > safe && r.expires <= now {
			all = append(all, r.holder)
		}
	}
	return all
}

// forget drops the records of holders that left a while ago. Their usage stays in the sum.
func (rs *records) forget(now instant) {
	*rs = slices.DeleteFunc(*rs, func(r record) bool { return r.forgettable(now) })
}
