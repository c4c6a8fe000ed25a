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
	refused tokens // and not admitted
	since   instant
	perSec  float64
	lastUse instant
}

const (
	// horizon is how long a lease should last: it is renewed at half, so that
	// a busy key costs a claim a second.
	horizon = ratelimit.LeaseHorizon
	// soon is how long before it is used up, at the present rate, a lease is renewed
	// while there is plenty.
	soon = 250 * time.Millisecond
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
	d.since, d.used, d.refused = now, 0, 0
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

// renewal says when a lease is renewed in the background: below so many
// tokens, or from an instant on.
type renewal struct {
	below tokens
	after instant
}

func (r *renewal) due(now instant, unspent tokens) bool { return unspent < r.below || now >= r.after }

// renewal is when to renew a lease that has left tokens: early enough that two
// round trips pass before the last one is spent.
func (d *demand) renewal(sent, now instant, left tokens, l *ratelimit.Limit, g *ratelimit.Grant) renewal {
	r := renewal{after: sent.Add(g.TTL / 2)}
	if rate := float64(l.Requests) / l.Period().Seconds(); l.Algorithm == ratelimit.TokenBucket && d.perSec*float64(g.Holders) > rate {
		// The bucket takes no more than it knows to be spent: report before it is full.
		full := g.ResetAfter.Seconds() - float64(left+g.Outstanding)/rate
		r.after = min(r.after, sent.Add(max(backOff, time.Duration(full*float64(time.Second)))))
	}
	if g.Available > 0 {
		trips := tokens(2 * now.Sub(sent).Seconds() * d.perSec)
		r.below = min(left, max(left/2, trips))
		if g.Plenty { // a claim fetches much: soon enough is enough
			r.below = min(r.below, max(trips, tokens(soon.Seconds()*d.perSec)))
		}
	}
	return r
}
