package overload

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/bench/report"
)

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// medianStep is the round in the middle by its goodput, as it was measured.
func medianStep(rounds []Step) Step {
	rounds = slices.SortedFunc(slices.Values(rounds), func(a, b Step) int { return cmp.Compare(a.Share, b.Share) })
	return rounds[(len(rounds)-1)/2]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

// Page shows the report: what of the capacity is left, and what becomes of the rest.
func (r *Report) Page() *report.Page {
	where := "server and load share the machine's one processor: the more is offered, the less the server has"
	if r.Apart {
		where = fmt.Sprintf("the server has %d of the machine's processors, the load the other %d", r.Server, r.Load)
	}
	p := &report.Page{
		Title: "Overload: what is answered in time when more is asked for than can be answered",
		Lead: []string{
			fmt.Sprintf("The capacity is %.0f answers a second, p99 %s; %s.", r.Capacity, ms(r.P99), where),
			fmt.Sprintf("Callers give up after %v. A call counts for goodput if it was answered before that, from when it was meant to be made.", r.Patience),
		},
		Tables: []report.Table{report.Rows("By what is offered; calls a second", r.Steps,
			"held back: by the caller, who had as many outstanding as its circuit breaker or the server's bound on streams allows. shed: answered UNAVAILABLE.",
			"given up: by the caller, after it was sent. charged, not answered: tokens that were kept for answers which came too late or never. p50, p99: of those answered in time.")},
	}
	lines := []report.Line{{Name: "goodput"}, {Name: "shed"}, {Name: "given up"}, {Name: "charged, not answered"}}
	for _, s := range r.Steps {
		for i, y := range []float64{s.Goodput, s.Shed, s.GivenUp, s.Charged} {
			lines[i].X, lines[i].Y = append(lines[i].X, s.Times), append(lines[i].Y, y/r.Capacity)
		}
	}
	p.Charts = []report.Chart{
		{Title: "What becomes of calls", X: "offered, times the capacity", Y: "times the capacity", Lines: lines},
	}
	return p
}

// Problems implements [report.Result].
func (*Report) Problems() error { return nil }
