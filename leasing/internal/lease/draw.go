package lease

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A claim may be a draw: the ledger takes its tokens from the window's till and looks at nothing
// else, which costs it little (docs/protocol.md, section 4.17). What the holder says is told with the
// next claim that is none. So nothing may be draws that the ledger is to hear of now.

// turnSoon is how soon a window must not end for a draw of it to be sent: it would come too late,
// and be a claim after all.
const turnSoon = 5 * time.Millisecond

// drawsFrom is the window of which a claim that was written may be a draw; 0 if it may not.
func (h *Held) drawsFrom(now instant, there LedgerClock, fl *Flight) window {
	c, l := &fl.Claim, &h.Lease
	// Not drawn are leases that their rule wants to be small or to be reclaimed (those are not stretched), whose grants
	// an audit is to have on record, or of keys with many holders. An operator's reset, a node's last claim and what
	// is told again after a loss are for the ledger to hear.
	if h.crowded || !c.Stretch || c.Limit.Algorithm != ratelimit.FixedWindow || h.Rule.Coordination.Audit ||
		fl.Reset || fl.Last || fl.Tells || there.At == 0 {
		return 0
	}
	// What on_store_failure admitted is to be told; so is, after a draw that was not answered, what this node
	// has: what it has drawn in vain the ledger takes back then.
	if h.Unasked > 0 || h.Unplaced > 0 || h.vain {
		return 0
	}
	w := certainWindow(now, there, &c.Limit)
	switch {
	case w == 0:
		return 0
	case fl.Ahead:
		return c.Window
	case c.Window == w:
		// What was returned is to be told; and what may be reclaimed, renewed. Of a till that is shut the draw would be
		// one message more.
		if l.Returned == h.returned && !h.eager && (l.Fence == 0 || !h.shut) {
			return w
		}
	case !c.Ahead && l.Drifted() == 0:
		return w
	}
	return 0
}

// plain says whether a claim that was written may be settled by plain commands, as a draw or a glance.
func (h *Held) plain(now instant, there LedgerClock, fl *Flight) {
	c := &fl.Claim
	if fl.again {
		c.Draw = h.glancesAt(now, there, fl)
		c.Glance = c.Draw != 0
		return
	}
	c.Draw = h.drawsFrom(now, there, fl)
	if c.Draw != c.Window || h.Lease.Fence == 0 || fl.Ahead {
		return
	}
	// As much as was left when last heard: a draw of more would take nothing, and be one message more.
	// What has drifted is drawn besides what waits.
	unit := max(1, c.Limit.Capacity()/ratelimit.PlentyPart)
	left, drift := wholeUnits(&c.Limit, unit, h.Lease.Available), h.Lease.Drifted()
	if max(max(c.Waiting, 1)+drift, unit) > left {
		c.Draw = 0
		return
	}
	c.Want = min(c.Want, left-drift)
}

// wholeUnits is how much can be drawn of what is left of a limit: a till has the limit in units of a PlentyPart of
// it, and what it has beyond so many units is claimed.
func wholeUnits(l *ratelimit.Limit, unit, left tokens) tokens {
	beyond := l.Capacity() - min(ratelimit.PlentyPart, l.Capacity())*unit
	return max(0, left-beyond) / unit * unit
}

// certainWindow is the window that it is at the ledger, and will be when a claim arrives there; 0 where that is
// not certain.
func certainWindow(now instant, there LedgerClock, l *ratelimit.Limit) window {
	early, late := there.Between(now)
	w := l.WindowAt(early)
	if w != l.WindowAt(late.Add(turnSoon)) {
		return 0
	}
	return w
}

// glancesAt is the window of which a claim that was written, and asks again for what was refused, may only want to
// know whether anything is to be had; 0 where the ledger is to hear more.
func (h *Held) glancesAt(now instant, there LedgerClock, fl *Flight) window {
	c, l := &fl.Claim, &h.Lease
	if c.Limit.Algorithm != ratelimit.FixedWindow || h.Rule.Coordination.Audit || h.vain || h.eager ||
		h.Unasked > 0 || h.Unplaced > 0 || now >= l.Retry ||
		l.Unspent() != 0 || l.Spent != h.Reported || l.Returned != h.returned {
		return 0
	}
	// A clock of which nothing is known shows a window of long ago, which is no claim's.
	if w := certainWindow(now, there, &c.Limit); w == c.Window {
		return w
	}
	return 0
}
