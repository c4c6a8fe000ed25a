package accuracy

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/report"
)

// Options are how Run measures.
type Options struct {
	report.Setup
	Redis    string        `placeholder:"HOST:PORT" help:"Address of a running Redis. It is not killed or flushed. Default: start one."`
	Target   string        `placeholder:"HOST:PORT" help:"Address of another RLS server to measure. Its rule for domain and entry must allow --limit a year or day."`
	Domain   string        `default:"bench" help:"Domain of the target's rule."`
	Entry    string        `default:"accuracy" help:"Descriptor key of the target's rule. Values are generated."`
	Nodes    int           `default:"3" help:"Nodes of the fleet."`
	MaxKeys  int           `default:"20000" help:"Keys that a node tracks."`
	Limit    int64         `default:"300" help:"Limit of each key."`
	Rate     float64       `default:"2000" help:"Requests a second."`
	Length   time.Duration `default:"3s" help:"Length of each scenario in each mode."`
	Scenario []string      `placeholder:"NAME" help:"Scenarios: closed, zipf, burst, flash, hot, uniform, ramp, many, kill, pause, join, roll, 'slow store', 'hung store', 'dead store', 'flushed store', partition, split."`
	All      bool          `help:"Run all scenarios instead of about half."`
	Seed     uint64        `default:"1" help:"Seed of the demand."`
}

// Examples implements [report.Measurement].
func (*Options) Examples() string {
	return `  sluicelab bench accuracy                                     about half of the scenarios, under three minutes
  sluicelab bench accuracy --all --html accuracy.html
  sluicelab bench accuracy --scenario burst --scenario 'dead store'
  sluicelab bench accuracy --target ratelimit:8081 --limit 300     another server of the same protocol`
}

// Measure implements [report.Measurement].
func (o *Options) Measure(ctx context.Context) (report.Result, error) { return Run(ctx, *o) }

// keys are as many as the demand asks twice their limit of.
func (o *Options) keys() int {
	return max(1, int(o.Rate*o.Length.Seconds()/(2*float64(o.Limit))))
}

// validate reports every problem.
func (o *Options) validate() error {
	b := report.Bounds(load.Load{Rate: o.Rate, Keys: 1, Length: o.Length}.Validate())
	report.Within(&b, "--nodes", o.Nodes, 2, 20)
	report.Within(&b, "--max-keys", o.MaxKeys, 100, 1_000_000)
	report.Within(&b, "--limit", o.Limit, 1, 1_000_000)
	report.Within(&b, "--rate", o.Rate, 0, 100_000)
	report.Within(&b, "--length", o.Length, 500*time.Millisecond, 10*time.Minute)
	if _, err := choose(o.Scenario, o.All); err != nil {
		b = append(b, err)
	}
	return b.Err()
}

// Measured is one mode under one scenario.
type Measured struct {
	Mode      string        `json:"mode" col:"mode"`
	Scenario  string        `json:"scenario" col:"scenario"`
	Fault     bool          `json:"fault"`
	Offered   int64         `json:"offered" col:"offered"`
	Admitted  int64         `json:"admitted" col:"admitted"`
	Over      int64         `json:"over" col:"over"`         // of the key that went furthest
	Declared  int64         `json:"declared" col:"declared"` // that it may be, at most; -1: not known
	Under     int64         `json:"under" col:"under"`       // less than the limits had allowed, of all keys
	Early     int64         `json:"refused_early" col:"refused early"`
	Failed    int64         `json:"failed" col:"failed"` // calls without an answer
	StoreOps  int64         `json:"store_operations" col:"store ops"`
	P50       time.Duration `json:"latency_p50" col:"p50"`
	P99       time.Duration `json:"latency_p99" col:"p99"`
	P999      time.Duration `json:"latency_p999" col:"p99.9"`
	CPU       time.Duration `json:"cpu" col:"CPU"` // of all nodes
	Limit     int64         `json:"limit"`
	Tenths    []int64       `json:"admitted_by_tenths_of_a_second"`
	Asked     []int64       `json:"offered_by_tenths_of_a_second"`
	Problem   string        `json:"problem,omitempty"` // what must not be
	LastError string        `json:"last_error,omitempty"`
}

// Report is all that was measured.
type Report struct {
	Measured []Measured `json:"measured"`
	Nodes    int        `json:"nodes"`
	Limit    int64      `json:"limit"`
	Rate     float64    `json:"rate"`
	Target   string     `json:"target,omitempty"`
}

// Count is how many measurements Run makes.
func (o *Options) Count() int {
	chosen, _ := choose(o.Scenario, o.All)
	n := 0
	for _, s := range chosen {
		if o.runs(&s) {
			n++
		}
	}
	if o.Target != "" {
		return n
	}
	return n * len(modes)
}

// runs tells whether a scenario can be played: of another server nothing but its
// answers is known, and a Redis that is not ours is not killed.
func (o *Options) runs(s *scenario) bool {
	return (o.Target == "" || !s.fault) && (o.Redis == "" || !s.store)
}

// Run measures each mode under each scenario, one after the other.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	chosen, err := choose(o.Scenario, o.All)
	if err != nil {
		return nil, err
	}
	r := &Report{Nodes: o.Nodes, Limit: o.Limit, Rate: o.Rate, Target: o.Target}
	b := &bench{Options: &o, report: r}
	if o.Target != "" {
		err = b.target(ctx, chosen)
	} else {
		err = b.fleet(ctx, chosen)
	}
	return r, err
}

type bench struct {
	*Options
	report *Report
	done   int // measurements
}

func (b *bench) tell(what string) {
	b.Tell(b.Count(), what)
	b.done++
}

// target measures a server that is there.
func (b *bench) target(ctx context.Context, chosen []scenario) error {
	c := &client{domain: b.Domain}
	defer c.Close()
	if err := c.Add(b.Target); err != nil {
		return err
	}
	for i := range chosen {
		s := &chosen[i]
		if !b.runs(s) {
			continue
		}
		b.tell(s.name)
		d := b.demand(s, b.Entry)
		t := newTally(max(1, d.load.Keys), b.Limit)
		c.run(ctx, d, t, b.Seed)
		m := b.measured(b.Target, s, t)
		m.Declared = -1
		if m.Failed == m.Offered {
			return fmt.Errorf("%s answered none of %d calls, such as: %s", b.Target, m.Offered, m.LastError)
		}
		b.report.Measured = append(b.report.Measured, m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// fleet measures nodes of our own.
func (b *bench) fleet(ctx context.Context, chosen []scenario) error {
	dir, err := os.MkdirTemp("", "sluice-bench")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir)
	c, err := openCluster(b.Options, dir)
	if err != nil {
		return err
	}
	defer c.close()
	for i := range chosen {
		for j := range modes {
			s, m := &chosen[i], &modes[j]
			if !b.runs(s) {
				continue
			}
			b.tell(m.name + ", " + s.name)
			measured, err := b.measure(ctx, c, s, m)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", m.name, s.name, err)
			}
			b.report.Measured = append(b.report.Measured, measured)
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	return nil
}

func (b *bench) demand(s *scenario, entry string) *demand {
	return &demand{entry: entry, prefix: fmt.Sprintf("%d-%d-%s", os.Getpid(), b.done, s.name), load: s.load(b.Options), closed: s.closed}
}

// measure plays one scenario under one mode.
func (b *bench) measure(ctx context.Context, c *cluster, s *scenario, m *mode) (Measured, error) {
	d := b.demand(s, m.entry)
	hits, within, err := c.counts(m.entry)
	if err != nil {
		return Measured{}, err
	}
	cpu, used := c.cpu(), c.store.Used()
	t := newTally(max(1, d.load.Keys), b.Limit)
	struck := make(chan error, 1)
	go func() { struck <- s.play(ctx, c, b.Options) }()
	c.client.run(ctx, d, t, b.Seed)
	if err := <-struck; err != nil {
		return Measured{}, err
	}
	got := b.measured(m.name, s, t)
	got.CPU, got.StoreOps = c.cpu()-cpu, c.store.Used().Since(used).Scripts
	declared := m.declares(b.Limit, b.Nodes)
	got.Declared = int64(declared.Over.Tokens)
	if s.amnesia {
		got.Declared += int64(declared.OnLoss)
	}
	b.check(&got, s)
	if !s.fault {
		hitsNow, withinNow, err := c.counts(m.entry)
		if err != nil {
			return got, err
		}
		if got.Failed == 0 && (hitsNow-hits != got.Offered || withinNow-within != got.Admitted) {
			got.Problem = fmt.Sprintf("the nodes count %d hits and %d within the limit, the client %d and %d", hitsNow-hits, withinNow-within, got.Offered, got.Admitted)
		}
		return got, nil
	}
	return got, c.repair(b.Nodes)
}

// check compares measurements with declarations.
func (b *bench) check(m *Measured, s *scenario) {
	switch {
	case m.Over > m.Declared:
		m.Problem = fmt.Sprintf("%d over the limit of %d, and %d are declared", m.Over, b.Limit, m.Declared)
	case m.Failed > 0 && !s.fault:
		m.Problem = fmt.Sprintf("%d calls had no answer, such as: %s", m.Failed, m.LastError)
	}
}

// play has things go wrong: a third into the time, and right again after two.
func (s *scenario) play(ctx context.Context, c *cluster, o *Options) error {
	for _, step := range []func(*cluster, *Options) error{s.strike, s.mend} {
		if step == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.Length / 3):
		}
		if err := step(c, o); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) measured(mode string, s *scenario, t *tally) Measured {
	offered, admitted, over, under := t.sum()
	t.mu.Lock()
	defer t.mu.Unlock()
	quantile := func(q float64) time.Duration { return time.Duration(t.latency.ValueAtQuantile(q)) * time.Microsecond }
	m := Measured{
		Mode: mode, Scenario: s.name, Fault: s.fault, Offered: offered, Admitted: admitted, Over: over, Under: under, Early: t.early, Failed: t.failed,
		P50: quantile(50), P99: quantile(99), P999: quantile(99.9), Limit: b.Limit, Tenths: t.admitted, Asked: t.offered,
	}
	if t.lastErr != nil {
		m.LastError = t.lastErr.Error()
	}
	return m
}

// Problems are what must not be.
func (r *Report) Problems() error { return report.Problems(r.Measured) }
