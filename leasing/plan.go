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

// bookUnplaced books what was admitted without the ledger, if that was in the
// lease's window.
func (h *held) bookUnplaced() {
	if h.unplacedAt > h.lease.Reset.Add(-h.rule.Limit.WindowLength(h.lease.Window)) || h.rule.Limit.Algorithm == ratelimit.TokenBucket {
		h.lease.Spent = ratelimit.Booked(h.lease.Spent, min(h.unplaced, h.rule.Limit.Capacity()))
	} else {
		h.unasked = max(0, h.unasked-h.unplaced)
	}
	h.unplaced = 0
}

// mustReport tells whether there is spending that expiry would undo.
func (h *held) mustReport() bool {
	return h.eager && h.lease.Spent != h.reported
}

// reportInTime has what is spent by half the lease's time reported: reclaimed
// eagerly, it would be spent twice. What is spent later reports itself; see take.
func (f *Fleet) reportInTime(h *held, now instant) {
	if !h.eager || h.after == never {
		return
	}
	seq, id, s := h.lease.Seq, h.id, h.shard
	f.after(max(0, h.after.Sub(now)), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h := s.find(id); h != nil && h.flight == nil && h.mustReport() && h.lease.Seq == seq {
			f.launch(h, f.newFlight(h))
		}
	})
}

const never instant = 1<<63 - 1

// plan decides when the lease is renewed, or for how long not to ask.
func (h *held) plan(sent, now instant, fl *flight, g *ratelimit.Grant, jitter float64) {
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
