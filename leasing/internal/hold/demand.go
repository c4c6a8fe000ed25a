package hold

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Demand is what a holder has measured of a key's use. The zero demand has
// measured nothing.
type Demand struct {
	Used    tokens // admitted since the last claim
	Refused tokens // and not admitted
	Since   instant
	PerSec  float64
	LastUse instant
}

const (
	// Horizon is how long a lease should last: it is renewed at half, so that
	// a busy key costs a claim a second.
	Horizon = ratelimit.LeaseHorizon
	// shortest is the least time a rate is measured over: a burst's first
	// requests say little.
	shortest = 10 * time.Millisecond
	// memory is for how long what was measured before counts as much as what is measured
	// now: a claim a second halves what the rate was wrong by.
	memory = time.Second
	// proof is by how many standard deviations a count must be beyond a rate to prove that
	// the rate is higher. Requests that come by chance come n together with a deviation of
	// the root of n, so that fewer than five prove nothing.
	proof = 2
)

// Measure ends a stretch of use at now, with so many tokens still asked for.
func (d *Demand) Measure(now instant, waiting tokens) {
	d.PerSec = d.rate(now, ratelimit.AddTokens(d.Used, waiting))
	d.Since, d.Used, d.Refused = now, 0, 0
}

// Rate is how many tokens a second are asked for now, refused ones among them.
func (d *Demand) Rate(now instant) float64 {
	return d.rate(now, ratelimit.AddTokens(d.Used, d.Refused))
}

// rate is the rate, with n tokens asked for in the stretch until now. It moves towards what the
// stretch had by as much as the stretch is long. It rises at once to what so many tokens prove,
// for a lease that is too small makes requests wait. A single request soon after a claim is no
// rate: a fleet of many nodes with few requests each would lease far more than it needs.
func (d *Demand) rate(now instant, n tokens) float64 {
	if d.Since == 0 {
		return d.PerSec
	}
	seconds := max(now.Sub(d.Since), shortest).Seconds()
	weight := seconds / (seconds + memory.Seconds())
	proven := float64(n) - proof*math.Sqrt(float64(n))
	return max(d.PerSec+weight*(float64(n)/seconds-d.PerSec), proven/seconds)
}

// Want is what to ask for: what lasts for the horizon, or the rule's size, and
// at least what waits.
func (d *Demand) Want(rule *ratelimit.Rule, waiting tokens) tokens {
	if size := rule.Coordination.Lease.Fixed; size > 0 {
		return max(size, waiting)
	}
	ahead := min(Horizon, rule.Limit.Period()).Seconds() * d.PerSec
	return max(tokens(math.Ceil(min(ahead, float64(rule.Limit.Capacity())))), waiting)
}
