package config

import (
	"sync"

	"github.com/sluice-gate/sluice/ratelimit"
)

// overrides are the rules of limits that requests bring along, by limit: one for all
// requests with the same, so that what is kept of many keys has few rules. The zero
// overrides are empty; they are safe for concurrent use.
type overrides struct {
	mu    sync.RWMutex
	rules map[ratelimit.Limit]*ratelimit.Rule // guarded by mu
}

// mostOverrides bounds them, for clients may bring any limit. At more all are forgotten,
// which costs a limit that is in use another rule.
const mostOverrides = 1000

// OverrideRule is the rule of a limit that a request brings along. It allocates for a
// limit that is new.
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
