package hold

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Demand is the measured demand for a key at one holder. The zero demand is unmeasured.
type Demand struct {
	Used    tokens // admitted since the last claim
	Refused tokens // refused since then
	Since   instant
	PerSec  float64
	LastUse instant
}

const (
	// Horizon is the time that a lease should last. It is renewed shortly before its end (soon), so that a busy key
	// costs less than a claim a second.
	Horizon = ratelimit.LeaseHorizon
	// shortest is the shortest time for a rate: the first requests of a burst are not representative.
	shortest = 10 * time.Millisecond
	// memory is the length of a stretch that counts as much as all earlier ones together: after it, the error of the
	// rate is halved.
	memory = time.Second
	// proof is the number of standard deviations by which a count must exceed a rate to prove a higher rate. n random
	// requests have a deviation of the root of n, so fewer than five prove nothing.
	proof = 2
)

// Measure ends a stretch of use at now, with that many tokens still waiting.
func (d *Demand) Measure(now instant, waiting tokens) {
	d.PerSec = d.rate(now, ratelimit.AddTokens(d.Used, waiting))
	d.Since, d.Used, d.Refused = now, 0, 0
}

// Rate is the current demand in tokens a second, including refused ones.
func (d *Demand) Rate(now instant) float64 {
	return d.rate(now, ratelimit.AddTokens(d.Used, d.Refused))
}

// rate is the rate, with a demand of n tokens in the stretch until now. It moves towards the stretch's rate, the more
// the longer the stretch is. It rises at once to the rate that n proves, because a lease that is too small makes
// requests wait. A single request soon after a claim is no rate: otherwise a fleet of many nodes with few requests
// each leases far too much.
func (d *Demand) rate(now instant, n tokens) float64 {
	if d.Since == 0 {
		return d.PerSec
	}
	seconds := max(now.Sub(d.Since), shortest).Seconds()
	weight := seconds / (seconds + memory.Seconds())
	proven := float64(n) - proof*math.Sqrt(float64(n))
	return max(d.PerSec+weight*(float64(n)/seconds-d.PerSec), proven/seconds)
}

// Want is the size of a claim: the demand of the horizon, or the rule's size, and at least the waiting tokens.
func (d *Demand) Want(rule *ratelimit.Rule, waiting tokens) tokens {
	if size := rule.Coordination.Lease.Fixed; size > 0 {
		return max(size, waiting)
	}
	ahead := min(Horizon, rule.Limit.Period()).Seconds() * d.PerSec
	return max(tokens(math.Ceil(min(ahead, float64(rule.Limit.Capacity())))), waiting)
}
