package hold

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Key is all that a node knows of one key: its account of the window that goes on, and what the key is asked for.
type Key struct {
	Part
	Demand lease.Demand
	// Till is the last instant until which the window certainly goes on, and ends when it is over, as far as is known.
	Till, ends instant
	// A request of more than most tokens is refused without asking, before the instant until; from again on it is
	// asked for in the background whether that is still so.
	until, again instant
	// Before calm nothing is asked for that nobody waits for: others need what there is, or there was nothing.
	calm    instant
	Waiting tokens // what requests wait for that were not answered yet
	most    tokens
	largest tokens // cost of one request since the demand was measured
	usual   tokens // cost of the larger requests, of late
	holds   uint8  // how often the time to again is doubled
}

// Times of what a node does by itself.
const (
	// soon is how long before it is used up, at the present rate, a lease is renewed.
	soon = 250 * time.Millisecond
	// paced is how soon after an answer more is asked for in the background, and scarce how long after a recall.
	paced, scarce = 10 * time.Millisecond, 100 * time.Millisecond
	// refusal is how long a refusal is believed before the ledger is asked again, at first, and doubled with each
	// that it repeats up to longestRefusal. Refunds at other nodes are seen then.
	refusal, doublings = 100 * time.Millisecond, 3
	// idle is how long a key is not asked for until what it has is given back, where it lasts no longer than that.
	idle = 2 * lease.Horizon
)

// Next says what a request needs that Take cannot answer.
type Next uint8

// What it may need.
const (
	Answered Next = iota // nothing: it is answered
	Booked               // answered, and to be told to the ledger before its caller hears of it
	Asks                 // the ledger has to be asked
	Turns                // the window may be over and may not: it is clear in a moment
)

// Enter sees to it that the part is of the window that goes on. It returns the part of a window that is over, if it has
// something to tell; and false where it is not certain which window it is.
func (k *Key) Enter(now instant, there *LedgerClock, limit *ratelimit.Limit) (over Part, certain bool) {
	if now < k.Till {
		return Part{}, true
	}
	w, early := window(0), ledgerTime(0)
	if limit.Algorithm != ratelimit.TokenBucket {
		var late ledgerTime
		early, late = there.Between(now)
		if w = limit.WindowAt(early); there.At == 0 || w != limit.WindowAt(late) {
			return Part{}, false
		}
	}
	k.Till = Never
	if limit.Algorithm != ratelimit.TokenBucket {
		k.Till = there.NotBefore(now, limit.WindowEnd(w))
		k.ends = now.Add(limit.WindowEnd(w).Sub(early))
	}
	if k.Window != w || k.Deadline == 0 { // the zero Key has no deadline
		over = k.Part
		k.Part = Part{Window: w, Deadline: Never, Elsewhere: -1}
		k.until, k.again, k.holds = 0, 0, 0
	}
	return over, true
}

// Take answers a request, or says what it needs. waited says that the ledger was asked for it, and asks that it may
// still be asked again. The part must be that of the window that goes on (Enter).
func (k *Key) Take(now instant, a *ratelimit.Ask, waited, last bool, v *ratelimit.Verdict) Next {
	next := Answered
	switch a.Kind {
	case ratelimit.Refund:
		k.Refund(a.Cost)
		k.until = 0
		*v = ratelimit.Verdict{}
		next = Booked
	case ratelimit.Peek:
		// Who has tokens for a request of the usual cost knows that it may pass. Otherwise what was last heard is
		// believed only of a key that is used up: others may have charged meanwhile.
		over := k.usedUp(&a.Rule.Limit)
		if k.InHand(now) < max(1, k.usual) && !waited && (now >= k.until || !over) {
			return Asks
		}
		if *v = (ratelimit.Verdict{OverLimit: over}); over {
			k.Demand.Refused = ratelimit.AddTokens(k.Demand.Refused, 1) // so that it is asked for again
		}
	default:
		next = k.spend(now, a, waited, last, v)
	}
	if next == Asks {
		return next
	}
	k.Demand.LastUse = now
	k.report(now, a, v)
	if waited {
		v.Source = ratelimit.FromClaim
	}
	return next
}

func (k *Key) spend(now instant, a *ratelimit.Ask, waited, last bool, v *ratelimit.Verdict) Next {
	k.largest, k.usual = max(k.largest, a.Cost), max(a.Cost, k.usual-k.usual/8)
	if a.Cost <= k.InHand(now) {
		k.Spent += a.Cost
		k.Demand.Used = ratelimit.AddTokens(k.Demand.Used, a.Cost)
		*v = ratelimit.Verdict{Charged: a.Cost}
		return Answered
	}
	known := now < k.until && a.Cost > k.most
	if !known && (!waited || !last) {
		return Asks
	}
	*v = ratelimit.Verdict{OverLimit: true}
	k.Demand.Refused = ratelimit.AddTokens(k.Demand.Refused, a.Cost)
	if a.Rule.Coordination.OnDeny == ratelimit.DenyRefunds {
		return Answered
	}
	// A denial charges its cost whole. It is told before the caller hears of it, for from then on others must refuse
	// peeks, too; but where the ledger knows that more is charged than there is, a flood of refusals is told now and
	// then.
	v.Charged = min(a.Cost, k.left(&a.Rule.Limit))
	k.Spent = min(k.Spent+a.Cost, account.MostBooked)
	limit := a.Rule.Limit.Capacity()
	if known && k.Sum > limit && (k.Spent-k.booked < limit/account.LearnPart || now < k.told()) {
		return Answered
	}
	return Booked
}

// told is from when on what was refused may be told again, though nobody asks.
func (k *Key) told() instant { return k.Heard.Add(refusal / 2) }

// Refuses is for how long the key is refused without asking.
func (k *Key) Refuses(now instant) time.Duration { return max(0, k.until.Sub(now)) }

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

// Restart forgets the account, and keeps what the key is asked for.
func (k *Key) Restart() {
	k.Part, k.Till = Part{}, 0
	k.until, k.again, k.holds = 0, 0, 0
}

// usedUp tells whether more was charged than the limit, as far as is known. Others may have tokens in hand all the
// same: they are asked to give them back, for they pay for it.
func (k *Key) usedUp(limit *ratelimit.Limit) bool {
	return k.Sum+max(k.Taken, k.Spent)-k.booked > limit.Capacity()
}

// report adds to a verdict what is left, and until when.
func (k *Key) report(now instant, a *ratelimit.Ask, v *ratelimit.Verdict) {
	limit := &a.Rule.Limit
	v.Remaining = k.left(limit)
	v.Window = k.Window
	if v.ResetAfter = k.ends.Sub(now); limit.Algorithm == ratelimit.TokenBucket {
		v.ResetAfter = Refill(limit.Capacity()-v.Remaining, limit)
	}
	if v.OverLimit && k.until > now && limit.Algorithm != ratelimit.FixedWindow {
		v.ResetAfter = k.until.Sub(now)
	}
}

// left is what is left of the limit, as far as is known, with what this node has in hand.
func (k *Key) left(limit *ratelimit.Limit) tokens {
	unknown := max(k.Taken, k.Spent) - k.booked
	return max(0, min(limit.Capacity(), limit.Capacity()-k.Sum-unknown+max(0, k.Taken-k.Spent)))
}

// Refill is how long a bucket takes for n tokens.
func Refill(n tokens, l *ratelimit.Limit) time.Duration {
	return lease.RefillTime(max(0, n), l)
}

// Undo takes back what a verdict charged, unless its window is over.
func (k *Key) Undo(a *ratelimit.Ask, v *ratelimit.Verdict) {
	n := v.Charged
	if v.OverLimit && a.Rule.Coordination.OnDeny == ratelimit.DenyCharges {
		n = a.Cost // of which Charged is what the limit had
	}
	if n > 0 && v.Window == k.Window {
		k.Spent -= n
		k.until = 0
	}
}

// Sizing is what a claim of a key may ask for.
type Sizing struct {
	Rule  *ratelimit.Rule
	Nodes int // alive, as far as is known; at least 1
}

// Wants is how much is to be asked for, beside what waits, and into how many parts what is free is shared.
func (k *Key) Wants(now instant, need tokens, s Sizing) (want tokens, share int) {
	limit := &s.Rule.Limit
	k.measure(now, need)
	share = 2 * max(1, s.Nodes)
	if now < k.calm {
		return need, share
	}
	// Of more than a share of the limit, others would have to ask for it back.
	if want = limit.Capacity() / tokens(5*max(4, s.Nodes)); !k.plenty(s.Rule) {
		want = min(want, k.Demand.Want(s.Rule, 0))
	}
	return max(need, want-k.InHand(now)), share
}

// measure ends a stretch of use, with so much still asked for. What is counted are requests of the largest cost in it:
// one of thousands of tokens proves no more of a rate than one of a single token.
func (k *Key) measure(now instant, need tokens) {
	each := max(1, k.largest)
	d := k.Demand
	d.Used, d.Refused, d.PerSec = d.Used/each, d.Refused/each, d.PerSec/float64(each)
	d.Measure(now, need/each)
	d.PerSec *= float64(each)
	k.Demand, k.largest = d, 0
}

// plenty tells whether a share of the limit may be kept until the window ends.
func (k *Key) plenty(r *ratelimit.Rule) bool {
	l := &r.Limit
	return l.Algorithm == ratelimit.FixedWindow && r.Coordination.Lease.Auto && !r.Coordination.Eager() &&
		k.Sum <= l.Capacity()-l.Capacity()/8
}

// Due tells whether a message is to leave in the background: to tell what the ledger does not know, to renew what is
// nearly used up, or to ask again for what was refused.
func (k *Key) Due(now instant, limit *ratelimit.Limit) bool {
	switch {
	case k.asked != 0 || k.Deadline == 0:
		return false
	case k.doubt:
		return true
	case now < k.until: // what is refused meanwhile is told when it is asked again, and sooner if it is much
		return now >= k.again && (k.Demand.Refused > 0 || k.Untold()) ||
			k.Spent-k.booked >= max(1, limit.Capacity()/account.LearnPart) && now >= k.told()
	case k.Untold():
		return true
	}
	hand := float64(k.InHand(now))
	return now >= k.calm && hand > 0 && k.Sum < limit.Capacity() &&
		hand < min(k.Demand.PerSec*soon.Seconds(), float64(k.Taken)/2)
}

// Recalled gives back what others need, but for what requests wait for here. The ledger is told also where nothing is
// in hand: to it, what was drawn is unspent.
func (k *Key) Recalled(now instant) {
	k.GiveBack(k.Waiting)
	k.Doubt()
	k.calm = now.Add(scarce)
}

// Idle tells whether what is in hand is of no use to this node, and may be to others.
func (k *Key) Idle(now instant) bool {
	return k.asked == 0 && k.Taken > k.Spent && now.Sub(k.Demand.LastUse) > idle
}

// Learned takes in an answer that counts (Hear): what is refused from here on without asking.
func (k *Key) Learned(now instant, m *Message, g *account.Grant, rule *ratelimit.Rule) {
	limit := &rule.Limit
	k.until, k.again, k.calm = 0, 0, max(k.calm, now.Add(paced))
	short := g.Granted < m.Claim.Need
	nothing := g.InHand <= 0 && (short || g.Sum >= limit.Capacity())
	if m.Claim.Kind == account.Draws || k.learning || !nothing && (!short || g.Recalling) {
		if !short {
			k.holds = 0
		}
		return
	}
	// What others have in hand they may give back; what nobody has comes back with time, or with a refund.
	free := max(0, limit.Capacity()-g.Sum)
	k.most = free + max(0, k.Taken-k.Spent)
	pause := refusal << k.holds
	k.holds = min(k.holds+1, doublings)
	k.again = now.Add(pause)
	switch limit.Algorithm {
	case ratelimit.FixedWindow:
		k.until = k.Till
		if g.InHand > 0 {
			k.until = min(k.until, k.again)
		}
	case ratelimit.TokenBucket:
		k.until = now.Add(max(time.Millisecond, Refill(max(1, m.Claim.Need-free), limit)))
		k.until = min(k.until, k.again)
	case ratelimit.SlidingWindow:
		k.until = min(now.Add(max(5*time.Millisecond, limit.Period()/100)), k.again)
	}
}
