package lease

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Lease is a holder's side of one key (docs/protocol.md, section 3). The zero lease
// knows nothing and must claim. It is not safe for concurrent use.
type Lease struct {
	// Cumulative totals for this window: Granted is written by the ledger's
	// grants, Spent and Returned only here.
	// Invariant: Spent + Returned exceeds Granted only by what was admitted before the
	// ledger granted it: drift (mode approx), and what on_store_failure admitted. See
	// Drifted.
	Granted, Spent, Returned tokens

	Available tokens  // what the ledger had left besides, when last heard
	Deadline  instant // the first at which unspent tokens may not be spent
	Reset     instant // the window's end (token_bucket: full again)

	GrantedLimit
	denied

	Split  bool // others had unspent tokens, when last heard
	Seq    uint64
	Fence  ratelimit.Fence
	Window window // 0 before the first grant
}

// GrantedLimit is the limit that a lease was granted under, in parts so that all that
// Take looks at fits one cache line.
type GrantedLimit struct {
	Requests, Burst         uint32 // their lower 32 bits of 40
	RequestsHigh, BurstHigh uint8
	Algorithm               ratelimit.Algorithm
	Period                  uint32 // the unit in the upper 4 bits, the multiplier or the calendar in the lower 28
}

// denied is what denials leave behind.
type denied struct {
	// Before the instant Retry, a request that needs at least RetryCost tokens more
	// than are unspent is refused without asking.
	Retry     instant
	RetryCost tokens
	// Debt is what denials charged beyond the limit: refunds pay it first.
	Debt tokens
}

// Limit is the limit.
func (l *GrantedLimit) Limit() ratelimit.Limit {
	x := ratelimit.Limit{
		Algorithm: l.Algorithm, Unit: ratelimit.Unit(l.Period >> unitShift), Multiplier: l.Period & (1<<unitShift - 1),
		Requests: Joined(l.Requests, l.RequestsHigh), Burst: Joined(l.Burst, l.BurstHigh),
	}
	if x.Unit == ratelimit.BillingMonth {
		return x.Billed(ratelimit.Calendar(x.Multiplier))
	}
	return x
}

// ClaimTimeout is how long a claim is waited for: then it has failed.
const ClaimTimeout = time.Second

// unitShift leaves room for the multipliers that there may be: seconds of a year.
const unitShift = 28

// Joined is a number of tokens of a limit, of which MaxLimit is below 2^40.
func Joined(low uint32, high uint8) tokens { return tokens(high)<<32 | tokens(low) }

// SetLimit has it be x.
func (l *GrantedLimit) SetLimit(x *ratelimit.Limit) {
	l.Algorithm, l.Period = x.Algorithm, uint32(x.Unit)<<unitShift|x.Multiplier|uint32(x.Calendar)
	l.Requests, l.RequestsHigh = uint32(x.Requests), uint8(x.Requests>>32)
	l.Burst, l.BurstHigh = uint32(x.Burst), uint8(x.Burst>>32)
}

// under tells whether the lease was granted under x. The key already says how
// x's windows are cut.
func (l *GrantedLimit) under(x *ratelimit.Limit) bool {
	return Joined(l.Requests, l.RequestsHigh) == x.Requests && Joined(l.Burst, l.BurstHigh) == x.Burst
}

// Left is what may be spent without asking.
func (l *Lease) Left(now instant) tokens {
	if now >= l.Deadline {
		return 0
	}
	return max(0, l.Unspent())
}

// Unspent is what was granted and neither spent nor returned; below 0 it is drift.
// After the deadline it may only be given back, or drained by a denial.
func (l *Lease) Unspent() tokens { return l.Granted - l.Spent - l.Returned }

// Current tells whether what the lease knows of its window still holds.
func (l *Lease) Current(now instant, a *ask) bool {
	return now < l.Reset && l.under(&a.Rule.Limit)
}

// Keeping says what becomes of tokens that a lease has and that nobody spends.
type Keeping uint8

const (
	// Keeps has them stay for later requests.
	Keeps Keeping = iota
	// Returns has them go back with the next claim: where a holder claims for each request.
	Returns
)

// refundsTo is where tokens go that are not spent after all. How full a bucket is only the
// ledger knows.
func refundsTo(algorithm ratelimit.Algorithm) Keeping {
	if algorithm == ratelimit.TokenBucket {
		return Returns
	}
	return Keeps
}

// Take answers an ask from what is here, or says that the ledger must be
// asked: which a holder that Returns does for each request.
func (l *Lease) Take(now instant, a *ask, keeping Keeping) (v verdict, ok bool) {
	switch {
	case keeping == Returns || !l.Current(now, a):
		return verdict{}, false
	case a.Kind == ratelimit.Spend:
		if a.Cost <= l.Left(now) {
			l.Spent += a.Cost
			return l.Report(now, verdict{Charged: a.Cost}), true
		}
		if a.Cost-max(0, l.Unspent()) >= l.RetryCost && now < l.Retry {
			return l.Deny(now, a), true
		}
		return verdict{}, false
	case now >= l.Deadline: // what is available may have changed
		return verdict{}, false
	case a.Kind == ratelimit.Refund:
		l.refund(a.Cost, refundsTo(l.Algorithm))
		return l.Report(now, verdict{}), true
	}
	return l.peek(now), true
}

// Settled answers an ask right after a claim for it was applied: whatever is
// not here now is not to be had. A lease that may keep tokens between requests
// keeps what is left over; one that Returns gives it back.
func (l *Lease) Settled(now instant, a *ask, keeping Keeping) verdict {
	var v verdict
	switch {
	case a.Kind == ratelimit.Spend && a.Cost > l.Left(now):
		v = l.Deny(now, a)
	case a.Kind == ratelimit.Spend:
		l.Spent += a.Cost
		v = l.Report(now, verdict{Charged: a.Cost})
	case a.Kind == ratelimit.Refund:
		v = l.refunded(now, a.Cost, keeping)
	default:
		v = l.peek(now)
	}
	if keeping == Returns {
		l.Available += l.Unspent()
		l.GiveBack()
	}
	v.Source = ratelimit.FromClaim
	return v
}

// Report adds to a verdict what is left, and until when.
func (l *Lease) Report(now instant, v verdict) verdict {
	v.Remaining = max(0, l.Unspent()+l.Available)
	v.ResetAfter = l.Reset.Sub(now)
	v.Window = l.Window
	return v
}

func (l *Lease) peek(now instant) verdict {
	v := l.Report(now, verdict{})
	v.OverLimit = l.Debt > 0 && v.Remaining == 0
	return v
}

// Deny refuses. A denial that charges drains what is left; but not while others have
// unspent tokens: together there may be enough, and draining each part would waste all.
func (l *Lease) Deny(now instant, a *ask) verdict {
	v := verdict{OverLimit: true}
	if a.Rule.Coordination.OnDeny == ratelimit.DenyCharges && !l.Split {
		v.Charged = min(max(0, l.Unspent()), a.Cost)
		l.Spent += v.Charged
		l.addDebt(a, a.Cost-v.Charged)
	}
	v = l.Report(now, v)
	if now < l.Retry {
		v.ResetAfter = l.Retry.Sub(now)
	}
	return v
}

// addDebt books n hits that were charged beyond the limit, or takes them back. A
// counter above its limit is a fixed window's; the others have none.
func (l *Lease) addDebt(a *ask, n tokens) {
	if a.Rule.Limit.Algorithm == ratelimit.FixedWindow {
		l.Debt = max(0, ratelimit.AddTokens(l.Debt, n))
	}
}

// refund gives n tokens back, at most what was spent in this window: into the
// lease, or for a bucket to the ledger, which alone knows how full it is.
func (l *Lease) refund(n tokens, keeping Keeping) {
	paid := min(n, l.Debt)
	l.Debt -= paid
	l.Unspend(min(n-paid, l.Spent), keeping)
}

// Unspend takes n tokens as not spent: into the lease, or for a bucket, as far
// as they had been granted, to the ledger.
func (l *Lease) Unspend(n tokens, keeping Keeping) {
	if n <= 0 {
		return
	}
	granted := max(0, n-l.Drifted())
	l.Spent -= n
	l.Retry = 0
	if keeping == Returns {
		l.Returned += granted
	}
}

// refunded is refund where the ledger learns of it only with the next claim.
func (l *Lease) refunded(now instant, n tokens, keeping Keeping) verdict {
	before := l.Returned
	l.refund(n, keeping)
	l.Available = min(l.Limit().Capacity()-l.Unspent(), l.Available+l.Returned-before)
	return l.Report(now, verdict{})
}

// Undo takes back what a verdict charged, unless its window is over.
func (l *Lease) Undo(a *ask, v *verdict, keeping Keeping) {
	if v.Window != l.Window {
		return
	}
	if v.OverLimit && a.Rule.Coordination.OnDeny == ratelimit.DenyCharges && !l.Split {
		l.addDebt(a, v.Charged-a.Cost)
	}
	l.Unspend(min(v.Charged, l.Spent), keeping)
}

// GiveBack returns all that is unspent; the next claim says so.
func (l *Lease) GiveBack() {
	l.Returned += max(0, l.Unspent())
}

// Claim writes the message that asks for waiting tokens now and want in all.
// Tokens that may no longer be spent here are given back with it.
func (l *Lease) Claim(
	now instant, seq uint64, rule *ratelimit.Rule, waiting, want tokens, keeping Keeping,
) ratelimit.Claim {
	if now >= l.Deadline || !l.under(&rule.Limit) {
		l.GiveBack()
	}
	l.Seq = seq
	reclaim := ratelimit.ReclaimSafe
	if rule.Coordination.Eager() {
		reclaim = ratelimit.ReclaimEager
	}
	return ratelimit.Claim{
		Limit: rule.Limit, Seq: seq, Fence: l.Fence, Window: l.Window, Reclaim: reclaim,
		Granted: l.Granted, Spent: l.Spent, Returned: l.Returned,
		Waiting: waiting, Want: want, TTL: rule.Coordination.Lease.TTL, Direct: keeping == Returns,
		Refilled: l.refilled(now),
		Tally:    rule.Tallied(),
	}
}

// Release writes the last message of a lease that is about to be forgotten: it
// returns everything, so that all the ledger must remember is what was spent.
func (l *Lease) Release(now instant, seq uint64) ratelimit.Claim {
	l.GiveBack()
	l.Seq = seq
	return ratelimit.Claim{
		Limit: l.Limit(), Seq: seq, Fence: l.Fence, Window: l.Window,
		Granted: l.Granted, Spent: l.Spent, Returned: l.Returned, Refilled: l.refilled(now),
	}
}

func (l *Lease) refilled(now instant) bool {
	return l.Algorithm == ratelimit.TokenBucket && now >= l.Reset
}

// regretted is how many tokens a bucket has confirmed that nobody has spent: a request
// drifted, a claim reported it, and the request was undone before the answer came.
// They are returned: for a spent token the bucket has held back no refill.
func (l *Lease) regretted(c *ratelimit.Claim, g *ratelimit.Grant) tokens {
	// What is undone is returned at once as far as it had been granted (Unspend): of what the claim
	// said, only drift can be spent no more and not be returned either.
	undone := (c.Spent - l.Spent) - (l.Returned - c.Returned)
	return max(0, min(g.Granted-c.Granted, undone))
}

// Carries tells whether the lease's totals are about the grant's window: those
// of the claim are (Carried), or the lease began that window while the claim was
// under way.
func (l *Lease) Carries(c *ratelimit.Claim, g *ratelimit.Grant) bool {
	return g.Carried || c.Window != l.Window && g.Window == l.Window
}

// Apply takes in the answer to the latest claim, which was sent at sent; any
// other answer changes nothing. margin is how much earlier than the ledger the holder
// stops (docs/protocol.md, section 4.7). The grant's window certainly goes on until the
// instant ends.
func (l *Lease) Apply(sent instant, c *ratelimit.Claim, g *ratelimit.Grant, margin time.Duration, ends instant) {
	if g.Err != nil || g.Seq != l.Seq {
		return
	}
	// A bucket has one life: the ledger has taken on what was known of another.
	if !l.Carries(c, g) && c.Limit.Algorithm != ratelimit.TokenBucket {
		l.Spent, l.Returned, l.Debt = 0, 0, 0
	}
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		l.Returned += l.regretted(c, g)
	}
	l.Window = g.Window
	l.Granted = g.Granted
	l.Fence = g.Fence
	l.SetLimit(&c.Limit)
	l.Available = g.Available
	l.Split = g.Outstanding > 0
	// A learning bucket may be full and still grant nothing: ResetAfter is then 0, and
	// what is known of it holds until RetryAfter.
	l.Reset = sent.Add(max(g.ResetAfter, g.RetryAfter))
	l.Deadline = sent.Add(g.TTL - margin)
	if c.Limit.Algorithm != ratelimit.TokenBucket {
		l.Reset = max(l.Reset, ends)
		l.Deadline = min(l.Deadline, ends)
	}
	l.Retry = 0
	if c.Waiting > 0 && g.RetryAfter > 0 && g.Outstanding == 0 {
		l.Retry, l.RetryCost = sent.Add(g.RetryAfter), Grantable(g)+1 // whatever is more than there is
		if c.Direct {
			l.RetryCost = c.Waiting
		}
	}
}

// Overdraw spends cost from what is left, and from a share beyond it.
func (l *Lease) Overdraw(now instant, cost, share tokens) bool {
	// An expired lease's tokens may be another's by now: they must not pay for drift.
	if now >= l.Deadline {
		l.GiveBack() // it may no longer be spent
	}
	// What is unspent is below 0 by the drift so far, so that this bounds all unconfirmed drift by
	// the share.
	if share <= 0 || cost > l.Unspent()+share {
		return false
	}
	l.Spent += cost
	return true
}

// Forgive forgets drift beyond keep: a bucket must not owe for ever what an
// outage's policy admitted.
func (l *Lease) Forgive(keep tokens) {
	if l.Algorithm == ratelimit.TokenBucket {
		l.Spent -= max(0, l.Drifted()-keep)
	}
}

// Drifted is what was spent and is not confirmed.
func (l *Lease) Drifted() tokens { return max(0, -l.Unspent()) }

// Counts is until when what was spent of the lease's window counts: of a sliding
// window, until the next one ends; of a bucket, until it is full and has repaid
// besides what the ledger does not know of.
func (l *Lease) Counts() instant {
	limit := l.Limit()
	switch l.Algorithm {
	case ratelimit.SlidingWindow:
		return l.Reset.Add(limit.Period())
	case ratelimit.TokenBucket:
		return l.Reset.Add(RefillTime(l.Drifted(), &limit))
	case ratelimit.FixedWindow:
	}
	return l.Reset
}

// RefillTime is how long a bucket takes to refill n tokens.
func RefillTime(n tokens, l *ratelimit.Limit) time.Duration {
	return time.Duration(math.Ceil(float64(n) / float64(max(1, l.Requests)) * float64(l.Period())))
}

// Look is the lease for people.
func (l *Lease) Look(now instant) *ratelimit.LeaseLook {
	return &ratelimit.LeaseLook{
		Window: l.Window, Fence: l.Fence, Granted: l.Granted, Spent: l.Spent, Returned: l.Returned,
		Unspent: l.Left(now), Drifted: l.Drifted(),
		Elsewhere: l.Available, Expires: l.Deadline.Sub(now), Resets: l.Reset.Sub(now),
		Refuses: max(0, l.Retry.Sub(now)),
	}
}

// Grantable is what the ledger had left for a claim.
func Grantable(g *ratelimit.Grant) tokens {
	// A ledger that is learning grants little of what it calls available: the node must not take
	// that for tokens that a smaller request could have.
	if g.Relearning {
		return 0
	}
	return g.Available
}

// Margin is how much earlier than the ledger a node takes its lease for expired:
// what two clocks may differ by meanwhile. Where expiry makes unreported tokens
// another's, it is also the time that a report may take. What counts is how the
// lease was claimed, for so the ledger has it; the rule may have changed since.
func Margin(c *ratelimit.Claim, ttl time.Duration) time.Duration {
	if c.Reclaim == ratelimit.ReclaimEager {
		return ttl / 4
	}
	return ttl / 20
}
