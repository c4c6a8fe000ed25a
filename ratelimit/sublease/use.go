package sublease

import (
	"math"
	"time"
)

// The sizes of leases. bench/sim measures their effect: how much of a limit stays unused, and how many requests are
// refused (docs/explain/rlqs.md). None of them decides whether a limit holds.
const (
	// ReportEvery is how often a holder reports, until it is known better.
	ReportEvery = 5 * time.Second
	// ahead is for how many reports a lease should last: one may come late.
	ahead = 2
	// aheadOfBucket is the same where nothing is credited that is not spent: half a report's
	// tokens are lost of each lease. aheadWhenShort is where those are missed by others.
	aheadOfBucket  = 1.5
	aheadWhenShort = 1
	// lastReports is for how many reports before a window's end all that is left is divided.
	lastReports = 4
	// shortest is the least time over which a rate is measured.
	shortest = 100 * time.Millisecond
	// parts is the divisor of the rest that gives the tokens for holders beyond their need, in all.
	parts = 8
	// firstPart is the divisor of a limit that gives the largest first grant of a holder without a known rate.
	firstPart = 20
	// shrinkAbove is how many times its need a holder may hold while tokens are short.
	shrinkAbove = 3
)

// use is the measurement of a holder's requests.
type use struct {
	last   instant       // its last report
	every  time.Duration // from one report to the next
	perSec float64       // requests, allowed or not
	idle   time.Duration // for which no request was reported
	known  bool          // perSec was measured
	denied bool          // in the last report
}

// report measures, and reports whether a report before this one is missing.
func (u *use) report(now instant, r Usage) (lost bool) {
	u.denied = r.Denied > 0
	if u.last == 0 {
		u.last, u.every = now, ReportEvery
		// The first report of a stream after another one has the counts since that broke. A holder without a
		// known rate would be granted less than it has, and refuse requests until its next report.
		if r.Elapsed >= unit {
			u.perSec, u.known = float64(r.Allowed+r.Denied)/r.Elapsed.Seconds(), true
		}
		return false
	}
	took := now.Sub(u.last)
	u.last = now
	// Envoy tells whole seconds, and its timer and this node's may differ by one.
	lost = r.Elapsed > 0 && took > r.Elapsed+2*unit
	if r.Allowed+r.Denied == 0 {
		u.idle += took
	} else {
		u.idle = 0
	}
	if took < shortest {
		return lost
	}
	rate := float64(r.Allowed+r.Denied) / took.Seconds()
	// A higher rate counts at once, and a lower one by half: a pause between two bursts is no end of the demand.
	if u.known {
		rate = max(rate, (rate+u.perSec)/2)
	}
	u.perSec, u.known = rate, true
	// A missing report says nothing of the interval.
	if took < 2*u.every {
		u.every = (u.every + took) / 2
	}
	return lost
}

// PerSecond is how many requests a second the holder has, as measured.
func (h *Holding) PerSecond() float64 { return h.use.perSec }

// Idle is for how long it has reported no request.
func (h *Holding) Idle() time.Duration { return h.use.idle }

// Silent reports whether the holder has missed more than two reports: it is granted nothing that it does not ask for.
func (h *Holding) Silent(now instant) bool {
	return now.Sub(h.use.last) > 5*h.use.every/2
}

// Budget is what there is to divide.
type Budget struct {
	Limit     tokens
	Largest   tokens  // lease that one holder may have
	Left      tokens  // of the window, as far as is known
	Holders   int     // of the key at this node, at least 1
	PerSecond float64 // of all of them
	// Refills says that tokens return with time alone, and Refill the number in BucketWindow. Tokens that are
	// leased then and not spent are lost, so that leases are short.
	Refills bool
	Refill  tokens
}

// spare is what may go to all holders together beyond their need.
func (b *Budget) spare() tokens {
	if b.Refills {
		return min(b.Left, b.Refill) / parts
	}
	return b.Left / parts
}

// ahead is for how many reports a lease should last.
func (b *Budget) ahead() float64 {
	switch {
	case !b.Refills:
		return ahead
	case b.short():
		return aheadWhenShort
	}
	return aheadOfBucket
}

// Want reports whether the holder gets another lease, and its size. That is the need until its report after the next,
// or more while there is plenty, and at most its part of the rest. n may be 0: its tokens are used up, and none are
// left.
//
// A holder gets one in four cases, in this order:
//
//   - It has none yet.
//   - Its lease ends before the window does.
//   - It will run out before its next report, or has begun to refuse.
//   - It has far more than it needs, and others are short.
func (h *Holding) Want(now, ends instant, b Budget) (n tokens, wanted bool) {
	l := &h.last
	left := ends.Sub(now)
	if b.Refills { // tokens that it cannot spend before its TTL are lost
		left = TTL(now, ends)
	}
	n, need := h.size(left, b)
	over := l.sent.Add(l.ttl)
	has := h.has(&b)
	// A lease that is too small for the time until the next report runs out unnoticed.
	soon := h.enough(min(h.use.every+unit, left))
	switch {
	case l.message == 0:
		return n, true
	case l.size > 0 && over.Sub(now) < ahead*h.use.every && over.Sub(now)+unit < TTL(now, ends):
		return max(n, min(l.live, b.Left, b.Largest)), true // its TTL passes before the window does
	case has < soon || h.use.denied && has < need:
		// A new lease replaces the old one, so it must be larger. One of 0 tells a holder that has used up its own that
		// nothing is left.
		return n, n > has || has == 0 && l.size > 0
	// What a smaller lease leaves over would go to others, if it was credited.
	case !b.Refills && b.short() && l.live > shrinkAbove*need+1:
		return min(n, need), true
	}
	return 0, false
}

// has is the holder's tokens, for the size of its next lease. Where tokens are short, an early replacement of a lease
// takes tokens from others until it is settled, or for good (Refills). A late one takes none, because others use them.
func (h *Holding) has(b *Budget) tokens {
	if b.Refills || b.short() {
		return h.last.live
	}
	return h.last.likely
}

// size is the possible grant of the holder now, and its need.
func (h *Holding) size(left time.Duration, b Budget) (n, need tokens) {
	holders := tokens(max(1, b.Holders))
	if !h.use.known {
		n = max(1, min(b.Limit/firstPart, b.Left/(4*holders)))
		return min(n, b.Left, b.Largest), n
	}
	need = h.enough(min(time.Duration(b.ahead()*float64(max(h.use.every, unit))), left))
	part := b.spare() / holders
	most := max(1, part, h.share(left, b))
	return min(max(need, part), most, b.Left, b.Largest), need
}

// share is the holder's part of the rest, by its part of all requests. It is half of that while there is
// time, so that holders with more requests than before get some. A single holder may have all.
func (h *Holding) share(left time.Duration, b Budget) tokens {
	if b.Holders <= 1 {
		return b.Left
	}
	part := float64(b.Left) * h.use.perSec / max(b.PerSecond, h.use.perSec, 1e-9)
	if left > lastReports*ReportEvery {
		part /= 2
	}
	return tokens(part)
}

// enough is how many tokens last for a while.
func (h *Holding) enough(d time.Duration) tokens {
	return tokens(math.Ceil(h.use.perSec * max(0, d).Seconds()))
}

// short reports whether the rest is too small for two reports of all holders.
func (b *Budget) short() bool { return float64(b.Left) < b.PerSecond*(ahead*ReportEvery).Seconds() }
