package leasing

import (
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What was admitted without the ledger is charged all the same, as soon as it is known to
// which window.

// Book books n tokens that were admitted without the ledger as spent, so that they are told.
// It returns the window, if that is known.
func (h *Held) Book(now instant, a *ask, n tokens) window {
	h.settled = false
	h.unasked = ratelimit.Booked(h.unasked, n)
	if h.lease.Current(now, a) {
		h.lease.Spent = ratelimit.Booked(h.lease.Spent, n)
		h.gauge()
		return h.lease.Window
	}
	if h.unplaced == 0 {
		h.unplacedAt = now
	}
	h.unplaced = ratelimit.Booked(h.unplaced, n)
	return 0
}

// Unbook takes back what a verdict charged that Book or Cached has booked.
func (h *Held) Unbook(a *ask, v *verdict) {
	policy := a.Rule.Coordination.OnStoreFailure
	l := &h.lease
	h.unasked = max(0, h.unasked-v.Charged)
	switch {
	case v.Booked == 0:
		h.unplaced = max(0, h.unplaced-v.Charged)
	case v.Booked != l.Window:
	case l.Algorithm == ratelimit.TokenBucket: // what is confirmed, or forgiven, is no longer told apart
		l.Unspend(min(v.Charged, l.Drifted()), false)
	default:
		l.Unspend(min(v.Charged, l.Spent), false)
		if policy == ratelimit.FailCached {
			l.Available += v.Charged
		}
	}
	h.settled = false
	h.gauge()
}

// Cached goes on against what the ledger last said was left, for at most max_staleness.
func (h *Held) Cached(now instant, a *ask) verdict {
	known := h.lease.Current(now, a) && now.Sub(h.heard) <= a.Rule.Coordination.MaxStaleness
	if !known || a.Cost > h.lease.Available {
		return verdict{OverLimit: true}
	}
	h.lease.Available -= a.Cost
	h.lease.Spent += a.Cost
	h.unasked = ratelimit.Booked(h.unasked, a.Cost)
	h.settled = false
	return verdict{Charged: a.Cost, Remaining: h.lease.Available, ResetAfter: h.lease.Reset.Sub(now), Booked: h.lease.Window}
}

// bookUnplaced books what was admitted without the ledger, if that was in the
// lease's window.
func (h *Held) bookUnplaced() {
	if h.unplacedAt > h.lease.Reset.Add(-h.rule.Limit.WindowLength(h.lease.Window)) || h.rule.Limit.Algorithm == ratelimit.TokenBucket {
		h.lease.Spent = ratelimit.Booked(h.lease.Spent, min(h.unplaced, h.rule.Limit.Capacity()))
	} else {
		h.unasked = max(0, h.unasked-h.unplaced)
	}
	h.unplaced = 0
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
// So a burst that a busy machine cannot answer in time does not go over a limit by
// what each node may admit alone, and a first request on a cold key passes. The second
// and the last line are not for on_store_failure: open, which would rather admit.

// lateness is how late an answer is.
type lateness struct {
	late  bool // the request has waited for its whole time
	alive bool // the ledger answers others
}

// RefuseLate refuses what has waited, where what was heard of the key says so. What is not
// late yet, and would drift now (mode approx), is refused only if others were asked to give
// back: then there is nothing left to be exact about.
func (h *Held) RefuseLate(now instant, a *ask, by lateness) (verdict, bool) {
	l := &h.lease
	cautious := by.alive && a.Rule.Coordination.OnStoreFailure != ratelimit.FailOpen
	if !l.Current(now, a) {
		if !cautious || h.unplaced == 0 {
			return verdict{}, false
		}
		return verdict{OverLimit: true, Source: ratelimit.FromClaim, ResetAfter: a.Rule.Limit.Period()}, true
	}
	left := max(0, l.Unspent()) + l.Available
	short := a.Cost > left
	switch {
	case short && (by.late || h.recalling) && now.Sub(h.heard) <= a.Rule.Coordination.Deadline():
		v := l.Deny(now, a)
		v.Source = ratelimit.FromClaim
		return v, true
	case l.Algorithm != ratelimit.FixedWindow: // what was left says nothing soon: it comes back with time
		return verdict{}, false
	case short && by.alive && h.heard != 0:
	case cautious && h.heard != 0 && left <= a.Rule.Limit.Capacity()/ledger.PlentyAbove:
	default:
		return verdict{}, false
	}
	// The limit may have room, so that a denial that charges (on_deny) has no say.
	return l.Report(now, verdict{OverLimit: true, Source: ratelimit.FromClaim}), true
}
