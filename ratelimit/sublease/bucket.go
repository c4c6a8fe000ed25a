package sublease

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// BucketWindow is the longest time that a token of a token_bucket may be at a holder. Each holding of such a budget has
// windows of its own of this length, from its first grant on. Tokens that may be spent after one are charged again
// (Holding.Turn). It is 15 whole seconds of lease and the time that TTL takes off. Three reports fit in.
const BucketWindow = 15*time.Second + Slack + applies

// Asked is the limit with which a rule's budget is requested where it is granted on.
//
// A bucket's is smaller by the refill of BucketWindow. Each token is charged at most BucketWindow before it
// is spent. So the tokens spent in a time t were charged in t + BucketWindow, and are at most
//
//	Asked burst + rate x (t + BucketWindow)  =  burst + rate x t
//
// The proof needs each token to be charged once and for good: unspent tokens of a bucket are not credited (Refills).
func Asked(l ratelimit.Limit) ratelimit.Limit {
	if Refills(&l) {
		l.Burst = max(0, l.Burst-refills(&l, BucketWindow))
	}
	return l
}

// Rule is the rule with which its budget is requested: with the limit of Asked. A refused lease must not drain the
// rest: it is requested once more, with less.
func Rule(r *ratelimit.Rule) *ratelimit.Rule {
	asked := *r
	asked.Limit, asked.Coordination.OnDeny = Asked(r.Limit), ratelimit.DenyRefunds
	return &asked
}

// Refills reports whether tokens return with time alone. Unspent tokens of such a budget must not be
// credited: the account may have been refilled meanwhile, and the same tokens would exist twice.
func Refills(l *ratelimit.Limit) bool { return l.Algorithm == ratelimit.TokenBucket }

// WindowOf is how long the windows of a holding are; of months, about.
func WindowOf(l *ratelimit.Limit) time.Duration {
	if Refills(l) {
		return BucketWindow
	}
	return l.Period()
}

// RefilledIn is how many whole tokens come back in a while, at most a full bucket's.
func RefilledIn(l *ratelimit.Limit, d time.Duration) ratelimit.Tokens {
	return tokens(min(float64(l.Burst), float64(l.Requests)*(float64(max(0, d))/float64(l.Period()))))
}

// refills is how many tokens come back in a while, rounded up.
func refills(l *ratelimit.Limit, d time.Duration) tokens {
	// MaxLimit times the milliseconds of a minute stays below 2^63.
	of, period := tokens(d/time.Millisecond), tokens(l.Period()/time.Millisecond)
	return (l.Requests*of + period - 1) / period
}
