package ledger

import (
	"math/bits"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// What a claim is granted, and what it is told.

// How large a lease is made while there is plenty, and how long it lasts. What a
// node holds and does not need is missing elsewhere only when the rest is used up,
// and is recalled then; the share bounds what is stranded when the node has died. A
// bucket's leases stay small and short: it refills no further than to its size less
// what is leased.
const (
	PlentyAbove = ratelimit.PlentyAbove   // more than one half of the limit is left, here or unspent at others,
	RoomAbove   = 8                       // and more than an eighth here
	IdleShare   = 5                       // all holders together: a fifth of the limit
	LeastShares = ratelimit.MostDrawers   // and one at most a quarter of that: a twentieth
	Longest     = ledgerTime(300_000_000) // until the window ends, or so many µs
)

// A lease is recalled once, and again after a while: the message may have been
// lost. Who was refused meanwhile may ask again for so long.
const (
	RecallAgain = ledgerTime(1_000_000)
	RecallTakes = ledgerTime(10_000)
)

// grant decides how much of the claim's want the holder gets: what confirms
// its drift, and what waits, and a tapering share of the rest. uncovered of its
// drift was over-admitted before.
func (a *Account) grant(r *record, c *ratelimit.Claim, uncovered tokens, at window) {
	drift := max(0, r.spent-(r.granted-r.returned))
	confirmed := drift
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		// Only tokens confirm drift: a report alone would free the share again, without end
		// (docs/protocol.md, section 4.12).
		confirmed = min(drift, tokens(a.level/Micro))
		a.level -= int64(confirmed) * Micro
		r.over = max(0, drift-confirmed-uncovered)
	} else if at == a.window {
		confirmed = max(0, drift-max(0, -a.free(c, at)))
		r.over += a.overspent(c)
	}
	// What is available holds for all who claim. While the account learns, a twentieth of the limit
	// bounds all grants together, for others may have spent the rest and not told it yet
	// (docs/protocol.md, section 4.9).
	room := a.available(c, at)
	relearning := a.now < a.relearn
	if relearning {
		room = min(room, max(0, max(1, c.Limit.Capacity()/RelearnShare)-a.relearned))
	}
	// Leases shrink with the budget: half of what is left is shared by all holders. Otherwise one
	// node would take the last tokens, and others would be refused while it still has most of them
	// (docs/protocol.md, section 4.11).
	tapered := max(c.Waiting, room/(2*tokens(a.liveHolders(at))))
	lease := min(room, max(c.Want, c.Waiting), tapered)
	// A direct claim is spent at once, for one request: a part of its cost is of no use.
	if c.Direct && room < c.Waiting {
		lease = 0
	}
	// While there is plenty, a lease is made larger than was asked for and lasts until the window
	// ends. The node renews seldom then; what it does not need is recalled when others run short
	// (docs/protocol.md, section 4.11).
	if c.Stretch && c.Limit.Algorithm != ratelimit.TokenBucket && !relearning && room > c.Limit.Capacity()/RoomAbove &&
		room+a.idleElsewhere(r, at) > c.Limit.Capacity()/PlentyAbove {
		r.plenty = true
		holders := tokens(a.liveHolders(at))
		share := min(c.Limit.Capacity()/(IdleShare*max(LeastShares, holders)), room/(2*holders))
		lease = max(lease, min(room, share-max(0, r.granted-r.returned-r.spent)))
		r.expires = max(r.expires, a.now+min(Longest, c.Limit.WindowEnd(at)-a.now))
	}
	if relearning {
		a.relearned += lease
	}
	r.inflight = confirmed + lease
	// A holder that is granted something again may have more than it needs, and can be recalled
	// again.
	if lease > 0 {
		r.recalled = notRecalled
	}
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		a.level -= int64(lease) * Micro
	}
}

// recall decides whether holders are to give back what they have, because what a
// claim waits for is not there. It returns how many are asked now, and whether any
// was, now or a moment ago.
func (a *Account) recall(r *record, c *ratelimit.Claim) (asked int, recalling bool) {
	// Nobody is asked for a claim that got what waits; nor while the account learns, when it is
	// short of knowledge and not of tokens.
	if !c.Recall || r.inflight >= c.Waiting || a.now < a.relearn {
		return 0, false
	}
	some, again := false, a.now >= a.recalled+RecallAgain
	a.each(func(other *record) {
		if other == r || !a.recallable(other, c) {
			return
		}
		// The mark has each lease recalled once, and not by each claim of each node that waits
		// (docs/protocol.md, section 4.11).
		if other.recalled == notRecalled || again {
			other.recalled = isRecalled
			asked++
		}
		some = some || other.recalled == isRecalled
	})
	if asked > 0 {
		a.recalled = a.now
	}
	return asked, some && a.now < a.recalled+RecallTakes
}

// recalledHolders are those that were asked to give back, for a claim or before it;
// to be asked twice does no harm.
func (a *Account) recalledHolders(c *ratelimit.Claim) (holders []ratelimit.Holder) {
	a.each(func(r *record) {
		if r.recalled == isRecalled && r.holder != c.Holder && a.recallable(r, c) {
			holders = append(holders, r.holder)
		}
	})
	return holders
}

// recallable tells whether a record's holder has something that would help if it
// were given back: of the same window, or under a sliding window of the one before,
// which still counts. A bucket has refilled what is in expired leases.
func (a *Account) recallable(r *record, c *ratelimit.Claim) bool {
	if r.closed || r.last || r.outstanding() == 0 {
		return false
	}
	switch c.Limit.Algorithm {
	case ratelimit.TokenBucket:
		return a.now < r.expires
	case ratelimit.SlidingWindow:
		return r.window >= a.window-1
	default:
		return r.window == a.target(c)
	}
}

// overspent is how much the reported over-admission grew with this claim. In a fixed
// window it never shrinks; in a sliding window it shrinks as the window before loses
// weight.
func (a *Account) overspent(c *ratelimit.Claim) tokens {
	a.most = max(a.most, c.Limit.Capacity())
	over := max(0, a.weightedPrevious(&c.Limit)+a.spent(a.window)-a.most)
	before := a.over
	if c.Limit.Algorithm == ratelimit.FixedWindow {
		over = max(over, before)
	}
	a.over = over
	return max(0, over-before)
}

// free is the limit minus everything charged; negative when drift went beyond.
func (a *Account) free(c *ratelimit.Claim, at window) tokens {
	return c.Limit.Capacity() - a.weightedPrevious(&c.Limit) - a.charged(at)
}

// available is what could be granted now: never more than the limit, also where
// what a reset credited was given back besides, or the limit was lowered.
func (a *Account) available(c *ratelimit.Claim, at window) tokens {
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		return min(c.Limit.Burst, tokens(a.level/Micro))
	}
	return min(c.Limit.Requests, max(0, a.free(c, at)))
}

// charged is the sum over all holders in a window, this one or the next.
func (a *Account) charged(at window) tokens {
	sum := tokens(0)
	if at == a.window {
		sum = a.base
	}
	a.each(func(r *record) {
		if r.window == at {
			sum += r.charged()
		}
	})
	return sum
}

// spent is what all holders have reported as spent in a window; those that are
// no longer recorded have spent all that they were charged.
func (a *Account) spent(at window) tokens {
	sum := a.base
	a.each(func(r *record) {
		if r.window == at {
			sum += r.spent
		}
	})
	return sum
}

func (a *Account) liveHolders(at window) int {
	n := 0
	a.each(func(r *record) {
		if r.window == at && a.now < r.expires {
			n++
		}
	})
	return max(1, n)
}

// idleElsewhere is what other holders may still spend of a window, and can be asked to
// give back.
func (a *Account) idleElsewhere(r *record, at window) tokens {
	n := tokens(0)
	a.each(func(other *record) {
		if other != r && other.window == at && a.now < other.expires {
			n += other.outstanding()
		}
	})
	return n
}

// slidingTick is the grain in which a sliding window weighs time: at most 2^20
// to a period, so that mostPrevious x ticks is a whole number below 2^63. (Lua's numbers
// hold 2^53: settle.lua multiplies in two parts.)
func slidingTick(l *ratelimit.Limit) ledgerTime {
	return max(1, ledgerTime(l.Period()/time.Microsecond)>>20)
}

// mostPrevious is what is weighed of a window before at most; no limit comes near it.
const mostPrevious tokens = 1 << 42

// weightedPrevious is the part of the previous window that still counts,
// rounded up.
func (a *Account) weightedPrevious(l *ratelimit.Limit) tokens {
	if l.Algorithm != ratelimit.SlidingWindow || a.prev == 0 {
		return 0
	}
	tick := slidingTick(l)
	total := tokens((ledgerTime(l.Period()/time.Microsecond) + tick - 1) / tick)
	left := tokens((l.WindowEnd(a.window) - a.now + tick - 1) / tick)
	return (min(a.prev, mostPrevious)*left + total - 1) / total
}

// closeExpired credits what silent holders had not reported as spent. Only of
// leases that were claimed under reclaim: eager: a holder of any other reports
// seldom and stops late, for nobody told it that its tokens become another's.
func (a *Account) closeExpired(l *ratelimit.Limit) {
	closed := false
	a.each(func(r *record) {
		if !r.eager || r.closed || a.now < r.expires || r.window != a.window {
			return
		}
		r.closed, closed = true, true
		a.level += int64(r.outstanding()) * Micro // ignored by windows
		// what was spent unasked stays unconfirmed
		r.granted, r.inflight = min(r.granted+r.inflight, r.spent+r.returned), 0
	})
	// From expiry on the bucket has refilled as if these tokens were gone. They were in it all the time:
	// where it would overflow, what refilled meanwhile is too much.
	if closed && l.Algorithm == ratelimit.TokenBucket {
		a.level = min(a.level, a.brim(l))
	}
}

// answer states what a record holds. The same claim twice gets it twice.
func (a *Account) answer(r *record, c *ratelimit.Claim) ratelimit.Grant {
	g := ratelimit.Grant{
		Seq: c.Seq, Granted: r.granted + r.inflight, Fence: r.fence, Window: r.window,
		Carried: r.window == c.Window || c.Limit.Algorithm == ratelimit.TokenBucket && c.Window != 0, Void: r.void,
		TTL: max(0, r.expires.Sub(a.now)), Plenty: r.plenty, Shut: a.shut >= r.window,
		Holders: a.liveHolders(r.window), OverAdmitted: r.over, Over: a.over,
		At: a.ledger, Available: a.available(c, r.window), ResetAfter: a.resetAfter(r.window, c),
		Relearning: a.now < a.relearn, Missing: r.missing,
	}
	if r.window < a.window { // a last word on the window before
		g.Over = a.late
	}
	a.each(func(other *record) {
		if other != r && other.window == r.window {
			g.Outstanding += other.outstanding()
			if a.now >= other.expires {
				g.Stranded += other.outstanding()
			}
		}
	})
	if r.inflight < c.Waiting {
		missing := tokens(1)
		if c.Direct { // which was granted nothing: what is in flight confirms drift
			missing = c.Waiting
		}
		g.RetryAfter = a.retryAfter(missing, c)
	}
	return g
}

func (a *Account) resetAfter(w window, c *ratelimit.Claim) time.Duration {
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		return a.timeToLevel(int64(c.Limit.Burst)*Micro, &c.Limit)
	}
	return max(0, c.Limit.WindowEnd(w).Sub(a.now))
}

// retryAfter is when missing more tokens are there if nobody else spends.
func (a *Account) retryAfter(missing tokens, c *ratelimit.Claim) time.Duration {
	end := a.resetAfter(a.target(c), c)
	l := &c.Limit
	if a.now < a.relearn {
		return a.relearn.Sub(a.now)
	}
	switch l.Algorithm {
	case ratelimit.TokenBucket:
		need := int64(min(missing, l.Burst)) * Micro
		return a.timeToLevel(need, l)
	case ratelimit.SlidingWindow:
		// In this window only the weight of the previous one shrinks.
		weighted := a.weightedPrevious(l)
		deficit := missing - max(0, a.free(c, a.window))
		if deficit <= 0 {
			return 0 // it has come since
		}
		if deficit > weighted {
			return end
		}
		period := l.Period() / time.Microsecond
		hi, lo := bits.Mul64(uint64(max(0, weighted-deficit)), uint64(period))
		keep, _ := bits.Div64(hi, lo, uint64(a.prev)) // µs before the end at which that weight is reached
		return max(time.Microsecond, end-time.Duration(keep)*time.Microsecond)
	default:
		return end
	}
}

// deadline is from when on the account may be deleted: a new one would answer as
// it does.
func (a *Account) deadline(c *ratelimit.Claim) ledgerTime {
	l := &c.Limit
	var at ledgerTime
	switch l.Algorithm {
	case ratelimit.FixedWindow, ratelimit.SlidingWindow:
		// The next window was claimed ahead: the account must outlive that.
		if next := a.charged(a.window + 1); next > 0 {
			return l.WindowEnd(a.window + 1)
		}
		// Nothing is charged, as in a new account. A base below 0 is what a reset has credited, and
		// must not be forgotten.
		if a.charged(a.window) == 0 && a.prev == 0 && a.base >= 0 {
			return max(a.now, a.relearn)
		}
		if l.Algorithm == ratelimit.FixedWindow {
			return l.WindowEnd(a.window)
		}
		return l.WindowEnd(a.window + 1)
	case ratelimit.TokenBucket:
		if wait := a.timeToLevel(int64(l.Burst)*Micro, l); wait < 1<<62 {
			at = a.now.Add(wait) + 1
		} else {
			return 1<<63 - 1
		}
	}
	a.each(func(r *record) {
		if r.outstanding() > 0 {
			at = max(at, r.expires)
		}
	})
	return at
}
