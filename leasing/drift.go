package leasing

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Drift says how much this node may spend of a key before the ledger has
// answered, under rules of mode approx (docs/protocol.md, section 4.12). Package
// approx implements it.
type Drift interface {
	// Share returns that many tokens, of each key under the rule, in a window
	// that began at begins by the ledger's clock; 0 if this node may not now.
	// A bucket does not begin anew: when heir is not 0, and new for the key, one
	// share must first be taken as spent, for another may have spent it. It does
	// not block.
	Share(now ratelimit.Instant, rule *ratelimit.Rule, begins ratelimit.LedgerTime) (share ratelimit.Tokens, heir ratelimit.Fence)
}

// Reconciliation is what a claim has settled of a node's drift.
type Reconciliation struct {
	Rule      *ratelimit.Rule
	Key       string // as the ledger names it
	Window    ratelimit.Window
	Fence     ratelimit.Fence
	Drift     ratelimit.Tokens // unconfirmed, when the claim was written
	Confirmed ratelimit.Tokens // of it, by this answer
	Over      ratelimit.Tokens // by which the window's over-admission grew
	ByPolicy  ratelimit.Tokens // of it, what on_store_failure admitted at this node
	Available ratelimit.Tokens // what the ledger has left
}

// drift spends from the node's share, if it may. waited says that the ledger
// was asked for as long as the rule waits for it.
func (f *Fleet) drift(now instant, a *ask, waited bool) (verdict, bool) {
	c := &a.Rule.Coordination
	if c.Mode != ratelimit.Approx || f.Drift == nil || a.Kind != ratelimit.Spend {
		return verdict{}, false
	}
	s, id, h := f.locked(a.Key)
	defer s.mu.Unlock()
	if h == nil {
		// Without a place in the table nobody would remember what was spent, and the share would be
		// spent again and again.
		if h = f.admit(s, now, id, a.Key); h == nil {
			return verdict{}, false
		}
	}
	f.turn(h, now)
	there := f.laneOf(f.keyName(a.Key)).time()
	// A node that does not know the ledger's clock cannot tell in which window it would spend.
	// Below the watermark the request waits for an answer first (docs/protocol.md, section 4.12).
	if there.at == 0 || !waited && c.CheckTimeout > 0 && !h.plenty(now, a) {
		return verdict{}, false
	}
	begins, ok := f.begin(h, now, there, a)
	if !ok {
		return verdict{}, false
	}
	share, heir := f.Drift.Share(now, a.Rule, begins)
	// Drift of the window before still counts in a sliding window, and what a learning ledger has
	// confirmed frees no share: both use the share up.
	share -= h.carried
	if now < h.usedTill {
		share -= h.used
	}
	h.rule = a.Rule
	// A bucket has no next window to wait for. Who had the seat before may have spent a share of
	// this key and crashed: one share is taken as spent first, once for each tenancy
	// (docs/protocol.md, section 4.13).
	if share > 0 && heir != h.heir && a.Rule.Limit.Algorithm == ratelimit.TokenBucket {
		h.lease.Overdraw(now, share, share)
		h.heir, h.settled = heir, false
	}
	if !h.lease.Overdraw(now, a.Cost, share) {
		// Counted only when the ledger had its time to answer: before, the request goes on to wait.
		if share > 0 && waited && a.Rule.Counters != nil {
			a.Rule.Counters.ShareUsedUp.Add(1)
		}
		return verdict{}, false
	}
	h.settled = false
	h.demand.lastUse = now
	h.demand.used = ratelimit.AddTokens(h.demand.used, a.Cost)
	h.gauge()
	if h.flight == nil && now >= h.pause {
		// The ledger hears of it at once: only an answer frees the share again.
		f.launch(h, f.newFlight(h))
	}
	v := h.lease.Report(now, verdict{Charged: a.Cost})
	v.Source = ratelimit.FromDrift
	return v, true
}

// carry keeps what matters of the window before w, of a sliding window: what was
// charged there, and of that what was spent unconfirmed, for grants were made
// without knowing of it.
func (h *held) carry(w window) {
	h.carried, h.before = 0, 0
	if l := &h.lease; l.Algorithm == ratelimit.SlidingWindow && l.Window == w-1 {
		h.carried, h.before = l.Drifted(), max(l.Spent, l.Granted-l.Returned)
	}
}

// keepUsed takes in that a ledger which is being told what it had lost has
// confirmed that much drift. It has confirmed it with tokens that a holder may have
// spent which it has not heard yet, so that in this window they free no share: the
// node would drift a second time with tokens that were never there.
func (h *held) keepUsed(now instant, confirmed tokens) {
	if now >= h.usedTill {
		h.used = 0
	}
	h.used = ratelimit.AddTokens(h.used, confirmed)
	h.usedTill = h.lease.Reset
	if h.lease.Algorithm == ratelimit.SlidingWindow {
		h.usedTill = h.usedTill.Add(h.rule.Limit.Period()) // the window counts in the next one, too
	}
}

// plenty tells whether more than the watermark was left a short while ago.
func (h *held) plenty(now instant, a *ask) bool {
	c := &a.Rule.Coordination
	left := h.lease.Available + max(0, h.lease.Unspent())
	return h.lease.Current(now, a) && now.Sub(h.heard) <= a.Rule.SyncInterval() && left > c.LowWatermark.Of(a.Rule.Limit.Capacity())
}

// begin makes the lease one of the window that it is by the ledger's clock,
// and tells from when on spending counts in it. It reports false when the
// window is in doubt.
func (f *Fleet) begin(h *held, now instant, there ledgerClock, a *ask) (ledgerTime, bool) {
	limit := &a.Rule.Limit
	early, late := there.between(now)
	if limit.Algorithm == ratelimit.TokenBucket {
		// A bucket has no windows, and so none can be in doubt. What was spent of it counts until
		// it is full again at the latest.
		full := lease.RefillTime(limit.Burst, limit)
		if h.lease.Window == 0 {
			h.lease.Window = 1 // it has one life
		}
		h.lease.SetLimit(limit)
		h.lease.Reset = max(h.lease.Reset, now.Add(full))
		return 1<<63 - 1, true
	}
	w := limit.WindowAt(early)
	// The ledger's clock is known to an interval. While that holds the end of a window, the
	// spending could count in either.
	if w != limit.WindowAt(late) {
		return 0, false
	}
	switch {
	case h.lease.Window == 0:
		h.lease.Window = w // an answer to what is under way still counts
	case h.lease.Window > w:
		return 0, false // the ledger's clock was set back, and its account waits in a later window
	case h.lease.Window != w && limit.Algorithm == ratelimit.SlidingWindow && h.lease.Spent != h.reported:
		return 0, false // what is not known of the window before counts in this one
	case h.lease.Window != w && (h.next != nil || h.flight != nil && h.flight.ahead):
		return 0, false // the other name is taken, a moment before the turn
	case h.lease.Window != w:
		f.finish(h)
		h.carry(w)
		h.lease = lease.Lease{Window: w}
		h.begun()
		if limit.Algorithm == ratelimit.FixedWindow {
			h.name ^= 1
		}
	}
	if !h.lease.Current(now, a) {
		h.lease.GiveBack()
		h.lease.SetLimit(limit)
		h.lease.Reset = there.notBefore(now, limit.WindowEnd(w))
	}
	// The window before still counts in a sliding window, so that a share counts from its beginning
	// on: a tenant may use one only if it had the seat by then.
	if limit.Algorithm == ratelimit.SlidingWindow {
		return limit.WindowEnd(w - 2), true // the window before still counts
	}
	return limit.WindowEnd(w - 1), true
}

// gauges are what a rule's gauges have of one key.
type gauges struct {
	of                         *ratelimit.RuleCounters
	leased, drifting, stranded tokens
}

// set replaces what they have; of nil, by nothing.
func (g *gauges) set(of *ratelimit.RuleCounters, leased, drifting, stranded tokens) {
	if old := g.of; old != nil {
		old.Leased.Add(int64(-g.leased))
		old.Drifting.Add(int64(-g.drifting))
		old.Stranded.Add(int64(-g.stranded))
	}
	if *g = (gauges{of, leased, drifting, stranded}); of != nil {
		of.Leased.Add(int64(leased))
		of.Drifting.Add(int64(drifting))
		of.Stranded.Add(int64(stranded))
	}
}

// gauge keeps the rule's gauges of leased, drifting and stranded tokens.
func (h *held) gauge() {
	if h.rule == nil {
		return
	}
	leased := max(0, h.lease.Unspent())
	if h.next != nil {
		leased += max(0, h.next.lease.Unspent())
	}
	h.gauges.set(h.rule.Counters, leased, h.lease.Drifted(), h.stranded)
}

// begun forgets what was heard of the window before. What is unplaced is of this one.
func (h *held) begun() { h.reported, h.elsewhere, h.stranded, h.unasked = 0, 0, 0, h.unplaced }

// countBound counts a window when this claim has brought it near what its rule
// declares to over-admit, or beyond. Up to unasked of what went over was admitted
// here by on_store_failure, which the rule declares apart: a window that is beyond
// only because of that is counted apart, and how much it was is returned.
func countBound(rule *ratelimit.Rule, g *ratelimit.Grant, unasked tokens) (byPolicy tokens) {
	if g.OverAdmitted <= 0 || rule.Counters == nil {
		return 0
	}
	rule.Counters.OverAdmitted.Add(uint64(g.OverAdmitted))
	byPolicy = min(g.OverAdmitted, unasked)
	rule.Counters.OverByPolicy.Add(uint64(byPolicy))
	declared, before := rule.DeclaredOver(), g.Over-g.OverAdmitted
	if near := declared - declared/5; before < near && g.Over-byPolicy >= near {
		rule.Counters.NearBound.Add(1)
	}
	switch {
	case before > declared || g.Over <= declared:
	case g.Over-byPolicy <= declared:
		rule.Counters.BeyondByPolicy.Add(1)
	default:
		rule.Counters.BeyondBound.Add(1)
	}
	return byPolicy
}

// untold tells whether there is something that the ledger should hear of.
func (h *held) untold() bool {
	return !h.settled && (h.lease.Spent != h.reported || h.lease.Unspent() > 0)
}

// finish has the last word on the lease's window told to the ledger, whose
// count of what was over-admitted needs it. Nobody waits for it; when it is
// lost, the count is too low. The caller holds the shard's lock.
func (f *Fleet) finish(h *held) {
	if !h.needsLastWord() {
		return
	}
	l := &h.lease
	// Said once: a second call for the same window finds nothing unreported.
	h.reported = l.Spent
	fl := f.newFlight(h)
	fl.final = &finalWord{h.rule, h.unasked}
	fl.claim = ratelimit.Claim{
		Key: fl.name, Limit: l.Limit(), Holder: h.name, Fence: l.Fence, Window: l.Window, TTL: time.Second,
		Granted: l.Granted, Spent: l.Spent, Returned: l.Returned, Tally: true, Final: true,
	}
	fl.audited(h.rule)
	select {
	// A full queue is left to claims that requests wait for.
	case f.laneOf(fl.name).queue <- fl:
	default:
	}
}

// needsLastWord tells whether the ledger is to hear of the lease's window once more.
func (h *held) needsLastWord() bool {
	l := &h.lease
	if h.rule == nil || h.rule.Coordination.Mode != ratelimit.Approx || l.Algorithm != ratelimit.FixedWindow || l.Window == 0 || l.Spent == h.reported {
		return false
	}
	// Where something drifted, or nothing was left, the window may be over its limit. Otherwise it
	// is not by what this node knows. A last word is then sent only if windows are not shorter than
	// sync_interval, for one claim more a window would be too many; and not under plenty, where
	// more than half of the limit was left.
	return l.Drifted() > 0 || l.Available <= 0 || !h.stretched && h.rule.Limit.Period() >= h.rule.Coordination.SyncInterval
}

// drifting tells whether what was spent of the key and is not confirmed may still
// count: then whoever has the seat next must not have a share of the same window.
func (h *held) drifting(now instant) bool {
	return h.lease.Drifted() > 0 && now < h.lease.Counts() || h.carried > 0 && now < h.lease.Reset
}

// Drifting tells whether this node has spent what the ledger has not
// confirmed, in windows that go on. It takes every lock once.
func (f *Fleet) Drifting() bool {
	now, found := f.clock(), false
	for w := (walk{}); !found && f.step(&w, func(s *fleetShard, c *heldCell) {
		if c.Val.slot != 0 || c.Mark&coldDrifts != 0 {
			var scratch held
			found = found || s.view(c, &scratch).drifting(now)
		}
	}); {
	}
	return found
}
