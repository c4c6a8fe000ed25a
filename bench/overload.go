package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
)

// OverloadOptions are calls beyond the capacity of a server.
type OverloadOptions struct {
	report.Setup
	Step   time.Duration `in:"100ms..1m" default:"2s" help:"Length of each measurement."`
	Rounds int           `in:"1..100" default:"3" help:"Repetitions of each measurement. The median round is shown."`
	Times  []float64     `in:"0.01..100" default:"0.5,1,2,5,10" help:"Offered load as multiples of the capacity."`
}

// Examples implements [report.Measurement].
func (*OverloadOptions) Examples() string { return "  sluicelab bench overload" }

const (
	impatience  = 20 * time.Millisecond // after which callers give up, as Envoy does
	floodConns  = 4
	saturating  = 128  // callers of a closed loop, while the capacity is measured
	outstanding = 1024 // calls at most, by Envoy's circuit breaker
)

// OverloadStep is what became of calls at one multiple of the capacity. Rates are by second.
type OverloadStep struct {
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

// OverloadReport is all that was measured.
type OverloadReport struct {
	Capacity float64        `json:"capacity"` // answers a second, in a closed loop
	P99      time.Duration  `json:"capacity_latency_p99"`
	Server   int            `json:"processors_of_the_server"`
	Load     int            `json:"processors_of_the_load"`
	Apart    bool           `json:"processors_apart"`
	Steps    []OverloadStep `json:"steps"`
}

// overloadRules limit nothing: that all is charged can be seen in the rule's own count.
const overloadRules = `domain: bench
descriptors:
  - key: api_key
    rate_limit: {unit: hour, requests_per_unit: 4000000000}
`

// Measure implements [report.Measurement]: a server's capacity, and then its answers at multiples of it.
func (o *OverloadOptions) Measure(ctx context.Context) (report.Result, error) {
	if err := report.Check(o); err != nil {
		return nil, err
	}
	var fleet *process.Fleet
	share, rejoin, err := process.Divide(func() (err error) {
		fleet, err = process.StartFleet(o.Binary, overloadRules, 1)
		return err
	})
	if fleet != nil {
		defer fleet.Stop()
	}
	if rejoin != nil {
		defer rejoin()
	}
	if err != nil {
		return nil, err
	}
	m := &flood{OverloadOptions: o, server: fleet.Nodes[0]}
	for range floodConns {
		c, err := dial(m.server.Address)
		if err != nil {
			return nil, err
		}
		defer c.close()
		m.conns = append(m.conns, c)
	}
	r := &OverloadReport{Server: share.Server, Load: share.Own, Apart: share.Apart}
	return r, m.measure(ctx, r)
}

// flood is calls to one server.
type flood struct {
	*OverloadOptions
	server *process.Process
	conns  []*conn
}

// measure plays all multiples, Rounds times. The capacity is measured again before
// each round, and each round is judged by its own: other work on the machine comes
// and goes.
func (f *flood) measure(ctx context.Context, r *OverloadReport) error {
	if _, err := f.closed(ctx, f.Step/2); err != nil { // heaps and tables grow
		return err
	}
	steps := make([][]OverloadStep, len(f.Times))
	type capacity struct{ Calls, P99 float64 }
	var capacities []capacity
	for range f.Rounds {
		f.Tell(f.Rounds*(1+len(f.Times)), "capacity")
		t, err := f.closed(ctx, f.Step)
		if err != nil {
			return err
		}
		if t.answered == 0 {
			return fmt.Errorf("%s answered none of %d calls within %v", f.server.Address, t.offered, impatience)
		}
		of := float64(t.answered) / f.Step.Seconds()
		capacities = append(capacities, capacity{of, float64(t.latency.at(99))})
		for i, times := range f.Times {
			f.Tell(f.Rounds*(1+len(f.Times)), fmt.Sprintf("%v times the capacity", times))
			s, err := f.step(ctx, times, of)
			if err != nil {
				return err
			}
			steps[i] = append(steps[i], s)
		}
	}
	is := middle(capacities)
	r.Capacity, r.P99 = is.Calls, time.Duration(is.P99)
	for _, rounds := range steps {
		r.Steps = append(r.Steps, medianStep(rounds))
	}
	return nil
}

// medianStep is the round in the middle by its goodput, as it was measured.
func medianStep(rounds []OverloadStep) OverloadStep {
	rounds = slices.SortedFunc(slices.Values(rounds), func(a, b OverloadStep) int { return cmp.Compare(a.Share, b.Share) })
	return rounds[(len(rounds)-1)/2]
}

func (f *flood) step(ctx context.Context, times, capacity float64) (OverloadStep, error) {
	charged, err := f.charged()
	if err != nil {
		return OverloadStep{}, err
	}
	var t *outcomes
	began := time.Now()
	cpu, err := process.Spent(f.server, func() (err error) {
		t, err = f.open(ctx, times*capacity, f.Step)
		return err
	})
	if err != nil {
		return OverloadStep{}, err
	}
	took := time.Since(began)
	chargedNow, err := f.charged()
	rate := func(n int64) float64 { return float64(n) / f.Step.Seconds() }
	return OverloadStep{
		Times: times, Offered: rate(t.offered), HeldBack: rate(t.offered - t.sent), Goodput: rate(t.answered), Shed: rate(t.refused), GivenUp: rate(t.givenUp),
		Charged: rate(max(0, chargedNow-charged-t.answered)), P50: t.latency.at(50), P99: t.latency.at(99),
		Share: rate(t.answered) / capacity, CPU: cpu.Seconds() / took.Seconds(),
	}, err
}

// charged is how many tokens have been charged and not been given back: refunded admissions were never counted.
func (f *flood) charged() (int64, error) {
	const metric = `sluice_admitted_tokens_total{domain="bench",`
	n, found, err := f.server.Metric(metric)
	if err == nil && !found {
		err = fmt.Errorf("metrics of %s: no line begins with %s", f.server.Debug, metric)
	}
	return int64(n), err
}

// outcomes are what became of calls.
type outcomes struct {
	offered  int64
	sent     int64 // the others were held back on the caller's side
	answered int64 // before the caller gave up
	refused  int64
	givenUp  int64
	latency  latencies // of those answered
}

func newOutcomes() *outcomes { return &outcomes{latency: newLatencies()} }

func (t *outcomes) add(o *outcomes) {
	t.offered += o.offered
	t.sent += o.sent
	t.answered += o.answered
	t.refused += o.refused
	t.givenUp += o.givenUp
	t.latency.Merge(o.latency.Histogram)
}

// open makes calls at a rate, whatever becomes of them: those that are due, a few at once.
func (f *flood) open(ctx context.Context, rate float64, length time.Duration) (*outcomes, error) {
	start := time.Now()
	n := len(f.conns)
	every := time.Duration(float64(time.Second) / rate * float64(n))
	return f.each(ctx, func(i int) pace {
		return pace{next: start.Add(every * time.Duration(i) / time.Duration(n)), end: start.Add(length), every: every}
	})
}

// closed keeps calls of all callers under way, for a time.
func (f *flood) closed(ctx context.Context, length time.Duration) (*outcomes, error) {
	end := time.Now().Add(length)
	return f.each(ctx, func(int) pace { return pace{end: end, callers: saturating / floodConns} })
}

// each makes the calls of each connection.
func (f *flood) each(ctx context.Context, of func(i int) pace) (*outcomes, error) {
	var wg sync.WaitGroup
	errs := make([]error, len(f.conns))
	for i, c := range f.conns {
		wg.Go(func() { errs[i] = c.drive(ctx, of(i)) })
	}
	wg.Wait()
	total := newOutcomes()
	for _, c := range f.conns {
		c.mu.Lock()
		total.add(c.tally)
		c.tally = newOutcomes()
		c.mu.Unlock()
	}
	return total, errors.Join(errs...)
}

// pace is when the calls of a connection are due.
type pace struct {
	next, end time.Time
	every     time.Duration
	callers   int // of a closed loop: a call is due while fewer are outstanding; 0: an open one
}

// tick is how often calls that are due are made.
const tick = 500 * time.Microsecond

// drive makes the calls of one connection, until all that were due have ended. It gives up those whose caller has left.
func (c *conn) drive(ctx context.Context, p pace) error {
	for n := 0; ; {
		now := time.Now()
		if p.callers > 0 {
			p.next = now
		}
		c.mu.Lock()
		c.giveUpLocked(now)
		for !p.next.After(now) && p.next.Before(p.end) && (p.callers == 0 || c.outstanding < p.callers) {
			c.tally.offered++
			n++
			began := now.Sub(p.next) <= impatience && c.beginLocked(messages[n*7919%len(messages)], p.next)
			if !began && p.callers > 0 {
				break
			}
			p.next = p.next.Add(p.every)
		}
		err := errors.Join(c.flushLocked(), c.err, ctx.Err())
		done := !p.next.Before(p.end) && c.outstanding == 0
		c.mu.Unlock()
		if done || err != nil {
			return err
		}
		if p.callers == 0 {
			time.Sleep(tick)
			continue
		}
		select {
		case <-c.more:
		case <-time.After(time.Millisecond):
		}
	}
}

// framed is a request as gRPC frames it.
func framed(value string) []byte {
	body := caller.Encoded(caller.Request("bench", "api_key", value))
	return append([]byte{0, byte(len(body) >> 24), byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

// messages are requests of a thousand keys.
var messages = func() (all [1000][]byte) {
	for i := range all {
		all[i] = framed(fmt.Sprintf("key-%06d", i))
	}
	return all
}()

// Page shows the report: what of the capacity is left, and what becomes of the rest.
func (r *OverloadReport) Page() *report.Page {
	where := "server and load share the machine's one processor: the more is offered, the less the server has"
	if r.Apart {
		where = fmt.Sprintf("the server has %d of the machine's processors, the load the other %d", r.Server, r.Load)
	}
	return &report.Page{
		Title: "Overload: answers in time beyond the capacity",
		Lead: []string{
			fmt.Sprintf("The capacity is %.0f answers a second, p99 %.1f ms; %s.", r.Capacity, 1000*r.P99.Seconds(), where),
			fmt.Sprintf("Callers give up after %v. A call counts for goodput if it was answered before that, from when it was meant to be made.", impatience),
		},
		Tables: []report.Table{report.Rows("By what is offered; calls a second", r.Steps,
			"held back: by the caller, who had as many outstanding as its circuit breaker or the server's bound on streams allows. shed: answered UNAVAILABLE.",
			"given up: by the caller, after it was sent. charged, not answered: tokens that were kept for answers which came too late or never. p50, p99: of those answered in time.")},
	}
}
