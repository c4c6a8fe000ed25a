package sim

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Page shows an answer.
func (a *Answer) Page(q *Question) *report.Page {
	p := &report.Page{Title: "What if: " + q.Limit.String(), Lead: a.Reasons, Tables: []report.Table{a.table(q)}}
	best := &a.Choices[a.Best]
	rate := 0.0
	if best.Plain.Keys == 1 { // many keys have budgets of their own
		rate = float64(q.Limit.Requests) / q.Limit.Period().Seconds()
	}
	p.Charts = append(
		p.Charts,
		a.chart(best.Plain, "Admitted, "+best.Name+", a plain day", rate),
		a.chart(best.Bad, "Admitted, "+best.Name+", a bad day", rate),
		a.bars("Store operations for 1,000 decisions", func(c *Choice) float64 { return c.Plain.ClaimsPerThousand() }),
		a.bars("Wait of 1 in 1,000 decisions, in ms", func(c *Choice) float64 { return c.Plain.P999.Seconds() * 1000 }),
		a.bars("Over-admission of a bad day, tokens", func(c *Choice) float64 { return float64(c.Bad.Over) }),
		a.bars("Under-admission of a bad day, tokens", func(c *Choice) float64 { return float64(c.Bad.Under) }),
	)
	return p
}

func (a *Answer) table(q *Question) report.Table {
	t := report.Table{
		Head:  []string{"choice", "over", "of limit", "declared", "under", "refused early", "waited", "p99", "p99.9", "store ops/1000", "hops/1000", "bad day: over", "under", "p99.9"},
		Notes: []string{"over: of the key that went furthest, beyond its limit. under: less than an exact limiter had admitted. refused early: while the limit had room. hops: messages from node to node."},
	}
	for i := range a.Choices {
		c := &a.Choices[i]
		name := c.Name
		if i == a.Best {
			name = "* " + name
		}
		r := c.Plain
		t.Rows = append(t.Rows, report.Row{Bad: r.Violation != nil || c.Bad.Violation != nil, Cells: []string{
			name, fmt.Sprint(r.Over), fmt.Sprintf("%.2f%%", r.OverPercent(q.Limit.Capacity())), fmt.Sprint(c.Declared), fmt.Sprint(r.Under), fmt.Sprint(r.Early),
			fmt.Sprintf("%.2f%%", 100*float64(r.Waited)/float64(max(1, r.Requests))), short(r.P99), short(r.P999), fmt.Sprintf("%.2f", r.ClaimsPerThousand()), fmt.Sprintf("%.0f", 1000*float64(r.Hops)/float64(max(1, r.Requests))),
			fmt.Sprint(c.Bad.Over), fmt.Sprint(c.Bad.Under), short(c.Bad.P999),
		}})
	}
	return t
}

func short(d time.Duration) string { return fmt.Sprintf("%.2fms", d.Seconds()*1000) }

// chart shows demand and admissions over time.
func (a *Answer) chart(r *Result, title string, bound float64) report.Chart {
	offered, admitted := report.Line{Name: "offered"}, report.Line{Name: "admitted"}
	last := time.Duration(0)
	for _, p := range r.Timeline {
		seconds := (p.At - last).Seconds()
		last = p.At
		for line, tokens := range map[*report.Line]ratelimit.Tokens{&offered: p.Offered, &admitted: p.Admitted} {
			line.X = append(line.X, p.At.Seconds())
			line.Y = append(line.Y, float64(tokens)/seconds)
		}
	}
	return report.Chart{Title: title, X: "seconds", Y: "tokens a second", Lines: []report.Line{offered, admitted}, Bound: bound}
}

func (a *Answer) bars(title string, of func(*Choice) float64) report.Chart {
	c := report.Chart{Title: title}
	for i := range a.Choices {
		c.Bars = append(c.Bars, report.Bar{Name: variants[i].short, Value: of(&a.Choices[i])})
	}
	return c
}
