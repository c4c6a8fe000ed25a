package hold

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Next says what a request needs that Take cannot answer.
type Next uint8

// What it may need.
const (
	Answered Next = iota // nothing: it is answered
	Booked               // answered, and to be told to the ledger before its caller hears of it
	Asks                 // the ledger has to be asked
)

// Asked says how far a request has come.
type Asked struct {
	Waited bool // the ledger was asked for it
	Last   bool // it is answered now, for to ask again would bring nothing
}

// Spend answers a request from what is in hand, if that suffices: which is what most requests need. It reports whether
// it did. It does not allocate.
func (e Entry) Spend(now instant, a *ratelimit.Ask, v *ratelimit.Verdict) bool {
	// Where more is taken than this request's limit, that is another than it was taken under, or there is debt: the
	// ledger decides.
	if a.Kind != ratelimit.Spend || now >= e.Till || a.Cost > e.InHand(now) || e.Sum > a.Rule.Limit.Capacity() {
		return false
	}
	e.sized(a.Cost)
	e.Spent, e.used = e.Spent+a.Cost, true
	e.Demand.Used = ratelimit.AddTokens(e.Demand.Used, a.Cost)
	e.Demand.LastUse = now
	*v = ratelimit.Verdict{Charged: a.Cost}
	e.report(now, a, v)
	return true
}

// Take answers a request, or says what it needs. The part must be that of the window that goes on (Enter).
func (e Entry) Take(now instant, a *ratelimit.Ask, asked Asked, v *ratelimit.Verdict) Next {
	next := Answered
	switch a.Kind {
	case ratelimit.Refund:
		e.Refund(a.Cost)
		e.refusals = refusals{frees: true}
		*v = ratelimit.Verdict{}
		next = Booked
	case ratelimit.Charge, ratelimit.Release:
		*v = ratelimit.Verdict{}
		if a.Books(e.Window) {
			next = e.settle(now, a, v)
		}
	case ratelimit.Peek:
		// Who has tokens for a request of the usual cost knows that it may pass. Otherwise what was last heard is
		// believed only of a key that is used up: others may have charged meanwhile.
		over := e.usedUp(&a.Rule.Limit)
		if e.InHand(now) < max(1, e.usual) && !asked.Waited && (now >= e.until || !over) {
			return Asks
		}
		if *v = (ratelimit.Verdict{OverLimit: over}); over {
			e.Demand.Refused = ratelimit.AddTokens(e.Demand.Refused, 1) // so that it is asked for again
		}
	default:
		next = e.spend(now, a, asked, v)
	}
	if next == Asks {
		return next
	}
	e.Demand.LastUse = now
	e.report(now, a, v)
	if asked.Waited {
		v.Source = ratelimit.FromClaim
	}
	return next
}

func (e Entry) spend(now instant, a *ratelimit.Ask, asked Asked, v *ratelimit.Verdict) Next {
	if e.Spend(now, a, v) {
		return Answered
	}
	e.sized(a.Cost) // before it is asked for, for by that it is
	known := now < e.until && a.Cost > e.most && a.Rule.Limit.Capacity() <= e.under
	if !known && (!asked.Waited || !asked.Last) {
		return Asks
	}
	*v = ratelimit.Verdict{OverLimit: true}
	e.Demand.Refused = ratelimit.AddTokens(e.Demand.Refused, a.Cost)
	if a.Rule.Coordination.OnDeny == ratelimit.DenyRefunds {
		return Answered
	}
	// A denial charges its cost whole. It is told before the caller hears of it, for from then on others must refuse
	// peeks, too; but where the ledger knows that more is charged than there is, a flood of refusals is told now and
	// then.
	v.Charged = min(a.Cost, e.left(&a.Rule.Limit))
	v.Debt = a.Cost - v.Charged
	e.charge(a.Cost, &e.Charged)
	limit := a.Rule.Limit.Capacity()
	if known && e.Sum > limit {
		return Answered
	}
	return Booked
}

// settle books what a spend of before took too few, or too many.
func (e Entry) settle(now instant, a *ratelimit.Ask, v *ratelimit.Verdict) Next {
	v.Charged = a.Cost
	if a.Kind == ratelimit.Release {
		if e.keeps(now, a) {
			e.Spent -= a.Cost
			return Answered
		}
		e.Refund(a.Cost)
		e.refusals = refusals{frees: true}
		return Booked
	}
	if a.Cost <= e.InHand(now) {
		e.Spent, e.used = e.Spent+a.Cost, true
		return Answered
	}
	v.Charged = min(a.Cost, e.left(&a.Rule.Limit))
	v.Debt = a.Cost - v.Charged
	e.charge(a.Cost, &e.Charged)
	return Booked
}

// keeps tells whether what a request gives back may stay in this node's hand: in the window that it was taken of, for
// as long as that lasts, and while others need not ask for it. The ledger then need not be told, for it has the whole
// as taken.
func (e Entry) keeps(now instant, a *ratelimit.Ask) bool {
	limit := &a.Rule.Limit
	return limit.Algorithm != ratelimit.TokenBucket && e.Deadline == Never && !e.eager && !a.Rule.Coordination.Audit &&
		e.Heard != 0 && now >= e.scarce && now >= e.until &&
		e.Sum <= limit.Capacity()-limit.Capacity()/8 // while it may draw
}

// Settle books what may be booked of a settlement before the ledger has said which window goes on: a charge, in the
// window that it will say.
func (e Entry) Settle(a *ratelimit.Ask, v *ratelimit.Verdict) {
	if a.Kind == ratelimit.Charge {
		e.charge(a.Cost, &e.Charged)
		v.Charged = a.Cost
	}
}

// charge spends tokens that the node may not have, for a reason that is counted in of.
func (e Entry) charge(n tokens, of *tokens) {
	e.Spent, e.used = max(e.Spent, min(e.Spent+n, account.MostBooked)), true // a grant on its way may cover it
	*of = min(*of+n, account.MostBooked)
}

// Uncharge takes back what a refusal has charged a moment ago, for the request may be admitted after all; Recharge
// charges it again.
func (e Entry) Uncharge(a *ratelimit.Ask) {
	if a.Rule.Coordination.OnDeny == ratelimit.DenyCharges {
		e.Spent, e.Charged = e.Spent-a.Cost, e.Charged-a.Cost
	}
}

// Recharge undoes Uncharge.
func (e Entry) Recharge(a *ratelimit.Ask) {
	if a.Rule.Coordination.OnDeny == ratelimit.DenyCharges {
		e.charge(a.Cost, &e.Charged)
	}
}

// sized notes what a request costs.
func (u *Use) sized(cost tokens) {
	u.largest, u.usual = max(u.largest, cost), max(cost, u.usual-u.usual/8)
}

// usedUp tells whether more was charged than the limit, as far as is known. Others may have tokens in hand all the
// same: they are asked to give them back, for they pay for it.
func (k *Key) usedUp(limit *ratelimit.Limit) bool {
	return k.Sum+max(k.Taken, k.Spent)-k.booked > limit.Capacity()
}

// report adds to a verdict what is left, and until when.
func (e Entry) report(now instant, a *ratelimit.Ask, v *ratelimit.Verdict) {
	limit := &a.Rule.Limit
	v.Remaining = e.left(limit)
	v.Window = e.Window
	if v.ResetAfter = e.ends.Sub(now); limit.Algorithm == ratelimit.TokenBucket {
		v.ResetAfter = Refill(limit.Capacity()-v.Remaining, limit)
	}
	if !v.OverLimit {
		return
	}
	v.Remaining = min(v.Remaining, max(0, a.Cost-1)) // who asks for what is left then is to get it
	if limit.Algorithm != ratelimit.FixedWindow {
		v.ResetAfter = max(time.Millisecond, e.until.Sub(now), e.passesAfter(now, a.Cost, limit))
	}
}

// passesAfter is the earliest time at which a request that was refused may pass. Of a sliding window that is where what
// counts was spent evenly: which part of it is old, a node does not know.
func (k *Key) passesAfter(now instant, cost tokens, limit *ratelimit.Limit) time.Duration {
	unknown := max(k.Taken, k.Spent) - k.booked
	free := limit.Capacity() - k.Sum - unknown + max(0, k.Taken-k.Spent)
	return Refill(min(cost, limit.Capacity())-free, limit) - now.Sub(k.Heard)
}

// left is what is left of the limit, as far as is known, with what this node has in hand.
func (k *Key) left(limit *ratelimit.Limit) tokens {
	unknown := max(k.Taken, k.Spent) - k.booked
	return max(0, min(limit.Capacity(), limit.Capacity()-k.Sum-unknown+max(0, k.Taken-k.Spent)))
}

// Undo takes back what a verdict charged, unless its window is over.
func (e Entry) Undo(v *ratelimit.Verdict) {
	n := v.Charged + v.Debt
	if n > 0 && v.Window == e.Window {
		if e.Spent -= n; v.OverLimit {
			e.Charged = max(0, e.Charged-n)
		}
		e.until = 0
	}
}

// Admitted books what on_store_failure has admitted, in the window that goes on as far as is known.
func (e Entry) Admitted(n tokens) { e.charge(n, &e.Unasked) }

// Late says what becomes of a request that has waited for all its time.
type Late uint8

// What may become of it.
const (
	Undecided Late = iota // nothing was heard that decides: on_store_failure does
	Short                 // there was not enough a moment ago: it is refused, as any
	Doubtful              // others may have spent what there was: it is refused, and charged nothing
)

// Late tells what was last heard says of a request that has waited. A late answer is no outage: alive says that the
// ledger answers others. cautious says that the rule would rather refuse than admit.
func (e Entry) Late(now instant, a *ratelimit.Ask, alive, cautious bool) Late {
	limit := &a.Rule.Limit
	cautious = alive && cautious
	if e.Heard == 0 || now >= e.Till {
		// Of a key that was never heard of, one request at a time may be admitted until it is.
		if cautious && e.Unasked > 0 {
			return Doubtful
		}
		return Undecided
	}
	left := limit.Capacity() - e.Sum + max(0, e.Taken-e.Spent) - e.Drift()
	recent := now.Sub(e.Heard) <= a.Rule.Coordination.Deadline()
	switch {
	case a.Cost > left && recent:
		return Short
	case limit.Algorithm != ratelimit.FixedWindow && !recent:
		return Undecided // tokens have come back since
	case a.Cost > left && alive, cautious && left <= limit.Capacity()/ratelimit.PlentyAbove:
		return Doubtful
	}
	return Undecided
}

// Deny refuses a request, and charges nothing.
func (e Entry) Deny(now instant, a *ratelimit.Ask, v *ratelimit.Verdict) {
	*v = ratelimit.Verdict{OverLimit: true, Source: ratelimit.FromClaim}
	e.report(now, a, v)
}
