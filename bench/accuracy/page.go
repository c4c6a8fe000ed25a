package accuracy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/report"
)

// sum is a mode over several scenarios.
type sum struct {
	mode          string        `col:"mode"`
	offered       int64         `col:"offered"`
	admitted      int64         `col:"admitted"`
	over          int64         `col:"over"`
	declared      int64         `col:"declared"`
	under         int64         `col:"under"`
	early         int64         `col:"refused early"`
	ops           int64         `col:"store ops"`
	p50           time.Duration `col:"p50"` // the worst of its scenarios
	p99           time.Duration `col:"p99"`
	p999          time.Duration `col:"p99.9"`
	cpu           time.Duration `col:"CPU"`
	faultOver     int64         `col:"faults: over"`
	faultDeclared int64         `col:"declared"`
	faultUnder    int64         `col:"under"`
	faultP999     time.Duration `col:"p99.9"`
	Problem       string
}

func (r *Report) sums() (all []sum) {
	of := map[string]int{}
	for i := range r.Measured {
		m := &r.Measured[i]
		at, known := of[m.Mode]
		if !known {
			at, of[m.Mode] = len(all), len(all)
			all = append(all, sum{mode: m.Mode, declared: m.Declared})
		}
		s := &all[at]
		if m.Problem != "" {
			s.Problem = m.Scenario + ": " + m.Problem
		}
		if m.Fault {
			s.faultOver, s.faultUnder = max(s.faultOver, m.Over), max(s.faultUnder, m.Under)
			s.faultDeclared, s.faultP999 = max(s.faultDeclared, m.Declared), max(s.faultP999, m.P999)
			continue
		}
		s.offered, s.admitted, s.under, s.early = s.offered+m.Offered, s.admitted+m.Admitted, s.under+m.Under, s.early+m.Early
		s.over, s.ops, s.cpu = max(s.over, m.Over), s.ops+m.StoreOps, s.cpu+m.CPU
		s.p50, s.p99, s.p999 = max(s.p50, m.P50), max(s.p99, m.P99), max(s.p999, m.P999)
	}
	return all
}

func (s *sum) perThousand() float64 { return 1000 * float64(s.ops) / float64(max(1, s.offered)) }

// Page shows the report: first a recommendation of modes with their costs, then every measurement.
func (r *Report) Page() *report.Page {
	p := &report.Page{Title: "Accuracy: what was admitted against what was allowed", Lead: r.lead()}
	p.Tables = []report.Table{
		report.Rows(fmt.Sprintf("By mode: %d nodes, a limit of %d for each key, %.0f requests a second", r.Nodes, r.Limit, r.Rate), r.sums(), notes),
		report.Rows("By load and fault", r.Measured, r.played()...),
	}
	for _, bar := range []struct {
		file, title string
		of          func(*sum) float64
	}{
		{"store-operations", "Store operations for 1,000 decisions", (*sum).perThousand},
		{"cpu", "Processor time of all nodes for a decision, us", func(s *sum) float64 { return micros(s.cpu, s.offered) }},
		{"latency", "p99 of a call without faults, ms", func(s *sum) float64 { return s.p99.Seconds() * 1000 }},
		{"over", "Most over-admission of a key, with faults, tokens", func(s *sum) float64 { return float64(max(s.over, s.faultOver)) }},
	} {
		c := report.Chart{File: bar.file, Title: bar.title}
		for _, s := range r.sums() {
			c.Bars = append(c.Bars, report.Bar{Name: s.mode, Value: bar.of(&s)})
		}
		p.Charts = append(p.Charts, c)
	}
	seen := map[string]bool{}
	for i := range r.Measured {
		if m := &r.Measured[i]; !seen[m.Scenario] {
			seen[m.Scenario] = true
			p.Charts = append(p.Charts, r.timeline(m.Scenario))
		}
	}
	return p
}

func micros(d time.Duration, n int64) float64 {
	return float64(d.Nanoseconds()) / 1e3 / float64(max(1, n))
}

// timeline is what each mode admitted over a scenario.
func (r *Report) timeline(scenario string) report.Chart {
	c := report.Chart{File: "admitted-" + strings.ReplaceAll(scenario, " ", "-"), Title: "Admitted: " + scenario, X: "seconds", Y: "tokens, since the start"}
	for i := range r.Measured {
		m := &r.Measured[i]
		if m.Scenario != scenario || len(m.Tenths) == 0 {
			continue
		}
		l := report.Line{Name: m.Mode}
		total := int64(0)
		for j, n := range m.Tenths {
			total += n
			l.X, l.Y = append(l.X, float64(j+1)/10), append(l.Y, float64(total))
		}
		c.Lines = append(c.Lines, l)
		c.Bound = float64(m.Admitted + m.Under)
	}
	return c
}

func (r *Report) lead() []string {
	if r.Target != "" {
		return []string{fmt.Sprintf("%s, under the loads that sluice is measured by; what it declares is not known.", r.Target)}
	}
	return []string{"Which mode fits your traffic is what `sluice what-if` says; here is what each did under the same loads and faults."}
}

const notes = "over: of the key that went furthest; declared: -1 where it is not known. under: less than the limits had allowed, when the load ended. " +
	"refused early: while fewer than the limit had been admitted. Latencies are the worst of all scenarios, from when a call was meant to be made."

// played says what each scenario is.
func (r *Report) played() (lines []string) {
	for _, s := range scenarios {
		if slices.ContainsFunc(r.Measured, func(m Measured) bool { return m.Scenario == s.name }) {
			lines = append(lines, s.name+": "+s.what)
		}
	}
	return lines
}
