package hold

import "time"

// LedgerClock bounds how far the ledger's clock is ahead of this node's, for only that
// clock cuts windows (docs/protocol.md, section 4). Each
// answer that says what time it is there was written between its claim's
// sending and its receipt, and so bounds the offset from both sides; what all
// of them allow is narrower than any round trip (the intersection of intervals
// of Marzullo and Owicki, "Maintaining the Time in a Distributed System",
// 1983). Clocks drift apart meanwhile, so the bounds widen with age. The zero
// LedgerClock knows nothing. It is not safe for concurrent use.
type LedgerClock struct {
	Lo, Hi time.Duration // Invariant: lo <= the ledger's time - this node's <= hi
	At     instant       // when they held; 0 if there are none
}

// MaxSkew is 1 part in so many: 100 parts per million, what a poor quartz
// does; NTP allows a disciplined clock 15 (PHI, RFC 5905). Two clocks that are
// further apart contradict what was known, which is then forgotten.
const MaxSkew = 10_000

func nanos(t ledgerTime) time.Duration { return time.Duration(t) * time.Microsecond }

// Heard takes in that the ledger's clocks stood between from and to at instants
// from sent to answered. When that cannot be, the ledger's clock was set, or another
// server answers: what was known is forgotten. So it is where clocks differ, for
// one of them may be new, and what others allow is nothing to bound it by. It
// returns by how much at least the clock went on, or back, beside this node's.
func (c *LedgerClock) Heard(sent, answered instant, from, to ledgerTime) (step time.Duration) {
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

// Widened is what is known of the clock at now: less than when it was heard.
func (c *LedgerClock) Widened(now instant) LedgerClock {
	by := max(0, now.Sub(c.At)) / MaxSkew
	return LedgerClock{Lo: c.Lo - by, Hi: c.Hi + by, At: now}
}

// NotBefore is the last instant before which it certainly is not t yet: until
// then, what ends at t has not ended.
func (c *LedgerClock) NotBefore(now instant, t ledgerTime) instant {
	w := c.Widened(now)
	return instant(nanos(t) - w.Hi).Add(-max(0, nanos(t)-w.Hi-time.Duration(now)) / MaxSkew)
}

// SurelyBy is the first instant at which it certainly is t: from then on, what
// begins at t has begun.
func (c *LedgerClock) SurelyBy(now instant, t ledgerTime) instant {
	w := c.Widened(now)
	return instant(nanos(t) - w.Lo).Add(max(0, nanos(t)-w.Lo-time.Duration(now)) / MaxSkew)
}

// Between is what time it is there, at least and at most.
func (c *LedgerClock) Between(now instant) (early, late ledgerTime) {
	w := c.Widened(now)
	us := func(offset time.Duration) ledgerTime {
		return ledgerTime((time.Duration(now) + offset) / time.Microsecond)
	}
	return us(w.Lo), us(w.Hi)
}
