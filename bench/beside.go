package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
)

// BesideOptions are the settings of Beside.
type BesideOptions struct {
	report.Setup
	Rounds      int           `default:"3" help:"Rounds of each server, in turn."`
	Round       time.Duration `default:"1m" help:"Length of a round. Streams get new assignments each minute, so that rounds of whole minutes have one turn each."`
	Calls       float64       `default:"1000" help:"RLS calls a second, to each server in its rounds."`
	Connections int           `default:"4" help:"Connections of the callers."`
	Keys        int           `default:"1000" help:"Distinct keys."`
	Streams     int           `default:"10000" help:"RLQS streams to one of the servers."`
	Buckets     int           `default:"10" help:"Buckets of each stream."`
	Reports     float64       `default:"2000" help:"Messages with reports a second, of all streams."`
}

// Examples implements [report.Measurement].
func (*BesideOptions) Examples() string { return "  sluicelab bench streams" }

// Measure implements [report.Measurement].
func (o *BesideOptions) Measure(ctx context.Context) (report.Result, error) {
	var b report.Bounds
	report.Within(&b, "--rounds", o.Rounds, 1, 10_000)
	report.Within(&b, "--round", o.Round, time.Millisecond, time.Hour)
	report.Within(&b, "--calls", o.Calls, 1, 1e6)
	report.Within(&b, "--connections", o.Connections, 1, 10_000)
	report.Within(&b, "--keys", o.Keys, 1, 10_000_000)
	report.Within(&b, "--streams", o.Streams, 1, 1_000_000)
	report.Within(&b, "--buckets", o.Buckets, 1, 10_000)
	report.Within(&b, "--reports", o.Reports, 1, 1e6)
	if b != nil {
		return nil, b.Err()
	}
	return Beside(ctx, *o)
}

// BesideReport compares calls of RLS at a server without streams, and at one with streams. Each is called
// while the streams are silent, and while they report. Then the server without streams runs next to another
// process that uses the processor time of the streams.
type BesideReport struct {
	Quiet  ServerCost `json:"without_streams_beside_nothing"`
	Alone  ServerCost `json:"without_streams"`
	Silent ServerCost `json:"with_silent_streams"`
	Beside ServerCost `json:"with_streams"`
	// Ratios are of Beside to Alone, and those of silent streams of Silent to Quiet.
	CPURatio       float64 `json:"cpu_ratio"`
	P50Ratio       float64 `json:"p50_ratio"`
	P99Ratio       float64 `json:"p99_ratio"`
	SilentCPURatio float64 `json:"silent_cpu_ratio"`
	SilentP50Ratio float64 `json:"silent_p50_ratio"`
	SilentP99Ratio float64 `json:"silent_p99_ratio"`
	// Streams is the cost of the streams alone.
	Streams struct {
		Sent    float64 `json:"messages_per_second"`
		Answers float64 `json:"answers_per_second"`
		Cores   float64 `json:"cores"`
		Ended   int64   `json:"ended"` // by the server, and opened again
		Memory  float64 `json:"mb"`    // resident at most, beyond the server without streams
	} `json:"streams"`
	// Others is how many cores processes took that have nothing to do with it: above a few
	// hundredths, the times say little.
	Others float64 `json:"cores_of_others"`
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

// Beside calls two servers in turn at the same rate, while the streams of one report.
func Beside(ctx context.Context, o BesideOptions) (*BesideReport, error) {
	rules, remove, err := process.Rules(besideRules)
	if err != nil {
		return nil, err
	}
	defer remove()
	start := func(binary string) (*process.Process, error) {
		return process.Sluice(binary, rules, "--log-level", "error")
	}
	servers := [2]*contender{{name: "without streams", start: start}, {name: "with streams", start: start}}
	for _, c := range servers {
		if err := c.open(CostOptions{Setup: o.Setup, Keys: o.Keys, Connections: o.Connections}); err != nil {
			return nil, err
		}
		defer c.stop()
	}
	// Each connection has a hundred streams, so that what is measured is streams and not connections.
	wires, err := dial(servers[1].process.Address, max(1, o.Streams/sharing), nil)
	if err != nil {
		return nil, err
	}
	defer wires.close()
	streams, err := openReporters(ctx, wires, o.Streams, o.Buckets, o.Reports)
	if err != nil {
		return nil, err
	}
	defer streams.close()
	b := &beside{BesideOptions: o, servers: servers, streams: streams}
	return b.measure(ctx)
}

// beside is a comparison in progress.
type beside struct {
	BesideOptions
	servers [2]*contender // without streams, and with them
	streams *reporters
	report  BesideReport
	// Of the server with streams, while they report and the other one is called.
	reporting, spent time.Duration
}

// besideCase is a server, and what the streams do while it is called.
type besideCase struct {
	*contender
	reporting bool
}

func (b *beside) measure(ctx context.Context) (*BesideReport, error) {
	of := func(i int, name string) *contender {
		c := *b.servers[i]
		c.name = name
		return &c
	}
	cases := []besideCase{
		{of(0, "without streams"), false},
		{of(0, "the same, beside as much"), true},
		{of(1, "with silent streams"), false},
		{of(1, "with streams"), true},
	}
	var others, took time.Duration
	for i := -1; i < b.Rounds; i++ {
		b.Tell(b.Rounds+1, "rounds")
		for n := range cases { // none is always the one after another
			used, err := b.others()
			if err != nil {
				return nil, err
			}
			began := time.Now()
			if err := b.round(ctx, cases[(i+1+n)%len(cases)], i >= 0); err != nil {
				return nil, err
			}
			after, err := b.others()
			if err != nil {
				return nil, err
			}
			others, took = others+after-used, took+time.Since(began)
		}
		if i < 0 { // connections, tables and heaps have grown
			for _, c := range cases {
				c.rounds = nil
			}
			others, took = 0, 0
		}
	}
	r := &b.report
	r.Others = others.Seconds() / took.Seconds()
	r.Streams.Ended = b.streams.ended.Load()
	r.Streams.Sent /= b.reporting.Seconds()
	r.Streams.Answers /= b.reporting.Seconds()
	r.Streams.Cores = b.spent.Seconds() / b.reporting.Seconds()
	// What its streams take is not what its calls cost.
	for i := range cases[3].rounds {
		c := &cases[3].rounds[i]
		c.cpu -= time.Duration(r.Streams.Cores * float64(c.took))
	}
	r.Quiet, r.Alone, r.Silent, r.Beside = cases[0].cost(), cases[1].cost(), cases[2].cost(), cases[3].cost()
	r.CPURatio, r.P50Ratio, r.P99Ratio = r.Beside.times(r.Alone)
	r.SilentCPURatio, r.SilentP50Ratio, r.SilentP99Ratio = r.Silent.times(r.Quiet)
	return r, r.memory(b.servers)
}

// times is how many times as much a call costs and takes as at another server.
func (s ServerCost) times(other ServerCost) (cpu, p50, p99 float64) {
	return s.CPUPerCall / other.CPUPerCall, s.P50 / other.P50, s.P99 / other.P99
}

// round calls one server, while the streams report or are silent.
func (b *beside) round(ctx context.Context, c besideCase, counts bool) error {
	b.streams.silent.Store(!c.reporting)
	before, err := b.servers[1].cpu()
	if err != nil {
		return err
	}
	sent, answers, began := b.streams.sent.Load(), b.streams.answers.Load(), time.Now()
	if err := c.paced(ctx, b.BesideOptions); err != nil {
		return err
	}
	after, err := b.servers[1].cpu()
	if err != nil {
		return err
	}
	if counts && c.reporting && c.process == b.servers[0].process {
		b.reporting, b.spent = b.reporting+time.Since(began), b.spent+after-before
		b.report.Streams.Sent += float64(b.streams.sent.Load() - sent)
		b.report.Streams.Answers += float64(b.streams.answers.Load() - answers)
	}
	return nil
}

// others is what all processes have used but this one and its servers.
func (b *beside) others() (time.Duration, error) {
	all, err := process.AllCPU()
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	own, err := process.OwnCPU()
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	for _, c := range b.servers {
		used, err := c.cpu()
		if err != nil {
			return 0, err
		}
		own += used
	}
	return all - own, nil
}

// memory is what the streams add to what a server has in memory.
func (r *BesideReport) memory(servers [2]*contender) error {
	alone, err := servers[0].process.PeakMemory()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	beside, err := servers[1].process.PeakMemory()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	r.Streams.Memory = float64(beside-alone) / (1 << 20)
	return nil
}

// paced calls at a rate, from any number of callers. The time of a call counts from its due time, so that a
// late server is late for later calls, too.
func (c *contender) paced(ctx context.Context, o BesideOptions) error {
	before, err := c.cpu()
	if err != nil {
		return err
	}
	r := costRound{round: c.client.paced(ctx, o.Calls, o.Round)}
	after, err := c.cpu()
	if err != nil {
		return err
	}
	if r.errors > 0 || r.calls == 0 {
		return fmt.Errorf("%s: %d of %d calls failed, such as: %w", c.name, r.errors, r.calls, r.first)
	}
	r.cpu = after - before
	c.rounds = append(c.rounds, r)
	return nil
}

// pacers is how many callers share the rate: each waits for its call before its next one.
const pacers = 32

func (c *client) paced(ctx context.Context, perSecond float64, length time.Duration) round {
	total := round{latency: newLatency()}
	var mu sync.Mutex
	var wg sync.WaitGroup
	began := time.Now()
	each := time.Duration(pacers / perSecond * float64(time.Second))
	for i := range pacers {
		wg.Go(func() {
			r := round{latency: newLatency()}
			var size int
			at := i
			for due := began.Add(each * time.Duration(i) / pacers); due.Sub(began) < length; due = due.Add(each) {
				time.Sleep(time.Until(due))
				at = (at + 7919) % len(c.requests)
				r.calls++
				if err := c.conns[i%len(c.conns)].Invoke(ctx, rls.RateLimitService_ShouldRateLimit_FullMethodName, c.requests[at], &size); err != nil {
					r.errors++
					r.first = err
					continue
				}
				_ = r.latency.RecordValue(time.Since(due).Nanoseconds())
			}
			mu.Lock()
			defer mu.Unlock()
			total.calls, total.errors = total.calls+r.calls, total.errors+r.errors
			if total.first == nil {
				total.first = r.first
			}
			total.latency.Merge(r.latency)
		})
	}
	wg.Wait()
	total.took = time.Since(began)
	return total
}

// Page implements [report.Result].
func (r *BesideReport) Page() *report.Page {
	return &report.Page{Title: "Calls beside streams", Tables: []report.Table{report.Rows("", []ServerCost{r.Quiet, r.Alone, r.Silent, r.Beside},
		fmt.Sprintf("beside streams, a call takes %.2f times the CPU, and %.2f and %.2f times the time (p50, p99), of one beside another process that takes as much", r.CPURatio, r.P50Ratio, r.P99Ratio),
		fmt.Sprintf("beside silent streams, %.2f times the CPU, and %.2f and %.2f times the time, of one beside nothing", r.SilentCPURatio, r.SilentP50Ratio, r.SilentP99Ratio),
		fmt.Sprintf("the streams send %.0f messages a second, get %.0f answers, and take %.2f cores and %.0f MB of their server; %d were ended by it",
			r.Streams.Sent, r.Streams.Answers, r.Streams.Cores, r.Streams.Memory, r.Streams.Ended),
		fmt.Sprintf("processes that have nothing to do with it took %.2f cores", r.Others))}}
}

// Problems implements [report.Result].
func (*BesideReport) Problems() error { return nil }
