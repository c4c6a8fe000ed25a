package bench

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/ratelimit"
)

// StoreOptions measure the work of Redis for a decision, in each mode and where each request asks it.
type StoreOptions struct {
	report.Setup `examples:"sluicelab bench store|sluicelab bench store --rows 2,3 --length 60s"`
	Nodes        []int         `in:"1..20" default:"3" help:"Sizes of the fleets."`
	Rate         float64       `in:"1..100000" default:"3000" help:"Requests a second."`
	Length       time.Duration `in:"500ms..10m" default:"15s" help:"Length of each mode in each row. From 30s on, rows with windows of minutes start so that a window turns halfway."`
	Rows         []string      `placeholder:"N" help:"Rows to measure, from 1 to 8."`
	Modes        []string      `placeholder:"MODE" help:"Modes to measure with the baseline: strict, leasing, routing, approx."`
	Seed         uint64        `default:"1" help:"Seed of the demand."`
}

// Measure implements [report.Measurement]. A selection of modes keeps the baseline, or there would be no ratio.
func (o *StoreOptions) Measure(ctx context.Context) (report.Result, error) {
	baseline := way{name: "baseline", reference: true, open: func(c *comparison, r *row) (*process.Fleet, error) {
		return openBaseline(c.setup.Lab, r.limit, r.window(), r.nodes)
	}}
	c := &comparison{
		rowFlag: "--rows", rows: rows, named: o.Rows,
		lead: "The baseline asks Redis for each request as envoyproxy/ratelimit does (INCRBY and EXPIRE in one pipeline); strict is a lease of one token.",

		wayFlag: "--modes", ways: append([]way{baseline}, modes...), chosen: o.Modes,
		setup: &o.Setup, nodes: o.Nodes, rate: o.Rate, length: o.Length, rounds: 1, seed: o.Seed,
	}
	if len(o.Modes) > 0 {
		c.chosen = append([]string{baseline.name}, o.Modes...)
	}
	return c.measure(ctx, o)
}

// row is a limit, the demand for it, and what goes wrong meanwhile. Its demand and faults are data, so that store,
// peers and TestAccuracy play the same rows. Zero fields have no effect.
type row struct {
	id      string // as flags name it
	name    string
	unit    ratelimit.Unit
	limit   int64
	keys    int
	skew    float64
	callers int    // of a closed loop; 0: requests come at a rate
	nodes   int    // 0: as the options say
	peer    string // as flags of bench peers name it; "": it is not among its rows
	extra   bool   // measured only if it is named

	shape   load.Shape
	hot     float64                    // share of the requests for one key
	fields  map[string]string          // of the coordination, in each mode
	flags   []string                   // of nodes
	others  int                        // nodes that may join
	strike  func(*process.Fleet) error // a third into it; nil: nothing goes wrong
	mend    func(*process.Fleet) error // two thirds into it
	amnesia bool                       // Redis loses data: Bounds.OnLoss comes on top
}

// rows are ordinary traffic, and hard cases: rows 4 and 5 gain nothing from a lease, and rows with callers load the
// whole machine.
var rows = []row{
	{id: "1", name: "60 a minute, 10,000 keys, Zipf 1.1", unit: ratelimit.Minute, limit: 60, keys: 10_000, skew: 1.1, peer: "cool"},
	{id: "2", name: "1,000 an hour, 10,000 keys, Zipf 1.1", unit: ratelimit.Hour, limit: 1000, keys: 10_000, skew: 1.1},
	{id: "3", name: "1,000,000 a day, 10,000 keys, Zipf 1.1", unit: ratelimit.Day, limit: 1_000_000, keys: 10_000, skew: 1.1, peer: "warm"},
	{id: "4", name: "10 a minute, 100,000 keys, uniform", unit: ratelimit.Minute, limit: 10, keys: 100_000, peer: "cold"},
	{id: "5", name: "100 a second, 100 keys, Zipf 1.1", unit: ratelimit.Second, limit: 100, keys: 100, skew: 1.1},
	{id: "6", name: "1,000,000 a day, 10 keys, Zipf 1.1", unit: ratelimit.Day, limit: 1_000_000, keys: 10, skew: 1.1, peer: "hot"},
	{id: "7", name: "burst: 100 a day, 20 keys, 6 nodes, 96 callers", unit: ratelimit.Day, limit: 100, keys: 20, callers: 96, nodes: 6},
	{id: "8", name: "burst: 1,000 a day, 20 keys, 6 nodes, 96 callers", unit: ratelimit.Day, limit: 1000, keys: 20, callers: 96, nodes: 6},
	{
		id: "9", name: "64 callers, 1,000,000 a day, 10,000 keys, Zipf 1.1", unit: ratelimit.Day, limit: 1_000_000,
		keys: 10_000, skew: 1.1, callers: 64, peer: "saturated", extra: true,
	},
}

// peerRows are from keys that are nearly all met again to keys that are nearly all new. They are the rows of store
// under other names, so that both measure the same loads.
func peerRows() (all []row) {
	for _, peer := range []string{"saturated", "hot", "warm", "cool", "cold"} {
		for _, r := range rows {
			if r.peer == peer {
				r.id = peer
				r.name = peer + ": " + r.name
				r.extra = false
				all = append(all, r)
			}
		}
	}
	return all
}

func (r *row) load(rate float64, length time.Duration) load.Load {
	return load.Load{Rate: rate, Shape: r.shape, Keys: r.keys, Skew: r.skew, Hot: r.hot, Length: length}
}

// window is that of its limit.
func (r *row) window() time.Duration { return r.rule(nil).Limit.Period() }

// way is how requests are answered. Sluice's modes have only fields. Others start their own servers (open), and may
// have their own protocol (ask); nil is Envoy's.
type way struct {
	name   string
	fields map[string]string // of the coordination; nil: this is not Sluice
	open   func(c *comparison, r *row) (*process.Fleet, error)
	ask    asker
	// reference says that others are compared with it, if it is measured.
	reference bool
}

// modes are the ways of Sluice. Their order is that of the tables; peers leaves out the first.
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
