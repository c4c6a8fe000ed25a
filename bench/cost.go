package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

// CostOptions are how Cost measures.
type CostOptions struct {
	Binary      string // sluice itself
	Rounds      int    // of each server
	Round       time.Duration
	Callers     int
	Connections int
	Keys        int
	Progress    io.Writer // nil: none
}

// ServerCost is what one server cost over all its rounds.
type ServerCost struct {
	Name       string  `json:"name"`
	Calls      int64   `json:"calls"`
	Errors     int64   `json:"errors"`
	CPUPerCall float64 `json:"cpu_us_per_call"`
	Least      float64 `json:"cpu_us_per_call_least_of_rounds"`
	Most       float64 `json:"cpu_us_per_call_most_of_rounds"`
	PerSecond  float64 `json:"calls_per_second"`
	P50        float64 `json:"latency_p50_us"`
	P99        float64 `json:"latency_p99_us"`
}

// CostReport compares the service with the empty server.
type CostReport struct {
	Empty  ServerCost `json:"empty"`
	Sluice ServerCost `json:"sluice"`
	Ratio  float64    `json:"cpu_ratio"`
}

// costRules limit nothing that Cost sends.
const costRules = `domain: bench
descriptors:
  - key: generic_key
    value: api
    descriptors:
      - key: api_key
        rate_limit: {unit: hour, requests_per_unit: 4000000000}
`

// Cost drives this service and an empty server of the same protocol in turn,
// by the same client, and compares the processor time each uses for a call.
func Cost(ctx context.Context, o CostOptions) (CostReport, error) {
	dir, err := os.MkdirTemp("", "sluice-bench")
	if err != nil {
		return CostReport{}, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir)
	rules := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(rules, []byte(costRules), 0o600); err != nil {
		return CostReport{}, fmt.Errorf("bench: %w", err)
	}
	requests, err := costRequests(o.Keys)
	if err != nil {
		return CostReport{}, err
	}
	servers := []*contender{{name: "empty gRPC server"}, {name: "sluice"}}
	for i, c := range servers {
		if err := c.start(o, requests, rules, i == 0); err != nil {
			return CostReport{}, err
		}
		defer c.stop()
	}
	for _, c := range servers { // connections, tables and heaps grow here
		if err := c.round(ctx, o); err != nil {
			return CostReport{}, err
		}
		c.rounds = c.rounds[:0]
	}
	for i := range o.Rounds {
		if o.Progress != nil {
			fmt.Fprintf(o.Progress, "\rround %d of %d", i+1, o.Rounds)
		}
		first := i % 2 // neither is always the one after the other
		for _, c := range []*contender{servers[first], servers[1-first]} {
			if err := c.round(ctx, o); err != nil {
				return CostReport{}, err
			}
		}
	}
	if o.Progress != nil {
		fmt.Fprintln(o.Progress)
	}
	report := CostReport{Empty: servers[0].cost(), Sluice: servers[1].cost()}
	report.Ratio = report.Sluice.CPUPerCall / report.Empty.CPUPerCall
	return report, nil
}

func costRequests(keys int) ([][]byte, error) {
	requests := make([][]byte, keys)
	for i := range requests {
		var err error
		requests[i], err = proto.Marshal(&rls.RateLimitRequest{Domain: "bench", Descriptors: []*common.RateLimitDescriptor{{
			Entries: []*common.RateLimitDescriptor_Entry{
				{Key: "generic_key", Value: "api"}, {Key: "api_key", Value: fmt.Sprintf("key-%08d", i)},
			},
		}}})
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
	}
	return requests, nil
}

// contender is one of the two servers, and what its rounds measured.
type contender struct {
	name    string
	process *process
	client  *client
	rounds  []costRound
}

type costRound struct {
	round
	cpu time.Duration
}

func (c *contender) start(o CostOptions, requests [][]byte, rules string, empty bool) error {
	var err error
	if empty {
		c.process, err = startEmpty(o.Binary)
	} else {
		c.process, err = startSluice(o.Binary, rules)
	}
	if err != nil {
		return err
	}
	c.client, err = dial(c.process.address, o.Connections, requests)
	return err
}

func (c *contender) stop() {
	c.client.close()
	c.process.stop()
}

func (c *contender) round(ctx context.Context, o CostOptions) error {
	before, err := c.process.cpu()
	if err != nil {
		return err
	}
	r := costRound{round: c.client.run(ctx, o.Callers, o.Round)}
	after, err := c.process.cpu()
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

func (c *contender) cost() ServerCost {
	s := ServerCost{Name: c.name}
	latency := newLatency()
	var cpu, took time.Duration
	for i, r := range c.rounds {
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

// WriteTable writes the report for people.
func (r CostReport) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "server\tcalls\tCPU a call\tover rounds\tcalls/s\tp50\tp99\t")
	for _, s := range []ServerCost{r.Empty, r.Sluice} {
		fmt.Fprintf(w, "%s\t%d\t%.2f us\t%.2f-%.2f\t%.0f\t%.0f us\t%.0f us\t\n", s.Name, s.Calls, s.CPUPerCall, s.Least, s.Most, s.PerSecond, s.P50, s.P99)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "sluice uses %.2f times the server CPU of the empty server\n", r.Ratio)
	return err
}

// WriteJSON writes the report for machines.
func (r CostReport) WriteJSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
