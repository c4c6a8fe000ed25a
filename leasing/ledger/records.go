package ledger

import (
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// How many records an account keeps of holders that may have ended. A claim
// looks at all records of its account here, and in Redis where the sums are not good,
// so that their number must have a bound, in windows of a month or a year too.
const (
	MostRecords = 256              // beyond, records of expired leases are folded
	keptRecords = MostRecords / 2  // down to this many, the oldest first
	FoldAfter   = 10 * time.Second // a last claim may still be overtaken by an earlier one
)

// record is the ledger's copy of one holder's truth, plus the grant in flight
// (docs/protocol.md, sections 4.3 and 6.3).
type record struct {
	holder  ratelimit.Holder
	seq     uint64
	window  window
	expires ledgerTime
	fence   ratelimit.Fence

	totals
	marks
}

// totals are the holder's in the record's window.
type totals struct {
	granted  tokens // what the holder said that it has received
	inflight tokens // granted by the last answer; the holder may not have it
	spent    tokens
	returned tokens
	over     tokens // what the last claim's report added to the over-admission
}

// marks say how a holder has its lease.
type marks struct {
	direct   bool // what is in flight is not kept
	plenty   bool // it is larger and longer than was asked for
	recalled recalled
	closed   bool // reclaimed at expiry: its fence can neither renew nor return
	void     bool // the last answer said so
	eager    bool // claimed under reclaim: eager, whose holders stop early enough for that
	last     bool // its holder has ended: nothing more will be heard of it
	// missing says that the last claim knew of tokens which no record did.
	missing bool
}

// charged is what the holder costs the budget.
// Invariant: it is at least what the holder has spent.
func (r *record) charged() tokens {
	return max(r.paid(), r.spent)
}

// paid is what the budget has given up for the holder; it has spent more only
// by unconfirmed drift.
func (r *record) paid() tokens { return r.granted + r.inflight - r.returned }

// outstanding is what the holder may still spend.
func (r *record) outstanding() tokens {
	kept := r.granted - r.returned - r.spent
	if !r.direct {
		kept += r.inflight
	}
	return max(0, kept)
}

// recalled is whether a holder was asked to give back what it has.
type recalled uint8

const (
	notRecalled recalled = iota
	isRecalled           // and has not been heard since
	hasAnswered          // and was granted nothing since: what it has, it needs
)

// next is what it is after another claim of the holder.
func (x recalled) next(known bool) recalled {
	switch {
	case !known:
		return notRecalled
	case x == isRecalled:
		return hasAnswered
	}
	return x
}

func (a *Account) each(f func(*record)) {
	if a.first.seq > 0 {
		f(&a.first)
	}
	for i := range a.others {
		f(&a.others[i])
	}
}

func (a *Account) find(h ratelimit.Holder) *record {
	if a.first.seq > 0 && a.first.holder == h {
		return &a.first
	}
	for i := range a.others {
		if a.others[i].holder == h {
			return &a.others[i]
		}
	}
	return nil
}

// drop forgets holders that no longer count, but for the claimant, and folds
// those that have ended: what they are charged becomes part of the base.
func (a *Account) drop(c *ratelimit.Claim) {
	oldest := a.foldBelow()
	gone := func(r record) bool {
		switch {
		case r.holder == c.Holder:
			return false
		case a.obsolete(&r, &c.Limit, keptBy(c)):
			return true
		case !a.ended(&r, oldest):
			return false
		}
		if c.Limit.Algorithm != ratelimit.TokenBucket { // a bucket's level knows
			a.base += r.charged()
		}
		a.folded = max(a.folded, r.fence)
		return true
	}
	a.others = slices.DeleteFunc(a.others, gone)
	if a.first.seq > 0 && gone(a.first) {
		a.first = record{}
	}
}

// ended tells whether a record may be folded: its holder has said that it ends,
// a while ago; or its lease has expired, and its fence is below oldest.
func (a *Account) ended(r *record, oldest ratelimit.Fence) bool {
	return r.window == a.window && (r.last && a.now >= r.expires.Add(FoldAfter) ||
		a.now >= r.expires && r.fence < oldest)
}

// unfold makes a record again for a holder whose record was folded and who is
// still there: it has a fence of this life of the account, and no record. Since
// then it was granted nothing, and may have given something back; what it still
// has of its grants was therefore folded, that much at least.
func (a *Account) unfold(r *record, c *ratelimit.Claim) {
	if c.Window != a.window || c.Fence < a.born || c.Fence > a.folded {
		return
	}
	*r = record{
		holder: r.holder, window: a.window, fence: c.Fence,
		totals: totals{granted: c.Granted, spent: c.Spent, returned: c.Returned},
	}
	if c.Limit.Algorithm != ratelimit.TokenBucket {
		a.base -= max(0, c.Granted-c.Returned)
	}
}

// foldBelow is the fence below which records of expired leases are folded; 0
// while there is room for more. Fences are drawn in the order of claims, so
// that the holders which have been silent for longest go first.
func (a *Account) foldBelow() ratelimit.Fence {
	if len(a.others) < MostRecords {
		return 0
	}
	fences := make([]ratelimit.Fence, 0, len(a.others)+1)
	a.each(func(r *record) { fences = append(fences, r.fence) })
	if len(fences) <= MostRecords {
		return 0
	}
	slices.Sort(fences)
	return fences[len(fences)-keptRecords]
}

// add makes room for a holder.
func (a *Account) add(h ratelimit.Holder) *record {
	if a.first.seq == 0 {
		a.first = record{holder: h}
		return &a.first
	}
	a.others = append(a.others, record{holder: h})
	return &a.others[len(a.others)-1]
}

// keptBy is for how many windows back a claim's rule needs the records of a fixed window: mode
// approx sums up what was over in the window before.
func keptBy(c *ratelimit.Claim) window {
	if c.Tally {
		return 1
	}
	return 0
}

// obsolete tells whether forgetting r admits nothing more: its window is over
// and corrects nothing, or its bucket would have filled since it was heard. Records of a fixed
// window are kept for so many windows back.
func (a *Account) obsolete(r *record, l *ratelimit.Limit, kept window) bool {
	switch l.Algorithm {
	case ratelimit.FixedWindow:
		return r.window < a.window-kept
	case ratelimit.SlidingWindow:
		return r.window < a.window-1
	default:
		periods := (a.now - r.expires) / ledgerTime(l.Period()/time.Microsecond)
		return tokens(periods) > 1+l.Burst/max(1, l.Requests)
	}
}
