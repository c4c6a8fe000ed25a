package config

import (
	"strconv"

	"github.com/sluice-gate/sluice/ratelimit"
)

// overridden sets the rule's ceiling for overrides at run time, and warns if the descriptor's own
// setting has no effect.
func (c *compiler) overridden(r *ratelimit.Rule, d *Descriptor, s *scope) {
	switch {
	case s.closed:
	case s.maxOverride > 0:
		r.Limit.Ceiling = s.maxOverride
	case r.Limit.Requests > 0: // a limit of 0 refuses without a round trip, unless max_override is set
		r.Limit.Ceiling = ratelimit.MaxLimit
	}
	why := r.WhyNoOverrides()
	if why != "" {
		r.Limit.Ceiling = 0
	}
	switch own := d.Inherited.MaxOverride; {
	case own == nil:
	case why != "":
		c.odd(NoEffect, d.Inherited.Place, s.names, "max_override has no effect: %s", why)
	case *own < r.Limit.Requests:
		c.odd(Misread, d.Inherited.Place, s.names, "max_override is %d and requests_per_unit %d: overrides can only "+
			"lower the limit; raise max_override, or write overrides: false", *own, r.Limit.Requests)
	}
}

// ceilingFields are the settings of overrides, as rule files write them.
func ceilingFields(l *ratelimit.Limit) []ruleField {
	most := ""
	if l.Ceiling > 0 && l.Ceiling != ratelimit.MaxLimit {
		most = strconv.FormatInt(int64(l.Ceiling), 10)
	}
	return []ruleField{{"overrides", strconv.FormatBool(l.Ceiling > 0)}, {"max_override", most}}
}
