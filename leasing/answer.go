package leasing

import (
	"errors"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Answer takes in the answer to a flight that has landed, and tells what it settled of
// drift. The claim was sent at sent; there is what is known of the ledger's clock.
func (h *Held) Answer(sent, now instant, there ledgerClock, fl *Flight, g *ratelimit.Grant, random func() float64) (r Reconciliation, drifted bool) {
	if g.Err != nil {
		h.windowOver(now, fl, g)
		if kind, ok := ledger.Rejection(g.Err); ok && kind == ratelimit.RejectedFence {
			// Either this fence was false or the one that the lease has. The lease's is forgotten:
			// otherwise one false fence that was too high would have every honest answer rejected
			// from then on.
			h.lease.Fence = 0
		}
		if h.fruitless(now, fl, g) {
			h.pauses(now, true, random)
		}
		return r, false
	}
	r, drifted = fl.reconciled(h.rule, g, h.unasked)
	h.unasked -= r.ByPolicy
	if fl.ahead {
		h.keepNext(sent, now, there, fl, g, random())
		h.gauge()
		return r, drifted
	}
	// The next window's lease has taken the place of the one that this claim was written for.
	if g.Seq != h.lease.Seq {
		return r, drifted
	}
	// The answer is about another window than the claim's totals: a new window has begun.
	if !h.lease.Carries(&fl.claim, g) {
		h.carry(g.Window)
		h.begun()
	}
	h.lease.Apply(sent, &fl.claim, g, lease.Margin(&fl.claim, g.TTL), lasts(sent, now, there, &fl.claim.Limit, g))
	h.eager = fl.claim.Reclaim == ratelimit.ReclaimEager
	if g.Relearning && r.Confirmed > 0 {
		h.keepUsed(now, r.Confirmed)
	}
	// Only now a grant says which window it is, and what on_store_failure admitted meanwhile can be
	// booked in it.
	h.bookUnplaced()
	h.lease.Forgive(h.rule.DriftShare())
	h.heard, h.told, h.elsewhere, h.stranded = now, sent, g.Outstanding, g.Stranded
	h.expires = sent.Add(g.TTL - lease.Margin(&fl.claim, g.TTL))
	// When the next window's lease is here already, this one must end where that may begin.
	h.agree()
	if h.reported = 0; g.Carried {
		h.reported = fl.claim.Spent
	}
	h.gauge()
	// Settled: nothing is left, nothing was spent while the claim was under way, and the answer
	// granted nothing that the ledger would have to hear of.
	h.settled = h.lease.Unspent() == 0 && h.lease.Spent == fl.claim.Spent && g.Granted == fl.claim.Granted
	h.plan(sent, now, fl, g, random())
	// A recall that came while the claim was under way is answered now. What requests have waited
	// for is kept: they spend it in a moment.
	if h.stretched = g.Plenty; h.asked {
		h.giveBackSome(fl.claim.Waiting)
	}
	h.again = now.Add(refusalHold)
	h.pauses(now, h.fruitless(now, fl, g), random)
	// Under reclaim: eager what is spent must be reported by half of the lease's time, also where
	// no further request comes.
	h.reportInTime()
	return r, drifted
}

// windowOver takes in that the ledger did not settle a claim which was about the
// current window or none (claim.Ahead): that window is over there, whatever this
// node thought that it knew of the ledger's clock, which may have been set.
func (h *Held) windowOver(now instant, fl *Flight, g *ratelimit.Grant) {
	if !errors.Is(g.Err, ratelimit.ErrStaleClaim) || fl.ahead || !fl.claim.Ahead || fl.claim.Window != h.lease.Window {
		return
	}
	// The window is over for this node as well, and the next one's lease may begin: otherwise
	// requests would wait for a turn that the ledger has behind it.
	h.lease.Reset = min(h.lease.Reset, now)
	if n := h.next; n != nil {
		n.over, n.start = min(n.over, now), min(n.start, now)
	}
}

// reconciled is what an answer settled of drift, and counts what was over. Up to
// unasked of that was admitted by on_store_failure.
func (fl *Flight) reconciled(rule *ratelimit.Rule, g *ratelimit.Grant, unasked tokens) (Reconciliation, bool) {
	c := &fl.claim
	if g.Err != nil {
		return Reconciliation{}, false
	}
	byPolicy := countBound(rule, g, unasked)
	drift := max(0, c.Spent-(c.Granted-c.Returned))
	return Reconciliation{
		Rule: rule, Window: g.Window, Fence: g.Fence, Drift: drift,
		Confirmed: min(drift, g.Granted-c.Granted), Over: g.OverAdmitted, ByPolicy: byPolicy, Available: g.Available,
	}, drift > 0 || g.OverAdmitted > 0
}

// fruitless tells whether an answer leaves those who waited for it where they were.
func (h *Held) fruitless(now instant, fl *Flight, g *ratelimit.Grant) bool {
	if _, rejected := ledger.Rejection(g.Err); rejected {
		return true
	}
	if g.Err != nil {
		return errors.Is(g.Err, ratelimit.ErrStaleClaim) || errors.Is(g.Err, errYoung)
	}
	got := g.Granted
	if g.Carried {
		got -= fl.claim.Granted
	}
	short := got < fl.claim.Waiting
	return fl.claim.Waiting > 0 && (now >= h.lease.Reset || short && !g.Recalling && g.RetryAfter == 0 && now >= h.lease.Retry)
}

// pauses has the key rest when one answer after the other was fruitless.
func (h *Held) pauses(now instant, fruitless bool, jitter func() float64) {
	if !fruitless {
		h.fruits, h.pause = 0, 0
		return
	}
	if h.fruits++; h.fruits < mostFruitless {
		return
	}
	h.fruits = min(h.fruits, mostFruitless+8)
	wait := min(firstPause<<(h.fruits-mostFruitless), longestPause)
	h.pause = now.Add(wait/2 + time.Duration(jitter()*float64(wait/2)))
}

// askAgain has a refusal that is held for long asked for again, in the background, as
// if a request waited.
func (h *Held) askAgain(now instant, a *ask) {
	h.again = now.Add(refusalHold)
	waiting := min(a.Cost, a.Rule.Limit.Capacity()+1)
	h.send(Flight{waiting: waiting, largest: waiting})
}
