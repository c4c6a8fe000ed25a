package hold

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Key is a node's state of one key: its part of the account of the current window. It must be kept until the ledger
// has all of it.
type Key struct {
	Part
	// Till is the last instant at which the window is certainly current.
	Till instant
	// carried is the unconfirmed drift of the previous window, where that still counts (sliding windows).
	carried tokens
}

// Use is the recent use of a key, and its demand. It only improves decisions: a key whose Use was dropped claims once
// more.
type Use struct {
	Demand Demand
	refusals
	// Before renewFrom, the node sends no background claims. Before scarce, it claims only for waiting requests: others
	// need the tokens.
	renewFrom, scarce instant
	ends              instant // estimated end of the window
	Waiting           tokens  // tokens of waiting requests
	largest           tokens  // cost of the largest request since the demand was measured
	usual             tokens  // recent cost of the larger requests
	Beyond
	// Next is the part of the next window, claimed early; nil: there is none.
	Next *Part
}

// refusals are the node's own refusals, without a claim. The zero refusals are none.
type refusals struct {
	// Until the instant until, a request of more than most tokens is refused. From again on, a background claim
	// checks that.
	until, again instant
	most, judged tokens // judged is the limit of that refusal
	holds        uint8  // number of times that the time to again is doubled
	frees        bool   // a refund has returned tokens in the meantime: pauses are short
	others       bool   // others had tokens in hand, by the last answer
}

// Beyond is the reasons for usage above Taken, in this window.
type Beyond struct {
	Drifted tokens // from this node's share, and unconfirmed: at most the share
	Unasked tokens // by on_store_failure
	Charged tokens // after the fact or by denials, and not reported yet
	// The maximum of the reported amounts beyond the limit: Over is of Drifted, and ByPolicy of Unasked.
	Over, ByPolicy tokens
}

// Entry is the complete state of one key. Its methods must not run at the same time for the same key.
type Entry struct {
	*Key
	*Use
}

// Remember restores a dropped use from the key: a fixed window that was used up stays used up, until a refund, or
// under a larger limit.
func (e Entry) Remember(now instant, limit *ratelimit.Limit) {
	e.ends = e.Till
	if e.full && limit.Algorithm == ratelimit.FixedWindow && e.Sum >= limit.Capacity() {
		e.until, e.again, e.judged = e.Till, now, limit.Capacity()
	}
}

// Kept tells whether the use must be kept: it has tokens in hand of the next window, or the reasons for usage.
func (u *Use) Kept() bool {
	return u.Next != nil || u.Beyond != (Beyond{}) || u.Waiting > 0
}

// Times of a node's own actions.
const (
	// soon is the time before a lease is used up, at the current rate, at which it is renewed.
	soon = 250 * time.Millisecond
	// paced is the minimum time between an answer and a background claim, and scarce that after a recall.
	paced, scarce = 10 * time.Millisecond, 100 * time.Millisecond
	// refusal is the time for which a refusal holds before the next claim, at first. It doubles with each repeated
	// refusal, up to doublings times. It is seldom times as long until a refund returns tokens to a key without holds.
	refusal, doublings = 2 * ratelimit.ClaimBackOff, 3
	seldom             = 8
	// often is the rate in tokens a second from which a key is renewed before its lease is used up.
	often = 4
	// idle is the time without requests after which a lease goes back, unless it ends earlier.
	idle = 2 * Horizon
	// early is the time before a window begins at which its tokens are claimed.
	early = 100 * time.Millisecond
)

// Waits of background messages for others, because a round trip costs Redis more than a message.
const (
	Batch = 20 * time.Millisecond
	Long  = time.Second // of messages that are not urgent
)

// Patience is the wait of a message that is not urgent. It must not last until the window ends.
func (k *Key) Patience(now instant) time.Duration {
	if k.Till.Sub(now) < 2*Long {
		return Batch
	}
	return Long
}

// Due tells whether to send a background message, and how long it may wait for others. One that renews an eager lease
// leaves at once, because its time is short.
func (e Entry) Due(now instant, s Sizing) (wait time.Duration, due bool) {
	rule := s.Rule
	switch {
	case e.inFlight != 0 || e.Deadline == 0:
		return 0, false
	case e.reports(now, &s):
		if now >= e.Renews(rule) {
			return 0, true
		}
		return Batch, true
	case e.Early(now, &s):
		return Batch, true
	}
	return e.Patience(now), e.piggybacks(now, &s)
}

// Enter moves the part to the current window. It returns the part of an ended window, if that has a report, and false
// if the current window is not certain.
func (e Entry) Enter(now instant, there *LedgerClock, limit *ratelimit.Limit) (over Part, certain bool) {
	if now < e.Till {
		return Part{}, true
	}
	w := window(0)
	if limit.Algorithm == ratelimit.TokenBucket {
		e.Till = Never
	} else {
		if w, certain = windowAt(now, there, limit); !certain {
			return Part{}, false
		}
		early, _ := there.Between(now)
		e.Till = there.NotBefore(now, limit.WindowEnd(w))
		e.ends = now.Add(limit.WindowEnd(w).Sub(early))
	}
	if e.Window != w || e.Deadline == 0 { // the zero Key has no deadline
		over = e.Part
		e.begin(w, limit)
	}
	return over, true
}

// windowAt is the current window by the ledger's clock, if that is certain.
func windowAt(now instant, there *LedgerClock, limit *ratelimit.Limit) (w window, certain bool) {
	early, late := there.Between(now)
	w = limit.WindowAt(early)
	return w, there.At != 0 && w == limit.WindowAt(late)
}

// begin begins a window, with its early claim.
func (e Entry) begin(w window, limit *ratelimit.Limit) {
	carried := tokens(0)
	if limit.Algorithm == ratelimit.SlidingWindow && e.Window == w-1 {
		carried = e.Drift()
	}
	next := Part{Window: w, Deadline: Never}
	if e.Next != nil && e.Next.Window == w {
		next = *e.Next
	}
	// Admissions and charges before the first answer about the window are booked in this one.
	if e.Deadline == 0 {
		next.Spent, next.fresh = next.Spent+e.Spent, next.fresh+max(0, e.Spent)
	} else {
		e.Beyond = Beyond{}
	}
	e.Part, e.carried, e.Next = next, carried, nil
	e.refusals = refusals{}
}

// Early tells whether to claim tokens of the next window now, so that its first requests need not wait, if the key
// was used recently. Such a window must be independent (sliding ones count the previous one), and its lease must not
// end before it begins. Of a small limit, one node would take all that there is.
func (e Entry) Early(now instant, s *Sizing) bool {
	rule := s.Rule
	return rule.Limit.Algorithm == ratelimit.FixedWindow && !s.small() &&
		!rule.Coordination.Eager() && e.Next == nil && now >= e.renewFrom &&
		now < e.Till && e.ends.Sub(now) <= min(early, rule.Limit.Period()/8) &&
		e.Demand.PerSec > 0 && now.Sub(e.Demand.LastUse) < min(time.Second, rule.Limit.Period()) &&
		!e.reports(now, s)
}

// PartOf is the part of a window, or nil if the key no longer has one.
func (e Entry) PartOf(w window) *Part {
	switch {
	case e.Deadline != 0 && e.Window == w:
		return &e.Part
	case e.Next != nil && e.Next.Window == w:
		return e.Next
	}
	return nil
}

// Refuses is the time for which the node refuses the key without a claim.
func (e Entry) Refuses(now instant) time.Duration { return max(0, e.until.Sub(now)) }

// Elsewhere tells whether others had tokens in hand when the last claim fell short.
func (e Entry) Elsewhere() bool { return e.others }

// Slot is the lifetime of a bucket's lease. It is short, because tokens in hand delay the refill of the bucket.
func Slot(l *ratelimit.Limit) time.Duration {
	return min(time.Second, max(50*time.Millisecond, l.Period()/10))
}

// Stale tells whether the account of a bucket may soon expire, because it is full. A later claim with a total would
// look like a loss of the account. So the key must continue under another name, without a total (Restart). That loses
// nothing: the ledger has its usage, also beyond the grants, and nothing is in hand. Tokens to be given back, and those
// beyond the limit, have been refilled.
//
// For a refund, the name also changes when the lease ends, if the ledger may lack usage: soon, a lower total means
// unspent tokens there, which it does not credit. An earlier refund that was not reported keeps the name.
func (k *Key) Stale(now instant, limit *ratelimit.Limit, of ratelimit.Kind) bool {
	if limit.Algorithm != ratelimit.TokenBucket || k.LastAnswer == 0 || k.inFlight != 0 {
		return false
	}
	// The ledger keeps it for at least a slot, and until it is full. Until shortly before, this node can restore the
	// bucket after a loss.
	full := limit.Refill(k.Sum)
	kept := max(Slot(limit)*3/4, full/2, full-full/64-account.Learn, limit.Refill(k.Sum-limit.Capacity()))
	if (k.fresh > 0 || k.restate) && k.Taken >= k.booked && (of == ratelimit.Refund || of == ratelimit.Release) {
		kept = min(kept, k.Deadline.Sub(k.LastAnswer))
	}
	return k.InHand(now) == 0 && now.Sub(k.LastAnswer) >= kept
}

// Counts tells whether this node's total still counts: it must be restated after a loss of data.
func (k *Key) Counts(now instant, limit *ratelimit.Limit) bool {
	switch {
	case max(k.Taken, k.Spent) == 0:
		return false
	case limit.Algorithm == ratelimit.TokenBucket:
		return !k.Stale(now, limit, ratelimit.Spend)
	case limit.Algorithm == ratelimit.SlidingWindow: // also in the next window
		return now.Sub(k.Till) < limit.Period()
	default:
		return now < k.Till
	}
}

// Restart drops the account, and keeps the demand of the key. Usage that was not reported belongs to the next account.
func (e Entry) Restart() {
	e.Part, e.Till = Part{Spent: max(0, e.Spent-max(e.booked, e.Taken))}, 0
	if e.refusals = (refusals{}); e.Spent == 0 {
		e.Beyond = Beyond{}
	}
}

// reports tells whether to send a message about this window: to report a new total, to renew a lease that is nearly
// used up, or to check a refusal.
func (e Entry) reports(now instant, s *Sizing) bool {
	limit := &s.Rule.Limit
	switch {
	case e.restate, (e.fresh > 0 || !e.eager) && now >= e.Renews(s.Rule):
		return true
	case now < e.until:
		// Refused demand is reported with the next claim, and earlier if there is much of it and the ledger's sum is
		// below the limit.
		return now >= e.again && (e.Demand.Refused > 0 || e.Unreported()) || e.Sum <= limit.Capacity() &&
			e.Spent-e.booked >= max(1, limit.Capacity()/account.LearnPart) && now >= e.refusalsDue()
	case e.Unreported(), !s.Ahead() && e.InHand(now) > e.Waiting && e.worthBack(limit):
		return true
	}
	hand, rate := float64(e.InHand(now)), e.Demand.PerSec
	switch {
	case now < e.renewFrom, hand == 0, e.Sum >= limit.Capacity():
		return false
	case e.expires(now, limit):
		return true
	case hand >= min(rate*soon.Seconds(), float64(e.Taken)/2):
		return false
	}
	lease := float64(e.lease(e.Sum, s))
	return hand < lease && hand <= max(rate*(2*Batch).Seconds(), lease/2)
}

// expires tells whether the lease of a bucket ends before a batch returns, and the next one is probably used.
func (e Entry) expires(now instant, limit *ratelimit.Limit) bool {
	return limit.Algorithm == ratelimit.TokenBucket && e.Demand.PerSec*Slot(limit).Seconds() >= 1 &&
		now >= e.Deadline.Add(-2*Batch)
}

// Renews is the time at which the usage of an eager lease is to be reported: half of its life, because at its end the
// ledger credits unreported tokens. That of a bucket's lease is its end, if its tokens take long to refill: the
// ledger credits unspent ones then, and no later. Settlements of usage that it lacks need another name. Never, for
// other leases.
func (p *Part) Renews(rule *ratelimit.Rule) instant {
	switch {
	case p.Deadline == Never:
	case p.eager:
		return p.Deadline.Add(-rule.LeaseTTL() / 4) // which is three quarters of it
	case rule.Limit.Algorithm != ratelimit.TokenBucket:
	case p.worthBack(&rule.Limit), rule.Hold != nil && slow(&rule.Limit, p.fresh):
		return p.Deadline
	}
	return Never
}

// worthBack tells whether unspent tokens are worth a message.
func (p *Part) worthBack(l *ratelimit.Limit) bool {
	return l.Algorithm != ratelimit.TokenBucket || slow(l, p.Taken-p.Spent)
}

// slow tells whether so many tokens of a bucket take longer to refill than those of a lease for its rate.
func slow(l *ratelimit.Limit, n tokens) bool { return l.Refill(n) > 5*time.Second }

// piggybacks tells whether to renew a used-up lease of a rarely used key in a round trip of others, so that its next
// request need not wait. A lease of a single token is always used up by its request.
func (e Entry) piggybacks(now instant, s *Sizing) bool {
	usedUp := e.Taken == e.Spent && e.LastAnswer != 0 && now >= e.renewFrom && now < e.Till
	return usedUp && e.Demand.PerSec < often && now.Sub(e.Demand.LastUse) < time.Second &&
		plenty(s.Rule, e.Sum) && !s.small()
}

// refusalsDue is the earliest time for a report of refusals without requests.
func (e Entry) refusalsDue() instant { return e.LastAnswer.Add(refusal / 2) }

// Recalled gives back tokens that others need, except those for waiting requests here. It reports also with nothing
// in hand: for the ledger, drawn tokens are unspent.
func (e Entry) Recalled(now instant) {
	e.yield(now, e.Waiting)
	e.Restate()
}

// yield gives back all tokens in hand except keep, and takes no more than requests need for a while.
func (e Entry) yield(now instant, keep tokens) {
	e.GiveBack(keep)
	e.renewFrom, e.scarce = now.Add(scarce), now.Add(scarce)
}

// Limited applies another limit from now on: it claims again for refused requests. If the limit is lower, it gives back
// the tokens in hand, also those of the next window.
func (e Entry) Limited(now instant, lower bool) {
	e.refusals, e.full = refusals{}, false
	if !lower {
		return
	}
	if e.Recalled(now); e.Next != nil {
		e.Next.GiveBack(0) // reported when the window begins
	}
}

// Resign gives back all tokens in hand, and from then on claims only for waiting requests, until the instant: this
// node no longer needs the key, or it ends.
func (e Entry) Resign(until instant) {
	e.GiveBack(0)
	e.renewFrom, e.scarce = max(e.renewFrom, until), max(e.scarce, until)
}

// Forgive checks refusals with a claim at once, and drops their unreported charges: an operator has reset the key.
func (e Entry) Forgive() {
	e.refusals = refusals{}
	e.Spent -= e.Charged
	e.Charged = 0
}

// Idle tells whether this node no longer needs its tokens in hand. They may be for a request that is not awake yet,
// of a key that was never used before.
func (e Entry) Idle(now instant) bool {
	return e.inFlight == 0 && e.Waiting == 0 && e.Taken > e.Spent && now.Sub(e.Demand.LastUse) > idle
}

// Learned applies an answer that counts (Apply) to the node's own refusals.
func (e Entry) Learned(now instant, m *Message, g *account.Grant, rule *ratelimit.Rule) {
	limit := &rule.Limit
	// Only refunds return tokens to a window that is used up, without any in hand.
	switch {
	case e.until == e.Till && g.Sum < m.Sum() && limit.Algorithm == ratelimit.FixedWindow:
		e.frees, e.holds = true, 0
		refunded(rule)
	case g.Sum > limit.Capacity():
		unrefunded(rule)
	}
	free := limit.Capacity() - g.Sum
	here, elsewhere := max(0, free)+max(0, e.Taken-e.Spent), max(0, g.InHand)
	// A report does not end a refusal of requests that are larger than the rest of the limit, wherever that is.
	refusing := now < e.until && m.Claim.Need == 0 && here+elsewhere < e.usual
	e.until, e.again, e.renewFrom = 0, 0, max(e.renewFrom, now.Add(paced))
	short := g.Granted < m.Claim.Need
	// A draw does not show the tokens in hand of others.
	e.others = m.Claim.Kind != account.Draws && short && elsewhere > 0
	nothing := elsewhere == 0 && (short || free <= 0)
	if m.Claim.Kind == account.Draws || g.Learning > g.At || !nothing && !refusing && (!short || g.Recalling) {
		if !short {
			e.holds = 0
		}
		return
	}
	// Others can give back tokens in hand. The rest returns with time, or with a refund.
	e.most, e.judged = here, limit.Capacity()
	if refusing {
		e.most += elsewhere
	}
	pause := refusal << e.holds
	if e.holds = min(e.holds+1, doublings); !e.frees && rule.Hold == nil {
		pause *= seldom
	}
	e.again = now.Add(pause)
	switch limit.Algorithm {
	case ratelimit.FixedWindow:
		e.until = e.Till
		if g.InHand > 0 {
			e.until = min(e.until, e.again)
		}
	case ratelimit.TokenBucket:
		e.until = now.Add(max(time.Millisecond, limit.Refill(max(1, m.Claim.Need-free))))
		e.until = min(e.until, e.again)
	case ratelimit.SlidingWindow:
		// At most the whole sum returns evenly until the window ends.
		debt := float64(max(0, -free)) / float64(max(1, g.Sum)) * float64(e.ends.Sub(now))
		e.until = min(now.Add(max(5*time.Millisecond, limit.Period()/100, time.Duration(debt))), e.again)
	}
}
