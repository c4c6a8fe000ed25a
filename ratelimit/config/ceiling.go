package config

import (
	"strconv"

	"github.com/sluice-gate/sluice/ratelimit"
)

// overridden sets the rule's ceiling for overrides at run time, and warns if the descriptor's own
// setting has no effect.
func (c *compiler) overridden(r *ratelimit.Rule, d *Descriptor, s *scope) {
	switch {
	case s.maxOverride != nil:
		r.Limit.Ceiling = *s.maxOverride
	case r.Limit.Requests > 0: // a limit of 0 refuses without a round trip, unless max_override is set
		r.Limit.Ceiling = ratelimit.MaxLimit
	}
	why := r.WhyNoOverrides()
	if why != "" {
		r.Limit.Ceiling = 0
	}
	switch own := d.Inherited.MaxOverride; {
	case own == nil || *own == 0:
	case why != "":
		c.odd(NoEffect, d.Inherited.Place, s.names, "max_override has no effect: %s", why)
	case *own < r.Limit.Requests:
		c.odd(Misread, d.Inherited.Place, s.names, "max_override is %d and requests_per_unit %d: overrides can only "+
			"lower the limit; raise max_override, or write 0 for no overrides", *own, r.Limit.Requests)
	}
}

// ceilingField is the ceiling, as rule files write it.
func ceilingField(l *ratelimit.Limit) ruleField {
	if l.Ceiling == ratelimit.MaxLimit {
		return ruleField{"max_override", ""}
	}
	return ruleField{"max_override", strconv.FormatInt(int64(l.Ceiling), 10)}
}
