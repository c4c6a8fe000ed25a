package sublease

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

type (
	tokens  = ratelimit.Tokens
	instant = ratelimit.Instant
)

const (
	// Slack is the largest delay of a lease that still ends with its window: network, the holder's event
	// loop, and the clocks' rates. A lease that arrived later is charged to both windows.
	Slack = 500 * time.Millisecond
	// applies is how long after it has acknowledged a message a holder may take to
	// use it: Envoy acknowledges in its codec, and hands on to its other threads.
	applies = 100 * time.Millisecond
	// LongestTTL is the longest lease: a holder that is cut off stops after it.
	LongestTTL = time.Minute
	// unit is the unit of a TTL: Envoy drops fractions of it.
	unit = time.Second
)

// Holding is what one holder has of one key, in the window of its node's budget. The
// zero Holding has nothing. It is not safe for concurrent use.
type Holding struct {
	ends    instant // when the window may end at the earliest; 0: there is none yet
	granted tokens  // charged for this holder in the window, and not credited
	spent   tokens  // at most its usage of the window
	before  tokens  // at most the unspent tokens of the leases that last replaces
	until   instant // when these are over, if last does not arrive
	last    lease
	// blurred means that the next reports may be about tokens that were not granted in this window, or to
	// another holder. They are about the previous window, or from the previous stream.
	blurred bool
	use     use
}

// lease is one grant.
type lease struct {
	size    tokens
	live    tokens // Invariant: at most size, and at least what may still be spent of it
	sent    instant
	ttl     time.Duration
	message uint64  // that carried it; 0: there is no lease
	acked   instant // when that was acknowledged; 0: it was not
	settled bool    // a report was sent after it had been applied
	// likely is the rest of it, if it was used from its sending on. live is more while a part of the usage
	// may have been of earlier leases. The charge follows live, and the time of the next lease follows
	// likely: by live, a holder would run out of tokens before it is due.
	likely tokens
}

// ends is when a holder has stopped using the lease, unless it is frozen; 0: unknown, because it may arrive
// at any time.
func (l *lease) ends() instant {
	if l.acked == 0 {
		return 0
	}
	return l.acked.Add(l.ttl + applies)
}

// NewHolding is the holding of a holder with its first request of a key. Its first reports may be about
// grants on another stream.
func NewHolding() Holding { return Holding{blurred: true} }

// Charged is the budget's charge for this holder. Invariant: it decreases only by the credit of Report. Turn
// begins at 0.
func (h *Holding) Charged() ratelimit.Tokens { return h.granted }

// Live is the most that it may still spend, whatever became of its messages.
func (h *Holding) Live() ratelimit.Tokens { return h.before + h.last.live }

// Unproven is the charge that is neither proven to be spent nor proven to be in the current lease: it waits
// for an acknowledgement and a report.
func (h *Holding) Unproven() ratelimit.Tokens {
	if h.last.settled {
		return h.before
	}
	return h.before + h.last.live
}

// Ends is when the window may end at the earliest; 0: it has none yet.
func (h *Holding) Ends() ratelimit.Instant { return h.ends }

// Usage is one report.
type Usage struct {
	Allowed, Denied tokens // since the report before, which they do not count again
	// Elapsed is the time since the holder's previous report, by its own count; 0: unknown, or this is its first.
	Elapsed time.Duration
	// Waited is for how long it may have been at the node: it was sent before.
	Waited time.Duration
}

// Outcome is the result of a report.
type Outcome struct {
	// Credit is the part of this window's charge that may be given back to the budget.
	Credit tokens
	// Excess is the usage that the holder had no tokens for: over-admission, to be charged.
	Excess tokens
	// Lost says that a report before this one seems not to have arrived.
	Lost bool
}

// Report handles a report that has come at now. The steps: if a report seems lost, all that the holder had counts as
// spent. Usage that it cannot have had tokens for is an excess. The rest is subtracted from what it may have. If the
// report was sent after the last lease had been applied, the leases before are gone. What is charged, and is neither
// spent nor may still be, is the credit.
func (h *Holding) Report(now instant, u Usage) (o Outcome) {
	before := h.use.last
	o.Lost = h.use.report(now, u)
	if o.Lost {
		h.spent += h.Live() // all of it may have been spent since, unreported
	}
	if h.last.message == 0 && h.before == 0 {
		// Nothing of this window may have been spent yet: it is of the window before, or was granted
		// on another stream, and is charged there.
		return o
	}
	if !h.blurred {
		o.Excess = max(0, u.Allowed-h.Live())
	}
	h.spend(u.Allowed)
	l := &h.last
	l.likely = max(0, min(l.likely-tokens(h.since(now, before)*float64(u.Allowed)), l.live))
	if l.settled && u.Denied > 0 { // under this lease, which does not refill: it is used up
		l.live, l.likely = 0, 0
	}
	if l.message != 0 && !l.settled && l.acked != 0 && now >= l.acked.Add(applies+u.Waited) {
		l.settled, h.blurred = true, false
		h.before, h.until = 0, 0
	}
	charge := min(h.granted, h.spent+h.Live())
	o.Credit = h.granted - charge
	h.granted = charge
	return o
}

// spend applies usage: of the replaced leases first, because the last one may not have been applied yet.
func (h *Holding) spend(n tokens) {
	h.spent = min(ratelimit.AddTokens(h.spent, n), ratelimit.MaxBooked)
	if h.blurred {
		return // it may not have been of these leases
	}
	old := min(n, h.before)
	h.before -= old
	h.last.live = max(0, h.last.live-(n-old))
}

// since is the part of the time from one report to the next in which the last lease was there.
func (h *Holding) since(now, before instant) float64 {
	l := &h.last
	if l.message == 0 || now <= before {
		return 0
	}
	return min(1, float64(now.Sub(l.sent))/float64(now.Sub(before)))
}

// Charge records that n tokens more were charged for it: of an excess, or of those that Turn carries.
func (h *Holding) Charge(n ratelimit.Tokens) { h.granted += n }

// TTL is how long a lease granted at now may last, in a window that ends at ends: in
// whole seconds. 0: not even one, and the next window is to be waited for.
func TTL(now, ends instant) time.Duration {
	left := min(ends.Sub(now)-Slack, LongestTTL)
	return max(0, left).Truncate(unit)
}

// Grant records that a lease of n tokens, already charged to the window that ends at ends, goes out with a message: it
// replaces all before it. n may be 0: the holder is to let nothing pass. Messages are numbered upwards from 1.
func (h *Holding) Grant(now, ends instant, n tokens, ttl time.Duration, message uint64) {
	if h.ends == 0 || ends < h.ends {
		h.ends = ends
	}
	h.before, h.until = h.before+h.last.live, max(h.until, h.last.ends())
	h.granted += n
	h.last = lease{size: n, live: n, likely: n, sent: now, ttl: ttl, message: message}
}

// Acked records that the holder has received all messages up to one.
func (h *Holding) Acked(now instant, message uint64) {
	l := &h.last
	if l.message != 0 && l.message <= message && l.acked == 0 {
		l.acked = now
	}
}

// Crossing is at most what of this holder's tokens may be spent after its window.
func (h *Holding) Crossing() ratelimit.Tokens {
	l := &h.last
	switch {
	case l.acked == 0 || l.acked.Add(applies) > h.ends: // what it replaces may be in use until then
		return h.Live()
	case l.ends() > h.ends:
		return l.live
	default:
		return 0
	}
}

// Leave handles the end of the holder's stream, and returns the tokens that it may spend after its window.
// Messages that it has not received by now do not arrive, unless it is frozen. From expires on it has no
// tokens, and unspent are those without a proof that they were spent.
func (h *Holding) Leave(now instant) (crossing, unspent tokens, expires instant) {
	l := &h.last
	waits := l.acked == 0
	if waits {
		l.acked = now.Add(Slack)
	}
	crossing = h.Crossing()
	if waits && h.until > h.ends {
		crossing = max(crossing, h.before)
	}
	return crossing, max(0, h.granted-h.spent), max(l.ends(), h.until)
}

// Deniable reports whether the holder is to be told that there is nothing: it has nothing left, and has not been told.
func (h *Holding) Deniable() bool {
	return h.last.live == 0 && (h.last.message == 0 || h.last.size > 0)
}

// InUse is at most the rest of its last lease.
func (h *Holding) InUse() ratelimit.Tokens { return h.last.live }

// Likely is the rest of its last lease, if it was used from its sending on.
func (h *Holding) Likely() ratelimit.Tokens { return h.last.likely }

// Granted reports whether a lease was granted in this window, be it of 0 tokens.
func (h *Holding) Granted() bool { return h.last.message != 0 }

// Settled reports whether the last lease is in use, and all before it gone.
func (h *Holding) Settled() bool { return h.last.settled }

// Turn records that the window has ended by now, and that the next one ends at ends. It returns the charge of the next
// one for this holder (Charge): the tokens that it may still have. Tokens without room there are at most
// over-admission.
func (h *Holding) Turn(now, ends instant) (carry tokens) {
	h.ends = min(h.ends, now) // a clock that is set ahead ends it early
	carry = h.Crossing()
	h.ends = ends
	h.granted = 0
	h.spent = 0
	h.before = carry
	h.last, h.until = lease{}, 0
	h.blurred = true
	return carry
}
