package store

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/bench/report"
)

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

func percent(part, whole int64) string {
	return fmt.Sprintf("%.2f%%", 100*float64(part)/float64(max(1, whole)))
}

// Page shows the report: Redis' work for a decision, its benefit, and both in larger fleets.
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
	p.Tables = append(p.Tables, r.costs(), r.accuracy())
	if len(r.Costs) > 0 {
		p.Tables = append(p.Tables, r.claims())
	}
	if len(r.Virtual) > 0 {
		p.Tables = append(p.Tables, r.larger())
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

// costs is Redis' work.
func (r *Report) costs() report.Table {
	t := report.Table{
		Title: "Processor time of Redis for one decision",
		Head:  []string{"row", "mode", "us", "of baseline", "at most", "warm, us", "of baseline", "scripts/1,000", "draws/1,000", "bytes", "nodes' CPU, us", "p50", "p99"},
		Notes: []string{
			"of baseline: to the baseline's in the same row. warm: in the last third of the time. scripts, draws: claims of one key each, by the script or by plain commands, tried ones too; none in the baseline.",
			"bytes: to and from Redis. What Redis needs with nobody connected is subtracted. p50, p99: of a call, from when it was meant to be made; of several rounds, the worst.",
		},
	}
	last := ""
	for i := range r.Measured {
		m := &r.Measured[i]
		name := m.title()
		if name == last {
			name = ""
		} else {
			last = name
		}
		most := ""
		if m.Most > 0 {
			most = fmt.Sprintf("%.3g", m.Most)
		}
		t.Rows = append(t.Rows, report.Row{Bad: m.Most > 0 && m.Ratio > m.Most, Cells: []string{
			name, m.Mode, fmt.Sprintf("%.2f", m.CPU), r.ratio(m), most, fmt.Sprintf("%.2f", m.Warm), fmt.Sprintf("%.3f", m.WarmRate),
			fmt.Sprintf("%.1f", m.Claims), fmt.Sprintf("%.1f", m.Draws), fmt.Sprintf("%.0f", m.Bytes), fmt.Sprintf("%.0f", m.NodeCPU),
			ms(m.P50), ms(m.P99),
		}})
	}
	return t
}

// ratio is that of a mode to the baseline, with what single rounds had.
func (r *Report) ratio(m *Measured) string {
	if r.Rounds < 2 {
		return fmt.Sprintf("%.3f", m.Ratio)
	}
	return fmt.Sprintf("%.3f (%.3f to %.3f)", m.Ratio, m.Least, m.Greatest)
}

// accuracy has the admissions meanwhile.
func (r *Report) accuracy() report.Table {
	t := report.Table{
		Title: "What was admitted meanwhile",
		Head:  []string{"row", "mode", "decisions", "refused early", "below half", "over", "declared", "under", "of allowed"},
		Notes: []string{
			"refused early: while fewer than the limit had been admitted in the window; below half: while fewer than half of it had. over: of the key and window that went furthest.",
			"under: less than an exact limiter had admitted of the same requests, over all keys and windows. Requests that may belong to either of two windows count for nobody.",
		},
	}
	last := ""
	for i := range r.Measured {
		m := &r.Measured[i]
		name := m.title()
		if name == last {
			name = ""
		} else {
			last = name
		}
		declared := ""
		if m.Mode != modes[0].name {
			declared = fmt.Sprint(m.Declared)
		}
		t.Rows = append(t.Rows, report.Row{Bad: m.Problem != "", Cells: []string{
			name, m.Mode, fmt.Sprint(m.Asked), fmt.Sprint(m.Early), fmt.Sprint(m.Half), fmt.Sprint(m.Over), declared, fmt.Sprint(m.Under), percent(m.Under, m.Allowed),
		}})
	}
	return t
}

// claims is what a claim costs.
func (r *Report) claims() report.Table {
	t := report.Table{Title: "Processor time of Redis for one claim", Head: []string{"holders of a key", "claims in a pipeline", "us"}}
	for _, c := range r.Costs {
		t.Rows = append(t.Rows, report.Row{Cells: []string{fmt.Sprint(c.Holders), fmt.Sprint(c.Pipeline), fmt.Sprintf("%.1f", c.CPU)}})
	}
	return t
}

// larger is fleets in virtual time.
func (r *Report) larger() report.Table {
	t := report.Table{
		Title: "Larger fleets, in virtual time, at the same rate of requests in all",
		Head:  []string{"row", "mode", "nodes", "claims/1,000", "in a batch", "Redis, us", "refused early", "under", "over"},
		Notes: []string{"Redis: claims, by what one of such a batch was measured to cost above."},
	}
	last := ""
	for _, v := range r.Virtual {
		name := v.Row
		if name == last {
			name = ""
		} else {
			last = name
		}
		t.Rows = append(t.Rows, report.Row{Cells: []string{
			name, v.Mode, fmt.Sprint(v.Nodes), fmt.Sprintf("%.1f", v.Claims), fmt.Sprintf("%.1f", v.Batch), fmt.Sprintf("%.2f", v.CPU),
			fmt.Sprintf("%.3f%%", 100*v.Early), fmt.Sprintf("%.3f%%", 100*v.Under), fmt.Sprint(v.Over),
		}})
	}
	return t
}
