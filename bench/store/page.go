package store

import (
	"fmt"

	"github.com/sluice-gate/sluice/bench/report"
)

// Page shows the report: Redis' work for a decision, what it bought, and what becomes
// of both in larger fleets.
func (r *Report) Page() *report.Page {
	length, start := r.Length.String(), "a cold start"
	if r.Rounds > 1 {
		length += fmt.Sprintf(", %d times in turn,", r.Rounds)
	}
	if r.Warm {
		start = "when each node had been asked for each key once"
	}
	p := &report.Page{
		Title: "The store: what Redis does for one decision",
		Lead: []string{
			fmt.Sprintf("%.0f requests a second for %s from %s, for each mode of each row; Redis is a process of its own that was empty at first.", r.Rate, length, start),
			"The baseline asks Redis for each request as envoyproxy/ratelimit does (INCRBY and EXPIRE in one pipeline); strict is a lease of one token.",
		},
	}
	p.Tables = append(p.Tables, report.Rows("What Redis does for one decision, and what was admitted meanwhile", r.Measured, notes...))
	if len(r.Costs) > 0 {
		p.Tables = append(p.Tables, report.Rows("Processor time of Redis for one claim", r.Costs))
	}
	if len(r.Virtual) > 0 {
		p.Tables = append(p.Tables, report.Rows("Larger fleets, in virtual time, at the same rate of requests in all", r.Virtual,
			"Redis: claims, by what one of such a batch was measured to cost above."))
	}
	seen := map[string]bool{}
	for i := range r.Measured {
		name := r.Measured[i].title()
		if seen[name] {
			continue
		}
		seen[name] = true
		c := report.Chart{File: fmt.Sprintf("store-%d", len(seen)), Title: "Redis CPU a decision, us: " + name}
		for j := range r.Measured {
			if m := &r.Measured[j]; m.title() == name {
				c.Bars = append(c.Bars, report.Bar{Name: m.Mode, Value: m.CPU})
			}
		}
		p.Charts = append(p.Charts, c)
	}
	return p
}

func (m *Measured) title() string { return fmt.Sprintf("%s, %d nodes", m.Row, m.Nodes) }

var notes = []string{
	"us: processor time of Redis for one decision; what Redis needs with nobody connected is subtracted. of baseline: to the baseline's in the same row; at most: what it should be, 0 where nothing is said.",
	"warm: in the last third of the time. scripts, draws: claims of one key each, by the script or by plain commands, tried ones too; none in the baseline. bytes: to and from Redis.",
	"p50, p99: of a call, from when it was meant to be made; of several rounds, the worst. refused early: while fewer than the limit had been admitted in the window; below half: while fewer than half of it had.",
	"over: of the key and window that went furthest. under: less than an exact limiter had admitted of the same requests, over all keys and windows. Requests that may belong to either of two windows count for nobody.",
}
