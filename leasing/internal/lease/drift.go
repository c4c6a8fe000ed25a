package lease

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Drifts reports whether a request may be admitted before the ledger has answered, if this node has a share of a window
// that began at begins. An earlier owner of the share must not have spent it in the same window. The part must be
// that of the current window (Enter).
func (e Entry) Drifts(now instant, there *LedgerClock, a *ratelimit.Ask, waited bool) (begins ledgerTime, ok bool) {
	if a.Kind != ratelimit.Spend || !a.Rule.Drifts() || there.At == 0 {
		return 0, false
	}
	// Below the watermark a request waits for an answer first. The first of a window does not.
	if !waited && a.Rule.Coordination.CheckTimeout > 0 && !e.Unanswered() && !e.ample(now, a.Rule) {
		return 0, false
	}
	limit := &a.Rule.Limit
	switch limit.Algorithm {
	case ratelimit.TokenBucket:
		// A bucket's usage counts until it has filled again.
		early, _ := there.Between(now)
		return early.Add(-limit.Refill(limit.Burst)), true
	case ratelimit.SlidingWindow:
		return limit.WindowEnd(e.Window - 2), true // the previous window counts in this one
	default:
		return limit.WindowEnd(e.Window - 1), true
	}
}

// SpendShare admits a request from this node's share, if it fits. When the ledger has confirmed the drift, its part of
// the share is free again. Drift is Spent above Taken, so a request that is partly covered by tokens in hand takes only
// the rest from the share.
func (e Entry) SpendShare(now instant, a *ratelimit.Ask, share tokens, v *ratelimit.Verdict) bool {
	e.sized(a.Cost)
	if now >= e.Deadline && e.Taken > e.Spent { // the lease has ended
		e.Taken = e.Spent
		if e.bucket {
			e.endLease()
		}
	}
	if a.Cost > share-e.carried-e.Drift() {
		return false
	}
	unanswered, before := e.Unanswered(), e.Drift()
	// Tokens in hand are spent first.
	e.record(a.Cost)
	e.Drifted = min(e.Drifted+e.Drift()-before, account.MostBooked)
	e.Demand.Used = ratelimit.AddTokens(e.Demand.Used, a.Cost)
	e.Demand.LastUse = now
	*v = ratelimit.Verdict{Charged: a.Cost, Source: ratelimit.FromDrift}
	e.report(now, a, v)
	if unanswered {
		v.Remaining = max(0, a.Rule.Limit.Capacity()-a.Cost) // without other data, all the rest is left
	}
	v.Source = ratelimit.FromDrift
	return true
}

// Unanswered reports whether this window has neither an answer nor a message in flight.
func (k *Key) Unanswered() bool { return k.LastAnswer == 0 && k.inFlight == 0 && k.Spent == 0 }

// Drifting reports whether unconfirmed drift may still count: then the next owner of the share must not use it in the
// same window. It counts for a time after its window, if that slides: this node may not have left it yet.
func (k *Key) Drifting(now instant, after time.Duration) bool {
	return k.Deadline != 0 &&
		(k.Drift() > 0 && now < k.CurrentUntil.Add(after) || k.carried > 0 && now < k.CurrentUntil)
}

// lowWatermark is the part of the limit below which requests without a lease wait for an answer.
const lowWatermark = 5

// ample reports whether more than the low watermark was left a short while ago. Others may have used it up since, so
// old answers do not count.
func (k *Key) ample(now instant, r *ratelimit.Rule) bool {
	left := r.Limit.Capacity() - k.Sum + k.Unspent()
	return k.LastAnswer != 0 && now.Sub(k.LastAnswer) <= r.SyncInterval() && left > r.Limit.Capacity()/lowWatermark
}
