package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/ratelimit"
)

// FleetsOptions measure loads of a fleet on a Redis, each answered in several ways.
type FleetsOptions struct {
	report.Setup `examples:"sluicelab bench fleets|sluicelab bench fleets --rows warm,cold --ways ratelimit,leasing --rounds 3"`
	Nodes        []int         `in:"1..20" default:"3" help:"Sizes of the fleets."`
	Rate         float64       `in:"1..100000" default:"3000" help:"Requests a second, except where callers saturate the nodes."`
	Length       time.Duration `in:"500ms..10m" default:"15s" help:"Length of each measurement. From 30s on, rows with windows of minutes start so that a window turns halfway."`
	Rounds       int           `in:"1..100" default:"1" help:"Measurements of each way, in turn."`
	Rows         []string      `placeholder:"ROW" help:"Loads to measure: cool, hourly, warm, cold, second, hot, burst100, burst1000, saturated. Default: all but the last."`
	Ways         []string      `placeholder:"WAY" help:"Ways to measure: ratelimit and gubernator, which are built first, baseline, strict, leasing, routing, approx. Default: all but the first two."`
	Seed         uint64        `default:"1" help:"Seed of the demand."`
}

// Measure implements [report.Measurement].
func (o *FleetsOptions) Measure(ctx context.Context) (report.Result, error) {
	c := &comparison{FleetsOptions: o, rows: rows, ways: slices.Concat(others, modes)}
	return c.measure(ctx)
}

// others are ways without Sluice. The baseline asks Redis as envoyproxy/ratelimit does, and takes less to run.
var others = []way{
	{name: "ratelimit", open: openRatelimit, reference: true, built: true, extra: true},
	{name: "gubernator", open: openGubernator, ask: askGubernator, built: true, extra: true},
	{name: "baseline", reference: true, open: func(c *comparison, r *row) (*process.Fleet, error) {
		return openBaseline(c.Lab, r.limit, r.window(), r.nodes)
	}},
}

// row is a limit, the demand for it, and what goes wrong meanwhile. Its demand and faults are data, so that other
// tests play the same rows. Zero fields have no effect.
type row struct {
	id      string // as flags name it
	name    string
	unit    ratelimit.Unit
	limit   int64
	keys    int
	skew    float64
	callers int  // of a closed loop; 0: requests come at a rate
	nodes   int  // 0: as the options say
	extra   bool // measured only if it is named

	shape   load.Shape
	hot     float64                    // share of the requests for one key
	fields  map[string]string          // of the coordination, in each mode
	flags   []string                   // of nodes
	others  int                        // nodes that may join
	strike  func(*process.Fleet) error // a third into it; nil: nothing goes wrong
	mend    func(*process.Fleet) error // two thirds into it
	amnesia bool                       // Redis loses data: Bounds.OnLoss comes on top
}

// rows are ordinary traffic, and hard cases: cold and second gain nothing from a lease, and rows with callers load the
// whole machine.
var rows = []row{
	{id: "cool", name: "60 a minute, 10,000 keys, Zipf 1.1", unit: ratelimit.Minute, limit: 60, keys: 10_000, skew: 1.1},
	{id: "hourly", name: "1,000 an hour, 10,000 keys, Zipf 1.1", unit: ratelimit.Hour, limit: 1000, keys: 10_000, skew: 1.1},
	{id: "warm", name: "1,000,000 a day, 10,000 keys, Zipf 1.1", unit: ratelimit.Day, limit: 1_000_000, keys: 10_000, skew: 1.1},
	{id: "cold", name: "10 a minute, 100,000 keys, uniform", unit: ratelimit.Minute, limit: 10, keys: 100_000},
	{id: "second", name: "100 a second, 100 keys, Zipf 1.1", unit: ratelimit.Second, limit: 100, keys: 100, skew: 1.1},
	{id: "hot", name: "1,000,000 a day, 10 keys, Zipf 1.1", unit: ratelimit.Day, limit: 1_000_000, keys: 10, skew: 1.1},
	{id: "burst100", name: "100 a day, 20 keys, 6 nodes, 96 callers", unit: ratelimit.Day, limit: 100, keys: 20, callers: 96, nodes: 6},
	{id: "burst1000", name: "1,000 a day, 20 keys, 6 nodes, 96 callers", unit: ratelimit.Day, limit: 1000, keys: 20, callers: 96, nodes: 6},
	{
		id: "saturated", name: "64 callers, 1,000,000 a day, 10,000 keys, Zipf 1.1", unit: ratelimit.Day, limit: 1_000_000,
		keys: 10_000, skew: 1.1, callers: 64, extra: true,
	},
}

func (r *row) load(rate float64, length time.Duration) load.Load {
	return load.Load{Rate: rate, Shape: r.shape, Keys: r.keys, Skew: r.skew, Hot: r.hot, Length: length}
}

// window is that of its limit.
func (r *row) window() time.Duration { return r.rule(nil).Limit.Period() }

// way is how requests are answered. Sluice's modes have only fields. Others start their own servers (open), and may
// have their own protocol (ask); nil is Envoy's.
type way struct {
	name      string
	fields    map[string]string // of the coordination; nil: this is not Sluice
	open      func(c *comparison, r *row) (*process.Fleet, error)
	ask       asker
	reference bool // others are compared with it, if it is the first that is measured
	built     bool // from its module (buildPeers)
	extra     bool // measured only if it is named
}

// modes are the ways of Sluice. A strict one leases one token.
var modes = []way{
	{name: "strict", fields: map[string]string{"mode": "leasing", "lease.size": "1"}},
	{name: "leasing", fields: map[string]string{"mode": "leasing"}},
	{name: "routing", fields: map[string]string{"mode": "routing"}},
	{name: "approx", fields: map[string]string{"mode": "approx"}},
}

// fieldsWith are those of a mode and of the row, in a fixed order. A mode's field comes before the row's.
func (r *row) fieldsWith(mode map[string]string) (all [][2]string) {
	for _, field := range ratelimit.CoordinationFields {
		if text := cmp.Or(mode[field], r.fields[field]); text != "" {
			all = append(all, [2]string{field, text})
		}
	}
	return all
}

// rule is the row's rule under a mode. package declare computes the bound from it, while the nodes read the text of
// file. Both are made of the same fields, so the bound is that of the nodes' rule.
func (r *row) rule(mode map[string]string) *ratelimit.Rule {
	rule := &ratelimit.Rule{
		Domain: domain, Path: entry, Limit: ratelimit.Limit{Unit: r.unit, Multiplier: 1, Requests: ratelimit.Tokens(r.limit)},
		Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{},
	}
	for _, f := range r.fieldsWith(mode) {
		if err := rule.Coordination.Set(f[0], f[1]); err != nil {
			panic(err) // modes and rows are ours
		}
	}
	return rule
}

// file is the same as a file of rules. Names with a dot, such as lease.size, become a map within the coordination:
//
//	coordination: {mode: leasing, lease: {size: 1}}
func (r *row) file(mode map[string]string) string {
	var c []string
	for _, f := range r.fieldsWith(mode) {
		text := f[0] + ": " + f[1]
		if outer, inner, ok := strings.Cut(f[0], "."); ok {
			text = fmt.Sprintf("%s: {%s: %s}", outer, inner, f[1])
		}
		c = append(c, text)
	}
	return fmt.Sprintf("domain: %s\ndescriptors:\n  - {key: %s, coordination: {%s}, rate_limit: {unit: %v, requests_per_unit: %d}}\n",
		domain, entry, strings.Join(c, ", "), r.unit, r.limit)
}
