package accuracy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
)

// Options are how Run measures.
type Options struct {
	Binary    string // sluice itself
	Redis     string // HOST:PORT of one that runs; "": start one
	Target    string // HOST:PORT of another server, which is measured instead
	Domain    string // of Target's rule
	Entry     string // the key of its descriptor
	Nodes     int
	MaxKeys   int   // that a node tracks
	Limit     int64 // of each key
	Rate      float64
	Length    time.Duration // of each scenario
	Scenarios []string      // none: the usual ones
	All       bool
	Seed      uint64
	Progress  func(done int64, what string)
}

// keys are as many as the demand asks twice their limit of.
func (o *Options) keys() int {
	return max(1, int(o.Rate*o.Length.Seconds()/(2*float64(o.Limit))))
}

// Validate reports every problem, each with its value and its bound.
func (o *Options) Validate() error {
	errs := load.Load{Rate: o.Rate, Keys: 1, Length: o.Length}.Validate()
	bad := func(what string, value any, bound string) {
		errs = append(errs, fmt.Errorf("%s is %v, must be %s", what, value, bound))
	}
	if o.Nodes < 2 || o.Nodes > 20 {
		bad("--nodes", o.Nodes, "2 to 20")
	}
	if o.MaxKeys < 100 || o.MaxKeys > 1_000_000 {
		bad("--max-keys", o.MaxKeys, "100 to 1000000")
	}
	if o.Limit < 1 || o.Limit > 1e6 {
		bad("--limit", o.Limit, "1 to 1000000")
	}
	if o.Rate > 100_000 {
		bad("--rate", o.Rate, "at most 100000")
	}
	if o.Length < 500*time.Millisecond || o.Length > 10*time.Minute {
		bad("--length", o.Length, "500ms to 10m")
	}
	if _, err := choose(o.Scenarios, o.All); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Measured is one mode under one scenario.
type Measured struct {
	Mode      string        `json:"mode"`
	Scenario  string        `json:"scenario"`
	Fault     bool          `json:"fault"`
	Offered   int64         `json:"offered"`
	Admitted  int64         `json:"admitted"`
	Over      int64         `json:"over"`     // of the key that went furthest
	Declared  int64         `json:"declared"` // that it may be, at most
	Under     int64         `json:"under"`    // less than the limits had allowed, of all keys
	Early     int64         `json:"refused_early"`
	Failed    int64         `json:"failed"` // calls without an answer
	StoreOps  int64         `json:"store_operations"`
	P50       time.Duration `json:"latency_p50"`
	P99       time.Duration `json:"latency_p99"`
	P999      time.Duration `json:"latency_p999"`
	CPU       time.Duration `json:"cpu"` // of all nodes
	Limit     int64         `json:"limit"`
	Tenths    []int64       `json:"admitted_by_tenths_of_a_second"`
	Asked     []int64       `json:"offered_by_tenths_of_a_second"`
	Problem   string        `json:"problem,omitempty"` // what must not be
	LastError string        `json:"last_error,omitempty"`
}

// Report is all that was measured.
type Report struct {
	Measured []Measured    `json:"measured"`
	Nodes    int           `json:"nodes"`
	Limit    int64         `json:"limit"`
	Rate     float64       `json:"rate"`
	Target   string        `json:"target,omitempty"`
	Took     time.Duration `json:"took"`
}

// Count is how many measurements Run makes.
func (o *Options) Count() int64 {
	chosen, _ := choose(o.Scenarios, o.All)
	n := 0
	for _, s := range chosen {
		if o.runs(&s) {
			n++
		}
	}
	if o.Target != "" {
		return int64(n)
	}
	return int64(n * len(modes))
}

// runs tells whether a scenario can be played: of another server nothing but its
// answers is known, and a Redis that is not ours is not killed.
func (o *Options) runs(s *scenario) bool {
	return (o.Target == "" || !s.fault) && (o.Redis == "" || !s.store)
}

// Run measures each mode under each scenario, one after the other.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	chosen, err := choose(o.Scenarios, o.All)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	report := &Report{Nodes: o.Nodes, Limit: o.Limit, Rate: o.Rate, Target: o.Target}
	b := &bench{Options: &o, report: report}
	if o.Target != "" {
		err = b.target(ctx, chosen)
	} else {
		err = b.fleet(ctx, chosen)
	}
	report.Took = time.Since(start)
	return report, err
}

type bench struct {
	*Options
	report *Report
	done   int64
}

func (b *bench) tell(what string) {
	if b.Progress != nil {
		b.Progress(b.done, what)
	}
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
func (r *Report) Problems() error {
	var errs []error
	for i := range r.Measured {
		if m := &r.Measured[i]; m.Problem != "" {
			errs = append(errs, fmt.Errorf("%s, %s: %s", m.Mode, m.Scenario, m.Problem))
		}
	}
	return errors.Join(errs...)
}
