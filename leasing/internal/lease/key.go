package lease

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Key is a node's state of one key: its part of the account of the current window. It must be kept until the ledger
// has all of it.
type Key struct {
	Part
	// CurrentUntil is the last instant at which the window is certainly current.
	CurrentUntil instant
	// Of the previous window, where that still counts (sliding windows): carried is the unconfirmed drift, and before
	// this node's usage, which it states again after a loss of data.
	carried, before tokens
}

// Use is the recent use of a key, and its demand. It only improves decisions: a key whose Use was dropped claims once
// more. The zero Use is that of a key without recent requests.
type Use struct {
	Demand Demand
	refusals
	// Before renewFrom, the node sends no background claims. Before scarceUntil, it claims only for waiting requests:
	// others need the tokens.
	renewFrom, scarceUntil instant
	ends                   instant // estimated end of the window
	Waiting                tokens  // tokens of waiting requests
	Granted                tokens  // of them, what a bucket granted: it counts as spent
	vain                   tokens  // granted for requests that left: the next message returns them
	largest                tokens  // cost of the largest request since the demand was measured
	usual                  tokens  // recent cost of the larger requests
	Excess
}

// refusals are the node's own refusals, without a claim. The zero refusals are none.
type refusals struct {
	// Until refusedUntil, a request of more than most tokens is refused. From again on, a background claim
	// checks that.
	refusedUntil, again instant
	most, refusedLimit  tokens // refusedLimit is the limit of that refusal
	holds               uint8  // number of times that the time to again is doubled
	frees               bool   // a refund has returned tokens in the meantime: pauses are short
	others              bool   // others had tokens in hand, by the last answer
}

// Excess is the reasons for usage above Taken, in this window.
type Excess struct {
	Drifted tokens // from this node's share, and unconfirmed: at most the share
	Outage  tokens // by on_store_failure
	Charged tokens // after the fact or by denials, and not reported yet
	// The maximum of the reported amounts beyond the limit: OverByDrift is of Drifted, and OverByOutage of Outage.
	OverByDrift, OverByOutage tokens
}

// Entry is the complete state of one key. Its methods must not run at the same time for the same key.
type Entry struct {
	*Key
	*Use
}

// Remember restores a dropped use from the key: a fixed window that was used up stays used up, until a refund, or
// under a larger limit.
func (e Entry) Remember(now instant, limit *ratelimit.Limit) {
	e.ends = e.CurrentUntil
	if e.full && limit.Algorithm == ratelimit.FixedWindow && e.Sum >= limit.Capacity() {
		e.refusedUntil = e.CurrentUntil
		e.again = now
		e.refusedLimit = limit.Capacity()
	}
}

// Kept reports whether the use must be kept: it has the reasons for usage, or requests wait, or have left. Without the
// reasons, the over-admission of a key could not be counted by its cause.
func (u *Use) Kept() bool { return u.Excess != (Excess{}) || u.Waiting > 0 || u.Returns() }

// Refilled drops what the next message was to return: all of the bucket has refilled.
func (u *Use) Refilled() { u.vain = 0 }

// Returns reports whether the next message returns tokens of requests that left.
func (u *Use) Returns() bool { return u.vain > 0 }

// Times of a node's own actions.
const (
	// soon is the time before a lease is used up, at the current rate, at which it is renewed. To a far ledger, that is
	// soonTrips round trips.
	soon, soonTrips = 250 * time.Millisecond, 3
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
)

// Waits of background messages for others, because a round trip costs Redis more than a message.
const (
	Batch = 20 * time.Millisecond
	Long  = time.Second // of messages that are not urgent
)

// Patience is the wait of a message that is not urgent. It must not last until the window ends.
func (k *Key) Patience(now instant) time.Duration {
	if k.CurrentUntil.Sub(now) < 2*Long {
		return Batch
	}
	return Long
}

// Due reports whether to send a background message, and how long it may wait for others. A lease that goes back before
// its end leaves at once, because its time is short.
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
	}
	return e.Patience(now), e.piggybacks(now, &s)
}

// Enter moves the part to the current window. It returns the part of an ended window, if that has a report, and false
// if the current window is not certain. If the earliest and the latest time at the ledger are in different windows,
// requests wait until that is over.
func (e Entry) Enter(now instant, there *LedgerClock, limit *ratelimit.Limit) (over Part, certain bool) {
	if now < e.CurrentUntil {
		return Part{}, true
	}
	if limit.Algorithm == ratelimit.TokenBucket {
		if there.At == 0 {
			return Part{}, false
		}
		// A bucket has no end of a window, and its part stays.
		e.CurrentUntil = Never
		if e.Deadline == 0 {
			e.begin(0, limit)
			e.bucket = true
		}
		return Part{}, true
	}
	w, certain := windowAt(now, there, limit)
	if !certain {
		return Part{}, false
	}
	early, _ := there.Between(now)
	e.CurrentUntil = there.NotBefore(now, limit.WindowEnd(w))
	e.ends = now.Add(limit.WindowEnd(w).Sub(early))
	// It may be the same window: the clock is known better by now, or was set back.
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

// begin begins a window.
func (e Entry) begin(w window, limit *ratelimit.Limit) {
	was := e.Part
	e.carried, e.before = 0, 0
	if limit.Algorithm == ratelimit.SlidingWindow && was.Window == w-1 {
		e.carried = was.Drift()
		e.before = max(0, was.Spent)
	}
	next := Part{Window: w, Deadline: Never}
	// Admissions and charges before the first answer about the window are booked in this one.
	if was.Deadline == 0 {
		next.Spent, next.unclaimed = was.Spent, max(0, was.Spent)
	} else {
		e.Excess = Excess{}
	}
	e.Part = next
	e.refusals = refusals{}
}

// Before is this node's part of the previous window, if its usage counts in this one.
func (k *Key) Before() (p Part, counts bool) {
	p = Part{Window: k.Window - 1, Taken: k.before, Spent: k.before, Deadline: Never}
	p.mustClaim = true
	return p, k.before > 0
}

// Refuses is the time for which the node refuses the key without a claim.
func (e Entry) Refuses(now instant) time.Duration { return max(0, e.refusedUntil.Sub(now)) }

// Elsewhere reports whether others had tokens in hand when the last claim fell short.
func (e Entry) Elsewhere() bool { return e.others }

// Counts reports whether this node's total still counts: it must be restated after a loss of data.
func (k *Key) Counts(now instant, limit *ratelimit.Limit) bool {
	switch {
	case k.bucket:
		return k.LastAnswer != 0 && !k.Full(now, limit)
	case max(k.Taken, k.Spent) == 0:
		return false
	case limit.Algorithm == ratelimit.SlidingWindow: // also in the next window
		return now.Sub(k.CurrentUntil) < limit.Period()
	default:
		return now < k.CurrentUntil
	}
}

// reports reports whether to send a message about this window: to report a new total, to renew a lease that is nearly
// used up, or to check a refusal. A busy key is renewed shortly before its lease is used up, unless the lease would be
// smaller now.
func (e Entry) reports(now instant, s *Sizing) bool {
	limit := &s.Rule.Limit
	switch {
	case e.mustClaim, e.Returns(), now >= e.Renews(s.Rule):
		return true
	case now < e.refusedUntil:
		// Refused demand is reported with the next claim, and earlier if there is much of it and the ledger's sum is
		// below the limit.
		return now >= e.again && (e.Demand.Refused > 0 || e.Unreported()) || e.Sum <= limit.Capacity() &&
			e.Spent-e.booked >= max(1, limit.Capacity()/leastShare) && now >= e.refusalsDue()
	case e.Unreported(), !s.Ahead() && e.InHand(now) > e.Waiting && !e.bucket:
		return true
	}
	hand, rate := float64(e.InHand(now)), e.Demand.PerSec
	switch {
	// With nothing in hand, the next request claims for its own need.
	case now < e.renewFrom, hand == 0, e.Sum >= limit.Capacity():
		return false
	case e.expires(now, s):
		return true
	case hand >= min(rate*max(soon, soonTrips*s.Trip).Seconds(), float64(e.Taken)/2):
		return false
	}
	lease := float64(e.lease(e.Sum, s))
	return hand < lease && hand <= max(rate*(2*Batch).Seconds(), lease/2)
}

// expires reports whether the lease of a bucket ends before a batch returns, and the next one is probably used.
func (e Entry) expires(now instant, s *Sizing) bool {
	return e.bucket && e.fillsSlots(&s.Rule.Limit) && now >= e.Deadline.Add(-2*Batch-s.Trip)
}

// Renews is the time at which the lease of a bucket goes back before its end: if its tokens take long to refill.
// Otherwise it is Never.
func (p *Part) Renews(rule *ratelimit.Rule) instant {
	if p.bucket && p.Deadline != Never && rule.Limit.Refill(p.Unspent()) > slow {
		return p.Deadline.Add(-2 * Batch)
	}
	return Never
}

// slow is the time of refill from which unspent tokens are worth a message.
const slow = 50 * time.Millisecond

// piggybacks reports whether to renew a used-up lease of a rarely used key in a round trip of others, so that its next
// request need not wait. A lease of a single token is always used up by its request.
func (e Entry) piggybacks(now instant, s *Sizing) bool {
	usedUp := e.Taken == e.Spent && e.LastAnswer != 0 && now >= e.renewFrom && now < e.CurrentUntil
	return usedUp && e.Demand.PerSec < often && now.Sub(e.Demand.LastUse) < time.Second &&
		plenty(s.Rule, e.Sum) && !s.small()
}

// refusalsDue is the earliest time for a report of refusals without requests.
func (e Entry) refusalsDue() instant { return e.LastAnswer.Add(refusal / 2) }

// Apply applies the answer to a message, and reports whether it counts. Of a bucket, what requests need is apart from
// the lease (Granted), because the ledger counts it as spent.
func (e Entry) Apply(m *Message, g *account.Grant, a *Answer) bool {
	if !e.bucket {
		return e.Part.Apply(m, g, a)
	}
	counts := e.accepts(m, g, a)
	if !counts {
		return false
	}
	earlier, held := e.Deadline, e.Granted > 0 || e.vain > 0
	e.Granted += e.leased(m, g, a)
	if held { // some of it is of an earlier claim
		e.Deadline = min(e.Deadline, earlier)
	}
	e.Waits(e.Waiting)
	return true
}

// A refill below littleRefill of a token does not count in a bucket that takes slowRefill for one: each request that
// leaves would cost a whole token. Such a bucket can have so much more than its burst.
const (
	littleRefill = 0.01
	slowRefill   = time.Minute
)

// Waits sets the tokens of waiting requests. What a bucket granted for one that no longer waits covers what was
// admitted from a share meanwhile. The next message returns the rest.
func (e Entry) Waits(n tokens) {
	e.Waiting = max(0, n)
	if vain := e.Granted - e.Waiting; vain > 0 {
		e.Granted = e.Waiting
		covered := min(vain, e.Drift())
		e.record(-covered)
		e.vain += vain - covered
	}
}

// ReturnVain refunds what was granted in vain, less what the bucket may have refilled in its place until the message
// that is written next. That must state it: in a young epoch, messages do not.
func (e Entry) ReturnVain(now instant, l *ratelimit.Limit) {
	if e.vain == 0 {
		return
	}
	claimed := e.Deadline.Add(-lasts(l))
	refilled := float64(now.Sub(claimed)) / float64(l.Period()) * float64(l.Requests)
	if l.Refill(1) >= slowRefill {
		refilled -= littleRefill
	}
	e.Refund(max(0, e.vain-tokens(math.Ceil(min(refilled, float64(e.vain))))))
	e.vain = 0
}

// Needs is the tokens that requests wait for, and that are not granted yet.
func (u *Use) Needs() tokens { return max(0, u.Waiting-u.Granted) }

// Asked reports whether a message was about the account that the key has now.
func (k *Key) Asked(m *Message) bool { return k.bucket || m.Claim.Window == k.Window }

// Recalled gives back tokens that others need, except those for waiting requests here. It reports also with nothing
// in hand: for the ledger, drawn tokens are unspent.
func (e Entry) Recalled(now instant) {
	e.yield(now, e.Waiting)
	e.Restate()
}

// yield gives back all tokens in hand except keep, and takes no more than requests need for a while.
func (e Entry) yield(now instant, keep tokens) {
	e.GiveBack(keep)
	e.renewFrom, e.scarceUntil = now.Add(scarce), now.Add(scarce)
}

// Resign returns unspent tokens: this node no longer needs the key, or it ends. Until the instant, only waiting
// requests cause claims.
func (e Entry) Resign(until instant) {
	e.GiveBack(0)
	e.renewFrom, e.scarceUntil = max(e.renewFrom, until), max(e.scarceUntil, until)
}

// Forgive checks refusals with a claim at once, and drops their unreported charges, except those that a message under
// way reports: an operator resets the key. Charges that a message under way reports are taken back by the reset at the
// ledger, which comes after it.
func (e Entry) Forgive(underWay tokens) {
	e.refusals = refusals{}
	forgiven := max(0, e.Charged-underWay)
	e.Spent -= forgiven
	e.unclaimed = max(0, e.unclaimed-forgiven)
	e.Charged -= forgiven
}

// Freed ends refusals: others gave tokens back.
func (e Entry) Freed() { e.refusals, e.full = refusals{}, false }

// Idle reports whether this node no longer needs its tokens in hand. They may be for a request that is not awake yet,
// of a key that was never used before.
func (e Entry) Idle(now instant) bool {
	return !e.bucket && e.inFlight == 0 && e.Waiting == 0 && e.Taken > e.Spent && now.Sub(e.Demand.LastUse) > idle
}

// UpdateRefusals applies an answer that counts (Apply) to the node's own refusals. First it notes whether refunds
// occur. Then the answer causes a refusal, or ends the last one. A refusal has an end, and a time from which a
// background claim checks it.
func (e Entry) UpdateRefusals(now instant, m *Message, g *account.Grant, rule *ratelimit.Rule) {
	limit := &rule.Limit
	// Only refunds return tokens to a window that is used up, without any in hand.
	switch {
	case e.refusedUntil == e.CurrentUntil && g.Sum < m.Sum() && limit.Algorithm == ratelimit.FixedWindow:
		e.frees, e.holds = true, 0
		refunded(rule)
	case g.Sum > limit.Capacity():
		unrefunded(rule)
	}
	free := limit.Capacity() - g.Sum
	// here is what this node can still admit by this answer, and elsewhere what others could give back.
	here, elsewhere := max(0, free)+e.Unspent(), max(0, g.InHand)
	// A report does not end a refusal of requests that are larger than the rest of the limit, wherever that is.
	refusing := now < e.refusedUntil && m.Claim.Need == 0 && here+elsewhere < e.usual
	e.refusedUntil = 0
	e.again = 0
	e.renewFrom = max(e.renewFrom, now.Add(paced))
	short := g.Granted < m.Claim.Need
	// A draw does not show the tokens in hand of others.
	e.others = !m.Claim.Draws() && short && elsewhere > 0
	nothing := elsewhere == 0 && (short || free <= 0)
	// No refusal follows a draw. Nor does it follow a claim after which there may be tokens: its need was granted, or
	// others were recalled for it.
	if m.Claim.Draws() || !nothing && !refusing && (!short || g.Recalling) {
		if !short {
			e.holds = 0
		}
		return
	}
	// Others can give back tokens in hand. The rest returns with time, or with a refund.
	e.most, e.refusedLimit = here, limit.Capacity()
	if refusing {
		e.most += elsewhere
	}
	// Each repeated refusal doubles the time to the next check, so that a used-up key costs the ledger less and less.
	pause := refusal << e.holds
	e.holds = min(e.holds+1, doublings)
	if !e.frees && rule.Hold == nil {
		pause *= seldom
	}
	e.again = now.Add(pause)
	switch limit.Algorithm {
	case ratelimit.FixedWindow:
		e.refusedUntil = e.CurrentUntil
		if g.InHand > 0 {
			e.refusedUntil = min(e.refusedUntil, e.again)
		}
	case ratelimit.TokenBucket:
		e.refusedUntil = now.Add(max(time.Millisecond, limit.Refill(max(1, m.Claim.Need-free))))
		e.refusedUntil = min(e.refusedUntil, e.again)
	case ratelimit.SlidingWindow:
		// At most the whole sum returns evenly until the window ends.
		debt := float64(max(0, -free)) / float64(max(1, g.Sum)) * float64(e.ends.Sub(now))
		e.refusedUntil = min(now.Add(max(5*time.Millisecond, limit.Period()/100, time.Duration(debt))), e.again)
	}
}
