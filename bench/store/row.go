package store

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Row is a limit, the demand for it, and what goes wrong meanwhile.
type Row struct {
	ID      string         `json:"id"` // as flags name it
	Name    string         `json:"name"`
	Unit    ratelimit.Unit `json:"-"`
	Limit   int64          `json:"limit"`
	Keys    int            `json:"keys"`
	Skew    float64        `json:"skew"`
	Callers int            `json:"callers,omitempty"` // of a closed loop; 0: requests come at a rate
	Nodes   int            `json:"nodes,omitempty"`   // 0: as the options say
	Most    []float64      `json:"most,omitempty"`    // Redis' work, to the baseline's: leasing, routing, approx

	shape   load.Shape
	hot     float64                    // share of the requests for one key
	fields  map[string]string          // of the coordination, in each mode
	flags   []string                   // of nodes
	others  int                        // nodes that may join
	strike  func(*process.Fleet) error // a third into it; nil: nothing goes wrong
	mend    func(*process.Fleet) error // two thirds into it
	amnesia bool                       // Redis loses data: Bounds.OnLoss comes on top
	extra   bool                       // measured only if it is named
}

// rows are ordinary traffic, and hard cases: rows 4 and 5 gain nothing from a lease, and the last two have a
// fleet and callers that load the whole machine.
var rows = []Row{
	{ID: "1", Name: "60 a minute, 10,000 keys, Zipf 1.1", Unit: ratelimit.Minute, Limit: 60, Keys: 10_000, Skew: 1.1, Most: []float64{0.4, 0.2, 0.4}},
	{ID: "2", Name: "1,000 an hour, 10,000 keys, Zipf 1.1", Unit: ratelimit.Hour, Limit: 1000, Keys: 10_000, Skew: 1.1, Most: []float64{0.25, 0.1, 0.25}},
	{ID: "3", Name: "1,000,000 a day, 10,000 keys, Zipf 1.1", Unit: ratelimit.Day, Limit: 1_000_000, Keys: 10_000, Skew: 1.1, Most: []float64{0.25, 0.1, 0.25}},
	{ID: "4", Name: "10 a minute, 100,000 keys, uniform", Unit: ratelimit.Minute, Limit: 10, Keys: 100_000, Most: []float64{1.2, 1, 1.2}},
	{ID: "5", Name: "100 a second, 100 keys, Zipf 1.1", Unit: ratelimit.Second, Limit: 100, Keys: 100, Skew: 1.1, Most: []float64{0.5, 0.3, 0.5}},
	{ID: "6", Name: "1,000,000 a day, 10 keys, Zipf 1.1", Unit: ratelimit.Day, Limit: 1_000_000, Keys: 10, Skew: 1.1, Most: []float64{0.02, 0.02, 0.02}},
	{ID: "7", Name: "burst: 100 a day, 20 keys, 6 nodes, 96 callers", Unit: ratelimit.Day, Limit: 100, Keys: 20, Callers: 96, Nodes: 6},
	{ID: "8", Name: "burst: 1,000 a day, 20 keys, 6 nodes, 96 callers", Unit: ratelimit.Day, Limit: 1000, Keys: 20, Callers: 96, Nodes: 6},
	// The first request of a key in a window, at 10, 100 and 1,000 requests a second and key of the default rate.
	{ID: "9", Name: "turns: 20 a second, 300 keys, uniform", Unit: ratelimit.Second, Limit: 20, Keys: 300, extra: true},
	{ID: "10", Name: "turns: 200 a second, 30 keys, uniform", Unit: ratelimit.Second, Limit: 200, Keys: 30, extra: true},
	{ID: "11", Name: "turns: 2,000 a second, 3 keys, uniform", Unit: ratelimit.Second, Limit: 2000, Keys: 3, extra: true},
}

func (r *Row) load(rate float64, length time.Duration) load.Load {
	return load.Load{Rate: rate, Shape: r.shape, Keys: r.Keys, Skew: r.Skew, Hot: r.hot, Length: length}
}

func (r *Row) limit() *ratelimit.Limit {
	return &ratelimit.Limit{Unit: r.Unit, Multiplier: 1, Requests: ratelimit.Tokens(r.Limit)}
}

// mode is a way to answer.
type mode struct {
	name   string
	fields map[string]string // of the coordination; nil: the baseline, or another limiter
	other  *other            // nil: Sluice, or the baseline
}

var modes = []mode{
	{name: "baseline"},
	{name: "strict", fields: map[string]string{"mode": "leasing", "lease.size": "1"}},
	{name: "leasing", fields: map[string]string{"mode": "leasing"}},
	{name: "routing", fields: map[string]string{"mode": "routing"}},
	{name: "approx", fields: map[string]string{"mode": "approx"}},
}

// fieldsOf are those of a mode and of the row, in a fixed order.
func (r *Row) fieldsOf(m *mode) (all [][2]string) {
	for _, field := range ratelimit.CoordinationFields {
		if text := cmp.Or(m.fields[field], r.fields[field]); text != "" {
			all = append(all, [2]string{field, text})
		}
	}
	return all
}

// rule is the row's rule under a mode.
func (r *Row) rule(m *mode) *ratelimit.Rule {
	rule := &ratelimit.Rule{Domain: domain, Path: entry, Limit: *r.limit(), Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{}}
	for _, f := range r.fieldsOf(m) {
		if err := rule.Coordination.Set(f[0], f[1]); err != nil {
			panic(err) // modes and rows are ours
		}
	}
	return rule
}

// domain and entry are what requests are for.
const domain, entry = "bench", "key"

// file is the same as a file of rules.
func (r *Row) file(m *mode) string {
	var c []string
	for _, f := range r.fieldsOf(m) {
		if outer, inner, ok := strings.Cut(f[0], "."); ok {
			c = append(c, fmt.Sprintf("%s: {%s: %s}", outer, inner, f[1]))
			continue
		}
		c = append(c, f[0]+": "+f[1])
	}
	return fmt.Sprintf("domain: %s\ndescriptors:\n  - {key: %s, coordination: {%s}, rate_limit: {unit: %v, requests_per_unit: %d}}\n",
		domain, entry, strings.Join(c, ", "), r.Unit, r.Limit)
}
