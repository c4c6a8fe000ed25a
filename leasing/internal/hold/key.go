package hold

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Key is what a node has of one key: its part of the account of the window that goes on. Nothing of it may be
// forgotten while the ledger does not know it.
type Key struct {
	Part
	// Till is the last instant until which the window certainly goes on.
	Till instant
	// carried is what was spent of the window before, and not confirmed, where that still counts (sliding windows).
	carried tokens
}

// Use is how a key is used of late, and what is asked for. It is worth a better guess, and no more: a key whose Use was
// forgotten asks once more.
type Use struct {
	Demand Demand
	refusals
	// Before calm nothing is asked for in the background, and before scarce nothing that nobody waits for: others need
	// what there is.
	calm, scarce instant
	ends         instant // when the window is over, as far as is known: for people
	Waiting      tokens  // what requests wait for that were not answered yet
	largest      tokens  // cost of one request since the demand was measured
	usual        tokens  // cost of the larger requests, of late
	Beyond
	// Next is the part of the window that begins next, claimed early; its Deadline is 0 if there is none.
	Next Part
}

// refusals are what is refused without asking. The zero refusals are nothing.
type refusals struct {
	// A request of more than most tokens is, before the instant until; from again on it is asked for in the background
	// whether that is still so.
	until, again instant
	most, under  tokens // under is the limit by which that is so
	holds        uint8  // how often the time to again is doubled
	frees        bool   // tokens have come back meanwhile
	others       bool   // have what is refused in hand, when last heard
}

// Beyond says how it came about that more was spent than taken, in this window.
type Beyond struct {
	Drifted tokens // from this node's share, and not confirmed: at most the share
	Unasked tokens // as on_store_failure said
	Charged tokens // after the fact, and not told yet
	// Of what was told, so much lay beyond the limit at most: of Drifted, and of Unasked.
	Over, ByPolicy tokens
}

// Entry is all that a node knows of one key. Its methods must not be called at the same time for the same key.
type Entry struct {
	*Key
	*Use
}

// Remember takes in what the key itself says of a use that was forgotten: a fixed window that was used up stays so, but
// for a refund.
func (e Entry) Remember(now instant, limit *ratelimit.Limit) {
	e.ends = e.Till
	if e.full && limit.Algorithm == ratelimit.FixedWindow {
		e.until, e.again, e.under = e.Till, now, limit.Capacity()
	}
}

// Kept tells whether the use must not be forgotten: it has tokens in hand of the next window, or says of what was spent
// how it came about.
func (u *Use) Kept() bool {
	return u.Next.Deadline != 0 || u.Beyond != (Beyond{}) || u.Waiting > 0
}

// Times of what a node does by itself.
const (
	// soon is how long before it is used up, at the present rate, a lease is renewed.
	soon = 250 * time.Millisecond
	// paced is how soon after an answer more is asked for in the background, and scarce how long after a recall.
	paced, scarce = 10 * time.Millisecond, 100 * time.Millisecond
	// refusal is how long a refusal is believed before the ledger is asked again, at first. It is doubled with each
	// that it repeats, so often at most: seldom for a key to which tokens come back, by refunds at other nodes.
	refusal, doublings = 100 * time.Millisecond, 3
	seldom             = 8 // times as long
	// often is from how many tokens a second on a key is renewed before its lease is used up.
	often = 4
	// idle is how long a key is not asked for until what it has is given back, where it lasts no longer than that.
	idle = 2 * Horizon
	// early is how long before a window begins its tokens are claimed.
	early = 100 * time.Millisecond
)

// Enter sees to it that the part is of the window that goes on. It returns the part of a window that is over, if it has
// something to tell; and false where it is not certain which window it is.
func (e Entry) Enter(now instant, there *LedgerClock, limit *ratelimit.Limit) (over Part, certain bool) {
	if now < e.Till {
		return Part{}, true
	}
	w := window(0)
	if limit.Algorithm != ratelimit.TokenBucket {
		if w, certain = windowAt(now, there, limit); !certain {
			return Part{}, false
		}
	}
	e.Till = Never
	if limit.Algorithm != ratelimit.TokenBucket {
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

// windowAt is the window that goes on by the ledger's clock, if that is certain.
func windowAt(now instant, there *LedgerClock, limit *ratelimit.Limit) (w window, certain bool) {
	early, late := there.Between(now)
	w = limit.WindowAt(early)
	return w, there.At != 0 && w == limit.WindowAt(late)
}

// begin has a window begin, with what was claimed of it early.
func (e Entry) begin(w window, limit *ratelimit.Limit) {
	carried := tokens(0)
	if limit.Algorithm == ratelimit.SlidingWindow && e.Deadline != 0 && e.Window == w-1 {
		carried = e.Drift()
	}
	next := e.Next
	if next.Deadline == 0 || next.Window != w {
		next = Part{Window: w, Deadline: Never}
	}
	// What was admitted or charged before it was heard which window goes on is booked in this one.
	if e.Deadline == 0 {
		next.Spent, next.used = next.Spent+e.Spent, next.used || e.used
	} else {
		e.Beyond = Beyond{}
	}
	// A node claims for debt though nobody asks: the next window looks only at the account of this one.
	next.doubt = next.doubt || limit.Carries && e.usedUp(limit)
	e.Part, e.carried, e.Next = next, carried, Part{}
	e.refusals = refusals{}
}

// Early tells whether tokens of the next window are to be claimed now, so that its first requests need not wait: for
// who was asked of late. A window that is claimed early must be of its own (sliding ones count the one before, and
// others may count its debt), and its lease must not end before it begins.
func (e Entry) Early(now instant, rule *ratelimit.Rule) bool {
	return rule.Limit.Algorithm == ratelimit.FixedWindow && !rule.Limit.Carries && !rule.Coordination.Eager() &&
		e.Next.Deadline == 0 && e.asked == 0 && e.Deadline != 0 && now >= e.calm && e.Ends(now, rule) &&
		e.Demand.PerSec > 0 && now.Sub(e.Demand.LastUse) < min(time.Second, rule.Limit.Period())
}

// Ends tells whether the window is about to end, so that tokens of the next may be claimed.
func (k *Key) Ends(now instant, rule *ratelimit.Rule) bool {
	return now < k.Till && k.Till.Sub(now) <= min(early, rule.Limit.Period()/8)
}

// PartOf is the part of a window; nil, if the key has none of it any more.
func (e Entry) PartOf(w window) *Part {
	switch {
	case e.Deadline != 0 && e.Window == w:
		return &e.Part
	case e.Next.Deadline != 0 && e.Next.Window == w:
		return &e.Next
	}
	return nil
}

// Refuses is for how long the key is refused without asking.
func (e Entry) Refuses(now instant) time.Duration { return max(0, e.until.Sub(now)) }

// Elsewhere tells whether others had tokens in hand when the ledger last fell short of what was needed here.
func (e Entry) Elsewhere() bool { return e.others }

// Slot is how long what a node has in hand of a bucket lasts: short, for a bucket fills only as far as what is in hand
// lets it.
func Slot(l *ratelimit.Limit) time.Duration {
	return min(time.Second, max(50*time.Millisecond, l.Period()/10))
}

// Stale tells whether the account of a bucket may soon be gone, for it is full: who claimed of it then, and had taken
// something, would be taken for one whose account was lost. The key is to go on under another name, as one that knows
// nothing (Restart). Nothing is lost with it: the ledger knows all that was spent, and nothing is in hand. What was
// to be given back has come back with time.
func (k *Key) Stale(now instant, limit *ratelimit.Limit) bool {
	if limit.Algorithm != ratelimit.TokenBucket || k.Heard == 0 || k.asked != 0 || k.Spent > k.booked {
		return false
	}
	// The ledger keeps it for a slot at least, and until it is full.
	kept := max(Slot(limit)*3/4, Refill(k.Sum, limit)/2)
	return k.InHand(now) == 0 && k.Drift() == 0 && now.Sub(k.Heard) >= kept
}

// Counts tells whether what this node has taken of the account still counts: a ledger that loses its data must be told.
func (k *Key) Counts(now instant, limit *ratelimit.Limit) bool {
	switch {
	case max(k.Taken, k.Spent) == 0:
		return false
	case limit.Algorithm == ratelimit.TokenBucket:
		return !k.Stale(now, limit)
	case limit.Algorithm == ratelimit.SlidingWindow: // also in the window that comes next
		return now < k.Till || now.Sub(k.Till) < limit.Period()
	default:
		return now < k.Till
	}
}

// Restart forgets the account, and keeps what the key is asked for.
func (e Entry) Restart() {
	e.Part, e.Till = Part{}, 0
	e.refusals, e.Beyond = refusals{}, Beyond{}
}

// Refill is how long a bucket takes for n tokens.
func Refill(n tokens, l *ratelimit.Limit) time.Duration {
	return time.Duration(math.Ceil(float64(max(0, n)) / float64(max(1, l.Requests)) * float64(l.Period())))
}

// Due tells whether a message is to leave in the background: to tell what the ledger does not know, to renew what is
// nearly used up, or to ask again for what was refused.
func (e Entry) Due(now instant, rule *ratelimit.Rule) bool {
	limit := &rule.Limit
	switch {
	case e.asked != 0 || e.Deadline == 0:
		return false
	case e.doubt, e.used && now >= e.Renews(rule):
		return true
	case now < e.until:
		// What is refused meanwhile is told when it is asked again, and sooner if it is much and the ledger does not
		// know that all is used up.
		return now >= e.again && (e.Demand.Refused > 0 || e.Untold()) || e.Sum <= limit.Capacity() &&
			e.Spent-e.booked >= max(1, limit.Capacity()/account.LearnPart) && now >= e.told()
	case e.Untold():
		return true
	}
	hand := float64(e.InHand(now))
	return now >= e.calm && hand > 0 && e.Sum < limit.Capacity() &&
		hand < min(e.Demand.PerSec*soon.Seconds(), float64(e.Taken)/2, e.halfLease(rule))
}

// halfLease is half of what a node may have at once by a rule that sizes leases, or half of what is free of a window:
// who has more in hand than that would be granted little or nothing.
func (k *Key) halfLease(rule *ratelimit.Rule) float64 {
	switch size := rule.Coordination.Lease.Fixed; {
	case size > 0:
		return float64(size) / 2
	case rule.Limit.Algorithm == ratelimit.FixedWindow:
		return float64(rule.Limit.Capacity()-k.Sum) / 2
	}
	return math.Inf(1) // tokens come back meanwhile
}

// Renews is from when on what was spent of an eager lease is to be told: at half of its time, for at its end the ledger
// credits what it was not told of. Never, of others.
func (p *Part) Renews(rule *ratelimit.Rule) instant {
	if !p.eager || p.Deadline == Never {
		return Never
	}
	return p.Deadline.Add(-rule.Coordination.Lease.TTL / 4) // which is three quarters of it
}

// Rides tells whether a lease that is used up may be renewed if others travel too, of a key that is not asked for
// often: its next request need not wait then. A lease of a single token is used up by the request that it is for.
func (e Entry) Rides(now instant, rule *ratelimit.Rule) bool {
	usedUp := e.asked == 0 && e.Taken == e.Spent && e.Heard != 0 && now >= e.calm && now < e.Till
	return usedUp && e.Demand.PerSec < often && now.Sub(e.Demand.LastUse) < time.Second &&
		e.plenty(rule) && rule.Limit.Capacity() >= 2*leastShare
}

// told is from when on what was refused may be told again, though nobody asks.
func (e Entry) told() instant { return e.Heard.Add(refusal / 2) }

// Recalled gives back what others need, but for what requests wait for here. The ledger is told also where nothing is
// in hand: to it, what was drawn is unspent.
func (e Entry) Recalled(now instant) {
	e.GiveBack(e.Waiting)
	e.Doubt()
	e.calm, e.scarce = now.Add(scarce), now.Add(scarce)
}

// Limited takes in that another limit counts from here on: what is refused is asked for anew, and where the limit is
// lower, what is in hand goes back.
func (e Entry) Limited(now instant, lower bool) {
	if e.refusals, e.full = (refusals{}), false; lower {
		e.Recalled(now)
	}
}

// Resign gives back all that is in hand, and takes nothing from here on but what requests wait for: the key is of no
// use to this node, or the node ends. It lasts until the instant.
func (e Entry) Resign(until instant) {
	e.GiveBack(0)
	e.calm, e.scarce = max(e.calm, until), max(e.scarce, until)
}

// Forgive has the ledger asked again about what is refused, and forgets what refusals were charged that it was not told
// yet: an operator wants a new beginning.
func (e Entry) Forgive() {
	e.refusals = refusals{}
	e.Spent -= e.Charged
	e.Charged = 0
}

// Idle tells whether what is in hand is of no use to this node, and may be to others. It may be what a request has
// waited for that is not woken yet, of a key that was never used before.
func (e Entry) Idle(now instant) bool {
	return e.asked == 0 && e.Waiting == 0 && e.Taken > e.Spent && now.Sub(e.Demand.LastUse) > idle
}

// Learned takes in an answer that counts (Hear): what is refused from here on without asking.
func (e Entry) Learned(now instant, m *Message, g *account.Grant, rule *ratelimit.Rule) {
	limit := &rule.Limit
	// Of a window that was used up, and in nobody's hand, tokens only come back by refunds.
	if e.until == e.Till && g.Sum < m.Sum() && limit.Algorithm == ratelimit.FixedWindow {
		e.frees, e.holds = true, 0
	}
	e.until, e.again, e.calm = 0, 0, max(e.calm, now.Add(paced))
	short := g.Granted < m.Claim.Need
	// A draw does not say what others have in hand.
	e.others = m.Claim.Kind != account.Draws && short && g.InHand > 0
	nothing := g.InHand <= 0 && (short || g.Sum >= limit.Capacity())
	if m.Claim.Kind == account.Draws || e.learning || !nothing && (!short || g.Recalling) {
		if !short {
			e.holds = 0
		}
		return
	}
	// What others have in hand they may give back; what nobody has comes back with time, or with a refund.
	free := max(0, limit.Capacity()-g.Sum)
	e.most, e.under = free+max(0, e.Taken-e.Spent), limit.Capacity()
	pause := refusal << e.holds
	if e.holds = min(e.holds+1, doublings); !e.frees {
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
		e.until = now.Add(max(time.Millisecond, Refill(max(1, m.Claim.Need-free), limit)))
		e.until = min(e.until, e.again)
	case ratelimit.SlidingWindow:
		e.until = min(now.Add(max(5*time.Millisecond, limit.Period()/100)), e.again)
	}
}
