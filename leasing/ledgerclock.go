package leasing

import "time"

// ledgerClock bounds how far the ledger's clock is ahead of this node's, for only that
// clock cuts windows (docs/protocol.md, section 4.8). Each
// answer that says what time it is there was written between its claim's
// sending and its receipt, and so bounds the offset from both sides; what all
// of them allow is narrower than any round trip (the intersection of intervals
// of Marzullo and Owicki, "Maintaining the Time in a Distributed System",
// 1983). Clocks drift apart meanwhile, so the bounds widen with age. The zero
// ledgerClock knows nothing. It is not safe for concurrent use.
type ledgerClock struct {
	lo, hi time.Duration // Invariant: lo <= the ledger's time - this node's <= hi
	at     instant       // when they held; 0 if there are none
}

// maxDrift is 1 part in so many: 100 parts per million, what a poor quartz
// does; NTP allows a disciplined clock 15 (PHI, RFC 5905). Two clocks that are
// further apart contradict what was known, which is then forgotten.
const maxDrift = 10_000

func nanos(t ledgerTime) time.Duration { return time.Duration(t) * time.Microsecond }

// heard takes in that the ledger's clock stood at t at some instant from sent
// to answered. When that cannot be, the ledger's clock was set, or another
// server answers: what was known is forgotten. It returns by how much at least
// the clock went on, or back, beside this node's.
func (c *ledgerClock) heard(sent, answered instant, t ledgerTime) (step time.Duration) {
	lo := nanos(t) - time.Duration(answered)
	hi := nanos(t+1) - time.Duration(sent) // t is cut off to a microsecond
	if c.at > 0 {
		wider := c.widened(answered)
		if l, h := max(lo, wider.lo), min(hi, wider.hi); l <= h {
			lo, hi = l, h
		} else if lo > wider.hi {
			step = lo - wider.hi
		} else {
			step = hi - wider.lo
		}
	}
	*c = ledgerClock{lo: lo, hi: hi, at: answered}
	return step
}

func (c *ledgerClock) widened(now instant) ledgerClock {
	by := max(0, now.Sub(c.at)) / maxDrift
	return ledgerClock{lo: c.lo - by, hi: c.hi + by, at: now}
}

// notBefore is the last instant before which it certainly is not t yet: until
// then, what ends at t has not ended.
func (c *ledgerClock) notBefore(now instant, t ledgerTime) instant {
	w := c.widened(now)
	return instant(nanos(t) - w.hi).Add(-max(0, nanos(t)-w.hi-time.Duration(now)) / maxDrift)
}

// surelyBy is the first instant at which it certainly is t: from then on, what
// begins at t has begun.
func (c *ledgerClock) surelyBy(now instant, t ledgerTime) instant {
	w := c.widened(now)
	return instant(nanos(t) - w.lo).Add(max(0, nanos(t)-w.lo-time.Duration(now)) / maxDrift)
}

// between is what time it is there, at least and at most.
func (c *ledgerClock) between(now instant) (early, late ledgerTime) {
	w := c.widened(now)
	us := func(offset time.Duration) ledgerTime {
		return ledgerTime((time.Duration(now) + offset) / time.Microsecond)
	}
	return us(w.lo), us(w.hi)
}
