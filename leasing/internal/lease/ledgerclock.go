package lease

import "time"

// LedgerClock bounds the offset between the ledger's clock and this node's, because only the ledger's clock divides
// windows. The ledger read its clock between the sending of a message and the
// arrival of the answer, which bounds the offset from both sides. The intersection of these intervals is narrower than
// any round trip (Marzullo and Owicki, "Maintaining the Time in a Distributed System", 1983). Clocks drift apart, so
// the bounds widen with age. The zero LedgerClock has no bounds. It is not safe for concurrent use.
type LedgerClock struct {
	Lo, Hi time.Duration // Invariant: lo <= the ledger's time - this node's <= hi
	At     instant       // time of the bounds; 0 if there are none
}

// MaxSkew is the divisor of the maximum rate difference: 100 parts per million, as of a poor quartz; NTP allows a
// disciplined clock 15 (PHI, RFC 5905). Clocks that differ more contradict the bounds, which then start anew.
const MaxSkew = 10_000

func nanos(t ledgerTime) time.Duration { return time.Duration(t) * time.Microsecond }

// Observe adds an interval: the ledger's clocks showed between from and to at instants from sent to answered. If that
// contradicts the bounds, the ledger's clock was set, or another server answered, and the new interval replaces them.
// If clocks of several servers differ, it replaces them too, because one of the servers may be new. It returns the
// minimum step of the ledger's clock relative to this node's.
func (c *LedgerClock) Observe(sent, answered instant, from, to ledgerTime) (step time.Duration) {
	lo := nanos(from) - time.Duration(answered)
	hi := nanos(to+1) - time.Duration(sent) // it is cut off to a microsecond
	if c.At > 0 && from == to {
		wider := c.Widened(answered)
		if l, h := max(lo, wider.Lo), min(hi, wider.Hi); l <= h {
			lo, hi = l, h
		} else if lo > wider.Hi {
			step = lo - wider.Hi
		} else {
			step = hi - wider.Lo
		}
	}
	*c = LedgerClock{Lo: lo, Hi: hi, At: answered}
	return step
}

// Widened is the bounds at now, wider than when they were read.
func (c *LedgerClock) Widened(now instant) LedgerClock {
	by := max(0, now.Sub(c.At)) / MaxSkew
	return LedgerClock{Lo: c.Lo - by, Hi: c.Hi + by, At: now}
}

// NotBefore is the last instant at which t certainly has not come: until then, a window that ends at t has not ended.
func (c *LedgerClock) NotBefore(now instant, t ledgerTime) instant {
	w := c.Widened(now)
	return instant(nanos(t) - w.Hi).Add(-max(0, nanos(t)-w.Hi-time.Duration(now)) / MaxSkew)
}

// Between is the earliest and the latest time at the ledger.
func (c *LedgerClock) Between(now instant) (early, late ledgerTime) {
	w := c.Widened(now)
	us := func(offset time.Duration) ledgerTime {
		return ledgerTime((time.Duration(now) + offset) / time.Microsecond)
	}
	return us(w.Lo), us(w.Hi)
}
