package config

import (
	"github.com/sluice-gate/sluice/ratelimit"
)

// OverrideRule is the rule of a limit in a request. It allocates for a new limit.
func (d *Domain) OverrideRule(limit ratelimit.Limit) *ratelimit.Rule {
	o := &d.brought
	o.mu.RLock()
	r := o.rules[limit]
	o.mu.RUnlock()
	if r != nil {
		return r
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if r = o.rules[limit]; r != nil {
		return r
	}
	if o.rules == nil || len(o.rules) >= mostOverrides {
		o.rules = map[ratelimit.Limit]*ratelimit.Rule{}
	}
	r = &ratelimit.Rule{
		Domain: d.Name, Limit: limit, Override: true, Coordination: d.Defaults, Counters: d.Overrides,
		MetricNames: ratelimit.MetricNaming{Detailed: true},
	}
	r.Limit.Carries = r.Coordination.Carries(limit)
	o.rules[limit] = r
	return r
}
