package leasing

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A key that is busy shortly before its window rolls has the next one's lease
// claimed by then, so that no request waits for it. Of a fixed window only: the
// others do not begin anew. The two leases are held under the node's two names,
// in turn, so that the ledger has a record of each (docs/protocol.md, section 4.10).

// nextLease is a lease of the window to come.
type nextLease struct {
	lease lease.Lease
	renewal
	heard   instant
	told    instant
	eager   bool // as held's
	expires instant
	jitter  float64
	over    instant // from here on this window may be over
	start   instant // from here on the next certainly has begun
}

// The next window is claimed this long before it begins: early enough for a
// slow ledger, and not all keys and nodes at once.
const (
	leadShare = 4 // of a period, at most
	leadMost  = time.Second
)

// renew has a claim sent in the background, for the next window if it is time
// for that.
func (h *Held) renew(now instant) {
	// One claim is under way at a time. When both are due, the next window's goes first, for this
	// one's lease is worth nothing in a moment.
	h.send(Flight{errand: errand{ahead: now >= h.aheadAt}})
}

// planAhead decides when the next window is claimed.
func (h *Held) planAhead(sent, now instant, jitter float64) {
	h.aheadAt = never
	period := h.rule.Limit.Period()
	// The other algorithms have no window that begins anew.
	if h.lease.Algorithm != ratelimit.FixedWindow || h.triedAhead > h.lease.Window {
		return
	}
	lead := min(period/leadShare, leadMost, h.rule.Coordination.Lease.TTL/2)
	// Up to half of the lead is left to chance: otherwise all keys of all nodes would claim at the
	// same moment.
	lead -= time.Duration(jitter * float64(lead) / 2)
	// A slow ledger is asked two round trips early at least, and no window is claimed before half
	// of the one before has passed.
	h.aheadAt = h.lease.Reset.Add(-min(period/2, max(lead, 2*now.Sub(sent))))
}

// claimAhead writes the claim for the next window, or returns its lease.
func (h *Held) claimAhead(now instant, seq uint64, giveUp bool) ratelimit.Claim {
	// The key is idle: what was claimed for the next window goes back.
	if giveUp && h.next != nil {
		c := h.next.lease.Release(now, seq)
		c.Ahead = true
		return c
	}
	h.demand.measure(now, 0)
	// The totals of a new window begin at 0, and nobody waits for it yet.
	var fresh lease.Lease
	c := fresh.Claim(now, seq, h.rule, 0, max(1, h.demand.want(h.rule, 0)), false)
	c.Ahead, c.Window = true, h.triedAhead
	return c
}

// keepNext takes in the answer to claimAhead.
func (h *Held) keepNext(sent, now instant, there ledgerClock, fl *Flight, g *ratelimit.Grant, jitter float64) {
	// What was given back is not kept. Neither is the lease of another window than was asked for,
	// nor one of a ledger that does not tell its time: without that nobody knows when the window
	// begins.
	if fl.giveUp || g.Window != fl.claim.Window || g.At == 0 {
		return
	}
	begins := fl.claim.Limit.WindowEnd(g.Window - 1)
	n := &nextLease{
		heard: now, told: sent, eager: fl.claim.Reclaim == ratelimit.ReclaimEager, expires: sent.Add(g.TTL - lease.Margin(&fl.claim, g.TTL)), jitter: jitter, over: there.notBefore(now, begins), start: there.surelyBy(now, begins),
		lease: lease.Lease{Seq: g.Seq, Window: g.Window},
	}
	n.lease.Apply(sent, &fl.claim, g, lease.Margin(&fl.claim, g.TTL), lasts(sent, now, there, &fl.claim.Limit, g))
	n.renewal = h.demand.renewal(sent, now, n.lease.Unspent(), &fl.claim.Limit, g)
	h.next = n
	h.agree()
}

// agree has the current lease last exactly until its window may be over.
func (h *Held) agree() {
	if n := h.next; n != nil {
		// The current lease was granted by an answer with an interval of the ledger's clock of its
		// own. Where that allows to spend it for longer, it is believed, but never beyond the
		// instant at which the next window has certainly begun: no token of one window is spent in
		// the other.
		n.over = min(n.start, max(n.over, h.lease.Deadline))
		h.lease.Deadline = min(h.expires, n.over)
		h.lease.Reset = max(h.lease.Reset, n.over)
	}
}

// Turn makes the next window's lease the current one, once its time has come.
func (h *Held) Turn(now instant) bool {
	n := h.next
	if n == nil || now < n.start {
		return false
	}
	// The last word on the old window is said under the old name, before name and lease change.
	h.finish()
	h.lease, h.renewal, h.heard, h.told, h.eager, h.expires, h.next = n.lease, n.renewal, n.heard, n.told, n.eager, n.expires, nil
	h.name ^= 1
	// The ledger does not know yet what will be spent of the new lease.
	h.settled = false
	h.begun()
	h.bookUnplaced()
	h.gauge()
	h.planAhead(now, now, n.jitter)
	h.reportInTime()
	return true
}

// inDoubt decides while the window may be over or may not, when that lasts
// longer than a request should wait: what both windows' leases have is taken
// from both, and what they have not is refused.
func (h *Held) inDoubt(now instant, a *ask) (verdict, bool) {
	n := h.next
	// A doubt of up to doubtWait is waited out (see untilTurn).
	if n == nil || now < n.over || n.start.Sub(now) <= doubtWait || a.Kind != ratelimit.Spend {
		return verdict{}, false
	}
	// A token that only one of the leases has may be the wrong window's. It is not spent; at most
	// it is refused while it was there.
	if now >= h.expires || a.Cost > h.lease.Unspent() || a.Cost > n.lease.Left(now) {
		return verdict{OverLimit: true, ResetAfter: n.start.Sub(now)}, true
	}
	h.lease.Spent += a.Cost // at most what is unspent
	n.lease.Spent += a.Cost
	return n.lease.Report(now, verdict{Charged: a.Cost}), true
}

// doubtWait is how long a request waits for a window to have begun.
const doubtWait = 2 * time.Millisecond
