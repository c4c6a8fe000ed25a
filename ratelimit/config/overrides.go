package config

import (
	"sync"

	"github.com/sluice-gate/sluice/ratelimit"
)

// OverrideRule is the rule of a limit in a request. It allocates for a new limit. Each request with a limit calls it,
// so that it is one look-up under a lock. Its rule has the coordination at the root of the domain's file.
func (d *Domain) OverrideRule(limit ratelimit.Limit) *ratelimit.Rule {
	o := &d.brought
	o.mu.Lock()
	defer o.mu.Unlock()
	if r := o.rules[limit]; r != nil {
		return r
	}
	// Requests in progress keep the rules that they have. Counters are the domain's, and stay.
	if o.rules == nil || len(o.rules) >= mostOverrides {
		o.rules = map[ratelimit.Limit]*ratelimit.Rule{}
	}
	r := &ratelimit.Rule{
		Domain: d.Name, Limit: limit, Override: true, Coordination: d.Defaults, Counters: d.Overrides,
		MetricNames: ratelimit.MetricNaming{Detailed: true},
	}
	o.rules[limit] = r
	return r
}

// overrides are the rules of limits that requests contain, one for all requests with the same
// limit. They keep the number of rules small for many keys. The zero overrides are empty. They are
// safe for concurrent use.
type overrides struct {
	mu    sync.Mutex
	rules map[ratelimit.Limit]*ratelimit.Rule // guarded by mu
}

// mostOverrides bounds them, because clients can send any limit. Beyond it, all are dropped, and a
// limit in use gets another rule.
const mostOverrides = 1000
