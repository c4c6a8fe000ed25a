package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/bench/baseline"
	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/routing/ring"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/cespare/xxhash/v2"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// CostOptions are how Cost measures.
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
	Errors     int64   `json:"errors"`
	CPUPerCall float64 `json:"cpu_us_per_call" col:"CPU a call|%.2f us"`
	Least      float64 `json:"cpu_us_per_call_least_of_rounds" col:"least"`
	Most       float64 `json:"cpu_us_per_call_most_of_rounds" col:"most of rounds"`
	PerSecond  float64 `json:"calls_per_second" col:"calls/s|%.0f"`
	P50        float64 `json:"latency_p50_us" col:"p50|%.0f us"`
	P99        float64 `json:"latency_p99_us" col:"p99|%.0f us"`
}

// CostReport compares the service with the empty server.
type CostReport struct {
	Empty  ServerCost `json:"empty"`
	Sluice ServerCost `json:"sluice"`
	Ratio  float64    `json:"cpu_ratio"`
	// Forwarded is of a node whose keys another one owns, the processor time of
	// both together.
	Forwarded      *ServerCost `json:"forwarded,omitempty"`
	ForwardedRatio float64     `json:"forwarded_cpu_ratio,omitempty"`
	// Beside is of a node with streams, without what these take alone.
	Beside  *ServerCost `json:"with_streams,omitempty"`
	Streams StreamCost  `json:"streams,omitzero"`
	options *CostOptions
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

// Measure implements [report.Measurement]. It drives this service and an empty server of the same protocol in turn,
// by the same client, and compares the processor time each uses for a call.
func (o *CostOptions) Measure(ctx context.Context) (report.Result, error) {
	if err := report.Check(o); err != nil {
		return nil, err
	}
	servers := []*contender{{name: "empty gRPC server", keys: o.Keys}, {name: "sluice", nodes: 1, keys: o.Keys}}
	if o.Forwarded {
		servers = append(servers, &contender{name: "sluice, forwarding", nodes: 2, keys: o.Keys})
	}
	if o.Streams > 0 {
		servers = append(servers, &contender{name: "sluice, with streams", nodes: 1, keys: o.Keys})
	}
	for _, c := range servers {
		defer c.stop()
		if err := c.start(o); err != nil {
			return nil, err
		}
	}
	beside := &reporters{}
	if o.Streams > 0 {
		var err error
		beside, err = openReporters(ctx, servers[len(servers)-1], o.Streams, o.Buckets, o.Reports)
		if err != nil {
			return nil, err
		}
		defer beside.close()
	}
	for _, c := range servers { // connections, tables and heaps grow here
		if err := c.round(ctx, o, o.Round); err != nil {
			return nil, err
		}
		c.rounds = c.rounds[:0]
	}
	for i := range o.Rounds {
		o.Tell(o.Rounds, "rounds")
		for n := range servers { // none is always the one after another
			c := servers[(i+n)%len(servers)]
			if err := beside.alone(c, func() error { return c.round(ctx, o, o.Round) }); err != nil {
				return nil, err
			}
		}
	}
	r := &CostReport{options: o, Empty: servers[0].cost(0), Sluice: servers[1].cost(0)}
	r.Ratio = r.Sluice.CPUPerCall / r.Empty.CPUPerCall
	if o.Forwarded {
		f := servers[2].cost(0)
		r.Forwarded, r.ForwardedRatio = &f, f.CPUPerCall/r.Empty.CPUPerCall
	}
	if o.Streams > 0 {
		r.Streams = beside.cost()
		b := beside.server.cost(r.Streams.Cores)
		r.Beside = &b
	}
	return r, beside.err()
}

// contender is one of the servers, and what its rounds measured.
type contender struct {
	name   string
	nodes  int // of Sluice; 0: the empty server
	keys   int
	fleet  *process.Fleet // the first is driven, and the processor time of all counts
	pool   caller.Pool    // connections to the first
	bytes  [][]byte       // requests
	rounds []costRound
}

// costRound is what one round of load saw.
type costRound struct {
	calls, errors int64
	first         error
	took, cpu     time.Duration
	latency       *hdrhistogram.Histogram // nanoseconds, from when a call was due
}

func newLatency() *hdrhistogram.Histogram { return hdrhistogram.New(1000, int64(10*time.Second), 3) }

// start starts its servers, connects to the first, and prepares requests. Of two nodes, the other owns their keys.
func (c *contender) start(o *CostOptions) (err error) {
	c.fleet = &process.Fleet{}
	if c.nodes == 0 {
		err = baseline.Server{}.Join(c.fleet, o.Lab)
	} else {
		c.fleet, err = process.StartFleet(o.Binary, costRules, c.nodes)
	}
	for i := 0; i < o.Connections && err == nil; i++ {
		err = c.pool.Add(c.fleet.Nodes[0].Address, raw())
	}
	if err != nil {
		return err
	}
	owners := ring.New(c.fleet.Peers)
	for i := 0; len(c.bytes) < c.keys; i++ {
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

func (c *contender) round(ctx context.Context, o *CostOptions, length time.Duration) error {
	var r costRound
	cpu, err := process.Spent(c.fleet, func() error {
		r = c.calls(ctx, o, length)
		if r.errors > 0 || r.calls == 0 {
			return fmt.Errorf("%s: %d of %d calls failed, such as: %w", c.name, r.errors, r.calls, r.first)
		}
		return nil
	})
	r.cpu = cpu
	c.rounds = append(c.rounds, r)
	return err
}

// fastest is more calls a second than one caller of a closed loop makes.
const fastest = 100_000

// calls makes the calls of a round, in a closed loop or at a rate.
func (c *contender) calls(ctx context.Context, o *CostOptions, length time.Duration) costRound {
	r := costRound{latency: newLatency()}
	var mu sync.Mutex
	start := time.Now()
	call := func(q load.Request, intended time.Time) {
		var size int
		err := c.pool.Next().Invoke(ctx, rls.RateLimitService_ShouldRateLimit_FullMethodName, c.bytes[q.Key], &size)
		took := time.Since(intended)
		mu.Lock()
		defer mu.Unlock()
		r.calls++
		if err != nil {
			r.errors, r.first = r.errors+1, err
			return
		}
		_ = r.latency.RecordValue(took.Nanoseconds())
	}
	l := load.Load{Rate: cmp.Or(o.Calls, fastest), Keys: len(c.bytes), Length: length}
	if o.Calls > 0 {
		caller.Open(ctx, l, 1, start, call)
	} else {
		caller.Closed(ctx, o.Callers, l, 1, start, call)
	}
	r.took = time.Since(start)
	return r
}

// cost is what its calls cost, without the cores that it uses for something else.
func (c *contender) cost(cores float64) ServerCost {
	s := ServerCost{Name: c.name}
	latency := newLatency()
	var cpu, took time.Duration
	for i, r := range c.rounds {
		r.cpu -= time.Duration(cores * float64(r.took))
		one := float64(r.cpu.Nanoseconds()) / 1e3 / float64(r.calls)
		if i == 0 || one < s.Least {
			s.Least = one
		}
		s.Most = max(s.Most, one)
		s.Calls += r.calls
		s.Errors += r.errors
		cpu += r.cpu
		took += r.took
		latency.Merge(r.latency)
	}
	s.CPUPerCall = float64(cpu.Nanoseconds()) / 1e3 / float64(s.Calls)
	s.PerSecond = float64(s.Calls) / took.Seconds()
	s.P50 = float64(latency.ValueAtQuantile(50)) / 1e3
	s.P99 = float64(latency.ValueAtQuantile(99)) / 1e3
	return s
}

// Page implements [report.Result].
func (r *CostReport) Page() *report.Page {
	servers := []ServerCost{r.Empty, r.Sluice}
	notes := []string{fmt.Sprintf("sluice uses %.2f times the server CPU of the empty server", r.Ratio)}
	if r.Forwarded != nil {
		servers = append(servers, *r.Forwarded)
		notes = append(notes, fmt.Sprintf("a forwarded decision, both nodes together: %.2f times that CPU, and %.1f times the p99 of a local one", r.ForwardedRatio, r.Forwarded.P99/r.Sluice.P99))
	}
	if r.Beside != nil {
		servers = append(servers, *r.Beside)
		notes = append(notes,
			fmt.Sprintf("beside streams, a call takes %.2f times the CPU, and %.2f and %.2f times the time (p50, p99), of one beside another process that takes as much",
				r.Beside.CPUPerCall/r.Sluice.CPUPerCall, r.Beside.P50/r.Sluice.P50, r.Beside.P99/r.Sluice.P99),
			fmt.Sprintf("the streams send %.0f messages a second, get %.0f answers, and take %.2f cores of their server", r.Streams.Sent, r.Streams.Answers, r.Streams.Cores))
	}
	return &report.Page{Title: "What a call costs", Tables: []report.Table{report.Rows("", servers, notes...)}}
}

// Problems are ratios above what the options allow.
func (r *CostReport) Problems() error {
	var all []error
	for _, x := range []struct {
		what       string
		ratio, max float64
	}{{"the ratio", r.Ratio, r.options.MaxRatio}, {"the ratio of forwarded decisions", r.ForwardedRatio, r.options.MaxForward}} {
		if x.max > 0 && !(x.ratio <= x.max) {
			all = append(all, fmt.Errorf("%s is %.2f, must be at most %v", x.what, x.ratio, x.max))
		}
	}
	return errors.Join(all...)
}
