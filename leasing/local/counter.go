package local

import (
	"math"
	"math/bits"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// counter is a key's account on the only node that decides about it. All its answers are exact. A cold key takes its
// 40 bytes and its name. The algorithm is in the table's cell (keytable.Cell.Mark). The zero counter is new.
//
// Guarantee: the sum is the tokens that were charged in the window. Admissions keep it within the limit, for any order
// of asks and any clock. A denial that charges is booked whole: the part beyond the limit is debt. A refund credits the
// account, never below 0.
type counter struct {
	sum tokens // of this window; of a token_bucket: 0
	// extra is, for a sliding_window, the sum of the previous window. For a fixed_window that moved here, it is the
	// time from its end until it is dropped, in microseconds. For a token_bucket, it is the remainder of a refill, in
	// micro-tokens x the period's seconds.
	extra  int64
	begins ledgerTime // the window; of a token_bucket: time of the last refill
	ends   ledgerTime // the window; of a token_bucket: when it is full again
	// state is the window's number, or 0 for none yet. For a token_bucket, it is its level, in micro-tokens, below 0
	// with debt.
	state int64
}

const (
	// bucketWindow is the number of a token_bucket's one window in verdicts.
	bucketWindow window = 1
	// longestKept bounds the time for which a window that moved is kept, in microseconds.
	longestKept = 1 << 52
	// mostDebt bounds one charge of a bucket, and its debt, so that levels do not overflow.
	mostDebt tokens = 1 << 41
)

// decide answers an ask at an instant of the ledger's clock: it brings the counter to that time, and then books and
// answers. The verdict must be zero.
func (c *counter) decide(now ledgerTime, a *ask, v *verdict) {
	c.answer(c.enter(now, &a.Rule.Limit), a, v)
}

// enter brings the counter to an instant, and returns the effective time.
func (c *counter) enter(now ledgerTime, l *ratelimit.Limit) ledgerTime {
	if l.Algorithm == ratelimit.TokenBucket {
		return c.fill(now, l)
	}
	return c.turn(now, l)
}

// answer answers an ask in the counter's window.
func (c *counter) answer(now ledgerTime, a *ask, v *verdict) {
	l := &a.Rule.Limit
	left := c.left(now, l)
	v.Window = c.window(l)
	switch {
	case a.Kind == ratelimit.Peek:
		v.OverLimit = l.Capacity() == 0 || c.indebted(now, l)
	case a.Kind == ratelimit.Refund:
		c.credit(a.Cost, l)
		left = c.left(now, l)
	// Its window has ended, and the charge with it.
	case a.Kind.Settles() && !a.Books(v.Window):
	case a.Kind == ratelimit.Release:
		v.Charged = c.credit(a.Cost, l)
		left = c.left(now, l)
	default:
		v.OverLimit = a.Kind == ratelimit.Spend && a.Cost > left
		if !v.OverLimit || a.Rule.Coordination.OnDeny == ratelimit.DenyCharges {
			c.charge(a.Cost, l)
			v.Charged = min(a.Cost, left)
			v.Debt = a.Cost - v.Charged
			// Only the part within the limit was left before.
			left -= v.Charged
		}
	}
	v.Remaining = left
	if l.Algorithm == ratelimit.TokenBucket {
		// The table drops a bucket from then on: it equals a new one.
		c.ends = c.fullAt(now, l)
		to := fullLevel(l)
		if v.OverLimit {
			to = int64(min(a.Cost, l.Burst)) * account.Micro
		}
		v.ResetAfter = account.RefilledAfter(to, c.state, c.extra, l)
		return
	}
	v.ResetAfter = c.ends.Sub(now)
	if v.OverLimit && l.Algorithm == ratelimit.SlidingWindow && a.Kind == ratelimit.Spend {
		v.ResetAfter = c.passesAfter(now, a.Cost, l)
	}
}

// window is the one of verdicts.
func (c *counter) window(l *ratelimit.Limit) window {
	if l.Algorithm == ratelimit.TokenBucket {
		return bucketWindow
	}
	return window(c.state)
}

// left is the rest of the limit.
func (c *counter) left(now ledgerTime, l *ratelimit.Limit) tokens {
	if l.Algorithm == ratelimit.TokenBucket {
		return c.whole(l)
	}
	return max(0, l.Requests-c.used(now, l))
}

// indebted reports whether more was charged than the limit.
func (c *counter) indebted(now ledgerTime, l *ratelimit.Limit) bool {
	if l.Algorithm == ratelimit.TokenBucket {
		return c.state < 0
	}
	return c.used(now, l) > l.Requests
}

// charge takes tokens, also beyond the limit.
func (c *counter) charge(n tokens, l *ratelimit.Limit) {
	if l.Algorithm == ratelimit.TokenBucket {
		c.drain(n)
	} else {
		c.sum = booked(c.sum, n)
	}
}

// booked is a sum of charges, within the bound of all sums.
func booked(a, b tokens) tokens { return min(ratelimit.AddTokens(a, b), account.MostBooked) }

// credit gives tokens back, and returns their number.
func (c *counter) credit(n tokens, l *ratelimit.Limit) tokens {
	if l.Algorithm == ratelimit.TokenBucket {
		c.put(n, l)
	} else {
		n = min(n, c.sum)
		c.sum -= n
	}
	return n
}

// turn makes the window current, and returns the effective time. If the clock went back by less than a period, the
// counter waits in its window. If it went back further, the counter takes its charges along, so that no window is
// granted twice.
func (c *counter) turn(now ledgerTime, l *ratelimit.Limit) ledgerTime {
	if now >= c.begins && now < c.ends {
		return now
	}
	// A window that moved here has the bounds of its sender's clock (Adopt). Where those no longer apply, it has those
	// of this clock, so that it is not granted once more: until its end, and after a step back of this clock.
	if now >= c.ends || c.begins.Sub(now) >= l.Period() {
		c.bounds(l)
	}
	if now < c.ends && c.begins.Sub(now) < l.Period() {
		return max(now, c.begins)
	}
	w := int64(l.WindowAt(now))
	switch {
	// It is new, or the clock went back by more than a period: its charges count in the window of now.
	case c.state == 0 || now < c.begins:
	// The window that has just ended is the previous one.
	case l.Algorithm == ratelimit.SlidingWindow && w == c.state+1:
		c.sum, c.extra = 0, int64(c.sum)
	default:
		c.sum, c.extra = 0, 0
	}
	c.state = w
	c.bounds(l)
	return now
}

// bounds gives the counter the bounds of its window by this process's clock.
func (c *counter) bounds(l *ratelimit.Limit) {
	c.begins, c.ends = l.WindowEnd(window(c.state-1)), l.WindowEnd(window(c.state))
}

// used is the usage that counts against the limit now: of the previous window, the part that the last period still
// covers, rounded up.
func (c *counter) used(now ledgerTime, l *ratelimit.Limit) tokens {
	weighted := tokens(0)
	if l.Algorithm == ratelimit.SlidingWindow && c.extra > 0 {
		weighted = tokens(ceilMulDiv(uint64(c.extra), uint64(c.ends-now), uint64(c.ends-c.begins)))
	}
	return c.sum + weighted
}

// passesAfter is the time until a cost that a sliding window refuses now would pass, without further usage.
// That is in this window, as the previous one loses its weight, or in the next one, as this one does. For a
// cost above the limit it is the end of the window.
func (c *counter) passesAfter(now ledgerTime, cost tokens, l *ratelimit.Limit) time.Duration {
	period := uint64(c.ends - c.begins)
	cost = min(cost, l.Requests+1) // more makes no difference
	if room := l.Requests - c.sum - cost; room >= 0 && c.extra > 0 {
		return max(time.Microsecond, (c.ends - ledgerTime(weighsAtMost(uint64(c.extra), uint64(room),
			period))).Sub(now))
	}
	if room := l.Requests - cost; room >= 0 && c.sum > 0 {
		return (c.ends + ledgerTime(period-weighsAtMost(uint64(c.sum), uint64(room), period))).Sub(now)
	}
	return c.ends.Sub(now)
}

// weighsAtMost is the longest time before the end of a period for which n, weighted by it, is at most room.
func weighsAtMost(n, room, period uint64) uint64 {
	if room >= n {
		return period
	}
	hi, lo := bits.Mul64(room, period)
	at, _ := bits.Div64(hi, lo, n)
	return at
}

// ceilMulDiv is a x b / c, rounded up, for b <= c. Div64 would panic if b were above c.
func ceilMulDiv(a, b, c uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	q, r := bits.Div64(hi, lo, c)
	if r > 0 {
		q++
	}
	return q
}

// whole is the number of tokens of a bucket.
func (c *counter) whole(l *ratelimit.Limit) tokens {
	return max(0, min(l.Burst, tokens(c.state/account.Micro)))
}

// fill refills a bucket up to now, and returns the effective time. If the clock went back, the bucket waits for a
// second at most, because it has no new window.
func (c *counter) fill(now ledgerTime, l *ratelimit.Limit) ledgerTime {
	switch {
	case c.begins == 0:
		c.begins, c.state = now, fullLevel(l)
	case now < c.begins && c.begins.Sub(now) < min(l.Period(), time.Second):
		now = c.begins
	default:
		c.state, c.extra = account.Refilled(c.state, c.extra, int64(max(0, now-c.begins)), fullLevel(l), l)
		c.begins = now
	}
	return now
}

// drain takes tokens from a bucket, also below 0: that is debt.
func (c *counter) drain(n tokens) {
	c.state = max(c.state-int64(min(n, mostDebt))*account.Micro, -int64(mostDebt)*account.Micro)
}

// put adds up to n tokens to a bucket, within its burst.
func (c *counter) put(n tokens, l *ratelimit.Limit) {
	c.state = min(fullLevel(l), c.state+int64(min(n, mostDebt))*account.Micro)
}

// fullLevel is a full bucket's level.
func fullLevel(l *ratelimit.Limit) int64 { return int64(l.Burst) * account.Micro }

// undo takes back the bookings of a verdict, unless its window is over.
func (c *counter) undo(l *ratelimit.Limit, v *verdict) {
	bucket := l.Algorithm == ratelimit.TokenBucket
	if v.Window == 0 || v.Window != c.window(l) || bucket && c.begins == 0 {
		return
	}
	before := c.state // of a bucket under another limit, it may be above this one
	c.credit(v.Charged+v.Debt, l)
	c.state = max(c.state, before)
}

// empty gives a key its whole limit again.
func (c *counter) empty(l *ratelimit.Limit) {
	c.sum, c.extra = 0, 0
	if l.Algorithm == ratelimit.TokenBucket {
		c.state = fullLevel(l)
	}
}

// dead is the time from which a counter of that algorithm equals a new one.
func (c *counter) dead(algorithm ratelimit.Algorithm) ledgerTime {
	switch {
	case algorithm == ratelimit.TokenBucket:
		return c.ends
	case !c.charged():
		// While a clock that was set back is before the window, a new counter would be in an earlier window, and
		// grant it once more.
		return c.begins
	case algorithm == ratelimit.SlidingWindow:
		return c.ends + (c.ends - c.begins)
	}
	return c.ends + ledgerTime(c.extra)
}

// charged reports whether a counter of windows has usage.
func (c *counter) charged() bool { return c.sum != 0 || c.extra != 0 }

// fullAt is the time at which a bucket is full without further usage: never, if it does not refill.
func (c *counter) fullAt(now ledgerTime, l *ratelimit.Limit) ledgerTime {
	if l.Requests == 0 && c.state < fullLevel(l) {
		return math.MaxInt64
	}
	us := ledgerTime(account.RefilledAfter(fullLevel(l), c.state, c.extra, l) / time.Microsecond)
	if us >= math.MaxInt64-now-1 {
		return math.MaxInt64
	}
	return now + us + 1
}
