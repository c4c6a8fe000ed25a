package leasing

import (
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Flight is a claim from when it is wanted until it is answered.
type Flight struct {
	waiting tokens // of the requests behind it
	largest tokens // of one of them
	errand
	final *finalWord // what it says if it only reports on a window that is over; nobody waits
	sent  bool
	claim ratelimit.Claim
	at    instant
}

// errand is what a flight is for, if not for requests that wait, or for a renewal.
type errand struct {
	giveUp bool   // return what is unspent, and want nothing
	recall bool   // return what the next moment does not need: others wait for it
	keep   tokens // of that, what requests have waited for and are about to spend
	ahead  bool   // it is for the next window
	reset  bool   // the ledger is to count from nothing again
	beat   bool   // it has no claim, and no key: the ledger is only to be heard
	last   bool   // nothing more will be claimed: the node ends
}

// finalWord is what is known of a window that is over.
type finalWord struct {
	rule    *ratelimit.Rule
	unasked tokens // what on_store_failure admitted here in it
}

// reason is what the claim was for.
func (fl *Flight) reason() ratelimit.ClaimReason {
	switch {
	case fl.final != nil:
		return ratelimit.ClaimFinal
	case fl.giveUp, fl.recall && fl.claim.Waiting == 0:
		return ratelimit.ClaimReturn
	case fl.ahead:
		return ratelimit.ClaimNext
	case fl.claim.Waiting > 0:
		return ratelimit.ClaimWaiting
	}
	return ratelimit.ClaimRenewal
}

// audited has the ledger keep a record, if the rule wants one.
func (fl *Flight) audited(r *ratelimit.Rule) {
	if r.Coordination.Audit {
		fl.claim.Audit, fl.claim.AuditBound = r.AuditName(), r.DeclaredOver()
	}
}

// most is what may be asked for those who wait: no more than the largest lease
// that the rule declares, where expiry makes unreported tokens another's.
func (fl *Flight) most(rule *ratelimit.Rule) tokens {
	// Under reclaim: safe an unreported lease stays charged, so that one claim may fetch what all
	// who wait need together.
	if !rule.Coordination.Eager() {
		return fl.waiting
	}
	return min(fl.waiting, max(fl.largest, rule.LargestLease()))
}

// Write makes the claim of a flight that leaves now, with the sequence number seq, from
// what is known now. recalls says that the ledger can recall leases. The claim has no Key.
func (h *Held) Write(now instant, seq uint64, fl *Flight, recalls bool) ratelimit.Claim {
	// From here on no ask joins this flight: the claim says what waits.
	fl.sent, fl.at = true, now
	name := h.name
	switch {
	case fl.ahead:
		// The record of this window must stay beside that of the next one, and so the claim is made
		// under the node's other name (docs/protocol.md, section 4.10).
		fl.claim = h.claimAhead(now, seq, fl.giveUp)
		fl.claim.Stretch = recalls && !fl.giveUp && h.rule.Stretched()
		name ^= 1
	case fl.giveUp:
		fl.claim = h.lease.Release(now, seq)
	default:
		h.Turn(now)
		// A fixed window of mode approx is over, and none was claimed ahead. The ledger still sums
		// up what all nodes have spent in it, and needs this node's last word for that. The record
		// of that window is left alone: the new window is claimed under the other name.
		if h.next == nil && now >= h.lease.Reset && h.lease.Window != 0 && h.rule.Coordination.Mode == ratelimit.Approx && h.lease.Algorithm == ratelimit.FixedWindow {
			h.finish()
			h.lease, h.reported = lease.Lease{}, 0
			h.name ^= 1
		}
		name = h.name
		waiting := fl.most(h.rule)
		if waiting > 0 && h.rule.Limit.Algorithm != ratelimit.FixedWindow {
			// Tokens of these algorithms come back one by one, and the node refuses for a while so
			// that some gather (see plan). Those refused meanwhile would have waited: they are
			// asked for, too, up to the capacity.
			waiting = max(waiting, min(h.demand.refused, h.rule.Limit.Capacity()))
		}
		want := waiting
		// A claim that is repeated because of a recall follows the one before within milliseconds,
		// and the demand was measured for that one.
		if !h.recalling {
			h.demand.measure(now, fl.waiting)
		}
		switch {
		case fl.recall:
			h.giveBack(fl.keep)
		// A renewal fills the lease up to what the demand needs. While others give back for this
		// claim, it asks for no more than what waits.
		case !h.recalling:
			want = h.demand.want(h.rule, fl.waiting) - h.lease.Left(now)
		}
		fl.claim = h.lease.Claim(now, seq, h.rule, waiting, max(want, waiting), false)
		// In this window or not at all: if the next has its lease, and if the last
		// word on this one is to come.
		fl.claim.Stretch, fl.claim.Recall = recalls && !fl.recall && h.rule.Stretched(), recalls
		fl.claim.Ahead = h.next != nil || fl.claim.Tally && fl.claim.Window != 0 && h.lease.Algorithm == ratelimit.FixedWindow
	}
	fl.claim.Holder, fl.claim.Reset, fl.claim.Last = name, fl.reset, fl.last
	if h.lease.Algorithm == ratelimit.SlidingWindow {
		// A ledger that has lost the window before cannot know what it charged this holder there.
		fl.claim.Before = h.before
	}
	fl.audited(h.rule)
	return fl.claim
}

// Joining is what an ask that needs the ledger waits for.
type Joining uint8

const (
	Alone      Joining = iota // a claim of its own
	Behind                    // the claim that is under way
	UntilTurn                 // the next window, which begins at TurnsAt
	UntilAgain                // what others give back; see AgainAt
	Paused                    // nothing: the key is not claimed now
)

// Join finds what an ask waits for, and the claim of its own that it needs, if it does.
func (h *Held) Join(now instant, a *ask) (how Joining, fl Flight) {
	h.rule = a.Rule
	h.demand.lastUse = now
	waiting := tokens(0)
	if a.Kind == ratelimit.Spend {
		waiting = min(a.Cost, a.Rule.Limit.Capacity()+1) // more makes no difference
	}
	// The window may be over and may not, and the next one's lease is here. To wait for the turn
	// takes 2 ms at most, and brings what a claim could not: certainty which lease to spend.
	if n := h.next; n != nil && now >= n.over && now < n.start {
		return UntilTurn, fl
	}
	// The ledger has asked other holders to give tokens back, which takes about recallPause. All
	// that waits for them asks again together, and not each by itself.
	if now < h.resume {
		return UntilAgain, fl
	}
	if h.underWay != nil {
		// A claim that has not left takes this ask along. One that has left cannot, and one for the
		// next window brings this one nothing: the ask waits for its end, and then for a claim of
		// its own. A key that was about to be given up as idle is in use again.
		if !h.underWay.sent && !h.underWay.ahead {
			h.underWay.waiting += waiting
			h.underWay.largest = max(h.underWay.largest, waiting)
			h.underWay.giveUp = false
		}
		return Behind, fl
	}
	// After several answers in a row that neither admitted nor refused what waits, the key is not
	// claimed for a while (docs/protocol.md, section 4.16).
	if now < h.pause {
		return Paused, fl
	}
	fl.waiting, fl.largest = waiting, waiting
	return Alone, fl
}

// TurnsAt is when the next window has certainly begun.
func (h *Held) TurnsAt() instant { return h.next.start }

// AgainAt is when what others were asked to give back may be there.
func (h *Held) AgainAt() instant { return h.resume }
