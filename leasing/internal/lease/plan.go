package lease

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// lasts is until when the grant's window certainly goes on, on this node's clock.
func lasts(sent, now instant, there LedgerClock, l *ratelimit.Limit, g *ratelimit.Grant) instant {
	if l.Algorithm == ratelimit.TokenBucket || g.At == 0 {
		// A bucket has no window that ends, and without the ledger's time only a duration is known.
		// It counts from sent: too early is safe, too late is not.
		return sent.Add(g.ResetAfter)
	}
	return there.NotBefore(now, l.WindowEnd(g.Window))
}

// mustReport tells whether there is spending that expiry would undo.
func (h *Held) mustReport() bool {
	return h.eager && h.Lease.Spent != h.Reported
}

// reportInTime has what is spent by half the lease's time reported: reclaimed
// eagerly, it would be spent twice. What is spent later reports itself; see Take.
func (h *Held) reportInTime() {
	if h.eager && h.After != Never {
		h.todoNow().Report = Report{At: h.After, Seq: h.Lease.Seq}
	}
}

// ReportDue tells whether a report is to be sent, now that its time has come.
func (h *Held) ReportDue(of Report) bool {
	return h.underWay == nil && h.mustReport() && h.Lease.Seq == of.Seq
}

// Never is an instant that does not come.
const Never instant = 1<<63 - 1

// Plan decides when the lease is renewed, or for how long not to ask.
func (h *Held) Plan(sent, now instant, fl *Flight, g *ratelimit.Grant, jitter float64) {
	h.Renewal = Renewal{After: Never}
	h.planAhead(sent, now, jitter)
	left := h.Lease.Unspent()
	got := fl.Got(g)
	short := fl.Claim.Waiting > got
	h.Recalling = short && g.Recalling
	// Others were asked to give back: what waits claims again after RecallPause. Where nobody was
	// asked, others may still return tokens by themselves, and the key claims after BackOff at the
	// earliest. Chance spreads the claims of several nodes.
	if h.Recalling {
		h.resume, h.collects = now.Add(RecallPause), fl.Claim.Waiting
	} else if short && g.Outstanding > 0 {
		h.Lease.Retry = now.Add(BackOff + time.Duration(jitter*float64(BackOff)))
		h.Lease.RetryCost = Grantable(g) + 1
	}
	if h.Lease.Algorithm != ratelimit.FixedWindow && !h.Recalling &&
		g.Available < max(1, h.Rule.Limit.Capacity()/100) && float64(got) < h.Demand.PerSec*BackOff.Seconds() {
		// Tokens come back one by one, and each claim would be granted one. So that a claim brings
		// several, some gather for BackOff; of a bucket for half the time in which it would be
		// full, for beyond that tokens are lost.
		wait := BackOff
		if h.Lease.Algorithm == ratelimit.TokenBucket {
			wait = min(wait, g.ResetAfter/2)
		}
		h.Lease.Retry = max(h.Lease.Retry, now.Add(wait))
		h.Lease.RetryCost = 1
	}
	// The ledger credits what was not reported when the lease expires: it is reported at half of
	// that time (docs/protocol.md, section 4.5).
	if h.eager && (left > 0 || h.mustReport()) {
		h.After = sent.Add(g.TTL / 2)
	}
	if left <= 0 || g.Available == 0 && g.Outstanding == 0 && h.Lease.Algorithm == ratelimit.FixedWindow {
		return // nothing to renew, or nothing is to be had before the window ends
	}
	h.Renewal = h.Demand.Renewal(sent, now, left, &fl.Claim.Limit, g)
	// A lease that is drawn costs little where its claim travels with others. When it is used up, the next one
	// is claimed if there is company in the time in which the key may not be asked for again (see Patience).
	if h.drawn() && g.Available > 0 {
		h.below = max(h.below, 1)
	}
}
