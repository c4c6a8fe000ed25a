package leasing

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// demand is what a holder has measured of a key's use. The zero demand has
// measured nothing.
type demand struct {
	used    tokens // admitted since the last claim
	since   instant
	perSec  float64
	lastUse instant
}

const (
	// horizon is how long a lease should last: it is renewed at half, so that
	// a busy key costs a claim a second.
	horizon = 2 * time.Second
	// shortest is the least time a rate is measured over: a burst's first
	// requests say little.
	shortest = 10 * time.Millisecond
)

// measure ends a stretch of use at now, with so many tokens still asked for.
func (d *demand) measure(now instant, waiting tokens) {
	if d.since > 0 {
		seconds := max(now.Sub(d.since), shortest).Seconds()
		rate := float64(d.used+waiting) / seconds
		d.perSec = max(rate, (d.perSec+rate)/2)
	}
	d.since, d.used = now, 0
}

// want is what to ask for: what lasts for the horizon, within the rule's
// bounds, and at least what waits.
func (d *demand) want(rule *ratelimit.Rule, waiting tokens) tokens {
	size := rule.Coordination.Lease
	if size.Fixed > 0 {
		return max(size.Fixed, waiting)
	}
	ahead := min(horizon, rule.Limit.Period()).Seconds() * d.perSec
	want := tokens(math.Ceil(min(ahead, float64(rule.Limit.Capacity()))))
	if size.Max > 0 {
		want = min(want, size.Max)
	}
	return max(want, size.Min, waiting)
}
