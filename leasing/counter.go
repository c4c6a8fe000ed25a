package leasing

import (
	"math"
	"math/bits"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// counter is a key's budget on the one node that decides about it: lease and account
// in one, for there is nobody to lease to. All its answers are exact. Its 40 bytes
// are what a cold key takes besides its name; which of three algorithms it counts by
// is not in it, but in the table's cell (keytable.Cell.Mark). The zero counter is new.
//
// Its guarantee is the account's: in a window at most the limit is spent, whatever
// the order of asks and however the clock is set.
type counter struct {
	spent tokens // in this window; of a token_bucket, as far as it may be refunded
	// extra is of a fixed_window what denials charged beyond the limit, which refunds
	// pay first; of a sliding_window what was spent in the window before; of a
	// token_bucket what is left of a refill, in micro-tokens x the period's seconds.
	extra  int64
	begins ledgerTime // the window; of a token_bucket: up to when it is refilled; see shiftedBy
	ends   ledgerTime // the window; of a token_bucket: when it is full again
	// state is the window's number, 0 for none yet; of a token_bucket its level, in
	// micro-tokens.
	state int64
}

// bucketWindow is what verdicts call the one window that a token_bucket has.
const bucketWindow window = 1

// decide answers an ask at an instant of the ledger's clock. The verdict must be zero.
func (c *counter) decide(now ledgerTime, a *ask, v *verdict) {
	if a.Rule.Limit.Algorithm == ratelimit.TokenBucket {
		c.decideBucket(now, a, v)
	} else if lag, shifted := c.shifted(); shifted {
		c.decideShifted(now, lag, a, v)
	} else {
		c.decideWindow(now, a, v)
	}
}

// A window that came from a process whose clock is behind this one's lasts until it is
// over there: otherwise the rest of it would be granted twice. Until then begins says
// by how much it is shifted, and ends when the counter is dead: how its windows are
// cut, only an ask's rule tells.
func shiftedBy(lag ledgerTime) ledgerTime { return -1 - lag }

func (c *counter) shifted() (lag ledgerTime, shifted bool) { return -1 - c.begins, c.begins < 0 }

func (c *counter) decideShifted(now, lag ledgerTime, a *ask, v *verdict) {
	l := &a.Rule.Limit
	here := *c
	if w := l.WindowAt(now); window(c.state) > w+1 { // no clock shows it: what is charged counts now
		here.state = int64(w)
	}
	begins, ends := l.WindowEnd(window(here.state-1)), l.WindowEnd(window(here.state))
	// This node's clock may have been set back since. Lag and step together can be a period although
	// neither is, and the counter would leave its window, which would then be granted once more.
	if begins+lag-now >= ledgerTime(l.Period()/time.Microsecond) {
		lag = max(0, now-begins)
	}
	here.begins, here.ends = begins+lag, ends+lag
	here.decideWindow(now, a, v)
	if here.state == c.state && lag > 0 {
		here.begins, here.ends = shiftedBy(lag), here.dead(l.Algorithm)
	}
	*c = here
}

func (c *counter) decideWindow(now ledgerTime, a *ask, v *verdict) {
	l := &a.Rule.Limit
	now = c.turn(now, l)
	left := c.left(now, l)
	v.Window = window(c.state)
	switch {
	case a.Kind == ratelimit.Refund:
		c.refund(a.Cost, l.Algorithm)
		left = c.left(now, l)
	case a.Kind == ratelimit.Peek:
		v.OverLimit = l.Algorithm == ratelimit.FixedWindow && c.extra > 0 && left == 0
	case a.Cost <= left:
		c.spent += a.Cost
		v.Charged = a.Cost
		left -= a.Cost
	default:
		v.OverLimit = true
		if a.Rule.Coordination.OnDeny == ratelimit.DenyCharges {
			c.spent += left
			v.Charged = left
			if l.Algorithm == ratelimit.FixedWindow {
				c.extra = int64(ratelimit.AddTokens(tokens(c.extra), a.Cost-left))
			}
			left = 0
		}
	}
	v.Remaining = left
	v.ResetAfter = c.ends.Sub(now)
	if v.OverLimit && l.Algorithm == ratelimit.SlidingWindow && a.Kind == ratelimit.Spend {
		v.ResetAfter = c.passesAfter(now, a.Cost, l)
	}
}

// turn makes the window the one of now, and returns the time to go by: a clock that
// went back by less than a period waits in the window, and one that went back further
// takes what is charged along, so that no window is given twice.
func (c *counter) turn(now ledgerTime, l *ratelimit.Limit) ledgerTime {
	if c.state != 0 && now >= c.begins && now < c.ends {
		return now
	}
	if c.state != 0 && now < c.begins && c.begins.Sub(now) < l.Period() {
		return c.begins
	}
	w := int64(l.WindowAt(now))
	switch {
	case c.state == 0 || now < c.begins:
	case l.Algorithm == ratelimit.SlidingWindow && w == c.state+1:
		c.spent, c.extra = 0, int64(c.spent)
	default:
		c.spent, c.extra = 0, 0
	}
	c.state, c.begins, c.ends = w, l.WindowEnd(window(w-1)), l.WindowEnd(window(w))
	return now
}

// left is what may be spent now.
func (c *counter) left(now ledgerTime, l *ratelimit.Limit) tokens {
	weighted := tokens(0)
	if l.Algorithm == ratelimit.SlidingWindow && c.extra > 0 {
		weighted = tokens(ceilMulDiv(uint64(c.extra), uint64(c.ends-now), uint64(c.ends-c.begins)))
	}
	return max(0, l.Requests-weighted-c.spent)
}

// refund gives n tokens back: at most what was spent in this window.
func (c *counter) refund(n tokens, algorithm ratelimit.Algorithm) {
	if algorithm == ratelimit.FixedWindow {
		paid := min(n, tokens(c.extra))
		c.extra -= int64(paid)
		n -= paid
	}
	c.spent -= min(n, c.spent)
}

// passesAfter is when a cost that a sliding window refuses now would pass, if nobody
// else spends: in this window as the one before loses its weight, or in the next one
// as this one does. For what is more than the limit it is the end of the window.
func (c *counter) passesAfter(now ledgerTime, cost tokens, l *ratelimit.Limit) time.Duration {
	period := uint64(c.ends - c.begins)
	cost = min(cost, l.Requests+1) // more makes no difference
	if room := l.Requests - c.spent - cost; room >= 0 && c.extra > 0 {
		return max(time.Microsecond, (c.ends - ledgerTime(weighsAtMost(uint64(c.extra), uint64(room),
			period))).Sub(now))
	}
	if room := l.Requests - cost; room >= 0 && c.spent > 0 {
		return (c.ends + ledgerTime(period-weighsAtMost(uint64(c.spent), uint64(room), period))).Sub(now)
	}
	return c.ends.Sub(now)
}

// weighsAtMost is the longest time before the end of a period for which n, weighted by
// it, is at most room.
func weighsAtMost(n, room, period uint64) uint64 {
	if room >= n {
		return period
	}
	hi, lo := bits.Mul64(room, period)
	at, _ := bits.Div64(hi, lo, n)
	return at
}

// ceilMulDiv is a x b / c, rounded up, for b <= c.
func ceilMulDiv(a, b, c uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	q, r := bits.Div64(hi, lo, c)
	if r > 0 {
		q++
	}
	return q
}

func (c *counter) decideBucket(now ledgerTime, a *ask, v *verdict) {
	l := &a.Rule.Limit
	now = c.fill(now, l)
	left := min(l.Burst, tokens(c.state/ledger.Micro))
	v.Window = bucketWindow
	switch {
	case a.Kind == ratelimit.Peek:
	case a.Kind == ratelimit.Refund:
		n := min(a.Cost, c.spent)
		c.spent -= n
		left = c.pour(n, l)
	case a.Cost <= left:
		c.drain(a.Cost)
		v.Charged = a.Cost
		left -= a.Cost
	default:
		v.OverLimit = true
		if a.Rule.Coordination.OnDeny == ratelimit.DenyCharges {
			c.drain(left)
			v.Charged = left
			left = 0
		}
	}
	v.Remaining = left
	c.ends = c.fullAt(now, l)
	v.ResetAfter = ledger.TimeToLevel(brim(l), c.state, c.extra, l)
	if v.OverLimit {
		v.ResetAfter = ledger.TimeToLevel(int64(min(a.Cost, l.Burst))*ledger.Micro, c.state, c.extra, l)
	}
}

// fill refills a bucket up to now, and returns the time to go by: a clock that went
// back waits for a second at most, for a bucket begins no window anew.
func (c *counter) fill(now ledgerTime, l *ratelimit.Limit) ledgerTime {
	switch {
	case c.begins == 0:
		c.begins, c.state = now, brim(l)
	case now < c.begins && c.begins.Sub(now) < min(l.Period(), ledger.BucketWaits):
		now = c.begins
	default:
		c.state, c.extra = ledger.Refilled(c.state, c.extra, max(0, now-c.begins), brim(l), l)
		c.begins = now
	}
	return now
}

func (c *counter) drain(n tokens) {
	c.state -= int64(n) * ledger.Micro
	c.spent = ratelimit.AddTokens(c.spent, n)
}

// pour adds n tokens to a bucket, and returns what it has.
func (c *counter) pour(n tokens, l *ratelimit.Limit) tokens {
	c.state = min(brim(l), c.state+int64(min(n, l.Burst))*ledger.Micro)
	return tokens(c.state / ledger.Micro)
}

// brim is a full bucket's level.
func brim(l *ratelimit.Limit) int64 { return int64(l.Burst) * ledger.Micro }

// undo takes back what a verdict charged, unless its window is over.
func (c *counter) undo(a *ask, v *verdict) {
	l := &a.Rule.Limit
	switch {
	case l.Algorithm == ratelimit.TokenBucket && v.Window != 0 && c.begins != 0:
		n := min(v.Charged, c.spent)
		c.spent -= n
		c.pour(n, l)
		c.ends = c.fullAt(c.begins, l)
	case l.Algorithm != ratelimit.TokenBucket && v.Window == window(c.state) && c.state != 0:
		if v.OverLimit && l.Algorithm == ratelimit.FixedWindow && a.Rule.Coordination.OnDeny == ratelimit.DenyCharges {
			c.extra = max(0, c.extra-int64(a.Cost-v.Charged))
		}
		c.spent -= min(v.Charged, c.spent)
	}
}

// empty gives a key its whole limit again.
func (c *counter) empty(l *ratelimit.Limit) {
	c.spent, c.extra = 0, 0
	if l.Algorithm == ratelimit.TokenBucket {
		c.state = brim(l)
	}
}

// dead is from when on a counter of that algorithm means the same as a new one.
func (c *counter) dead(algorithm ratelimit.Algorithm) ledgerTime {
	switch {
	case algorithm == ratelimit.TokenBucket:
		return c.ends
	case !c.charged() && c.begins >= 0:
		// While a clock that was set back has yet to come to the window, a new counter would be in an
		// earlier one, and grant it once more.
		return c.begins
	case algorithm == ratelimit.SlidingWindow && c.begins >= 0:
		return c.ends + (c.ends - c.begins)
	}
	return c.ends
}

// charged tells whether anything counts against a limit by windows.
func (c *counter) charged() bool { return c.spent != 0 || c.extra != 0 }

// fullAt is from when on a bucket is full if nobody spends: never, if it does not
// refill.
func (c *counter) fullAt(now ledgerTime, l *ratelimit.Limit) ledgerTime {
	if l.Requests == 0 && c.state < brim(l) {
		return math.MaxInt64
	}
	us := ledgerTime(ledger.TimeToLevel(brim(l), c.state, c.extra, l) / time.Microsecond)
	if us >= math.MaxInt64-now-1 {
		return math.MaxInt64
	}
	return now + us + 1
}
