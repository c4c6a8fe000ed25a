package lease

import (
	"github.com/sluice-gate/sluice/ratelimit"
)

// What was admitted without the ledger is charged all the same, as soon as it is known to
// which window.

// Book books n tokens that were admitted without the ledger as spent, so that they are told.
// It returns the window, if that is known.
func (h *Held) Book(now instant, a *ask, n tokens) window {
	// The key may be here for no other reason than this. How long what was admitted counts is the
	// rule's.
	h.Rule = a.Rule
	h.Settled = false
	h.Unasked = ratelimit.Booked(h.Unasked, n)
	if h.Lease.Current(now, a) {
		h.Lease.Spent = ratelimit.Booked(h.Lease.Spent, n)
		h.Gauge()
		return h.Lease.Window
	}
	if h.Unplaced == 0 {
		h.UnplacedAt = now
	}
	h.Unplaced = ratelimit.Booked(h.Unplaced, n)
	return 0
}

// Unbook takes back what a verdict charged that Book or Cached has booked.
func (h *Held) Unbook(a *ask, v *verdict) {
	policy := a.Rule.Coordination.OnStoreFailure
	l := &h.Lease
	h.Unasked = max(0, h.Unasked-v.Charged)
	switch {
	case v.Booked == 0:
		h.Unplaced = max(0, h.Unplaced-v.Charged)
	case v.Booked != l.Window:
	// Of a bucket, what the ledger has confirmed, and what Forgive has forgotten, cannot be told
	// from other spending any more. Only what is still unconfirmed is taken back.
	case l.Algorithm == ratelimit.TokenBucket:
		l.Unspend(min(v.Charged, l.Drifted()), Keeps)
	default:
		l.Unspend(min(v.Charged, l.Spent), Keeps)
		if policy == ratelimit.FailCached {
			l.Available += v.Charged
		}
	}
	h.Settled = false
	h.Gauge()
}

// Cached goes on against what the ledger last said was left, for at most max_staleness.
func (h *Held) Cached(now instant, a *ask) verdict {
	known := h.Lease.Current(now, a) && now.Sub(h.Heard) <= a.Rule.Coordination.MaxStaleness
	if !known || a.Cost > h.Lease.Available {
		return verdict{OverLimit: true}
	}
	h.Lease.Available -= a.Cost
	h.Lease.Spent += a.Cost
	h.Unasked = ratelimit.Booked(h.Unasked, a.Cost)
	h.Settled = false
	return verdict{
		Charged: a.Cost, Remaining: h.Lease.Available, ResetAfter: h.Lease.Reset.Sub(now),
		Booked: h.Lease.Window,
	}
}

// BookUnplaced books what was admitted without the ledger, if the first of it was admitted in
// the lease's window. If that was before, nothing is booked: only the first instant is kept, and
// what belongs to which window is not known. What was admitted behind the turn is then never told.
func (h *Held) BookUnplaced() {
	if h.UnplacedAt > h.Lease.Reset.Add(-h.Rule.Limit.WindowLength(h.Lease.Window)) ||
		h.Rule.Limit.Algorithm == ratelimit.TokenBucket {
		h.Lease.Spent = ratelimit.Booked(h.Lease.Spent, min(h.Unplaced, h.Rule.Limit.Capacity()))
	} else {
		h.Unasked = max(0, h.Unasked-h.Unplaced)
	}
	h.Unplaced = 0
}

// A late answer is no outage. Where the ledger answers others, on_store_failure does
// not decide alone what becomes of a request that has waited for its whole time: what
// was last heard of its key in this window does.
//
//	nothing left, or not enough       refused
//	half of the limit or less left    refused: others may have spent it since
//	more                              as on_store_failure says, and charged
//	never heard of                    so, too; but only one at a time, until it is heard of
//
// To a sliding window and a bucket tokens come back: of these only what was heard while the request
// waited counts, and on_store_failure decides where that is nothing.
//
// So a burst that a busy machine cannot answer in time does not go over a limit by
// what each node may admit alone, and a first request on a cold key passes. The second
// and the last line are not for on_store_failure: open, which would rather admit.

// Lateness is how late an answer is.
type Lateness struct {
	Late  bool // the request has waited for its whole time
	Alive bool // the ledger answers others
}

// RefuseLate refuses what has waited, where what was heard of the key says so. What is not
// late yet, and would drift now (mode approx), is refused only if others were asked to give
// back: then there is nothing left to be exact about.
func (h *Held) RefuseLate(now instant, a *ask, by Lateness) (verdict, bool) {
	l := &h.Lease
	cautious := by.Alive && a.Rule.Coordination.OnStoreFailure != ratelimit.FailOpen
	if !l.Current(now, a) {
		if !cautious || h.Unplaced == 0 {
			return verdict{}, false
		}
		return verdict{OverLimit: true, Source: ratelimit.FromClaim, ResetAfter: a.Rule.Limit.Period()}, true
	}
	left := max(0, l.Unspent()) + l.Available
	short := a.Cost > left
	justHeard := now.Sub(h.Heard) <= a.Rule.Coordination.Deadline()
	switch {
	case short && (by.Late || h.Recalling) && justHeard:
		v := l.Deny(now, a)
		v.Source = ratelimit.FromClaim
		return v, true
	// What was left before says nothing now, for tokens come back.
	case l.Algorithm != ratelimit.FixedWindow && !justHeard:
		return verdict{}, false
	case short && by.Alive && h.Heard != 0:
	case cautious && h.Heard != 0 && left <= a.Rule.Limit.Capacity()/ratelimit.PlentyAbove:
	default:
		return verdict{}, false
	}
	// The limit may have room, so that a denial that charges (on_deny) has no say.
	return l.Report(now, verdict{OverLimit: true, Source: ratelimit.FromClaim}), true
}
