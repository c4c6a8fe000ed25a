package bench

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/bench/baseline"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/realenvoy"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/deploy"
)

// EnvoyOptions compare requests through Envoy, with each way to limit them.
type EnvoyOptions struct {
	report.Setup `examples:"sluicelab bench envoy|sluicelab bench envoy --nodes 1 --rate 200"`
	Rounds       int           `in:"1..10000" default:"3" help:"Rounds of each way, in turn."`
	Round        time.Duration `in:"1ms..1h" default:"10s" help:"Length of a round."`
	Rate         float64       `in:"1..1000000" default:"500" help:"Requests a second. Choose a rate that the machine sustains."`
	Nodes        int           `in:"1..10" default:"3" help:"Nodes of Sluice, 1 to 10. Several share a Redis, which the command starts (redis-server must be installed)."`
	Keys         int           `in:"1..10000000" default:"100" help:"Distinct keys."`
}

// EnvoyCost is what requests cost one way through Envoy. Latencies are from when a request was meant to be sent.
type EnvoyCost struct {
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

// EnvoyReport compares the ways. The first way has no filter, and the second an empty server: the costs of Envoy and of
// a call without a decision.
type EnvoyReport struct {
	Envoy string      `json:"envoy"` // its version
	Rate  float64     `json:"requests_per_second"`
	Nodes int         `json:"nodes"`
	Ways  []EnvoyCost `json:"ways"`
}

// envoyWay is a configuration, what answers it, and what its rounds measured. Its sums are over all rounds: use
// subtracts a reading before each round and adds the one after it.
type envoyWay struct {
	name    string
	text    string // of Envoy
	mode    string // of Sluice; "": it is not asked
	empty   bool   // the empty server is asked
	headers []string
	warm    time.Duration

	latency             latencies
	refused, undecided  int64
	envoy, nodes, redis time.Duration // processor time
}

// Measure implements [report.Measurement]. It sends requests through an Envoy at a steady rate, with each way to limit
// them in turn. It compares their time, and the CPU of Envoy and the service. Limits are far away: each request passes.
func (o *EnvoyOptions) Measure(ctx context.Context) (report.Result, error) {
	if err := report.Check(o); err != nil {
		return nil, err
	}
	binary, err := realenvoy.Find()
	if err != nil {
		return nil, err
	}
	r := &EnvoyReport{Rate: o.Rate, Nodes: o.Nodes}
	r.Envoy, err = realenvoy.Version(binary)
	if err != nil {
		return nil, err
	}
	bare, err := realenvoy.WithoutFilter(deploy.Envoy)
	if err != nil {
		return nil, err
	}
	const soon = 2 * time.Second
	ways := []*envoyWay{
		{name: "no filter", text: bare, warm: soon},
		{name: "empty RLS server", text: deploy.Envoy, empty: true, warm: soon},
		{name: "leasing", text: deploy.Envoy, mode: "leasing", warm: soon},
		{name: "approx", text: deploy.Envoy, mode: "approx", warm: soon},
		{name: "routing", text: deploy.Envoy, mode: "routing", warm: soon},
		{name: "routing, ring hash", text: deploy.EnvoyRingHash, mode: "routing", warm: soon},
		// Two reports, so that leases follow the demand.
		{name: "RLQS", text: deploy.EnvoyRLQS, mode: "leasing", headers: []string{"x-tier", "gold"}, warm: 12 * time.Second},
	}
	for _, w := range ways {
		w.latency = newLatencies()
	}
	err = inTurn(o.Rounds, len(ways), func(_, i int) error {
		o.Tell(o.Rounds*len(ways), ways[i].name)
		if err := ways[i].round(ctx, binary, o); err != nil {
			return fmt.Errorf("%s: %w", ways[i].name, err)
		}
		return nil
	})
	for _, w := range ways {
		n := w.latency.TotalCount()
		r.Ways = append(r.Ways, EnvoyCost{
			Name: w.name, Requests: n, Refused: w.refused, Undecided: w.undecided,
			P50: micros(w.latency.at(50), 1), P99: micros(w.latency.at(99), 1),
			EnvoyCPU: micros(w.envoy, n), ServiceCPU: micros(w.nodes, n), StoreCPU: micros(w.redis, n),
		})
	}
	return r, err
}

// endToEndRules limit nothing that is sent. The second rule is for RLQS, whose configuration sends x-tier; its first
// descriptor has no limit of its own.
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

// round starts all that the way needs, and ends it: nothing else runs meanwhile. First it starts the backend, the
// service and Envoy, and waits until Envoy sees all nodes as healthy. Then it sends requests without counting them,
// until connections and leases are there. Then it measures.
func (w *envoyWay) round(ctx context.Context, binary string, o *EnvoyOptions) error {
	backend, err := realenvoy.StartBackend(nil)
	if err != nil {
		return err
	}
	defer backend.Stop()
	service, err := w.service(o)
	if err != nil {
		return err
	}
	defer service.Stop()
	e, err := realenvoy.Start(binary, &realenvoy.Config{
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
	client := realenvoy.NewClient(e.URL)
	defer client.Close()
	if _, _, err := w.drive(ctx, client, o, w.warm); err != nil {
		return err
	}
	if err := w.use(e, service, -1); err != nil {
		return err
	}
	c, refused, err := w.drive(ctx, client, o, o.Round)
	if err != nil {
		return err
	}
	w.refused += refused
	w.latency.Merge(c.latency.Histogram)
	return w.use(e, service, 1)
}

// service is what Envoy asks: nodes of Sluice, the empty server, or none. A single node needs no Redis: it is compared
// without one.
func (w *envoyWay) service(o *EnvoyOptions) (*process.Fleet, error) {
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

// drive sends requests for a time, and counts those that a limit refuses: they have an answer, too. An answer other
// than 200 and 429 is a failure.
func (w *envoyWay) drive(ctx context.Context, client *realenvoy.Client, o *EnvoyOptions, length time.Duration) (*calls, int64, error) {
	c := newCalls()
	var refused atomic.Int64
	l := load.Load{Rate: o.Rate, Keys: o.Keys, Length: length}
	err := c.drive(ctx, 0, l, time.Now(), func(key int) error {
		a, err := client.Get(ctx, "/", append([]string{"x-api-key", fmt.Sprintf("key-%d", key)}, w.headers...)...)
		switch {
		case err != nil || a.Status == http.StatusOK:
			return err
		case a.Status == http.StatusTooManyRequests:
			refused.Add(1)
			return nil
		}
		return fmt.Errorf("the answer is %d", a.Status)
	})
	return c, refused.Load(), err
}

// use adds what all have used so far, and how often Envoy had no decision: times -1 before a round, and 1 after it.
func (w *envoyWay) use(e *realenvoy.Envoy, service *process.Fleet, times int64) error {
	envoy, err := e.CPU()
	if err != nil {
		return err
	}
	nodes, err := service.CPU()
	if err != nil {
		return err
	}
	w.envoy += envoy * time.Duration(times)
	w.nodes += nodes * time.Duration(times)
	if service.Redis != nil {
		w.redis += service.Redis.Used().CPU * time.Duration(times)
	}
	all, err := e.Stats()
	w.undecided += all["cluster.service.ratelimit.error"] * times
	return err
}

// Page implements [report.Result].
func (r *EnvoyReport) Page() *report.Page {
	title := fmt.Sprintf("Envoy %s, nodes of Sluice: %d, %v requests a second. CPU is of one request.", r.Envoy, r.Nodes, r.Rate)
	return &report.Page{Tables: []report.Table{report.Rows(title, r.Ways)}}
}
