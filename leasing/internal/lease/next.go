package lease

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A key that is busy shortly before its window rolls has the next one's lease
// claimed by then, so that no request waits for it. Of a fixed window only: the
// others do not begin anew. The two leases are held under the node's two names,
// in turn, so that the ledger has a record of each (docs/protocol.md, section 4.10).

// NextLease is a lease of the window to come.
type NextLease struct {
	Lease Lease
	Renewal
	heard   instant
	Told    instant
	eager   bool // as held's
	Expires instant
	jitter  float64
	said
	Over  instant // from here on this window may be over
	Start instant // from here on the next certainly has begun
	asked bool    // it was recalled before that; see Recall
}

// said is what the answer says of the lease besides.
type said struct{ plenty, crowded bool }

// The next window is claimed so long before it begins, at most: early enough for a
// slow ledger, and not all keys and nodes at once.
const (
	leadShare = 4 // of a period, at most
	LeadMost  = time.Second
)

// renew has a claim sent in the background, for the next window if it is time
// for that.
func (h *Held) renew(now instant) {
	// One claim is under way at a time. When both are due, the next window's goes first, for this
	// one's lease is worth nothing in a moment.
	h.send(Flight{Errand: Errand{Ahead: now >= h.AheadAt}})
}

// planAhead decides when the next window is claimed.
func (h *Held) planAhead(sent, now instant, jitter float64) {
	h.AheadAt = Never
	period := h.Rule.Limit.Period()
	// The other algorithms have no window that begins anew.
	if h.Lease.Algorithm != ratelimit.FixedWindow || h.triedAhead > h.Lease.Window {
		return
	}
	lead := min(period/leadShare, LeadMost, h.Rule.Coordination.Lease.TTL/2)
	// Up to half of the lead is left to chance: otherwise all keys of all nodes would claim at the
	// same moment.
	lead -= time.Duration(jitter * float64(lead) / 2)
	// A slow ledger is asked two round trips early at least, and no window is claimed before half
	// of the one before has passed.
	h.AheadAt = h.Lease.Reset.Add(-min(period/2, max(lead, 2*now.Sub(sent))))
}

// claimAhead writes the claim for the next window, or returns its lease.
func (h *Held) claimAhead(now instant, seq uint64, giveUp bool) ratelimit.Claim {
	// The node ends: what was claimed for the next window goes back. (An idle key keeps it, and
	// gives it back when it is the current one.)
	if giveUp {
		c := h.Next.Lease.Release(now, seq)
		c.Ahead = true
		return c
	}
	h.Demand.Measure(now, 0)
	// The totals of a new window begin at 0, and nobody waits for it yet.
	var fresh Lease
	c := fresh.Claim(now, seq, h.Rule, 0, max(1, h.Demand.Want(h.Rule, 0)), Keeps)
	c.Ahead, c.Window = true, h.triedAhead
	return c
}

// keepNext takes in the answer to claimAhead.
func (h *Held) keepNext(sent, now instant, there LedgerClock, fl *Flight, g *ratelimit.Grant, jitter float64) {
	// What was given back is not kept. Neither is the lease of another window than was asked for,
	// nor one of a ledger that does not tell its time: without that nobody knows when the window
	// begins.
	if fl.GiveUp || g.Window != fl.Claim.Window || g.At == 0 {
		return
	}
	begins := fl.Claim.Limit.WindowEnd(g.Window - 1)
	n := &NextLease{
		heard: now, Told: sent, eager: fl.Claim.Reclaim == ratelimit.ReclaimEager,
		Expires: sent.Add(g.TTL - Margin(&fl.Claim, g.TTL)), jitter: jitter, Over: there.NotBefore(now, begins),
		Start: there.SurelyBy(now, begins), said: said{g.Plenty, fl.Claim.Limit.Crowded(g.Holders)},
		Lease: Lease{Seq: g.Seq, Window: g.Window},
	}
	n.Lease.Apply(sent, &fl.Claim, g, Margin(&fl.Claim, g.TTL), lasts(sent, now, there, &fl.Claim.Limit, g))
	n.Renewal = h.Demand.Renewal(sent, now, n.Lease.Unspent(), &fl.Claim.Limit, g)
	h.Next = n
	h.agree()
}

// Of a key that is not busy no next window is claimed ahead. If it was used more than once in the window that
// has ended, and the window was longer than goesOnAbove, it probably will be in this one: its lease is
// claimed where that costs no round trip, within goesOnFor.
const (
	goesOnAbove = 10 * time.Second
	goesOnFor   = 2 * time.Second
)

// goOn has the lease of a window that has begun claimed; see goesOnAbove.
func (h *Held) goOn(now instant) {
	l := &h.Lease
	if l.Spent > 1 && h.drawn() && h.Rule.Limit.Period() >= goesOnAbove &&
		now < l.Reset.Add(goesOnFor) {
		h.send(Flight{Errand: Errand{goesOn: true}})
	}
}

// agree has the current lease last exactly until its window may be over.
func (h *Held) agree() {
	if n := h.Next; n != nil {
		// The current lease was granted by an answer with an interval of the ledger's clock of its
		// own. Where that allows to spend it for longer, it is believed, but never beyond the
		// instant at which the next window has certainly begun: no token of one window is spent in
		// the other.
		n.Over = min(n.Start, max(n.Over, h.Lease.Deadline))
		h.Lease.Deadline = min(h.expires, n.Over)
		h.Lease.Reset = max(h.Lease.Reset, n.Over)
	}
}

// Turn makes the next window's lease the current one, once its time has come.
func (h *Held) Turn(now instant) bool {
	n := h.Next
	if n == nil || now < n.Start {
		return false
	}
	// The last word on the old window is said under the old name, before name and lease change.
	h.Finish()
	h.Lease, h.Renewal, h.Heard, h.Told, h.eager, h.expires, h.Next = n.Lease, n.Renewal, n.heard, n.Told, n.eager,
		n.Expires, nil
	h.Name ^= 1
	h.Stretched, h.crowded = n.plenty, n.crowded
	// The ledger does not know yet what will be spent of the new lease.
	h.Settled = false
	h.begun()
	h.BookUnplaced()
	h.Gauge()
	h.planAhead(now, now, n.jitter)
	h.reportInTime()
	// A recall of the window that is over is over, too.
	h.asked = n.asked
	h.heed(0)
	return true
}

// inDoubt decides while the window may be over or may not, when that lasts
// longer than a request should wait: what both windows' leases have is taken
// from both, and what they have not is refused.
func (h *Held) inDoubt(now instant, a *ask) (verdict, bool) {
	n := h.Next
	// A doubt of up to DoubtWait is waited out (see UntilTurn).
	if n == nil || now < n.Over || n.Start.Sub(now) <= DoubtWait || a.Kind != ratelimit.Spend {
		return verdict{}, false
	}
	// A token that only one of the leases has may be the wrong window's. It is not spent; at most
	// it is refused while it was there.
	if now >= h.expires || a.Cost > h.Lease.Unspent() || a.Cost > n.Lease.Left(now) {
		return verdict{OverLimit: true, ResetAfter: n.Start.Sub(now)}, true
	}
	h.Lease.Spent += a.Cost // at most what is unspent
	n.Lease.Spent += a.Cost
	return n.Lease.Report(now, verdict{Charged: a.Cost}), true
}

// DoubtWait is how long a request waits for a window to have begun.
const DoubtWait = 2 * time.Millisecond
