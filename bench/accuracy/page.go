package accuracy

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/report"
)

// sum is a mode over several scenarios.
type sum struct {
	mode                                                       string
	offered, admitted, over, declared, under, early, ops, fail int64
	p50, p99, p999                                             time.Duration // the worst of its scenarios, but of p50 the last
	cpu                                                        time.Duration
	faultOver, faultDeclared, faultUnder                       int64
	faultP999                                                  time.Duration
	bad                                                        bool
}

func (r *Report) sums() []*sum {
	var all []*sum
	of := map[string]*sum{}
	for i := range r.Measured {
		m := &r.Measured[i]
		s := of[m.Mode]
		if s == nil {
			s = &sum{mode: m.Mode, declared: m.Declared}
			of[m.Mode] = s
			all = append(all, s)
		}
		s.bad = s.bad || m.Problem != ""
		if m.Fault {
			s.faultOver, s.faultUnder = max(s.faultOver, m.Over), max(s.faultUnder, m.Under)
			s.faultDeclared, s.faultP999 = max(s.faultDeclared, m.Declared), max(s.faultP999, m.P999)
			continue
		}
		s.offered, s.admitted, s.under, s.early = s.offered+m.Offered, s.admitted+m.Admitted, s.under+m.Under, s.early+m.Early
		s.over, s.ops, s.cpu, s.fail = max(s.over, m.Over), s.ops+m.StoreOps, s.cpu+m.CPU, s.fail+m.Failed
		s.p50, s.p99, s.p999 = max(s.p50, m.P50), max(s.p99, m.P99), max(s.p999, m.P999)
	}
	return all
}

func (s *sum) perThousand() float64 { return 1000 * float64(s.ops) / float64(max(1, s.offered)) }

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

// Page shows the report: first a recommendation of modes with their costs, then every measurement.
func (r *Report) Page() *report.Page {
	p := &report.Page{Title: "Accuracy: what was admitted against what was allowed", Lead: r.lead()}
	p.Tables = append(p.Tables, r.byMode(), r.byScenario())
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
			c.Bars = append(c.Bars, report.Bar{Name: s.mode, Value: bar.of(s)})
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
	of := map[string]*sum{}
	for _, s := range r.sums() {
		of[s.mode] = s
	}
	strict, leasing, routing, approx := of["strict"], of["leasing"], of["routing"], of["approx"]
	if strict == nil || leasing == nil || routing == nil || approx == nil || strict.offered == 0 {
		return nil
	}
	return append(advice(strict, leasing, routing, approx),
		fmt.Sprintf("Processor time of the nodes for a decision: strict %.0f us, leasing %.0f, routing %.0f, approx %.0f.",
			micros(strict.cpu, strict.offered), micros(leasing.cpu, leasing.offered), micros(routing.cpu, routing.offered),
			micros(approx.cpu, approx.offered)))
}

// advice names the modes that these figures support, and those that they do not: a mode is recommended for
// its results here, and not for its purpose.
func advice(strict, leasing, routing, approx *sum) []string {
	lines := []string{fmt.Sprintf("leasing was at most %d over for a key, and had %.3g store operations for 1,000 decisions; "+
		"asking for each takes %.4g.", max(leasing.over, leasing.faultOver), leasing.perThousand(), strict.perThousand())}
	if leasing.perThousand() < strict.perThousand() {
		lines[0] = "Use leasing, unless another line speaks for more: " + lines[0]
	} else {
		lines[0] = "Under these loads leasing saved no store operations: " + lines[0]
	}
	early := fmt.Sprintf("it refused %d while tokens were left, leasing %d, for %.3g store operations in 1,000 decisions, "+
		"and 99 of 100 calls took %s, leasing's %s.", routing.early, leasing.early, routing.perThousand(), ms(routing.p99),
		ms(leasing.p99))
	if routing.early < leasing.early || routing.perThousand() < leasing.perThousand() {
		lines = append(lines, "Use routing for few or hot keys: "+early)
	} else {
		lines = append(lines, "Nothing here speaks for routing: "+early)
	}
	return append(lines, adviceOnApprox(leasing, approx))
}

// adviceOnApprox weighs its latency against its over-admission. It is for requests that must not wait, so it
// has to be clearly faster: by a tenth.
func adviceOnApprox(leasing, approx *sum) string {
	figures := fmt.Sprintf("it was at most %d over, of %d declared, and 99 of 100 calls took %s, leasing's %s",
		approx.over, approx.declared, ms(approx.p99), ms(leasing.p99))
	quicker := 10*approx.p99 <= 9*leasing.p99
	faults, quickerInFaults := "", false
	if approx.faultP999 > 0 {
		faults = fmt.Sprintf("; with faults it was at most %d over, and 999 of 1,000 calls took %s, leasing's %s",
			approx.faultOver, ms(approx.faultP999), ms(leasing.faultP999))
		quickerInFaults = 10*approx.faultP999 <= 9*leasing.faultP999
	}
	switch {
	case quicker && (faults == "" || quickerInFaults):
		return "Use approx where no request may wait for the store: " + figures + faults + "."
	case quicker:
		return "Use approx where no request may wait while the store is well, and leasing where faults count: " + figures + faults + "."
	case quickerInFaults:
		return "Use approx only for what must not wait while the store fails: " + figures + faults + "."
	}
	return "Do not use approx under these loads, for it was not faster than leasing: " + figures + faults + "."
}

func percent(n, of int64) string { return fmt.Sprintf("%.2f%%", 100*float64(n)/float64(max(1, of))) }

func declared(n int64) string {
	if n < 0 {
		return "unknown"
	}
	return fmt.Sprint(n)
}

func (r *Report) byMode() report.Table {
	t := report.Table{
		Title: fmt.Sprintf("By mode: %d nodes, a limit of %d for each key, %.0f requests a second", r.Nodes, r.Limit, r.Rate),
		Head:  []string{"mode", "offered", "admitted", "over", "declared", "under", "refused early", "store ops/1000", "p50", "p99", "p99.9", "CPU/decision", "faults: over", "declared", "under", "p99.9"},
		Notes: []string{"over: of the key that went furthest. under: less than the limits had allowed, when the load ended. refused early: while fewer than the limit had been admitted. Latencies are the worst of all scenarios, from when a call was meant to be made."},
	}
	for _, s := range r.sums() {
		t.Rows = append(t.Rows, report.Row{Bad: s.bad, Cells: []string{
			s.mode, fmt.Sprint(s.offered), fmt.Sprint(s.admitted), fmt.Sprint(s.over), declared(s.declared), fmt.Sprint(s.under), fmt.Sprint(s.early),
			fmt.Sprintf("%.2f", s.perThousand()), ms(s.p50), ms(s.p99), ms(s.p999), fmt.Sprintf("%.1f us", micros(s.cpu, s.offered)),
			fmt.Sprint(s.faultOver), declared(s.faultDeclared), fmt.Sprint(s.faultUnder), ms(s.faultP999),
		}})
	}
	return t
}

func (r *Report) byScenario() report.Table {
	t := report.Table{
		Title: "By load and fault",
		Head:  []string{"scenario", "mode", "offered", "admitted", "over", "of limit", "declared", "under", "refused early", "failed", "store ops/1000", "p50", "p99", "p99.9", "CPU/decision"},
	}
	what := map[string]string{}
	for _, s := range scenarios {
		what[s.name] = s.what
	}
	last := ""
	for i := range r.Measured {
		m := &r.Measured[i]
		t.Rows = append(t.Rows, report.Row{Bad: m.Problem != "", Cells: []string{
			m.Scenario, m.Mode, fmt.Sprint(m.Offered), fmt.Sprint(m.Admitted), fmt.Sprint(m.Over), percent(m.Over, m.Limit), declared(m.Declared), fmt.Sprint(m.Under), fmt.Sprint(m.Early), fmt.Sprint(m.Failed),
			fmt.Sprintf("%.2f", 1000*float64(m.StoreOps)/float64(max(1, m.Offered))), ms(m.P50), ms(m.P99), ms(m.P999), fmt.Sprintf("%.1f us", micros(m.CPU, m.Offered)),
		}})
		if m.Scenario != last {
			last = m.Scenario
			t.Notes = append(t.Notes, m.Scenario+": "+what[m.Scenario])
		}
		if m.Problem != "" {
			t.Notes = append(t.Notes, "PROBLEM: "+m.Mode+", "+m.Scenario+": "+m.Problem)
		}
	}
	return t
}
