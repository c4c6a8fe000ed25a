package lease

import (
	"github.com/sluice-gate/sluice/ratelimit"
)

// Flight is a claim from when it is wanted until it is answered.
type Flight struct {
	Waiting tokens // of the requests behind it
	largest tokens // of one of them
	Errand
	repaid  tokens     // of what was spent, what a bucket had refilled when the claim was wanted
	Final   *finalWord // what it says if it only reports on a window that is over; nobody waits
	Lingers bool       // it waits for others to travel with
	written bool       // it is written, and what comes now cannot go with it any more
	Claim   ratelimit.Claim
	at      instant // when it was written
}

// Errand is what a flight is for, if not for requests that wait, or for a renewal.
type Errand struct {
	GiveUp bool   // return what is unspent, and want nothing
	recall bool   // return what the next moment does not need: others wait for it
	keep   tokens // of that, what requests have waited for and are about to spend stays
	again  bool   // ask again for what was refused: nobody waits
	goesOn bool   // claim the window that has begun, for the key was used in the one before
	calm   bool   // tell of what has drifted, when there is company
	Ahead  bool   // it is for the next window
	Reset  bool   // the ledger is to count from nothing again
	Beat   bool   // it has no claim, and no key: the ledger is only to be heard
	Tells  bool   // it tells again what the ledger may have lost
	Last   bool   // nothing more will be claimed: the node ends
}

// finalWord is what is known of a window that is over.
type finalWord struct {
	Rule    *ratelimit.Rule
	Unasked tokens // what on_store_failure admitted here in it
}

// Reason is what the claim was for.
func (fl *Flight) Reason() ratelimit.ClaimReason {
	switch {
	case fl.Final != nil:
		return ratelimit.ClaimFinal
	case fl.GiveUp, fl.recall && fl.Claim.Waiting == 0:
		return ratelimit.ClaimReturn
	case fl.Ahead, fl.goesOn && fl.Claim.Waiting == 0:
		return ratelimit.ClaimNext
	case fl.Claim.Waiting > 0:
		return ratelimit.ClaimWaiting
	}
	return ratelimit.ClaimRenewal
}

// audited has the ledger keep a record, if the rule wants one.
func (fl *Flight) audited(r *ratelimit.Rule) {
	if r.Coordination.Audit {
		fl.Claim.Audit, fl.Claim.AuditBound = r.AuditName(), r.DeclaredOver()
	}
}

// most is what may be asked for those who wait: no more than the largest lease
// that the rule declares, where expiry makes unreported tokens another's.
func (fl *Flight) most(rule *ratelimit.Rule) tokens {
	// Under reclaim: safe an unreported lease stays charged, so that one claim may fetch what all
	// who wait need together.
	if !rule.Coordination.Eager() {
		return fl.Waiting
	}
	return min(fl.Waiting, max(fl.largest, rule.LargestLease()))
}

// Write makes the claim of a flight that leaves now, with the sequence number seq, from
// what is known now, also of the ledger's clock. recalls says that the ledger can recall leases.
// The claim has no Key.
func (h *Held) Write(now instant, there LedgerClock, seq uint64, fl *Flight, recalls bool) ratelimit.Claim {
	// From here on no ask joins this flight: the claim says what waits.
	fl.written, fl.at = true, now
	// The next window's lease was to be given back, and its window has begun meanwhile: it is the
	// current one, and given back as that. A claim ahead would fetch a second lease of this window.
	if fl.GiveUp && h.Next == nil {
		fl.Ahead = false
	}
	name := h.Name
	switch {
	case fl.Ahead:
		// The record of this window must stay beside that of the next one, and so the claim is made
		// under the node's other name (docs/protocol.md, section 4.10).
		fl.Claim = h.claimAhead(now, seq, fl.GiveUp)
		fl.Claim.Stretch = recalls && !fl.GiveUp && h.Rule.Stretched()
		name ^= 1
	case fl.GiveUp:
		fl.Claim = h.Lease.Release(now, seq)
	default:
		h.Turn(now)
		// A fixed window of mode approx is over, and none was claimed ahead. The ledger still sums
		// up what all nodes have spent in it, and needs this node's last word for that. The record
		// of that window is left alone: the new window is claimed under the other name.
		if h.Next == nil && now >= h.Lease.Reset && h.Lease.Window != 0 &&
			h.Rule.Drifts() && h.Lease.Algorithm == ratelimit.FixedWindow {
			h.Finish()
			h.Lease, h.Reported = Lease{}, 0
			h.Name ^= 1
		}
		name = h.Name
		waiting := fl.most(h.Rule)
		if waiting > 0 && h.Rule.Limit.Algorithm != ratelimit.FixedWindow {
			// Tokens of these algorithms come back one by one, and the node refuses for a while so
			// that some gather (see Plan). Those refused meanwhile would have waited: they are
			// asked for, too, up to the capacity, or to the largest lease that the rule declares.
			refused := min(h.Demand.Refused, h.Rule.Limit.Capacity())
			if h.Rule.Coordination.Eager() {
				refused = min(refused, h.Rule.LargestLease())
			}
			waiting = max(waiting, refused)
		}
		want := waiting
		// A claim that is repeated because of a recall follows the one before within milliseconds,
		// and the demand was measured for that one.
		if !h.Recalling {
			h.Demand.Measure(now, fl.Waiting)
		}
		switch {
		case fl.recall:
			h.giveBack(fl.keep)
		// A renewal fills the lease up to what the demand needs. While others give back for this
		// claim, it asks for no more than what waits.
		case !h.Recalling:
			want = h.Demand.Want(h.Rule, fl.Waiting) - h.Lease.Left(now)
			if fl.calm { // one request is no demand, and a claim that wants nothing is no draw
				want = max(want, 1)
			}
		}
		fl.Claim = h.Lease.Claim(now, seq, h.Rule, waiting, max(want, waiting), Keeps)
		// The claim is to be settled in its window or not at all in two cases. The next window has
		// its lease under the other name: settled there under this name, the claim would make a
		// second one. Or a last word on this window is still to come, for which the ledger must
		// have this window's record.
		fl.Claim.Stretch, fl.Claim.Recall = recalls && !fl.recall && h.Rule.Stretched(), recalls
		fl.Claim.Ahead = h.Next != nil ||
			h.Rule.Drifts() && fl.Claim.Window != 0 && h.Lease.Algorithm == ratelimit.FixedWindow
	}
	fl.Claim.Holder, fl.Claim.Reset, fl.Claim.Last = name, fl.Reset, fl.Last
	h.plain(now, there, fl)
	// That a bucket has filled up since the last answer says that all is paid for which that answer
	// knew of. What was spent since takes its own time: until then a ledger that has lost its data
	// must charge it.
	if max(h.Reported, fl.repaid) != h.Lease.Spent && !h.repaid(now, &h.Rule.Limit) {
		fl.Claim.Refilled = false
	}
	if h.Lease.Algorithm == ratelimit.SlidingWindow {
		// A ledger that has lost the window before cannot know what it charged this holder there.
		fl.Claim.Before = h.Before
	}
	fl.audited(h.Rule)
	return fl.Claim
}

// repaid tells whether a bucket of its own would have refilled all that the ledger does not
// know of, since the key was last used.
func (h *Held) repaid(now instant, l *ratelimit.Limit) bool {
	return now >= h.Demand.LastUse.Add(RefillTime(h.Lease.Spent-h.Reported, l))
}

// Joining is what an ask that needs the ledger waits for.
type Joining uint8

// What an ask may wait for.
const (
	Alone      Joining = iota // a claim of its own
	Behind                    // the claim that is under way
	UntilTurn                 // the next window, which begins at TurnsAt
	UntilAgain                // what others give back; see AgainAt
	Paused                    // nothing: the key is not claimed now
)

// Join finds what an ask waits for, and the claim of its own that it needs, if it does.
func (h *Held) Join(now instant, a *ask) (how Joining, fl Flight) {
	h.Rule = a.Rule
	if h.repaid(now, &a.Rule.Limit) {
		fl.repaid = h.Lease.Spent
	}
	h.Demand.LastUse = now
	waiting := tokens(0)
	if a.Kind == ratelimit.Spend {
		waiting = min(a.Cost, a.Rule.Limit.Capacity()+1) // more makes no difference
	}
	// The window may be over and may not, and the next one's lease is here. To wait for the turn
	// takes 2 ms at most, and brings what a claim could not: certainty which lease to spend.
	if n := h.Next; n != nil && now >= n.Over && now < n.Start {
		return UntilTurn, fl
	}
	// The ledger has asked other holders to give tokens back, which takes about RecallPause. All
	// that waits for them asks again together, and not each by itself.
	if now < h.resume {
		return UntilAgain, fl
	}
	if h.underWay != nil {
		h.withdrawn(now)
		// A claim that has not left takes this ask along. One that has left cannot, and one for the
		// next window brings this one nothing: the ask waits for its end, and then for a claim of
		// its own. A key that was about to be given up as idle is in use again.
		if !h.underWay.written && !h.underWay.Ahead {
			h.underWay.Waiting += waiting
			h.underWay.largest = max(h.underWay.largest, waiting)
			h.underWay.GiveUp = false
		}
		return Behind, fl
	}
	// After several answers in a row that neither admitted nor refused what waits, the key is not
	// claimed for a while (docs/protocol.md, section 4.16).
	if now < h.Pause {
		return Paused, fl
	}
	fl.Waiting, fl.largest = waiting, waiting
	return Alone, fl
}

// TurnsAt is when the next window has certainly begun.
func (h *Held) TurnsAt() instant { return h.Next.Start }

// AgainAt is when what others were asked to give back may be there.
func (h *Held) AgainAt() instant { return h.resume }
