package bench

import (
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
// in turn. A ratio of processor times depends less on the machine than a time does: both servers share the client, the
// protocol and the load. So one threshold serves different machines.
type CostOptions struct {
	report.Setup `examples:"sluicelab bench cost|sluicelab bench cost --forwarded"`
	Rounds       int           `in:"1..10000" default:"10" help:"Rounds of each server, in turn."`
	Round        time.Duration `in:"1ms..1h" default:"1s" help:"Length of a round."`
	MaxRatio     float64       `default:"0.5" help:"Failure threshold: CPU of Sluice as a multiple of the empty server's (0: off)."`
	Forwarded    bool          `help:"Also measure decisions by another node, in mode routing."`
	MaxForward   float64       `default:"2" name:"max-forwarded-ratio" help:"Failure threshold for a forwarded decision, as a multiple of the empty server's CPU (0: off)."`
}

// The callers of a closed loop, their connections and the keys of their requests. Several callers on a connection let
// the server answer many calls with one write, as under real load.
const costCallers, costConns, costKeys = 64, 4, 1000

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

// CostReport compares servers with the first, which is empty. The second is a node that decides alone.
type CostReport struct {
	Servers []ServerCost `json:"servers"`
}

// costRules limit nothing that is sent. One rule in mode routing serves both cases: alone, a node owns all keys, and of
// two, the other owns those that are sent.
const costRules = `domain: bench
coordination: {mode: routing}
descriptors:
  - key: generic_key
    value: api
    descriptors:
      - key: api_key
        rate_limit: {unit: hour, requests_per_unit: 4000000000}
`

// Measure implements [report.Measurement]. The servers run at the same time and are driven in turn. An idle server uses
// next to no processor time.
func (o *CostOptions) Measure(ctx context.Context) (report.Result, error) {
	if err := report.Check(o); err != nil {
		return nil, err
	}
	servers := []*contender{{name: "empty gRPC server"}, {name: "sluice", nodes: 1, most: o.MaxRatio}}
	if o.Forwarded {
		servers = append(servers, &contender{name: "sluice, forwarding", nodes: 2, most: o.MaxForward})
	}
	for _, c := range servers {
		defer c.stop()
		if err := c.start(o); err != nil {
			return nil, err
		}
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
		return servers[i].round(ctx, o)
	})
	if err != nil {
		return nil, err
	}
	r := &CostReport{}
	for _, c := range servers {
		s := c.cost()
		s.Ratio = 1
		if len(r.Servers) > 0 {
			s.Ratio = s.CPUPerCall / r.Servers[0].CPUPerCall
		}
		// NaN, of an empty server that used no time, is a problem, too.
		if c.most > 0 && !(s.Ratio <= c.most) {
			s.Problem = fmt.Sprintf("the ratio is %.2f, must be at most %v", s.Ratio, c.most)
		}
		r.Servers = append(r.Servers, s)
	}
	return r, nil
}

// Page implements [report.Result].
func (r *CostReport) Page() *report.Page {
	sluice := &r.Servers[1]
	notes := []string{fmt.Sprintf("sluice uses %.2f times the server CPU of the empty server", sluice.Ratio)}
	for _, s := range r.Servers[2:] {
		notes = append(notes, fmt.Sprintf("a forwarded decision, both nodes together: %.2f times that CPU, and %.1f times the p99 of a local one", s.Ratio, s.P99/sluice.P99))
	}
	return &report.Page{Tables: []report.Table{report.Rows("", r.Servers, notes...)}}
}

// contender is one of the servers, and what its rounds measured.
type contender struct {
	name   string
	nodes  int            // of Sluice; 0: the empty server. Of two, the other one owns all keys
	most   float64        // its bound, as a multiple of the empty server's CPU; 0: none
	fleet  *process.Fleet // the first is driven, and the processor time of all counts
	pool   caller.Pool    // connections to the first
	bytes  [][]byte       // requests
	rounds []costRound
}

// costRound is what one round of load saw. Rounds are kept apart for the least and the most.
type costRound struct {
	*calls
	took, cpu time.Duration
}

// start starts its servers, connects to the first, and prepares requests. Requests are encoded before the first round,
// so that the client's cost is small and the same for all servers. For a fleet of two, only keys that the other node
// owns are taken: each decision is then forwarded.
func (c *contender) start(o *CostOptions) (err error) {
	c.fleet = &process.Fleet{}
	if c.nodes == 0 {
		err = baseline.Server{}.Join(c.fleet, o.Lab)
	} else {
		c.fleet, err = process.StartFleet(o.Binary, costRules, c.nodes)
	}
	for i := 0; i < costConns && err == nil; i++ {
		err = c.pool.Add(c.fleet.Nodes[0].Address, caller.Raw())
	}
	if err != nil {
		return err
	}
	owners := ring.New(c.fleet.Peers)
	for i := 0; len(c.bytes) < costKeys; i++ {
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

// round makes the calls of a round. The calls of one round run one after the other for each caller, over connections in
// turn. A failed call fails the round, because it would cost less than an answered one.
func (c *contender) round(ctx context.Context, o *CostOptions) (err error) {
	r := costRound{calls: newCalls()}
	start := time.Now()
	l := load.Load{Rate: 1, Keys: len(c.bytes), Length: o.Round}
	r.cpu, err = process.Spent(c.fleet, func() error {
		return r.drive(ctx, costCallers, l, start, func(key int) error {
			var answer []byte
			return c.pool.Next().Invoke(ctx, rls.RateLimitService_ShouldRateLimit_FullMethodName, c.bytes[key], &answer)
		})
	})
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	r.took = time.Since(start)
	c.rounds = append(c.rounds, r)
	return nil
}

// cost is what its calls cost.
func (c *contender) cost() ServerCost {
	s := ServerCost{Name: c.name}
	latency := newLatencies()
	var cpu, took time.Duration
	var each []float64
	for _, r := range c.rounds {
		each = append(each, micros(r.cpu, r.asked))
		s.Calls += r.asked
		cpu += r.cpu
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
