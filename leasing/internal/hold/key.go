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
	// Till is the last instant until which the window certainly goes on.
	Till instant
	// A request of more than most tokens is refused without asking, before the instant until; from again on it is
	// asked for in the background whether that is still so.
	until, again instant
	most         tokens
	holds        uint8 // how often the time to again is doubled
}

// Times of what a node does by itself.
const (
	// soon is how long before it is used up, at the present rate, a lease is renewed.
	soon = 250 * time.Millisecond
	// refusal is how long a refusal is believed before the ledger is asked again, at first, and doubled with each
	// that it repeats up to longestRefusal. Refunds at other nodes are seen then.
	refusal, doublings = 100 * time.Millisecond, 3
	// fresh is how old what was heard may be for a peek where nothing is in hand.
	fresh = 50 * time.Millisecond
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
	w := window(0)
	if limit.Algorithm != ratelimit.TokenBucket {
		early, late := there.Between(now)
		if w = limit.WindowAt(early); there.At == 0 || w != limit.WindowAt(late) {
			return Part{}, false
		}
	}
	k.Till = Never
	if limit.Algorithm != ratelimit.TokenBucket {
		k.Till = there.NotBefore(now, limit.WindowEnd(w))
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
		if k.InHand(now) == 0 && !waited && now.Sub(k.Heard) > fresh {
			return Asks
		}
		*v = ratelimit.Verdict{OverLimit: k.usedUp(&a.Rule.Limit)}
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
	// A denial charges its cost whole, as there. Where the ledger knows that the key is used up, it is told with the
	// next message; otherwise before the caller hears of it, for then others must refuse, too.
	v.Charged = a.Cost
	k.Spent = min(k.Spent+a.Cost, account.MostBooked)
	if known && k.full {
		return Answered
	}
	return Booked
}

// usedUp tells whether more was charged than the limit, as far as is known.
func (k *Key) usedUp(limit *ratelimit.Limit) bool {
	unknown := max(k.Taken, k.Spent) - k.booked
	return k.Sum+unknown-max(0, k.Taken-k.Spent)-max(0, k.Elsewhere) > limit.Capacity()
}

// report adds to a verdict what is left, and until when.
func (k *Key) report(now instant, a *ratelimit.Ask, v *ratelimit.Verdict) {
	limit := &a.Rule.Limit
	unknown := max(k.Taken, k.Spent) - k.booked
	v.Remaining = max(0, min(limit.Capacity(), limit.Capacity()-k.Sum-unknown+max(0, k.Taken-k.Spent)))
	v.Window = k.Window
	if v.ResetAfter = k.Till.Sub(now); limit.Algorithm == ratelimit.TokenBucket {
		v.ResetAfter = Refill(limit.Capacity()-v.Remaining, limit)
	}
	if v.OverLimit {
		v.Remaining = 0
		if k.until > now && limit.Algorithm != ratelimit.FixedWindow {
			v.ResetAfter = k.until.Sub(now)
		}
	}
}

// Refill is how long a bucket takes for n tokens.
func Refill(n tokens, l *ratelimit.Limit) time.Duration {
	return lease.RefillTime(max(0, n), l)
}

// Undo takes back what a verdict charged, unless its window is over.
func (k *Key) Undo(a *ratelimit.Ask, v *ratelimit.Verdict) {
	if v.Charged > 0 && v.Window == k.Window {
		k.Spent -= v.Charged
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
	k.Demand.Measure(now, need)
	want = k.Demand.Want(s.Rule, need)
	share = 2 * max(1, s.Nodes)
	if k.plenty(s.Rule) {
		want = max(want, need, limit.Capacity()/tokens(5*max(4, s.Nodes)))
	}
	return max(0, want-max(0, k.InHand(now))), share
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
	case k.doubt || k.Taken != k.booked && k.Taken > k.Spent || k.Taken < k.booked && !k.full:
		return true
	case k.until > now:
		return now >= k.again && k.Demand.Refused > 0
	}
	hand := float64(k.InHand(now))
	return hand > 0 && k.Sum < limit.Capacity() && hand < min(k.Demand.PerSec*soon.Seconds(), float64(k.Taken)/2)
}

// Idle tells whether what is in hand is of no use to this node, and may be to others.
func (k *Key) Idle(now instant) bool {
	return k.asked == 0 && k.Taken > k.Spent && now.Sub(k.Demand.LastUse) > idle
}

// Learned takes in an answer that counts (Hear): what is refused from here on without asking.
func (k *Key) Learned(now instant, m *Message, g *account.Grant, rule *ratelimit.Rule) {
	limit := &rule.Limit
	k.until, k.again = 0, 0
	if m.Claim.Kind == account.Draws || g.Granted >= m.Claim.Need && g.Sum < limit.Capacity() {
		k.holds = 0
		return
	}
	if k.learning || g.Recalling {
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
