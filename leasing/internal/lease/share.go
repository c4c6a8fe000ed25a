package lease

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Mode approx's part of what a node knows: spending a share before the ledger has answered,
// and telling of it (docs/protocol.md, section 4.12).

// Reconciliation is what a claim has settled of a node's drift.
type Reconciliation struct {
	Rule      *ratelimit.Rule
	Key       string // as the ledger names it
	Window    ratelimit.Window
	Fence     ratelimit.Fence
	Drift     ratelimit.Tokens // unconfirmed, when the claim was written
	Confirmed ratelimit.Tokens // of it, by this answer, if that is about the claim's window
	Over      ratelimit.Tokens // by which the window's over-admission grew
	ByPolicy  ratelimit.Tokens // of it, what on_store_failure admitted at this node
	Available ratelimit.Tokens // what the ledger has left
}

// DriftShare is how much a node may have spent of a key unconfirmed.
type DriftShare struct {
	Tokens tokens
	// Heir, if not 0, is a tenancy that another had before: see Drift.
	Heir ratelimit.Fence
}

// Waited is how long a request has waited for the ledger before it drifts.
type Waited uint8

// How long.
const (
	NotYet Waited = iota // it has just come
	Fully                // for as long as its rule waits
	InVain               // it was refused, of what the ledger grants
)

// Drifts tells whether the node may spend before the ledger has answered, if it has a share
// of a window that began at begins.
func (h *Held) Drifts(now instant, there LedgerClock, a *ask, waited Waited) (begins ledgerTime, ok bool) {
	// A node that does not know the ledger's clock cannot tell in which window it would spend.
	// Below the watermark the request waits for an answer first (docs/protocol.md, section 4.12); the first
	// one of which the ledger has said nothing that counts does not.
	waits := waited == NotYet && a.Rule.Coordination.CheckTimeout > 0
	if there.At == 0 || waits && !h.plenty(now, a) && !h.unheard(now) {
		return 0, false
	}
	in, ok := h.driftsIn(now, there, &a.Rule.Limit)
	return in.begins, ok
}

// Drift spends from the node's share, right after Drifts said that it may; it makes the lease one of the
// window that it is now. waited says that the ledger was asked for as long as the rule waits for it.
func (h *Held) Drift(now instant, there LedgerClock, a *ask, of DriftShare, waited Waited) (verdict, bool) {
	share := of.Tokens
	// A node that may spend nothing knows the key as before, so that it claims as under mode leasing.
	in, ok := h.driftsIn(now, there, &a.Rule.Limit)
	if !ok || share <= 0 {
		return verdict{}, false
	}
	unheard := waited == NotYet && h.unheard(now)
	h.begin(now, there, in.window, &a.Rule.Limit)
	// Drift of the window before still counts in a sliding window, and what a learning ledger has
	// confirmed frees no share: both use the share up.
	share -= h.Carried
	if now < h.usedTill {
		share -= h.used
	}
	h.Rule = a.Rule
	// A bucket has no next window to wait for. Who had the seat before may have spent a share of
	// this key and crashed: one share is taken as spent first, once for each tenancy
	// (docs/protocol.md, section 4.13).
	if share > 0 && of.Heir != h.heir && a.Rule.Limit.Algorithm == ratelimit.TokenBucket {
		h.Lease.Overdraw(now, share, share)
		h.heir, h.Settled = of.Heir, false
	}
	if !h.Lease.Overdraw(now, a.Cost, share) {
		// Counted only when the ledger had its time to answer: before, the request goes on to wait.
		if share > 0 && waited == Fully && a.Rule.Counters != nil {
			a.Rule.Counters.ShareUsedUp.Add(1)
		}
		return verdict{}, false
	}
	h.Settled = false
	h.Demand.LastUse = now
	h.Demand.Used = ratelimit.AddTokens(h.Demand.Used, a.Cost)
	h.Gauge()
	if h.underWay == nil && now >= h.Pause {
		// The ledger hears of it at once, for only an answer frees the share again; of a first request
		// when there is company, or when a second one comes (see Patience). A ledger that has nothing left
		// frees nothing.
		h.send(Flight{Errand: Errand{calm: unheard || waited == InVain}})
	}
	v := h.Lease.Report(now, verdict{Charged: a.Cost})
	if unheard { // as far as is known, all the rest is left
		v.Remaining = max(0, a.Rule.Limit.Capacity()-a.Cost)
	}
	v.Source = ratelimit.FromDrift
	return v, true
}

// Carry keeps what matters of the window before w, of a sliding window: what was
// charged there, and of that what was spent unconfirmed, for grants were made
// without knowing of it.
func (h *Held) Carry(w window) {
	h.Carried, h.Before = 0, 0
	if l := &h.Lease; l.Algorithm == ratelimit.SlidingWindow && l.Window == w-1 {
		h.Carried, h.Before = l.Drifted(), max(l.Spent, l.Granted-l.Returned)
	}
}

// keepUsed takes in that a ledger which is being told what it had lost has
// confirmed that much drift. It has confirmed it with tokens that a holder may have
// spent which it has not heard yet, so that in this window they free no share: the
// node would drift a second time with tokens that were never there.
func (h *Held) keepUsed(now instant, confirmed tokens) {
	if now >= h.usedTill {
		h.used = 0
	}
	h.used = ratelimit.AddTokens(h.used, confirmed)
	h.usedTill = h.Lease.Reset
	if h.Lease.Algorithm == ratelimit.SlidingWindow {
		h.usedTill = h.usedTill.Add(h.Rule.Limit.Period()) // the window counts in the next one, too
	}
}

// plenty tells whether more than the watermark was left a short while ago.
func (h *Held) plenty(now instant, a *ask) bool {
	c := &a.Rule.Coordination
	left := h.Lease.Available + max(0, h.Lease.Unspent())
	return h.Lease.Current(now, a) && now.Sub(h.Heard) <= a.Rule.SyncInterval() &&
		left > c.LowWatermark.Of(a.Rule.Limit.Capacity())
}

// unheard tells whether nothing is known of the key that counts now, so that a request is the
// first one here: of this window, of this life of a bucket.
func (h *Held) unheard(now instant) bool {
	return h.underWay == nil && h.Unplaced == 0 && now >= h.Lease.Counts()
}

// driftWindow is a window that something drifts in: 1 for a bucket, which has one life.
type driftWindow struct {
	window
	begins ledgerTime // from when on spending counts in it
}

// driftsIn is the window that it is by the ledger's clock; false when that is in doubt.
func (h *Held) driftsIn(now instant, there LedgerClock, limit *ratelimit.Limit) (driftWindow, bool) {
	// A bucket has no windows, and so none can be in doubt: it has one life. What was spent of it counts until
	// it is full again at the latest.
	if limit.Algorithm == ratelimit.TokenBucket {
		return driftWindow{max(1, h.Lease.Window), 1<<63 - 1}, true
	}
	early, late := there.Between(now)
	w := limit.WindowAt(early)
	// The ledger's clock is known to an interval. While that holds the end of a window, the
	// spending could count in either.
	if w != limit.WindowAt(late) {
		return driftWindow{}, false
	}
	switch {
	case h.Lease.Window == 0:
	case h.Lease.Window > w:
		return driftWindow{}, false // the ledger's clock was set back, and its account waits in a later window
	case h.Lease.Window != w && limit.Algorithm == ratelimit.SlidingWindow && h.Lease.Spent != h.Reported:
		// The window before counts in this one. While the ledger does not know all that was spent
		// there, it would grant here what that has used up already.
		return driftWindow{}, false
	case h.Lease.Window != w && (h.Next != nil || h.underWay != nil && h.underWay.Ahead):
		// The next window's lease is here under the other name, or is under way, and the turn is a
		// moment away. What drifted now would need that name too: the request waits for the turn.
		return driftWindow{}, false
	}
	// The window before still counts in a sliding window, so that a share counts from its beginning
	// on: a tenant may use one only if it had the seat by then.
	if limit.Algorithm == ratelimit.SlidingWindow {
		return driftWindow{w, limit.WindowEnd(w - 2)}, true // the window before still counts
	}
	return driftWindow{w, limit.WindowEnd(w - 1)}, true
}

// begin makes the lease one of the window that driftsIn has found.
func (h *Held) begin(now instant, there LedgerClock, w window, limit *ratelimit.Limit) {
	switch {
	case h.Lease.Window == 0:
		// The key's first claim may be under way. Its answer is taken in all the same, for the lease
		// keeps the number of its latest claim.
		h.Lease.Window = w
	case h.Lease.Window != w:
		h.Finish()
		h.Carry(w)
		h.Lease = Lease{Window: w}
		h.begun()
		if limit.Algorithm == ratelimit.FixedWindow {
			h.Name ^= 1
		}
	}
	switch {
	case limit.Algorithm == ratelimit.TokenBucket:
		h.Lease.SetLimit(limit)
		h.Lease.Reset = max(h.Lease.Reset, now.Add(RefillTime(limit.Burst, limit)))
	case now >= h.Lease.Reset || !h.Lease.under(limit):
		h.Lease.GiveBack()
		h.Lease.SetLimit(limit)
		h.Lease.Reset = there.NotBefore(now, limit.WindowEnd(w))
	}
}

// Untold tells whether there is something that the ledger should hear of.
func (h *Held) Untold() bool {
	return !h.Settled && (h.Lease.Spent != h.Reported || h.Lease.Unspent() > 0 || h.vain)
}

// Finish has the last word on the lease's window told to the ledger, whose
// count of what was over-admitted needs it.
func (h *Held) Finish() {
	if !h.needsLastWord() {
		return
	}
	l := &h.Lease
	// Said once: a second call for the same window finds nothing unreported.
	h.Reported = l.Spent
	fl := &Flight{Final: &finalWord{h.Rule, h.Unasked}}
	fl.Claim = ratelimit.Claim{
		Limit: l.Limit(), Holder: h.Name, Fence: l.Fence, Window: l.Window, TTL: time.Second,
		Granted: l.Granted, Spent: l.Spent, Returned: l.Returned, Tally: true, Final: true,
	}
	fl.audited(h.Rule)
	h.todoNow().LastWords = append(h.todoNow().LastWords, fl)
}

// needsLastWord tells whether the ledger is to hear of the lease's window once more.
func (h *Held) needsLastWord() bool {
	l := &h.Lease
	if h.Rule == nil || !h.Rule.Tallied() || l.Algorithm != ratelimit.FixedWindow ||
		l.Spent == h.Reported {
		return false
	}
	// Where something drifted, or nothing was left, the window may be over its limit. Otherwise it
	// is not by what this node knows. A last word is then sent only if windows are not shorter than
	// sync_interval, for one claim more a window would be too many; and not under a lease of plenty
	// with more than half of the limit left.
	little := !h.Stretched || l.Available <= h.Rule.Limit.Capacity()/ratelimit.PlentyAbove
	return l.Drifted() > 0 || l.Available <= 0 ||
		little && h.Rule.Limit.Period() >= h.Rule.Coordination.SyncInterval
}

// Drifting tells whether what was spent of the key and is not confirmed may still
// count: then whoever has the seat next must not have a share of the same window.
func (h *Held) Drifting(now instant) bool {
	return h.Lease.Drifted() > 0 && now < h.Lease.Counts() || h.Carried > 0 && now < h.Lease.Reset
}
