package lease

import (
	"errors"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Answer takes in the answer to a flight that has landed, and tells what it settled of
// drift. The claim was sent at sent; there is what is known of the ledger's clock.
func (h *Held) Answer(
	sent, now instant, there LedgerClock, fl *Flight, g *ratelimit.Grant, random func() float64,
) (r Reconciliation, drifted bool) {
	if g.Err != nil {
		// The draw may have been executed all the same. The next claim is to tell what this node has, so that the
		// ledger takes it back: a second draw would be charged on top of it.
		if fl.Claim.Draw != 0 && !fl.Claim.Glance {
			h.vain, h.Settled = true, false
		}
		h.windowOver(now, fl, g)
		if kind, ok := ratelimit.RejectionOf(g.Err); ok && kind == ratelimit.RejectedFence {
			// Either this fence was false or the one that the lease has. The lease's is forgotten:
			// otherwise one false fence that was too high would have every honest answer rejected
			// from then on.
			h.Lease.Fence = 0
		}
		if h.fruitless(now, fl, g) {
			h.fails(now, random)
		}
		// A recall that came meanwhile is answered: others may wait for what was drawn in vain.
		if h.vain {
			h.heed(fl.Claim.Waiting)
		}
		return r, false
	}
	if !g.Drawn && !fl.Ahead { // a claim ahead says nothing of this window
		h.vain = false
	}
	r, drifted = fl.Reconciled(h.Rule, g, h.Unasked)
	h.Unasked -= r.ByPolicy
	if fl.Ahead {
		h.keepNext(sent, now, there, fl, g, random())
		h.Gauge()
		h.heed(0)
		return r, drifted
	}
	// The next window's lease has taken the place of the one that this claim was written for.
	if g.Seq != h.Lease.Seq {
		h.heed(0)
		return r, drifted
	}
	// The answer is about another window than the claim's totals: a new window has begun.
	if !h.Lease.Carries(&fl.Claim, g) {
		h.Carry(g.Window)
		h.begun()
	}
	h.Lease.Apply(sent, &fl.Claim, g, Margin(&fl.Claim, g.TTL), lasts(sent, now, there, &fl.Claim.Limit, g))
	h.eager = fl.Claim.Reclaim == ratelimit.ReclaimEager
	if g.Relearning && r.Confirmed > 0 {
		h.keepUsed(now, r.Confirmed)
	}
	// Only now a grant says which window it is, and what on_store_failure admitted meanwhile can be
	// booked in it.
	h.BookUnplaced()
	h.Lease.Forgive(h.Rule.DriftShare())
	h.Heard, h.elsewhere, h.stranded = now, g.Outstanding, g.Stranded
	// A draw tells nothing of what the holder had: a ledger that has lost that does not know it now.
	if !g.Drawn || !g.Carried {
		h.Told = sent
	}
	h.expires = sent.Add(g.TTL - Margin(&fl.Claim, g.TTL))
	// When the next window's lease is here already, this one must end where that may begin.
	h.agree()
	// Of another window than the claim's the ledger knows nothing yet, as begun says, and of what was
	// drawn nothing more than that.
	if g.Carried && !g.Drawn {
		h.Reported, h.returned = fl.Claim.Spent, fl.Claim.Returned
	}
	h.Gauge()
	// Settled: nothing is left, nothing was spent while the claim was under way, and the answer granted nothing that
	// the ledger would have to hear of. An answer about another window than the claim's totals shows that only if
	// those are 0.
	h.Settled = h.Lease.Unspent() == 0 && h.Lease.Spent == fl.Claim.Spent && g.Granted == fl.Claim.Granted &&
		(g.Carried || fl.Claim.Spent == 0 && fl.Claim.Granted == 0)
	h.Stretched, h.shut = g.Plenty, g.Shut
	// A glance says nothing of holders.
	h.crowded = fl.Claim.Limit.Crowded(g.Holders) || fl.Claim.Glance && g.Drawn && h.crowded
	h.Plan(sent, now, fl, g, random())
	// What requests have waited for is kept: they spend it in a moment.
	h.heed(fl.Claim.Waiting)
	h.holdRefusal(now, fl.Claim.Recall && fl.Claim.Waiting > fl.Got(g) && g.Outstanding == 0)
	if h.fruitless(now, fl, g) {
		h.fails(now, random)
	} else {
		h.Fruits, h.Pause = 0, 0
	}
	// Under reclaim: eager what is spent must be reported by half of the lease's time, also where
	// no further request comes.
	h.reportInTime()
	return r, drifted
}

// windowOver takes in that the ledger did not settle a claim which was about the
// current window or none (claim.Ahead): that window is over there, whatever this
// node thought that it knew of the ledger's clock, which may have been set.
func (h *Held) windowOver(now instant, fl *Flight, g *ratelimit.Grant) {
	if !errors.Is(g.Err, ratelimit.ErrStaleClaim) || fl.Ahead || !fl.Claim.Ahead || fl.Claim.Window != h.Lease.Window {
		return
	}
	// The window is over for this node as well, and the next one's lease may begin: otherwise
	// requests would wait for a turn that the ledger has behind it.
	h.Lease.Reset = min(h.Lease.Reset, now)
	if n := h.Next; n != nil {
		n.Over, n.Start = min(n.Over, now), min(n.Start, now)
	}
}

// Reconciled is what an answer settled of drift, and counts what was over. Up to
// unasked of that was admitted by on_store_failure.
func (fl *Flight) Reconciled(rule *ratelimit.Rule, g *ratelimit.Grant, unasked tokens) (Reconciliation, bool) {
	c := &fl.Claim
	if g.Err != nil {
		return Reconciliation{}, false
	}
	byPolicy := CountBound(rule, g, unasked)
	drift := max(0, c.Spent-(c.Granted-c.Returned))
	over, _ := rule.Beyond(g)
	return Reconciliation{
		Rule: rule, Window: g.Window, Fence: g.Fence, Drift: drift,
		Confirmed: min(drift, fl.confirmed(g)), Over: over, ByPolicy: byPolicy, Available: g.Available,
	}, drift > 0 || over > 0
}

// Got is what an answer has brought: where it is about another window than the claim's totals,
// all that it grants.
func (fl *Flight) Got(g *ratelimit.Grant) tokens {
	if !g.Carried {
		return g.Granted
	}
	return g.Granted - fl.Claim.Granted
}

// confirmed is how much drift an answer may have confirmed: none of another window.
func (fl *Flight) confirmed(g *ratelimit.Grant) tokens {
	if !g.Carried {
		return 0
	}
	return max(0, fl.Got(g))
}

// fruitless tells whether an answer leaves those who waited for it where they were.
func (h *Held) fruitless(now instant, fl *Flight, g *ratelimit.Grant) bool {
	if _, rejected := ratelimit.RejectionOf(g.Err); rejected {
		return true
	}
	if g.Err != nil {
		return errors.Is(g.Err, ratelimit.ErrStaleClaim) || errors.Is(g.Err, ErrYoung)
	}
	short := fl.Got(g) < fl.Claim.Waiting
	return fl.Claim.Waiting > 0 && (now >= h.Lease.Reset ||
		short && !g.Recalling && g.RetryAfter == 0 && now >= h.Lease.Retry)
}

// fails has the key rest when one answer after the other was fruitless.
func (h *Held) fails(now instant, jitter func() float64) {
	if h.Fruits++; h.Fruits < MostFruitless {
		return
	}
	h.Fruits = min(h.Fruits, MostFruitless+8)
	wait := min(firstPause<<(h.Fruits-MostFruitless), LongestPause)
	h.Pause = now.Add(wait/2 + time.Duration(jitter()*float64(wait/2)))
}

// holdRefusal decides when a refusal of a store is asked for again. In a window of a minute or less it is after each
// one that confirms the one before twice as long: of a window that is used up nearly all do, and keys
// that are much asked for would have most of their claims then.
func (h *Held) holdRefusal(now instant, refused bool) {
	if !refused || h.Rule.Limit.Period() > time.Minute {
		h.holds = 0
	}
	h.again = now.Add(RefusalHold << h.holds)
	if refused {
		h.holds = min(h.holds+1, mostHolds)
	}
}

// askAgain has a refusal that is held for long asked for again, in the background, as
// if a request waited.
func (h *Held) askAgain(now instant, a *ask) {
	h.again = now.Add(RefusalHold)
	waiting := min(a.Cost, a.Rule.Limit.Capacity()+1)
	h.send(Flight{Waiting: waiting, largest: waiting, Errand: Errand{again: true}})
}
