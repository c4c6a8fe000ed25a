package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-gate/sluice/bench/baseline"
	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/routing/ring"
)

// CostOptions compare the CPU of a call with that of an empty server of the same protocol. The same client drives both,
// in turn.
type CostOptions struct {
	report.Setup
	Rounds      int           `in:"1..10000" default:"10" help:"Rounds of each server, in turn."`
	Round       time.Duration `in:"1ms..1h" default:"1s" help:"Length of a round."`
	Callers     int           `in:"1..100000" default:"64" help:"Concurrent callers."`
	Connections int           `in:"1..10000" default:"4" help:"Connections of the callers."`
	Keys        int           `in:"1..10000000" default:"1000" help:"Distinct keys."`
	MaxRatio    float64       `default:"0.5" help:"Failure threshold: CPU of Sluice as a multiple of the empty server's (0: off)."`
	Calls       float64       `in:"0..1000000" help:"Calls a second, to each server in its rounds (0: each caller calls after its last answer)."`
	Streams     int           `in:"0..1000000" help:"Also measure a server with so many RLQS streams. Each server is called while they report."`
	Buckets     int           `in:"1..10000" default:"10" help:"Buckets of each stream."`
	Reports     float64       `in:"1..1000000" default:"2000" help:"Messages with reports a second, of all streams."`
	Forwarded   bool          `help:"Also measure decisions by another node, in mode routing."`
	MaxForward  float64       `default:"2" name:"max-forwarded-ratio" help:"Failure threshold for a forwarded decision, as a multiple of the empty server's CPU (0: off)."`
}

// Examples implements [report.Measurement].
func (*CostOptions) Examples() string {
	return "  sluicelab bench cost\n  sluicelab bench cost --streams 10000 --calls 1000 --round 1m --rounds 3     new assignments come each minute"
}

// ServerCost is what one server cost over all its rounds.
type ServerCost struct {
	Name       string  `json:"name" col:"server"`
	Calls      int64   `json:"calls" col:"calls"`
	CPUPerCall float64 `json:"cpu_us_per_call" col:"CPU a call|%.2f us"`
	Least      float64 `json:"cpu_us_per_call_least_of_rounds" col:"least"`
	Most       float64 `json:"cpu_us_per_call_most_of_rounds" col:"most of rounds"`
	PerSecond  float64 `json:"calls_per_second" col:"calls/s|%.0f"`
	P50        float64 `json:"latency_p50_us" col:"p50|%.0f us"`
	P99        float64 `json:"latency_p99_us" col:"p99|%.0f us"`
	Ratio      float64 `json:"cpu_ratio"` // to the empty server's
	Problem    string  `json:"problem,omitempty"`
}

// CostReport compares servers with the first, which is empty.
type CostReport struct {
	Servers []ServerCost `json:"servers"`
	Streams StreamCost   `json:"streams,omitzero"`
	notes   []string
}

// costRules limit nothing that is sent.
const costRules = `domain: bench
coordination: {mode: routing}
descriptors:
  - key: generic_key
    value: api
    descriptors:
      - key: api_key
        rate_limit: {unit: hour, requests_per_unit: 4000000000}
  - key: bucket # of streams. Those that share a key use two thirds of it, if each reports every 5 s
    coordination: {mode: leasing}
    rate_limit: {unit: minute, requests_per_unit: 36000}
`

const (
	forwarding  = "sluice, forwarding" // two nodes together; the other one owns the keys
	withStreams = "sluice, with streams"
)

// Measure implements [report.Measurement].
func (o *CostOptions) Measure(ctx context.Context) (report.Result, error) {
	if err := report.Check(o); err != nil {
		return nil, err
	}
	servers := []*contender{{name: "empty gRPC server"}, {name: "sluice", nodes: 1}}
	if o.Forwarded {
		servers = append(servers, &contender{name: forwarding, nodes: 2})
	}
	if o.Streams > 0 {
		servers = append(servers, &contender{name: withStreams, nodes: 1})
	}
	for _, c := range servers {
		defer c.stop()
		if err := c.start(o); err != nil {
			return nil, err
		}
	}
	streams := &reporters{}
	if o.Streams > 0 {
		var err error
		streams, err = openReporters(ctx, servers[len(servers)-1], o)
		if err != nil {
			return nil, err
		}
		defer streams.close()
	}
	for _, c := range servers { // connections, tables and heaps grow here
		if err := c.round(ctx, o); err != nil {
			return nil, err
		}
		c.rounds = nil
	}
	err := inTurn(o.Rounds, len(servers), func(_, i int) error {
		if i == 0 {
			o.Tell(o.Rounds, "rounds")
		}
		return streams.meanwhile(servers[i], func() error { return servers[i].round(ctx, o) })
	})
	if err != nil {
		return nil, err
	}
	return o.report(servers, streams), streams.err()
}

// report has the cost of each server, as a part of others.
func (o *CostOptions) report(servers []*contender, streams *reporters) *CostReport {
	r := &CostReport{}
	note := func(format string, values ...any) { r.notes = append(r.notes, fmt.Sprintf(format, values...)) }
	for _, c := range servers {
		s, most := c.cost(0), 0.0
		switch c.name {
		case forwarding:
			most = o.MaxForward
		case withStreams: // without what these take alone
			r.Streams = streams.cost()
			s = c.cost(r.Streams.Cores)
		case "sluice":
			most = o.MaxRatio
		}
		r.Servers = append(r.Servers, s)
		is, sluice := &r.Servers[len(r.Servers)-1], &r.Servers[min(1, len(r.Servers)-1)]
		is.Ratio = is.CPUPerCall / r.Servers[0].CPUPerCall
		if most > 0 && !(is.Ratio <= most) {
			is.Problem = fmt.Sprintf("the ratio is %.2f, must be at most %v", is.Ratio, most)
		}
		switch c.name {
		case "sluice":
			note("sluice uses %.2f times the server CPU of the empty server", is.Ratio)
		case forwarding:
			note("a forwarded decision, both nodes together: %.2f times that CPU, and %.1f times the p99 of a local one", is.Ratio, is.P99/sluice.P99)
		case withStreams:
			note("beside streams, a call takes %.2f times the CPU, and %.2f and %.2f times the time (p50, p99), of one beside another process that takes as much",
				is.CPUPerCall/sluice.CPUPerCall, is.P50/sluice.P50, is.P99/sluice.P99)
			note("the streams send %.0f messages a second, get %.0f answers, and take %.2f cores of their server", r.Streams.Sent, r.Streams.Answers, r.Streams.Cores)
		}
	}
	return r
}

// Page implements [report.Result].
func (r *CostReport) Page() *report.Page {
	return &report.Page{Title: "What a call costs", Tables: []report.Table{report.Rows("", r.Servers, r.notes...)}}
}

// contender is one of the servers, and what its rounds measured.
type contender struct {
	name   string
	nodes  int            // of Sluice; 0: the empty server
	fleet  *process.Fleet // the first is driven, and the processor time of all counts
	pool   caller.Pool    // connections to the first
	bytes  [][]byte       // requests
	rounds []*costRound
}

// costRound is what one round of load saw.
type costRound struct {
	calls
	took, cpu time.Duration
}

// start starts its servers, connects to the first, and prepares requests. Of two nodes, the other owns their keys.
func (c *contender) start(o *CostOptions) (err error) {
	c.fleet = &process.Fleet{}
	if c.nodes == 0 {
		err = baseline.Server{}.Join(c.fleet, o.Lab)
	} else {
		c.fleet, err = process.StartFleet(o.Binary, costRules, c.nodes)
	}
	for i := 0; i < o.Connections && err == nil; i++ {
		err = c.pool.Add(c.fleet.Nodes[0].Address, caller.Raw())
	}
	if err != nil {
		return err
	}
	owners := ring.New(c.fleet.Peers)
	for i := 0; len(c.bytes) < o.Keys; i++ {
		value := fmt.Sprintf("key-%08d", i)
		if c.nodes < 2 || owners.Owner(xxhash.Sum64String(value)) == c.fleet.Peers[1] {
			c.bytes = append(c.bytes, caller.Encoded(caller.Request("bench", "generic_key", "api", "api_key", value)))
		}
	}
	return nil
}

func (c *contender) stop() {
	c.pool.Close()
	if c.fleet != nil {
		c.fleet.Stop()
	}
}

// fastest is more calls a second than one caller of a closed loop makes.
const fastest = 100_000

// round makes the calls of a round, in a closed loop or at a rate.
func (c *contender) round(ctx context.Context, o *CostOptions) (err error) {
	r := &costRound{calls: calls{latency: newLatencies()}}
	start := time.Now()
	callers := o.Callers
	if o.Calls > 0 {
		callers = 0
	}
	r.cpu, err = process.Spent(c.fleet, func() error {
		l := load.Load{Rate: cmp.Or(o.Calls, fastest), Keys: len(c.bytes), Length: o.Round}
		drive(ctx, callers, l, 1, start, func(q load.Request, intended time.Time) {
			var answer []byte
			err := c.pool.Next().Invoke(ctx, rls.RateLimitService_ShouldRateLimit_FullMethodName, c.bytes[q.Key], &answer)
			r.add(time.Since(intended), err)
		})
		return nil
	})
	r.took = time.Since(start)
	if r.failed > 0 || r.asked == 0 {
		return fmt.Errorf("%s: %d of %d calls failed, such as: %w", c.name, r.failed, r.asked, r.lastErr)
	}
	c.rounds = append(c.rounds, r)
	return err
}

// cost is what its calls cost, without the cores that it uses for something else.
func (c *contender) cost(cores float64) ServerCost {
	s := ServerCost{Name: c.name}
	latency := newLatencies()
	var cpu, took time.Duration
	var each []float64
	for _, r := range c.rounds {
		own := r.cpu - time.Duration(cores*float64(r.took))
		each = append(each, micros(own, r.asked))
		s.Calls += r.asked
		cpu += own
		took += r.took
		latency.Merge(r.latency.Histogram)
	}
	s.Least = slices.Min(each)
	s.Most = slices.Max(each)
	s.CPUPerCall = micros(cpu, s.Calls)
	s.PerSecond = float64(s.Calls) / took.Seconds()
	s.P50, s.P99 = micros(latency.at(50), 1), micros(latency.at(99), 1)
	return s
}
