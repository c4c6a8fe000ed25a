package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
)

// BesideOptions are the settings of Beside.
type BesideOptions struct {
	report.Setup
	Rounds      int           `in:"1..10000" default:"3" help:"Rounds of each server, in turn."`
	Round       time.Duration `in:"1ms..1h" default:"1m" help:"Length of a round. Streams get new assignments each minute, so that rounds of whole minutes have one turn each."`
	Calls       float64       `in:"1..1000000" default:"1000" help:"RLS calls a second, to each server in its rounds."`
	Connections int           `in:"1..10000" default:"4" help:"Connections of the callers."`
	Keys        int           `in:"1..10000000" default:"1000" help:"Distinct keys."`
	Streams     int           `in:"1..1000000" default:"10000" help:"RLQS streams to one of the servers."`
	Buckets     int           `in:"1..10000" default:"10" help:"Buckets of each stream."`
	Reports     float64       `in:"1..1000000" default:"2000" help:"Messages with reports a second, of all streams."`
}

// Examples implements [report.Measurement].
func (*BesideOptions) Examples() string { return "  sluicelab bench streams" }

// Measure implements [report.Measurement].
func (o *BesideOptions) Measure(ctx context.Context) (report.Result, error) {
	if err := report.Check(o); err != nil {
		return nil, err
	}
	return Beside(ctx, *o)
}

// BesideReport compares calls of RLS at a server with streams and at one without, next to which a process uses the
// processor time of the streams: the other server.
type BesideReport struct {
	Alone  ServerCost `json:"without_streams"`
	Beside ServerCost `json:"with_streams"` // without what the streams take
	// Ratios are of Beside to Alone.
	CPURatio float64 `json:"cpu_ratio"`
	P50Ratio float64 `json:"p50_ratio"`
	P99Ratio float64 `json:"p99_ratio"`
	// Streams is the cost of the streams alone.
	Streams struct {
		Sent    float64 `json:"messages_per_second"`
		Answers float64 `json:"answers_per_second"`
		Cores   float64 `json:"cores"`
	} `json:"streams"`
}

// besideRules have one rule for calls, and one for streams. The streams that share a key use two thirds of it,
// if each reports every 5 s.
const besideRules = `domain: bench
descriptors:
  - key: generic_key
    value: api
    descriptors:
      - key: api_key
        rate_limit: {unit: hour, requests_per_unit: 4000000000}
  - key: bucket
    rate_limit: {unit: minute, requests_per_unit: 36000}
`

// callers is how many callers share the rate: each waits for its call before its next one.
const callers = 32

// Beside calls two servers in turn at the same rate, while the streams of one report.
func Beside(ctx context.Context, o BesideOptions) (*BesideReport, error) {
	rules, remove, err := process.Rules(besideRules)
	if err != nil {
		return nil, err
	}
	defer remove()
	var servers [2]*contender
	for i, name := range []string{"without streams", "with streams"} {
		c, err := contend(name, o.Keys, nil)(process.Sluice(o.Binary, rules, "--log-level", "error"))
		if err != nil {
			return nil, err
		}
		defer c.stop()
		if err := c.open(o.Connections); err != nil {
			return nil, err
		}
		servers[i] = c
	}
	alone, beside := servers[0], servers[1]
	// Each connection has a hundred streams, so that what is measured is streams and not connections.
	wires, err := dial(beside.nodes[0].Address, max(1, o.Streams/sharing), nil)
	if err != nil {
		return nil, err
	}
	defer wires.close()
	streams, err := openReporters(ctx, wires, o.Streams, o.Buckets, o.Reports)
	if err != nil {
		return nil, err
	}
	defer streams.close()
	for i := range servers { // connections, tables and heaps grow here
		if err := servers[i].round(ctx, callers, o.Calls, o.Round); err != nil {
			return nil, err
		}
		servers[i].rounds = nil
	}
	var r BesideReport
	var spent, took time.Duration // by the streams alone
	for range o.Rounds {
		o.Tell(o.Rounds, "rounds")
		before, err := beside.cpu()
		if err != nil {
			return nil, err
		}
		sent, answers, began := streams.sent.Load(), streams.answers.Load(), time.Now()
		if err := alone.round(ctx, callers, o.Calls, o.Round); err != nil {
			return nil, err
		}
		after, err := beside.cpu()
		if err != nil {
			return nil, err
		}
		spent, took = spent+after-before, took+time.Since(began)
		r.Streams.Sent += float64(streams.sent.Load() - sent)
		r.Streams.Answers += float64(streams.answers.Load() - answers)
		if err := beside.round(ctx, callers, o.Calls, o.Round); err != nil {
			return nil, err
		}
	}
	r.Streams.Sent, r.Streams.Answers = r.Streams.Sent/took.Seconds(), r.Streams.Answers/took.Seconds()
	r.Streams.Cores = spent.Seconds() / took.Seconds()
	for i := range beside.rounds { // what its streams take is not what its calls cost
		c := &beside.rounds[i]
		c.cpu -= time.Duration(r.Streams.Cores * float64(c.took))
	}
	r.Alone, r.Beside = alone.cost(), beside.cost()
	r.CPURatio, r.P50Ratio, r.P99Ratio = r.Beside.CPUPerCall/r.Alone.CPUPerCall, r.Beside.P50/r.Alone.P50, r.Beside.P99/r.Alone.P99
	return &r, streams.err()
}

// Page implements [report.Result].
func (r *BesideReport) Page() *report.Page {
	return &report.Page{Title: "Calls beside streams", Tables: []report.Table{report.Rows("", []ServerCost{r.Alone, r.Beside},
		fmt.Sprintf("beside streams, a call takes %.2f times the CPU, and %.2f and %.2f times the time (p50, p99), of one beside another process that takes as much", r.CPURatio, r.P50Ratio, r.P99Ratio),
		fmt.Sprintf("the streams send %.0f messages a second, get %.0f answers, and take %.2f cores of their server", r.Streams.Sent, r.Streams.Answers, r.Streams.Cores))}}
}

// Problems implements [report.Result].
func (*BesideReport) Problems() error { return nil }
