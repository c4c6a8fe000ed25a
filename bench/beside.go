package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-gate/sluice/bench/process"
)

// BesideOptions are how Beside measures.
type BesideOptions struct {
	Binary      string // sluice itself
	Rounds      int    // of each server
	Round       time.Duration
	Calls       float64 // a second
	Connections int
	Keys        int
	Streams     int
	Buckets     int     // of each
	Reports     float64 // messages a second, of all streams
	Progress    io.Writer
}

// BesideReport compares calls of RLS at a server without streams, and at one whose streams
// report all the time.
type BesideReport struct {
	Alone  ServerCost `json:"without_streams"`
	Beside ServerCost `json:"with_streams"`
	// Ratios are of the second to the first.
	CPURatio float64 `json:"cpu_ratio"`
	P50Ratio float64 `json:"p50_ratio"`
	P99Ratio float64 `json:"p99_ratio"`
	// Streams is what the streams take by themselves.
	Streams struct {
		Sent    float64 `json:"messages_per_second"`
		Answers float64 `json:"answers_per_second"`
		Cores   float64 `json:"cores"`
		Ended   int64   `json:"ended"` // by the server, and opened again
		Memory  float64 `json:"mb"`    // resident at most, beyond the server without streams
	} `json:"streams"`
}

// besideRules have one rule for calls, and one for streams: of each of its keys, the streams
// that share it use two thirds by their reports, if each reports every 5 s.
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
func Beside(ctx context.Context, o BesideOptions) (BesideReport, error) {
	rules, remove, err := process.Rules(besideRules)
	if err != nil {
		return BesideReport{}, err
	}
	defer remove()
	start := func(binary string) (*process.Process, error) {
		return process.Sluice(binary, rules, "--log-level", "error", "--rlqs-max-streams", fmt.Sprint(o.Streams))
	}
	servers := [2]*contender{{name: "without streams", start: start}, {name: "with streams", start: start}}
	for _, c := range servers {
		if err := c.open(CostOptions{Binary: o.Binary, Keys: o.Keys, Connections: o.Connections}); err != nil {
			return BesideReport{}, err
		}
		defer c.stop()
	}
	// Each connection has a hundred streams, so that what is measured is streams and not connections.
	wires, err := dial(servers[1].process.Address, max(1, o.Streams/sharing), nil)
	if err != nil {
		return BesideReport{}, err
	}
	defer wires.close()
	streams, err := openReporters(ctx, wires, o.Streams, o.Buckets, o.Reports)
	if err != nil {
		return BesideReport{}, err
	}
	defer streams.close()
	return measure(ctx, o, servers, streams)
}

func measure(ctx context.Context, o BesideOptions, servers [2]*contender, streams *reporters) (BesideReport, error) {
	report := BesideReport{}
	var quiet, spent time.Duration // of the one with streams, while the other is called
	for i := -1; i < o.Rounds; i++ {
		if o.Progress != nil && i >= 0 {
			fmt.Fprintf(o.Progress, "\rround %d of %d", i+1, o.Rounds)
		}
		for n := range servers { // none is always the one after the other
			called := servers[(i+1+n)%len(servers)]
			before, err := servers[1].cpu()
			if err != nil {
				return report, err
			}
			sent, answers, began := streams.sent.Load(), streams.answers.Load(), time.Now()
			if err := called.paced(ctx, o); err != nil {
				return report, err
			}
			after, err := servers[1].cpu()
			if err != nil {
				return report, err
			}
			if i >= 0 && called == servers[0] {
				quiet, spent = quiet+time.Since(began), spent+after-before
				report.Streams.Sent += float64(streams.sent.Load() - sent)
				report.Streams.Answers += float64(streams.answers.Load() - answers)
			}
		}
		if i < 0 { // connections, tables and heaps have grown
			servers[0].rounds, servers[1].rounds = nil, nil
		}
	}
	if o.Progress != nil {
		fmt.Fprintln(o.Progress)
	}
	report.Streams.Ended = streams.ended.Load()
	report.Streams.Sent /= quiet.Seconds()
	report.Streams.Answers /= quiet.Seconds()
	report.Streams.Cores = spent.Seconds() / quiet.Seconds()
	// What its streams take is not what its calls cost.
	for i := range servers[1].rounds {
		r := &servers[1].rounds[i]
		r.cpu -= time.Duration(report.Streams.Cores * float64(r.took))
	}
	report.Alone, report.Beside = servers[0].cost(), servers[1].cost()
	report.CPURatio = report.Beside.CPUPerCall / report.Alone.CPUPerCall
	report.P50Ratio, report.P99Ratio = report.Beside.P50/report.Alone.P50, report.Beside.P99/report.Alone.P99
	return report, report.memory(servers)
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

// paced calls at a rate, from as many callers as it takes: what a call takes counts from when
// it was due, so that a server which is late is late for those behind, too.
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

// WriteTable writes the report for people.
func (r BesideReport) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "server\tcalls\tCPU a call\tover rounds\tcalls/s\tp50\tp99\t")
	for _, s := range []ServerCost{r.Alone, r.Beside} {
		fmt.Fprintf(w, "%s\t%d\t%.2f us\t%.2f-%.2f\t%.0f\t%.0f us\t%.0f us\t\n", s.Name, s.Calls, s.CPUPerCall, s.Least, s.Most, s.PerSecond, s.P50, s.P99)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "beside streams, a call takes %.2f times the CPU, and %.2f and %.2f times the time (p50, p99)\n"+
		"the streams send %.0f messages a second, get %.0f answers, and take %.2f cores and %.0f MB of their server; %d were ended by it\n",
		r.CPURatio, r.P50Ratio, r.P99Ratio, r.Streams.Sent, r.Streams.Answers, r.Streams.Cores, r.Streams.Memory, r.Streams.Ended)
	return err
}

// WriteJSON writes the report for machines.
func (r BesideReport) WriteJSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
