package leasing

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

type (
	instant = ratelimit.Instant
	verdict = ratelimit.Verdict
	ask     = ratelimit.Ask
)

// lease is a holder's side of one key (docs/protocol.md, section 3). The zero lease
// knows nothing and must claim. It is not safe for concurrent use.
type lease struct {
	// Cumulative totals for this window: granted is written by the ledger's
	// grants, spent and returned only here.
	// Invariant: spent + returned exceeds granted only by what was admitted before the
	// ledger granted it: drift (mode approx), and what on_store_failure admitted. See
	// drifted.
	granted, spent, returned tokens

	available tokens  // what the ledger had left besides, when last heard
	deadline  instant // the first at which unspent tokens may not be spent
	reset     instant // the window's end (token_bucket: full again)

	grantedLimit
	denied

	split  bool // others had unspent tokens, when last heard
	seq    uint64
	fence  ratelimit.Fence
	window window // 0 before the first grant
}

// grantedLimit is the limit that a lease was granted under, in parts so that all that
// take looks at fits one cache line.
type grantedLimit struct {
	requests, burst         uint32 // their lower 32 bits of 40
	requestsHigh, burstHigh uint8
	algorithm               ratelimit.Algorithm
	period                  uint32 // the unit in the upper 4 bits, the multiplier or the calendar in the lower 28
}

// denied is what denials leave behind.
type denied struct {
	// Before the instant retry, a request that needs at least retryCost tokens more
	// than are unspent is refused without asking.
	retry     instant
	retryCost tokens
	// debt is what denials charged beyond the limit: refunds pay it first.
	debt tokens
}

func (l *grantedLimit) limit() ratelimit.Limit {
	x := ratelimit.Limit{
		Algorithm: l.algorithm, Unit: ratelimit.Unit(l.period >> unitShift), Multiplier: l.period & (1<<unitShift - 1),
		Requests: joined(l.requests, l.requestsHigh), Burst: joined(l.burst, l.burstHigh),
	}
	if x.Unit == ratelimit.BillingMonth {
		return x.Billed(ratelimit.Calendar(x.Multiplier))
	}
	return x
}

// unitShift leaves room for the multipliers that there may be: seconds of a year.
const unitShift = 28

// joined is a number of tokens of a limit, of which MaxLimit is below 2^40.
func joined(low uint32, high uint8) tokens { return tokens(high)<<32 | tokens(low) }

func (l *grantedLimit) setLimit(x *ratelimit.Limit) {
	l.algorithm, l.period = x.Algorithm, uint32(x.Unit)<<unitShift|x.Multiplier|uint32(x.Calendar)
	l.requests, l.requestsHigh = uint32(x.Requests), uint8(x.Requests>>32)
	l.burst, l.burstHigh = uint32(x.Burst), uint8(x.Burst>>32)
}

// under tells whether the lease was granted under x. The key already says how
// x's windows are cut.
func (l *grantedLimit) under(x *ratelimit.Limit) bool {
	return joined(l.requests, l.requestsHigh) == x.Requests && joined(l.burst, l.burstHigh) == x.Burst
}

// left is what may be spent without asking.
func (l *lease) left(now instant) tokens {
	if now >= l.deadline {
		return 0
	}
	return max(0, l.unspent())
}

// unspent is what was granted and neither spent nor returned; below 0 it is drift.
// After the deadline it may only be given back, or drained by a denial.
func (l *lease) unspent() tokens { return l.granted - l.spent - l.returned }

// current tells whether what the lease knows of its window still holds.
func (l *lease) current(now instant, a *ask) bool {
	return now < l.reset && l.under(&a.Rule.Limit)
}

// take answers an ask from what is here, or says that the ledger must be
// asked. continuous is for limits whose tokens come back with time, and which
// ask for each decision so that what they say is exact.
func (l *lease) take(now instant, a *ask, continuous bool) (v verdict, ok bool) {
	switch {
	case continuous || !l.current(now, a):
		return verdict{}, false
	case a.Kind == ratelimit.Spend:
		if a.Cost <= l.left(now) {
			l.spent += a.Cost
			return l.report(now, verdict{Charged: a.Cost}), true
		}
		if a.Cost-max(0, l.unspent()) >= l.retryCost && now < l.retry {
			return l.deny(now, a), true
		}
		return verdict{}, false
	case now >= l.deadline: // what is available may have changed
		return verdict{}, false
	case a.Kind == ratelimit.Refund:
		l.refund(a.Cost, l.algorithm == ratelimit.TokenBucket)
		return l.report(now, verdict{}), true
	}
	return l.peek(now), true
}

// settled answers an ask right after a claim for it was applied: whatever is
// not here now is not to be had. A lease that may keep tokens between requests
// keeps what is left over; a continuous one returns it.
func (l *lease) settled(now instant, a *ask, continuous bool) verdict {
	var v verdict
	switch {
	case a.Kind == ratelimit.Spend && a.Cost > l.left(now):
		v = l.deny(now, a)
	case a.Kind == ratelimit.Spend:
		l.spent += a.Cost
		v = l.report(now, verdict{Charged: a.Cost})
	case a.Kind == ratelimit.Refund:
		v = l.refunded(now, a.Cost, continuous)
	default:
		v = l.peek(now)
	}
	if continuous {
		l.available += l.unspent()
		l.giveBack()
	}
	v.Source = ratelimit.FromClaim
	return v
}

func (l *lease) report(now instant, v verdict) verdict {
	v.Remaining = max(0, l.unspent()+l.available)
	v.ResetAfter = l.reset.Sub(now)
	v.Window = l.window
	return v
}

func (l *lease) peek(now instant) verdict {
	v := l.report(now, verdict{})
	v.OverLimit = l.debt > 0 && v.Remaining == 0
	return v
}

// deny refuses. A denial that charges drains what is left; but not while others have
// unspent tokens: together there may be enough, and draining each part would waste all.
func (l *lease) deny(now instant, a *ask) verdict {
	v := verdict{OverLimit: true}
	if a.Rule.Coordination.OnDeny == ratelimit.DenyCharges && !l.split {
		v.Charged = min(max(0, l.unspent()), a.Cost)
		l.spent += v.Charged
		l.addDebt(a, a.Cost-v.Charged)
	}
	v = l.report(now, v)
	if now < l.retry {
		v.ResetAfter = l.retry.Sub(now)
	}
	return v
}

// addDebt books n hits that were charged beyond the limit, or takes them back. A
// counter above its limit is a fixed window's; the others have none.
func (l *lease) addDebt(a *ask, n tokens) {
	if a.Rule.Limit.Algorithm == ratelimit.FixedWindow {
		l.debt = max(0, ratelimit.AddTokens(l.debt, n))
	}
}

// refund gives n tokens back, at most what was spent in this window: into the
// lease, or for a bucket to the ledger, which alone knows how full it is.
func (l *lease) refund(n tokens, continuous bool) {
	paid := min(n, l.debt)
	l.debt -= paid
	l.unspend(min(n-paid, l.spent), continuous)
}

// unspend takes n tokens as not spent: into the lease, or for a bucket, as far
// as they had been granted, to the ledger.
func (l *lease) unspend(n tokens, continuous bool) {
	if n <= 0 {
		return
	}
	granted := max(0, n-l.drifted())
	l.spent -= n
	l.retry = 0
	if continuous {
		l.returned += granted
	}
}

// refunded is refund where the ledger learns of it only with the next claim.
func (l *lease) refunded(now instant, n tokens, continuous bool) verdict {
	before := l.returned
	l.refund(n, continuous)
	l.available = min(l.limit().Capacity()-l.unspent(), l.available+l.returned-before)
	return l.report(now, verdict{})
}

// undo takes back what a verdict charged, unless its window is over.
func (l *lease) undo(a *ask, v *verdict, continuous bool) {
	if v.Window != l.window {
		return
	}
	if v.OverLimit && a.Rule.Coordination.OnDeny == ratelimit.DenyCharges && !l.split {
		l.addDebt(a, v.Charged-a.Cost)
	}
	l.unspend(min(v.Charged, l.spent), continuous)
}

// giveBack returns all that is unspent; the next claim says so.
func (l *lease) giveBack() {
	l.returned += max(0, l.unspent())
}

// claim writes the message that asks for waiting tokens now and want in all.
// Tokens that may no longer be spent here are given back with it.
func (l *lease) claim(now instant, seq uint64, rule *ratelimit.Rule, waiting, want tokens, direct bool) ratelimit.Claim {
	if now >= l.deadline || !l.under(&rule.Limit) {
		l.giveBack()
	}
	l.seq = seq
	reclaim := ratelimit.ReclaimSafe
	if rule.Coordination.Eager() {
		reclaim = ratelimit.ReclaimEager
	}
	return ratelimit.Claim{
		Limit: rule.Limit, Seq: seq, Fence: l.fence, Window: l.window, Reclaim: reclaim,
		Granted: l.granted, Spent: l.spent, Returned: l.returned,
		Waiting: waiting, Want: want, TTL: rule.Coordination.Lease.TTL, Direct: direct, Refilled: l.refilled(now),
		Tally: rule.Coordination.Mode == ratelimit.Approx,
	}
}

// release writes the last message of a lease that is about to be forgotten: it
// returns everything, so that all the ledger must remember is what was spent.
func (l *lease) release(now instant, seq uint64) ratelimit.Claim {
	l.giveBack()
	l.seq = seq
	return ratelimit.Claim{
		Limit: l.limit(), Seq: seq, Fence: l.fence, Window: l.window,
		Granted: l.granted, Spent: l.spent, Returned: l.returned, Refilled: l.refilled(now),
	}
}

func (l *lease) refilled(now instant) bool {
	return l.algorithm == ratelimit.TokenBucket && now >= l.reset
}

// regretted is how many tokens a bucket has confirmed that nobody has spent: a request
// drifted, a claim reported it, and the request was undone before the answer came.
// They are returned: for a spent token the bucket has held back no refill.
func (l *lease) regretted(c *ratelimit.Claim, g *ratelimit.Grant) tokens {
	drift := c.Spent - (c.Granted - c.Returned)
	undone := (c.Spent - l.spent) - (l.returned - c.Returned)
	return max(0, min(drift, g.Granted-c.Granted, undone))
}

// carries tells whether the lease's totals are about the grant's window: those
// of the claim are (Carried), or the lease began that window while the claim was
// under way.
func (l *lease) carries(c *ratelimit.Claim, g *ratelimit.Grant) bool {
	return g.Carried || c.Window != l.window && g.Window == l.window
}

// apply takes in the answer to the latest claim, which was sent at sent; any
// other answer changes nothing. margin is how much earlier than the ledger the holder
// stops (docs/protocol.md, section 4.7). The grant's window certainly goes on until the
// instant ends.
func (l *lease) apply(sent instant, c *ratelimit.Claim, g *ratelimit.Grant, margin time.Duration, ends instant) {
	if g.Err != nil || g.Seq != l.seq {
		return
	}
	// A bucket has one life: the ledger has taken on what was known of another.
	if !l.carries(c, g) && c.Limit.Algorithm != ratelimit.TokenBucket {
		l.spent, l.returned, l.debt = 0, 0, 0
	}
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		l.returned += l.regretted(c, g)
	}
	l.window = g.Window
	l.granted = g.Granted
	l.fence = g.Fence
	l.setLimit(&c.Limit)
	l.available = g.Available
	l.split = g.Outstanding > 0
	// A learning bucket may be full and still grant nothing: ResetAfter is then 0, and
	// what is known of it holds until RetryAfter.
	l.reset = sent.Add(max(g.ResetAfter, g.RetryAfter))
	l.deadline = sent.Add(g.TTL - margin)
	if c.Limit.Algorithm != ratelimit.TokenBucket {
		l.reset = max(l.reset, ends)
		l.deadline = min(l.deadline, ends)
	}
	l.retry = 0
	if c.Waiting > 0 && g.RetryAfter > 0 && g.Outstanding == 0 {
		l.retry, l.retryCost = sent.Add(g.RetryAfter), grantable(g)+1 // whatever is more than there is
		if c.Direct {
			l.retryCost = c.Waiting
		}
	}
}
