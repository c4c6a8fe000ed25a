package store

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Row is a limit and the demand for it.
type Row struct {
	Name    string         `json:"name"`
	Unit    ratelimit.Unit `json:"-"`
	Limit   int64          `json:"limit"`
	Keys    int            `json:"keys"`
	Skew    float64        `json:"skew"`
	Callers int            `json:"callers,omitempty"` // of a closed loop; 0: requests come at a rate
	Nodes   int            `json:"nodes,omitempty"`   // 0: as the options say
	Most    []float64      `json:"most,omitempty"`    // Redis' work, to the baseline's: leasing, routing, approx
}

// rows are ordinary traffic, and hard cases: rows 4 and 5 gain nothing from a lease, and the last two have a
// fleet and callers that load the whole machine.
var rows = []Row{
	{Name: "60 a minute, 10,000 keys, Zipf 1.1", Unit: ratelimit.Minute, Limit: 60, Keys: 10_000, Skew: 1.1, Most: []float64{0.4, 0.2, 0.4}},
	{Name: "1,000 an hour, 10,000 keys, Zipf 1.1", Unit: ratelimit.Hour, Limit: 1000, Keys: 10_000, Skew: 1.1, Most: []float64{0.25, 0.1, 0.25}},
	{Name: "1,000,000 a day, 10,000 keys, Zipf 1.1", Unit: ratelimit.Day, Limit: 1_000_000, Keys: 10_000, Skew: 1.1, Most: []float64{0.25, 0.1, 0.25}},
	{Name: "10 a minute, 100,000 keys, uniform", Unit: ratelimit.Minute, Limit: 10, Keys: 100_000, Most: []float64{1.2, 1, 1.2}},
	{Name: "100 a second, 100 keys, Zipf 1.1", Unit: ratelimit.Second, Limit: 100, Keys: 100, Skew: 1.1, Most: []float64{0.5, 0.3, 0.5}},
	{Name: "1,000,000 a day, 10 keys, Zipf 1.1", Unit: ratelimit.Day, Limit: 1_000_000, Keys: 10, Skew: 1.1, Most: []float64{0.02, 0.02, 0.02}},
	{Name: "burst: 100 a day, 20 keys, 6 nodes, 96 callers", Unit: ratelimit.Day, Limit: 100, Keys: 20, Callers: 96, Nodes: 6},
	{Name: "burst: 1,000 a day, 20 keys, 6 nodes, 96 callers", Unit: ratelimit.Day, Limit: 1000, Keys: 20, Callers: 96, Nodes: 6},
}

func (r *Row) load(rate float64, length time.Duration) load.Load {
	return load.Load{Rate: rate, Keys: r.Keys, Skew: r.Skew, Length: length}
}

// window is how long the limit's window is.
func (r *Row) window() time.Duration {
	return r.limit().Period()
}

func (r *Row) limit() ratelimit.Limit {
	return ratelimit.Limit{Unit: r.Unit, Multiplier: 1, Requests: ratelimit.Tokens(r.Limit)}
}

// mode is a way to answer.
type mode struct {
	name   string
	fields map[string]string // of the coordination; nil: the baseline
}

var modes = []mode{
	{"baseline", nil},
	{"strict", map[string]string{"mode": "leasing", "lease.size": "1"}},
	{"leasing", map[string]string{"mode": "leasing"}},
	{"routing", map[string]string{"mode": "routing"}},
	{"approx", map[string]string{"mode": "approx"}},
	// As a fleet of three sets it, that may be one of five while it is rolled.
	{"leasing" + reserve, map[string]string{"mode": "leasing", "lease.reserve": "0.5%", "max_nodes": "5"}},
	{"routing" + reserve, map[string]string{"mode": "routing", "lease.reserve": "0.5%", "max_nodes": "5"}},
}

// reserve ends the names of modes in which rules have one.
const reserve = "-reserve"

// modeNames are the accepted names.
func modeNames() (names []string) {
	for _, m := range modes[1:] {
		names = append(names, m.name)
	}
	return names
}

// rule is the row's rule under a mode.
func (r *Row) rule(m *mode) *ratelimit.Rule {
	rule := &ratelimit.Rule{Domain: domain, Path: entry, Limit: r.limit(), Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{}}
	for _, field := range ratelimit.CoordinationFields {
		if text, ok := m.fields[field]; ok {
			if err := rule.Coordination.Set(field, text); err != nil {
				panic(err) // modes is ours
			}
		}
	}
	return rule
}

// domain and entry are what requests are for.
const domain, entry = "bench", "key"

// file is the same as a file of rules.
func (r *Row) file(m *mode) string {
	var c []string
	for _, field := range ratelimit.CoordinationFields {
		if text, ok := m.fields[field]; ok {
			if outer, inner, ok := strings.Cut(field, "."); ok {
				c = append(c, fmt.Sprintf("%s: {%s: %s}", outer, inner, text))
				continue
			}
			c = append(c, field+": "+text)
		}
	}
	return fmt.Sprintf("domain: %s\ndescriptors:\n  - {key: %s, coordination: {%s}, rate_limit: {unit: %v, requests_per_unit: %d}}\n",
		domain, entry, strings.Join(c, ", "), r.Unit, r.Limit)
}
