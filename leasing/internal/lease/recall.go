package lease

import "time"

// A recall is a message of the ledger to a holder: others wait for tokens of this
// account, and there are none left but those that are leased. The holder gives back
// at once what it does not need in the next moment. It is a hint: when it is lost,
// others are refused, and nothing else is wrong (docs/protocol.md, section 4.11).
//
//	claim: 1 waits --> nothing left, 40 leased elsewhere --recall--> other holder
//	                                                                   |
//	asked again after RecallPause <-- 38 left <-- claim: 38 returned --'

const (
	// RecallPause is how long a node waits before it asks again for what was
	// recalled: about two round trips and some work.
	RecallPause = 2 * time.Millisecond
	// RecallKeeps is for how long a holder keeps enough for its own demand.
	RecallKeeps = 20 * time.Millisecond
)

// recall is what a node knows of recalls of one key.
type recall struct {
	asked     bool    // this node was asked to give back, while a claim was under way
	Stretched bool    // the lease was made larger and longer: it is not given back when idle
	Recalling bool    // others have been asked to give back, for this node's claim
	resume    instant // until then, what waits does not claim again
	collects  tokens  // and needs so many, of which some may be here
}

// Recall takes in that others wait for what is leased of the key.
func (h *Held) Recall(now instant) {
	// What others wait for is of the window that it is now, also where nobody has asked for the key
	// since it began: it is then that the whole lease is here.
	h.Turn(now)
	switch n := h.Next; {
	// For this node the next window may have begun, and for the ledger it has.
	case n != nil && now >= n.Over:
		n.asked = true
	// What waits for others to travel with becomes the answer.
	case h.Lingers() && h.underWay.Waiting == 0 && h.underWay.Errand == Errand{}:
		h.underWay.Errand = Errand{recall: true}
	case h.withdrawn(now):
		h.underWay.Errand = Errand{recall: true}
	case h.underWay != nil:
		h.asked = true
	// Of what those who wait here have collected nothing goes back. Two nodes that wait for the same
	// last tokens would take each other's, to and fro, until the time of both is over.
	case h.Recalling && now < h.resume:
		h.giveBackSome(h.collects)
	default:
		h.giveBackSome(0)
	}
}

// withdrawn takes back a claim for the next window that waits for others to travel with, if that is under
// way: this window is to be claimed first. It is made a plain claim.
func (h *Held) withdrawn(now instant) bool {
	if !h.Lingers() || h.underWay.Waiting > 0 || h.underWay.Errand != (Errand{Ahead: true}) {
		return false
	}
	h.underWay.Errand = Errand{}
	h.AheadAt, h.triedAhead = now, h.Lease.Window // it has not been tried
	return true
}

// heed answers a recall that came while it could not be, but for keep.
func (h *Held) heed(keep tokens) {
	if h.asked && h.underWay == nil {
		h.giveBackSome(keep)
	}
}

// giveBackSome has a claim sent that returns what is not needed, but for keep.
func (h *Held) giveBackSome(keep tokens) {
	h.asked = false
	if h.Lease.Unspent() <= 0 && h.Lease.Spent == h.Reported && !h.vain {
		return // the ledger knows it by now
	}
	h.send(Flight{Errand: Errand{recall: true, keep: keep}})
}

// giveBack returns what the next moment does not need, but for keep at least.
func (h *Held) giveBack(keep tokens) {
	keep = max(keep, tokens(RecallKeeps.Seconds()*h.Demand.PerSec))
	h.Lease.Returned += max(0, h.Lease.Unspent()-keep)
	h.Stretched = false
}
