package overload

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
)

// Options are what is measured.
type Options struct {
	report.Setup
	Step        time.Duration `in:"100ms..1m" default:"2s" help:"Length of each measurement."`
	Rounds      int           `in:"1..100" default:"3" help:"Repetitions of each measurement. The median round is shown."`
	Times       []float64     `in:"0.01..100" default:"0.5,1,2,5,10" help:"Offered load as multiples of the capacity."`
	Patience    time.Duration `in:"1ms..10s" default:"20ms" help:"Time after which callers give up. The default is that of Envoy."`
	Connections int           `in:"1..1000" default:"4" help:"Connections of the callers."`
	Callers     int           `default:"128" help:"Concurrent calls while the capacity is measured."`
	Outstanding int           `default:"1024" help:"Maximum of concurrent calls, like Envoy's circuit breaker. Further calls fail at the caller."`
	MaxWait     time.Duration `default:"100ms" help:"MAX_WAIT of the server (0: no call is shed)."`
	Traced      bool          `help:"Send a different traceparent with each call, like an Envoy that traces all calls. Such calls cost more to refuse."`
}

// Examples implements [report.Measurement].
func (*Options) Examples() string { return "  sluicelab bench overload" }

// validate reports every problem.
func (o *Options) validate() error {
	var b report.Bounds
	b.Check(o)
	if least := max(1, o.Connections); o.Outstanding < least || o.Outstanding > callSlots/2 {
		b.Refuse("--outstanding", o.Outstanding, fmt.Sprintf("%d to %d", least, callSlots/2))
	}
	if o.Callers < 1 || o.Callers > o.Outstanding {
		b.Refuse("--callers", o.Callers, fmt.Sprintf("1 to %d", o.Outstanding))
	}
	if len(o.Times) == 0 {
		b.Refuse("--times", "empty", "at least one multiple")
	}
	return b.Err()
}

// count is how many measurements there are.
func (o *Options) count() int { return o.Rounds * (1 + len(o.Times)) }

// Step is what became of calls at one multiple of the capacity. Rates are by
// second.
type Step struct {
	Times    float64       `json:"times_the_capacity" col:"offered|%gx"`
	Offered  float64       `json:"offered" col:"calls|%.0f"`
	HeldBack float64       `json:"held_back" col:"held back|%.0f"` // by the caller: it had too many outstanding
	Shed     float64       `json:"shed" col:"shed|%.0f"`           // answered UNAVAILABLE
	GivenUp  float64       `json:"given_up" col:"given up|%.0f"`   // by the caller, after it had been sent
	Goodput  float64       `json:"goodput" col:"goodput|%.0f"`     // answered before the caller gave up
	Share    float64       `json:"goodput_of_capacity" col:"of capacity|%.0f%%"`
	Charged  float64       `json:"charged_not_answered" col:"charged, not answered|%.0f"`
	P50      time.Duration `json:"latency_p50" col:"p50"` // of those answered
	P99      time.Duration `json:"latency_p99" col:"p99"`
	CPU      float64       `json:"server_processors" col:"server CPUs"` // that the server had
}

// Report is all that was measured.
type Report struct {
	Capacity float64       `json:"capacity"` // answers a second, in a closed loop
	P99      time.Duration `json:"capacity_latency_p99"`
	Patience time.Duration `json:"patience"`
	Server   int           `json:"processors_of_the_server"`
	Load     int           `json:"processors_of_the_load"`
	Apart    bool          `json:"processors_apart"`
	Steps    []Step        `json:"steps"`
}

// rules limit nothing: that all is charged can be seen in the rule's own count.
const rules = `domain: bench
descriptors:
  - key: api_key
    rate_limit: {unit: hour, requests_per_unit: 4000000000}
`

// Measure implements [report.Measurement]: a server's capacity, and then its answers at multiples of it.
func (o *Options) Measure(ctx context.Context) (report.Result, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	share, rejoin, err := process.Divide()
	if err != nil {
		return nil, err
	}
	defer rejoin()
	r := &Report{Patience: o.Patience, Server: share.Server, Load: share.Own, Apart: share.Apart}
	var fleet *process.Fleet
	err = share.Start(func() error {
		fleet, err = process.StartFleet(o.Binary, rules, 1, "--max-wait", o.MaxWait.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	defer fleet.Stop()
	m := &meter{Options: o, report: r, server: fleet.Nodes[0]}
	m.client, err = dial(m.server.Address, o.Connections, o.Outstanding, o.Patience, o.Traced)
	if err != nil {
		return nil, err
	}
	defer m.client.close()
	return r, m.measure(ctx)
}

// meter measures one server.
type meter struct {
	*Options
	report *Report
	server *process.Process
	client *client
}

// measure plays all multiples, Rounds times. The capacity is measured again before
// each round, and each round is judged by its own: other work on the machine comes
// and goes.
func (m *meter) measure(ctx context.Context) error {
	if _, err := m.client.closed(ctx, m.Callers, m.Step/2); err != nil { // heaps and tables grow
		return err
	}
	rounds := make([][]Step, len(m.Times))
	var capacities, p99s []float64
	for range m.Rounds {
		m.Tell(m.count(), "capacity")
		capacity, p99, err := m.capacity(ctx)
		if err != nil {
			return err
		}
		capacities, p99s = append(capacities, capacity), append(p99s, float64(p99))
		for i, times := range m.Times {
			m.Tell(m.count(), fmt.Sprintf("%v times the capacity", times))
			s, err := m.step(ctx, times, capacity)
			if err != nil {
				return err
			}
			rounds[i] = append(rounds[i], s)
		}
	}
	m.report.Capacity, m.report.P99 = median(capacities), time.Duration(median(p99s))
	for _, steps := range rounds {
		m.report.Steps = append(m.report.Steps, medianStep(steps))
	}
	return nil
}

func (m *meter) capacity(ctx context.Context) (float64, time.Duration, error) {
	t, err := m.client.closed(ctx, m.Callers, m.Step)
	if err != nil {
		return 0, 0, err
	}
	if t.Answered == 0 {
		return 0, 0, fmt.Errorf("%s answered none of %d calls within %v", m.server.Address, t.Offered, m.Patience)
	}
	return float64(t.Answered) / m.Step.Seconds(), quantile(t, 99), nil
}

func quantile(t *tally, q float64) time.Duration {
	return time.Duration(t.latency.ValueAtQuantile(q)) * time.Microsecond
}

func (m *meter) step(ctx context.Context, times, capacity float64) (Step, error) {
	charged, err := m.charged()
	if err != nil {
		return Step{}, err
	}
	var t *tally
	began := time.Now()
	cpu, err := process.Spent(m.server, func() (err error) {
		t, err = m.client.open(ctx, times*capacity, m.Step)
		return err
	})
	if err != nil {
		return Step{}, err
	}
	took := time.Since(began)
	chargedNow, err := m.charged()
	if err != nil {
		return Step{}, err
	}
	rate := func(n int64) float64 { return float64(n) / m.Step.Seconds() }
	return Step{
		Times: times, Offered: rate(t.Offered), HeldBack: rate(t.Offered - t.Sent), Goodput: rate(t.Answered), Shed: rate(t.Refused), GivenUp: rate(t.GivenUp),
		Charged: rate(max(0, chargedNow-charged-t.Answered)), P50: quantile(t, 50), P99: quantile(t, 99),
		Share: rate(t.Answered) / capacity, CPU: cpu.Seconds() / took.Seconds(),
	}, nil
}

// chargedMetric counts the admissions of the only rule; refunded ones were never counted.
const chargedMetric = `sluice_admitted_tokens_total{domain="bench",`

// charged is how many tokens have been charged and not been given back.
func (m *meter) charged() (int64, error) {
	n, found, err := m.server.Metric(chargedMetric)
	if err == nil && !found {
		err = fmt.Errorf("metrics of %s: no line begins with %s", m.server.Debug, chargedMetric)
	}
	return int64(n), err
}
