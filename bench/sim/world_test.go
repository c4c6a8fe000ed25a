package sim

import (
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// coordinations are ways to share a limit, as rule files say them.
var coordinations = []map[string]string{
	{"mode": "leasing"},
	{"mode": "leasing", "lease.size": "1"},
	{"mode": "leasing", "lease.size": "10"},
	{"mode": "leasing", "reclaim": "eager"},
	{"mode": "routing"},
	{"mode": "approx", "drift_budget": "5%", "max_nodes": "4"},
	{"mode": "approx", "drift_budget": "5%", "max_nodes": "4", "reclaim": "eager"},
}

// declaring is a rule with a coordination, whose fields are set to what is said.
func declaring(t testing.TB, l ratelimit.Limit, fields ...map[string]string) *ratelimit.Rule {
	t.Helper()
	r := &ratelimit.Rule{Domain: "d", Path: "k", Limit: l, Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{}}
	for _, some := range fields {
		if err := setFields(&r.Coordination, some); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// everyWay are rules of so many requests a minute, of each algorithm with each of coordinations, and their names.
func everyWay(t testing.TB, requests ratelimit.Tokens, fields ...map[string]string) iter.Seq2[string, *ratelimit.Rule] {
	return func(yield func(string, *ratelimit.Rule) bool) {
		for algorithm := range ratelimit.RateAlgorithms() {
			for _, its := range coordinations {
				l := ratelimit.Limit{
					Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Minute, Multiplier: 1, Requests: requests, Burst: requests,
				}
				r := declaring(t, l, append(fields, its)...)
				r.Coordination.OnDeny = l.Algorithm.OnDeny()
				if !yield(fmt.Sprint(l, " ", its), r) {
					return
				}
			}
		}
	}
}

// anew is a rule whose counts begin anew: a run is the same only without those of the run before.
func anew(r *ratelimit.Rule) *ratelimit.Rule {
	own := *r
	own.Counters = &ratelimit.RuleCounters{}
	return &own
}

// near is a store and peers that answer promptly.
var near = Net{Trip: Delay{Least: 500 * time.Microsecond, Tail: 500 * time.Microsecond}, Hop: Delay{Least: 300 * time.Microsecond}}

// played is what a run came to. It fails the test if it did not.
func played(t testing.TB, o Options) *Result {
	t.Helper()
	result, err := Run(o)
	if err != nil || result.Violation != nil {
		t.Fatal("seed", o.Seed, o.Rule.Limit, o.Rule.Coordination, o.Faults, err, result.Violation)
	}
	return result
}
