package lease

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Next is the next step for a request.
type Next uint8

// Steps.
const (
	Answered Next = iota // none: it is answered
	Booked               // answered, and to be booked at the ledger before the caller gets the answer
	Asks                 // a claim is needed
)

// Reply is the progress of a request.
type Reply struct {
	Waited  bool // a claim was made for it
	Granted bool // it brought tokens, under a limit that is at most the request's
	Last    bool // it is answered now, because another claim would change nothing
}

// Spend answers a request from the tokens in hand, if they suffice, as for most requests. It reports whether it did.
// It does not allocate.
func (e Entry) Spend(now instant, a *ratelimit.Ask, v *ratelimit.Verdict) bool {
	// If the sum is above this request's limit, the tokens were taken under a larger limit, or there is debt: the
	// ledger decides.
	limit := a.Rule.Limit.Capacity()
	return a.Cost <= limit && e.Sum <= limit && e.spendInHand(now, a, v)
}

func (e Entry) spendInHand(now instant, a *ratelimit.Ask, v *ratelimit.Verdict) bool {
	if a.Kind != ratelimit.Spend || now >= e.CurrentUntil || a.Cost > e.InHand(now) {
		return false
	}
	e.sized(a.Cost)
	e.record(a.Cost)
	e.Demand.Used = ratelimit.AddTokens(e.Demand.Used, a.Cost)
	e.Demand.LastUse = now
	*v = ratelimit.Verdict{Charged: a.Cost}
	e.report(now, a, v)
	return true
}

// spendDue answers a request from what a bucket granted for it. The ledger has counted it as spent, so Spent does not
// change.
func (e Entry) spendDue(now instant, a *ratelimit.Ask, v *ratelimit.Verdict) bool {
	if a.Cost > e.Granted {
		return false
	}
	e.Granted -= a.Cost
	e.sized(a.Cost)
	e.Demand.Used = ratelimit.AddTokens(e.Demand.Used, a.Cost)
	e.Demand.LastUse = now
	*v = ratelimit.Verdict{Charged: a.Cost}
	return true
}

// TakePart answers a request in a young epoch, in which the ledger grants nothing: up to a part of the limit in all,
// whatever limits the key's requests bring. The admissions are charges: the next message after the young epoch states
// them.
func (e Entry) TakePart(now instant, a *ratelimit.Ask, part tokens, v *ratelimit.Verdict) {
	*v = ratelimit.Verdict{OverLimit: max(1, a.Cost) > part-e.Drift(), Source: ratelimit.FromClaim}
	if a.Kind == ratelimit.Spend && !v.OverLimit {
		e.Admitted(now, a.Cost)
		v.Charged = a.Cost
	}
	e.report(now, a, v)
	v.Source = ratelimit.FromClaim
}

// Take answers a request, or returns its next step. The part must be that of the current window (Enter). reply is the
// zero Reply before the first claim for the request.
func (e Entry) Take(now instant, a *ratelimit.Ask, reply Reply, v *ratelimit.Verdict) Next {
	next := Answered
	switch a.Kind {
	case ratelimit.Refund:
		refunded(a.Rule)
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
		// A node with tokens for a usual request can answer that requests pass. Otherwise the last answer counts only
		// for a used-up key: others may have charged since.
		// A limit of 0 admits nothing, though nothing is used.
		limit := &a.Rule.Limit
		over := limit.Capacity() == 0 || e.usedUp(limit)
		if e.InHand(now) < max(1, e.usual) && !reply.Waited && (now >= e.refusedUntil || !over) {
			return Asks
		}
		*v = (ratelimit.Verdict{OverLimit: over})
		if over {
			e.Demand.Refused = ratelimit.AddTokens(e.Demand.Refused, 1) // so that a claim is made for it
		}
	default:
		next = e.spendOrRefuse(now, a, reply, v)
	}
	if next == Asks {
		return next
	}
	e.Demand.LastUse = now
	e.report(now, a, v)
	if reply.Waited {
		v.Source = ratelimit.FromClaim
	}
	return next
}

// spendOrRefuse admits a request with tokens in hand, or refuses it by the last answer. Otherwise the ledger decides.
func (e Entry) spendOrRefuse(now instant, a *ratelimit.Ask, reply Reply, v *ratelimit.Verdict) Next {
	// Tokens that were granted for a request are its own, whatever others have been refused since. If that request has
	// left, they are those of others that wait. A request of more than its limit has none: a bucket's sum, which is its
	// burst less its level, says nothing of tokens from before a lower limit.
	limit := a.Rule.Limit.Capacity()
	granted := a.Cost <= limit && (reply.Granted || e.Sum <= limit)
	if granted && (e.spendDue(now, a, v) || e.spendInHand(now, a, v)) {
		return Answered
	}
	e.sized(a.Cost) // before the claim, whose size depends on it
	// A refusal holds for requests of more than it left, and not for a larger limit.
	known := now < e.refusedUntil && a.Cost > e.most && a.Rule.Limit.Capacity() <= e.refusedLimit
	if !known && (!reply.Waited || !reply.Last) {
		return Asks
	}
	*v = ratelimit.Verdict{OverLimit: true}
	e.Demand.Refused = ratelimit.AddTokens(e.Demand.Refused, a.Cost)
	if a.Rule.Coordination.OnDeny == ratelimit.DenyRefunds {
		// If several nodes keep too few tokens for such a request, all refuse it until the window ends.
		if reply.Waited && e.others {
			e.yield(now, max(0, e.Waiting-a.Cost))
		}
		return Answered
	}
	// A denial charges its whole cost. It is reported before the caller gets the answer, because from then on others
	// must refuse peeks, too. If the ledger's sum is above the limit already, a flood of refusals is reported from
	// time to time.
	v.Charged = min(a.Cost, e.left(&a.Rule.Limit))
	v.Debt = a.Cost - v.Charged
	e.charge(a.Cost, &e.Charged)
	if known && e.Sum > a.Rule.Limit.Capacity() && chargesStay(a.Rule) {
		return Answered
	}
	return Booked
}

// rarelyRefunded is the number of answers with debt, and without a sign of a refund, from which on charges of refused
// requests may be booked after their answers. So a flood of refusals that are never refunded costs no message for each,
// except for its first ones.
const rarelyRefunded = 100

// chargesStay reports whether the charge of a refused request may be booked later. Callers that count requests in
// flight refund refused ones, too. At another node, such a refund would give back a token that the ledger does not have
// yet, and admit another request. An owner has the charge.
func chargesStay(r *ratelimit.Rule) bool {
	c := r.Counters
	return c == nil || c.Unrefunded.Load() >= rarelyRefunded || r.Coordination.Mode.Spec().Owned
}

// refunded notes that charges of the rule were refunded, here or at another node.
func refunded(r *ratelimit.Rule) {
	if c := r.Counters; c != nil {
		c.Unrefunded.Store(0)
	}
}

// unrefunded notes an answer with debt that shows no refund.
func unrefunded(r *ratelimit.Rule) {
	if c := r.Counters; c != nil {
		c.Unrefunded.Add(1)
	}
}

// settle books the difference of an earlier spend. It is not answered before its report (Booked), if the ledger must
// tell other nodes.
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
		e.record(a.Cost)
		return Answered
	}
	v.Charged = min(a.Cost, e.left(&a.Rule.Limit))
	v.Debt = a.Cost - v.Charged
	e.charge(a.Cost, &e.Charged)
	return Booked
}

// keeps reports whether returned tokens of a request may stay in this node's hand: during their window, while others
// need no recall for them. Then no report is needed, because the ledger counts them as taken.
func (e Entry) keeps(now instant, a *ratelimit.Ask) bool {
	limit := &a.Rule.Limit
	return e.Deadline == Never && !e.bucket &&
		e.LastAnswer != 0 && now >= e.scarceUntil && now >= e.refusedUntil &&
		e.Sum <= limit.Capacity()-limit.Capacity()/8 // while it may draw
}

// Settle books a charge that needs no window from the ledger: in the window of the first answer.
func (e Entry) Settle(a *ratelimit.Ask, v *ratelimit.Verdict) {
	e.charge(a.Cost, &e.Charged)
	v.Charged = a.Cost
}

// charge spends tokens that the node may not have, and counts them in of.
func (e Entry) charge(n tokens, of *tokens) {
	e.record(min(n, max(0, account.MostBooked-e.Spent))) // a grant in flight may cover it
	*of = min(*of+n, account.MostBooked)
}

// sized notes the cost of a request.
func (u *Use) sized(cost tokens) {
	u.largest, u.usual = max(u.largest, cost), max(cost, u.usual-u.usual/8)
}

// usedUp reports whether charges exceed the limit, by the last answer. Others may still have tokens in hand, and are
// recalled to pay for it. Exactly the limit is no debt, and peeks pass.
func (k *Key) usedUp(limit *ratelimit.Limit) bool {
	return k.Sum+k.unbooked() > limit.Capacity()
}

// report adds the remaining tokens and the reset to a verdict.
func (e Entry) report(now instant, a *ratelimit.Ask, v *ratelimit.Verdict) {
	limit := &a.Rule.Limit
	v.Remaining = e.left(limit)
	v.Window = e.Window
	v.ResetAfter = e.ends.Sub(now)
	if limit.Algorithm == ratelimit.TokenBucket {
		v.ResetAfter = limit.Refill(limit.Capacity() - v.Remaining)
	}
	if !v.OverLimit {
		return
	}
	v.Remaining = min(v.Remaining, max(0, a.Cost-1)) // a caller that requests the rest must get it
	if limit.Algorithm != ratelimit.FixedWindow {
		v.ResetAfter = max(time.Millisecond, e.refusedUntil.Sub(now), e.passesAfter(now, a.Cost, limit))
	}
}

// passesAfter is the earliest time at which a refused request can pass. For a sliding window, it assumes that the
// usage is spread evenly: a node cannot tell which part of it is old.
func (k *Key) passesAfter(now instant, cost tokens, limit *ratelimit.Limit) time.Duration {
	unknown := k.unbooked()
	free := limit.Capacity() - k.Sum - unknown + k.Unspent()
	return limit.Refill(min(cost, limit.Capacity())-free) - now.Sub(k.LastAnswer)
}

// left is the rest of the limit, by the last answer, including this node's tokens in hand.
func (k *Key) left(limit *ratelimit.Limit) tokens {
	// The ledger's sum lacks this node's usage since, and has its tokens in hand.
	unknown := k.unbooked()
	return max(0, min(limit.Capacity(), limit.Capacity()-k.Sum-unknown+k.Unspent()))
}

// Undo takes back the charge of a verdict, unless its window is over. The charge may have been reported meanwhile.
// Refusals end, because tokens have returned.
func (e Entry) Undo(v *ratelimit.Verdict) {
	n := v.Charged + v.Debt
	if n > 0 && v.Window == e.Window {
		e.unspend(n)
		switch { // its reason
		case v.OverLimit:
			e.Charged = max(0, e.Charged-n)
		case v.Source == ratelimit.FromDrift:
			e.Drifted = max(0, e.Drifted-n)
		case v.Source == ratelimit.FromFallback:
			e.Outage = max(0, e.Outage-n)
		}
		e.refusedUntil = 0
	}
}

// Admitted books an admission by on_store_failure, in the current window as far as it is certain.
func (e Entry) Admitted(now instant, n tokens) {
	e.charge(n, &e.Outage)
	e.Demand.Used, e.Demand.LastUse = ratelimit.AddTokens(e.Demand.Used, n), now
}

// Refused counts demand that on_store_failure refused.
func (u *Use) Refused(now instant, n tokens) {
	u.Demand.Refused, u.Demand.LastUse = ratelimit.AddTokens(u.Demand.Refused, n), now
}

// Overdue is the result of a request at its deadline.
type Overdue uint8

// Results.
const (
	Undecided Overdue = iota // no answer decides: on_store_failure does
	Short                    // there was not enough a moment ago: it is refused, as usual
	Doubtful                 // others may have spent the rest: it is refused without a charge
)

// Overdue is the result of a request at its deadline, by the last answer. A late answer is no outage: alive means that
// the ledger answers others. cautious means that the rule prefers refusals. It does not count as a refusal by the
// ledger, and changes no state.
func (e Entry) Overdue(now instant, a *ratelimit.Ask, alive, cautious bool) Overdue {
	limit := &a.Rule.Limit
	cautious = alive && cautious
	if e.LastAnswer == 0 || now >= e.CurrentUntil {
		// Before the first answer for a key, one request at a time may be admitted.
		if cautious && e.Outage > 0 {
			return Doubtful
		}
		return Undecided
	}
	left := limit.Capacity() - e.Sum + e.Unspent() - e.Drift()
	recent := now.Sub(e.LastAnswer) <= a.Rule.Coordination.Deadline()
	switch {
	case a.Cost > left && recent:
		return Short
	case limit.Algorithm != ratelimit.FixedWindow && !recent:
		return Undecided // tokens have returned since
	case a.Cost > left && alive, cautious && left <= limit.Capacity()/ratelimit.PlentyAbove:
		return Doubtful
	}
	return Undecided
}

// Deny refuses a request without a charge.
func (e Entry) Deny(now instant, a *ratelimit.Ask, v *ratelimit.Verdict) {
	*v = ratelimit.Verdict{OverLimit: true, Source: ratelimit.FromClaim}
	e.report(now, a, v)
}
