package overload

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
)

// Options are how Run measures.
type Options struct {
	Binary      string // sluice itself
	Step        time.Duration
	Patience    time.Duration // of callers
	Times       []float64     // of the capacity, that are offered
	Connections int
	Callers     int // of the closed loop, which finds the capacity
	Outstanding int // calls, at most, of all connections: a caller's circuit breaker
	Rounds      int // each multiple is measured so often; the median is shown
	MaxWait     time.Duration
	Traced      bool // each call has headers of its own
	Progress    func(done int, what string)
}

// Validate reports every problem, each with its value and its bound.
func (o *Options) Validate() error {
	var errs []error
	bad := func(what string, value any, bound string) {
		errs = append(errs, fmt.Errorf("%s is %v, must be %s", what, value, bound))
	}
	if o.Step < 100*time.Millisecond || o.Step > time.Minute {
		bad("--step", o.Step, "100ms to 1m")
	}
	if o.Patience < time.Millisecond || o.Patience > 10*time.Second {
		bad("--patience", o.Patience, "1ms to 10s")
	}
	if o.Connections < 1 || o.Connections > 1000 {
		bad("--connections", o.Connections, "1 to 1000")
	}
	if o.Outstanding < o.Connections || o.Outstanding > callSlots/2 {
		bad("--outstanding", o.Outstanding, fmt.Sprintf("%d (--connections) to %d", o.Connections, callSlots/2))
	}
	if o.Callers < 1 || o.Callers > o.Outstanding {
		bad("--callers", o.Callers, fmt.Sprintf("1 to %d (--outstanding)", o.Outstanding))
	}
	if o.Rounds < 1 || o.Rounds > 100 {
		bad("--rounds", o.Rounds, "1 to 100")
	}
	for _, t := range o.Times {
		if t < 0.01 || t > 100 {
			bad("--times", t, "0.01 to 100")
		}
	}
	if len(o.Times) == 0 {
		bad("--times", "empty", "at least one multiple")
	}
	return errors.Join(errs...)
}

// Count is how many measurements Run makes.
func (o *Options) Count() int { return o.Rounds * (1 + len(o.Times)) }

// Step is what became of calls at one multiple of the capacity. Rates are by
// second.
type Step struct {
	Times    float64       `json:"times_the_capacity"`
	Offered  float64       `json:"offered"`
	HeldBack float64       `json:"held_back"` // by the caller: it had too many outstanding
	Goodput  float64       `json:"goodput"`   // answered before the caller gave up
	Shed     float64       `json:"shed"`      // answered UNAVAILABLE
	GivenUp  float64       `json:"given_up"`  // by the caller, after it had been sent
	Charged  float64       `json:"charged_not_answered"`
	P50      time.Duration `json:"latency_p50"` // of those answered
	P99      time.Duration `json:"latency_p99"`
	Share    float64       `json:"goodput_of_capacity"`
	CPU      float64       `json:"server_processors"` // that the server had
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
	Took     time.Duration `json:"took"`
}

// rules limit nothing: that all is charged can be seen in the rule's own count.
const rules = `domain: bench
descriptors:
  - key: api_key
    rate_limit: {unit: hour, requests_per_unit: 4000000000}
`

// Run measures a server's capacity, and then its answers at multiples of it.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	file, remove, err := process.Rules(rules)
	if err != nil {
		return nil, err
	}
	defer remove()
	start := time.Now()
	share, rejoin, err := process.Divide()
	if err != nil {
		return nil, err
	}
	defer rejoin()
	r := &Report{Patience: o.Patience, Server: share.Server, Load: share.Own, Apart: share.Apart}
	m := &meter{Options: &o, report: r}
	m.server, err = share.Start(func() (*process.Process, error) {
		return process.Sluice(o.Binary, file, "--log-level", "error", "--max-wait", o.MaxWait.String())
	})
	if err != nil {
		return nil, err
	}
	defer m.server.Stop()
	if m.client, err = dial(m.server.Address, o.Connections, o.Outstanding, o.Patience, o.Traced); err != nil {
		return nil, err
	}
	defer m.client.close()
	err = m.measure(ctx)
	r.Took = time.Since(start)
	return r, err
}

// meter measures one server.
type meter struct {
	*Options
	report *Report
	server *process.Process
	client *client
	done   int
}

func (m *meter) tell(what string) {
	if m.Progress != nil {
		m.Progress(m.done, what)
	}
	m.done++
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
		m.tell("capacity")
		capacity, p99, err := m.capacity(ctx)
		if err != nil {
			return err
		}
		capacities, p99s = append(capacities, capacity), append(p99s, float64(p99))
		for i, times := range m.Times {
			m.tell(fmt.Sprintf("%v times the capacity", times))
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
	cpu, err := m.server.CPU()
	if err != nil {
		return Step{}, err
	}
	began := time.Now()
	t, err := m.client.open(ctx, times*capacity, m.Step)
	if err != nil {
		return Step{}, err
	}
	took := time.Since(began)
	cpuNow, err := m.server.CPU()
	if err != nil {
		return Step{}, err
	}
	chargedNow, err := m.charged()
	if err != nil {
		return Step{}, err
	}
	rate := func(n int64) float64 { return float64(n) / m.Step.Seconds() }
	return Step{
		Times: times, Offered: rate(t.Offered), HeldBack: rate(t.Offered - t.Sent), Goodput: rate(t.Answered), Shed: rate(t.Refused), GivenUp: rate(t.GivenUp),
		Charged: rate(max(0, chargedNow-charged-t.Answered)), P50: quantile(t, 50), P99: quantile(t, 99),
		Share: rate(t.Answered) / capacity, CPU: (cpuNow - cpu).Seconds() / took.Seconds(),
	}, nil
}

// chargedMetric counts the admissions of the only rule; refunded ones were never counted.
const chargedMetric = `sluice_admitted_tokens_total{domain="bench",`

// charged is how many tokens have been charged and not been given back.
func (m *meter) charged() (int64, error) {
	text, err := m.server.Scrape()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, chargedMetric) {
			continue
		}
		fields := strings.Fields(line)
		n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("metrics: %w", err)
		}
		return int64(n), nil
	}
	return 0, fmt.Errorf("metrics of %s: no line begins with %s", m.server.Debug, chargedMetric)
}
