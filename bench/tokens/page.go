package tokens

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
)

// Measured is one way in one case.
type Measured struct {
	Case       string        `json:"case"`
	Way        string        `json:"way" col:"way"`
	Requests   int64         `json:"requests" col:"requests"`
	Refused    int64         `json:"refused" col:"refused"`
	Fitted     int64         `json:"refused_though_it_fitted" col:"of them fitted"`
	Failed     int64         `json:"failed"` // calls without an answer
	Used       int64         `json:"used"`   // the cost of what passed
	Over       int64         `json:"over" col:"over"`
	Bound      int64         `json:"bound" col:"at most"`               // the most that requests in flight cost beyond what they held
	Share      float64       `json:"share" col:"used|%.1f%%"`           // of the limit
	Operations float64       `json:"operations" col:"Redis/1,000|%.1f"` // of Redis, for 1,000 requests
	P99        time.Duration `json:"latency_p99" col:"p99"`
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
		of := func(m Measured) bool { return m.Case != c.ID }
		t := report.Rows(c.Name, slices.DeleteFunc(slices.Clone(r.Measured), of))
		if i == len(r.Cases)-1 {
			t.Notes = append(t.Notes, notes...)
		}
		p.Tables = append(p.Tables, t)
	}
	return p
}

var notes = []string{
	"of them fitted: refused, though their cost fitted beside the cost of all that had passed. at most: what requests in flight cost beyond what they held, at its highest; over is at most that.",
	"used: of the limit, by the cost of what passed. Redis/1,000: scripts, transactions and INCRBY for 1,000 requests and their settlements, with the script that each node runs every two seconds anyhow. p99: of a request's own call.",
	"header: the client names the next power of two above its cost. learned: the 0.97-quantile of recent costs. Each node has seen some before.",
}

// Problems are what must not be.
func (r *Report) Problems() error { return report.Problems(r.Measured) }
