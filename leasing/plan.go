package leasing

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// lasts is until when the grant's window certainly goes on, on this node's clock.
func lasts(sent, now instant, there ledgerClock, l *ratelimit.Limit, g *ratelimit.Grant) instant {
	if l.Algorithm == ratelimit.TokenBucket || g.At == 0 {
		// A bucket has no window that ends, and without the ledger's time only a duration is known.
		// It counts from sent: too early is safe, too late is not.
		return sent.Add(g.ResetAfter)
	}
	return there.notBefore(now, l.WindowEnd(g.Window))
}

// mustReport tells whether there is spending that expiry would undo.
func (h *Held) mustReport() bool {
	return h.eager && h.lease.Spent != h.reported
}

// reportInTime has what is spent by half the lease's time reported: reclaimed
// eagerly, it would be spent twice. What is spent later reports itself; see Take.
func (h *Held) reportInTime() {
	if h.eager && h.after != never {
		h.do().Report = Report{At: h.after, Seq: h.lease.Seq}
	}
}

// ReportDue tells whether a report is to be sent, now that its time has come.
func (h *Held) ReportDue(of Report) bool {
	return h.underWay == nil && h.mustReport() && h.lease.Seq == of.Seq
}

const never instant = 1<<63 - 1

// plan decides when the lease is renewed, or for how long not to ask.
func (h *Held) plan(sent, now instant, fl *Flight, g *ratelimit.Grant, jitter float64) {
	h.renewal = renewal{after: never}
	h.planAhead(sent, now, jitter)
	left := h.lease.Unspent()
	short := fl.claim.Waiting > g.Granted-fl.claim.Granted
	h.recalling = short && g.Recalling
	// Others were asked to give back: what waits claims again after recallPause. Where nobody was
	// asked, others may still return tokens by themselves, and the key claims after backOff at the
	// earliest. Chance spreads the claims of several nodes.
	if h.recalling {
		h.resume = now.Add(recallPause)
	} else if short && g.Outstanding > 0 && now >= h.lease.Retry {
		h.lease.Retry = now.Add(backOff + time.Duration(jitter*float64(backOff)))
		h.lease.RetryCost = lease.Grantable(g) + 1
	}
	got := g.Granted - fl.claim.Granted
	if h.lease.Algorithm != ratelimit.FixedWindow && !h.recalling && g.Available < max(1, h.rule.Limit.Capacity()/100) && float64(got) < h.demand.perSec*backOff.Seconds() {
		// Tokens come back one by one, and each claim would be granted one. So that a claim brings
		// several, some gather for backOff; of a bucket for half the time in which it would be
		// full, for beyond that tokens are lost.
		wait := backOff
		if h.lease.Algorithm == ratelimit.TokenBucket {
			wait = min(wait, g.ResetAfter/2)
		}
		h.lease.Retry = max(h.lease.Retry, now.Add(wait))
		h.lease.RetryCost = 1
	}
	// The ledger credits what was not reported when the lease expires: it is reported at half of
	// that time (docs/protocol.md, section 4.5).
	if h.eager && (left > 0 || h.mustReport()) {
		h.after = sent.Add(g.TTL / 2)
	}
	if left <= 0 || g.Available == 0 && g.Outstanding == 0 && h.lease.Algorithm == ratelimit.FixedWindow {
		return // nothing to renew, or nothing is to be had before the window ends
	}
	h.renewal = h.demand.renewal(sent, now, left, &fl.claim.Limit, g)
	// What a node of mode approx knows must not be older than sync_interval. Under plenty no
	// renewal is needed for that: more than half of the limit is left.
	if h.rule.Coordination.Mode == ratelimit.Approx && !g.Plenty {
		h.after = min(h.after, sent.Add(h.rule.SyncInterval()))
	}
}
