package tokens

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
)

// Measured is one way in one case.
type Measured struct {
	Case       string        `json:"case"`
	Way        string        `json:"way"`
	Requests   int64         `json:"requests"`
	Refused    int64         `json:"refused"`
	Fitted     int64         `json:"refused_though_it_fitted"`
	Failed     int64         `json:"failed"` // calls without an answer
	Used       int64         `json:"used"`   // the cost of what passed
	Share      float64       `json:"share"`  // of the limit
	Over       int64         `json:"over"`
	Bound      int64         `json:"bound"`      // the most that requests in flight cost above their holds
	Operations float64       `json:"operations"` // of Redis, for 1,000 requests
	P99        time.Duration `json:"latency_p99"`
	Problem    string        `json:"problem,omitempty"`
	// Commands are those that Redis ran.
	Commands map[string]process.RedisCommand `json:"commands"`
}

// Page shows the report: a table for each case.
func (r *Report) Page() *report.Page {
	p := &report.Page{
		Title: "Limits in tokens whose cost is known at the end",
		Lead: []string{
			fmt.Sprintf("Each way has %d nodes in mode leasing and a Redis of its own, and gets the same requests in the same seconds.", r.Nodes),
			"The stand-in for Envoy makes two calls for a request that passes: at its start, and with its cost when it is done.",
		},
	}
	for i := range r.Cases {
		c := &r.Cases[i]
		t := report.Table{Title: c.Name, Head: []string{"way", "requests", "refused", "of them fitted", "over", "at most", "used", "Redis/1,000", "p99"}}
		for j := range r.Measured {
			m := &r.Measured[j]
			if m.Case != c.ID {
				continue
			}
			t.Rows = append(t.Rows, report.Row{Bad: m.Problem != "", Cells: []string{
				m.Way, fmt.Sprint(m.Requests), fmt.Sprint(m.Refused), fmt.Sprint(m.Fitted), fmt.Sprint(m.Over), fmt.Sprint(m.Bound),
				fmt.Sprintf("%.1f%%", 100*m.Share), fmt.Sprintf("%.1f", m.Operations), fmt.Sprintf("%.1f ms", m.P99.Seconds()*1000),
			}})
		}
		if i == len(r.Cases)-1 {
			t.Notes = notes
		}
		p.Tables = append(p.Tables, t)
	}
	return p
}

var notes = []string{
	"of them fitted: refused, though their cost fitted beside the cost of all that had passed. at most: what requests in flight cost beyond what they held, at its highest; over is at most that.",
	"used: of the limit, by the cost of what passed. Redis/1,000: scripts, transactions and INCRBY for 1,000 requests and their settlements, with the script that each node runs every two seconds anyhow. p99: of a request's own call.",
	"header: the client names the next power of two above its cost. learned: the 0.9-quantile of recent costs. Each node has seen some before.",
}

// Problems are what must not be.
func (r *Report) Problems() error {
	var errs []error
	for i := range r.Measured {
		if m := &r.Measured[i]; m.Problem != "" {
			errs = append(errs, fmt.Errorf("%s, %s: %s", m.Case, m.Way, m.Problem))
		}
	}
	return errors.Join(errs...)
}
