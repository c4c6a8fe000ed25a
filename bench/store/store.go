package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Options are what is measured.
type Options struct {
	report.Setup
	Nodes  []int         `in:"1..20" default:"3" help:"Sizes of the fleets."`
	Rate   float64       `in:"0..100000" default:"3000" help:"Requests a second."`
	Length time.Duration `in:"500ms..10m" default:"15s" help:"Length of each mode in each row. From 30s on, rows with windows of minutes start so that a window turns halfway."`
	Rows   []string      `placeholder:"N" help:"Rows to measure, from 1 to 8, and only if named, 9 to 11: windows of a second."`
	Modes  []string      `placeholder:"MODE" help:"Modes to measure with the baseline: strict, leasing, routing, approx."`
	Seed   uint64        `default:"1" help:"Seed of the demand."`
	of     suite         // the zero suite is costs
	peers  string        // directory of the programs of other rate limiters
}

// suite is the rows of one command.
type suite struct {
	title, lead, flag string
	rows              []Row
	modes             []mode // the first may be the baseline
}

var costs = suite{
	title: "The store: what Redis does for one decision", flag: "--rows", rows: rows, modes: modes,
	lead: "The baseline asks Redis for each request as envoyproxy/ratelimit does (INCRBY and EXPIRE in one pipeline); strict is a lease of one token.",
}

// Examples implements [report.Measurement].
func (*Options) Examples() string {
	return "  sluicelab bench store\n  sluicelab bench store --rows 2,3 --length 60s"
}

// validate reports every problem.
func (o *Options) validate() error {
	b := report.Bounds(load.Load{Rate: o.Rate, Keys: 1, Length: o.Length}.Validate())
	b.Check(o)
	o.rows(&b)
	report.Choose(&b, "--modes", o.Modes, o.of.modes, func(m *mode) string { return m.name })
	return b.Err()
}

func (o *Options) rows(b *report.Bounds) []Row {
	chosen := report.Choose(b, o.of.flag, o.Rows, o.of.rows, func(r *Row) string { return r.ID })
	if len(o.Rows) > 0 {
		return chosen
	}
	return slices.DeleteFunc(chosen, func(r Row) bool { return r.extra })
}

// modes are those in which rows are measured.
func (o *Options) modes() (chosen []mode) {
	for _, m := range o.of.modes {
		if m.fields == nil || len(o.Modes) == 0 || slices.Contains(o.Modes, m.name) {
			chosen = append(chosen, m)
		}
	}
	return chosen
}

// fleets are the sizes of fleets that a row is measured with.
func (o *Options) fleets(r *Row) []int {
	if r.Nodes > 0 {
		return []int{r.Nodes}
	}
	return o.Nodes
}

// count is how many measurements there are.
func (o *Options) count() (n int) {
	for _, r := range o.rows(&report.Bounds{}) {
		n += len(o.fleets(&r)) * len(o.modes())
	}
	return n
}

// Measured is one mode under one row.
type Measured struct {
	Row      string        `json:"row" col:"row"`
	Mode     string        `json:"mode" col:"mode"`
	Nodes    int           `json:"nodes" col:"nodes"`
	CPU      float64       `json:"redis_us" col:"us"`                           // processor time of Redis for a decision, in microseconds
	Ratio    float64       `json:"ratio,omitempty" col:"of baseline|%.3f"`      // of CPU to the baseline's
	Most     float64       `json:"most,omitempty" col:"at most|%.3g"`           // that Ratio should be; 0: nothing is said
	Warm     float64       `json:"redis_us_warm,omitempty" col:"warm, us"`      // as CPU, in the last third of the time
	WarmRate float64       `json:"ratio_warm,omitempty" col:"of baseline|%.3f"` // of Warm to the baseline's
	Claims   float64       `json:"claims" col:"scripts/1,000|%.1f"`             // that Redis ran, for 1,000 decisions
	Draws    float64       `json:"draws,omitempty" col:"draws/1,000|%.1f"`      // claims that were plain commands, for 1,000 decisions
	Bytes    float64       `json:"bytes" col:"bytes|%.0f"`                      // to and from Redis, for a decision
	NodeCPU  float64       `json:"node_us" col:"nodes' CPU, us|%.0f"`           // processor time of all nodes for a decision, in microseconds
	P50      time.Duration `json:"latency_p50" col:"p50"`                       // of a call
	P99      time.Duration `json:"latency_p99" col:"p99"`                       //
	P999     time.Duration `json:"latency_p999" col:"p99.9"`                    //
	Asked    int64         `json:"decisions" col:"decisions"`                   //
	Admitted int64         `json:"admitted" col:"admitted"`                     // with what was before the measurement
	Early    int64         `json:"refused_early" col:"refused early"`           // while fewer than the limit had been admitted
	Over     int64         `json:"over" col:"over"`                             // of the key and window that went furthest
	Declared int64         `json:"declared" col:"declared"`                     // that it may be
	Under    int64         `json:"under" col:"under"`                           // less than an exact limiter had admitted, of all keys
	Allowed  int64         `json:"allowed" col:"of allowed"`                    // what an exact limiter had admitted
	Idle     float64       `json:"redis_idle"`                                  // of a processor, without connections; not in CPU
	Failed   int64         `json:"failed,omitempty" col:"failed"`               // calls without an answer
	Problem  string        `json:"problem,omitempty"`
	// Commands are those that Redis ran, Reasons those of the nodes' claims, and Fallbacks those of decisions without Redis.
	Commands  map[string]process.RedisCommand `json:"commands"`
	Reasons   map[string]int64                `json:"claim_reasons,omitempty"`
	Fallbacks map[string]int64                `json:"fallback_reasons,omitempty"`
}

// Report is all that was measured.
type Report struct {
	Measured []Measured    `json:"measured"`
	Rate     float64       `json:"rate"`
	Length   time.Duration `json:"length"`
	of       suite
}

// Measure implements [report.Measurement]: each row with each mode, one after the other.
func (o *Options) Measure(ctx context.Context) (report.Result, error) {
	if o.of.rows == nil {
		o.of = costs
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	r := &Report{Rate: o.Rate, Length: o.Length, of: o.of}
	for _, row := range o.rows(&report.Bounds{}) {
		for _, nodes := range o.fleets(&row) {
			first := len(r.Measured)
			for _, m := range o.modes() {
				what := fmt.Sprintf("%s, %s, %d nodes", m.name, row.Name, nodes)
				o.Tell(o.count(), what)
				got, err := o.measure(ctx, &row, &m, nodes)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", what, err)
				}
				r.Measured = append(r.Measured, got)
				if base := r.Measured[first]; base.Mode == modes[0].name {
					is := &r.Measured[len(r.Measured)-1]
					is.Ratio, is.WarmRate = is.CPU/base.CPU, is.Warm/base.Warm
				}
			}
		}
	}
	return r, nil
}

// idleTime is how long Redis is watched without requests.
const idleTime = time.Second

// measure plays one row with one mode.
func (o *Options) measure(ctx context.Context, row *Row, m *mode, nodes int) (Measured, error) {
	idle, err := idleRedis(ctx)
	if err != nil {
		return Measured{}, err
	}
	f, err := o.open(row, m, nodes)
	if err != nil {
		return Measured{}, err
	}
	defer f.Stop()
	t := newTally(row.Limit, row.limit().Period())
	if err := caller.Sleep(ctx, untilTurnIsHalfway(time.Now(), row.limit().Period(), o.Length)); err != nil {
		return Measured{}, err
	}
	var warmUse process.RedisUse
	var warmAsked int64
	before, start := f.Redis.Used(), time.Now()
	if row.strike == nil { // else Redis may be away then
		timer := time.AfterFunc(o.Length*2/3, func() { warmUse, warmAsked = f.Redis.Used(), t.decisions() })
		defer timer.Stop()
	}
	cpu, err := process.Spent(f, func() error { return o.load(ctx, row, m, f, t, start) })
	if err != nil {
		return Measured{}, err
	}
	after, took := f.Redis.Used(), time.Since(start)
	used, asked := after.Since(before), max(1, t.decisions())
	got := Measured{
		Row: row.Name, Mode: m.name, Nodes: nodes, Asked: asked, Failed: t.failed, Idle: idle,
		CPU:     micros(beyond(used.CPU, took, idle), asked),
		Claims:  1000 * float64(used.Scripts) / float64(asked),
		Draws:   1000 * float64(used.Commands["hincrby"].Calls) / 2 / float64(asked),
		Bytes:   float64(used.In+used.Out) / float64(asked),
		NodeCPU: micros(cpu, asked),
		P50:     t.quantile(50), P99: t.quantile(99), P999: t.quantile(99.9), Early: t.early,
		Commands: used.Commands, Reasons: sum(f, claims), Fallbacks: sum(f, fallbacks),
	}
	if row.strike == nil {
		got.Warm = micros(beyond(after.Since(warmUse).CPU, took-o.Length*2/3, idle), asked-warmAsked)
	}
	got.Admitted, got.Over, got.Under, got.Allowed = t.sums()
	if m.fields != nil {
		got.declared(row, m)
	}
	got.check(row, m, t, sum(f, counted))
	return got, nil
}

// open starts a fleet that answers in a mode.
func (o *Options) open(row *Row, m *mode, nodes int) (*process.Fleet, error) {
	if m.other != nil {
		return o.openOther(m.other, row, nodes)
	}
	if m.fields == nil {
		return OpenBaseline(o.Lab, row.Limit, row.limit().Period(), nodes)
	}
	return Open(o.Binary, row.file(m), nodes, row.others, row.flags...)
}

// load makes the row's requests, while things go wrong.
func (o *Options) load(ctx context.Context, row *Row, m *mode, f *process.Fleet, t *tally, start time.Time) error {
	struck := make(chan error, 1)
	go func() { struck <- row.fails(ctx, f, o.Length) }()
	ask := func(r load.Request, intended time.Time) { askAt(ctx, f.Pool.Next(), row, m, t, r.Key, intended) }
	if l := row.load(o.Rate, o.Length); row.Callers > 0 {
		caller.Closed(ctx, row.Callers, l, o.Seed, start, ask)
	} else {
		caller.Open(ctx, l, o.Seed, start, ask)
	}
	return errors.Join(<-struck, ctx.Err())
}

// declared says what the mode declares, and what Redis' work should be at most.
func (m *Measured) declared(row *Row, of *mode) {
	declared := row.rule(of).Declare(m.Nodes, ratelimit.SharedStore)
	m.Declared = int64(declared.Over.Tokens)
	if row.amnesia {
		m.Declared += int64(declared.OnLoss)
	}
	if i := slices.Index([]string{"leasing", "routing", "approx"}, of.name); i >= 0 && row.Most != nil {
		m.Most = row.Most[i]
	}
}

// check compares measurements with what is declared, and with what the nodes have counted.
func (m *Measured) check(row *Row, of *mode, t *tally, counted map[string]int64) {
	hits, within := counted["total_hits"], counted["within_limit"]
	switch {
	case of.fields != nil && m.Over > m.Declared:
		// A busy machine can make replies late, and then the rule's on_store_failure has decided.
		m.Problem = fmt.Sprintf("%d over the limit of %d, and %d are declared while the store answers in time; decisions without it: %v",
			m.Over, row.Limit, m.Declared, m.Fallbacks)
	case row.strike != nil: // calls fail, and nodes that have ended take their counts along
	case m.Failed > 0:
		m.Problem = fmt.Sprintf("%d of %d calls had no answer, such as: %v", m.Failed, m.Asked, t.lastErr)
	case of.fields != nil && (hits != t.asked || within != m.Admitted):
		m.Problem = fmt.Sprintf("the nodes count %d hits and %d within the limit, the caller %d and %d", hits, within, t.asked, m.Admitted)
	}
}

// untilTurnIsHalfway is the wait that puts the turn of a window into the middle of a measurement of this
// length. At a turn each key is claimed anew by each node: a mode with the turn near an end of its time would
// look better than it is. It is 0 for measurements of less than half a window, which the turn would distort,
// and for windows that are too long to wait for.
func untilTurnIsHalfway(now time.Time, window, length time.Duration) time.Duration {
	if length < window/2 || window > longestWait {
		return 0
	}
	// Windows are counted from the Unix epoch.
	since := time.Duration((now.UnixNano() + int64(length/2)) % int64(window))
	return (window - since) % window
}

// longestWait is that for the turn of a window.
const longestWait = time.Minute

// beyond is what Redis used in a time beyond what an idle one does. That was measured before, and may have been more on a
// machine that had more to do then.
func beyond(used, took time.Duration, idle float64) time.Duration {
	return max(0, used-time.Duration(float64(took)*idle))
}

func micros(d time.Duration, n int64) float64 {
	return float64(d.Nanoseconds()) / 1e3 / float64(max(1, n))
}

// idleRedis is the processor use of a Redis without connections.
func idleRedis(ctx context.Context) (float64, error) {
	r, err := process.OpenRedis()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	before := r.Used().CPU
	if err := caller.Sleep(ctx, idleTime); err != nil {
		return 0, err
	}
	return float64(r.Used().CPU-before) / float64(idleTime), nil
}

// askAt makes one call to a node, and counts the answer.
func askAt(ctx context.Context, node *grpc.ClientConn, row *Row, m *mode, t *tally, key int, intended time.Time) {
	ctx, cancel := context.WithTimeout(ctx, caller.Timeout)
	defer cancel()
	sent := time.Now()
	if node == nil {
		t.answered(key, intended, sent, sent, false, errNoNode)
		return
	}
	ask := askAsEnvoy
	if m.other != nil && m.other.ask != nil {
		ask = m.other.ask
	}
	ok, err := ask(ctx, node, row, fmt.Sprintf("client-%d", key))
	t.answered(key, intended, sent, time.Now(), ok, err)
}

// askAsEnvoy makes a call of Envoy's protocol.
func askAsEnvoy(ctx context.Context, node *grpc.ClientConn, _ *Row, key string) (ok bool, err error) {
	answer, err := rls.NewRateLimitServiceClient(node).ShouldRateLimit(ctx, caller.Request(domain, entry, key))
	return answer.GetOverallCode() == rls.RateLimitResponse_OK, err
}

var errNoNode = errors.New("no node runs")

// Page shows the report: a table of all, and a chart for each row.
func (r *Report) Page() *report.Page {
	p := &report.Page{
		Title: r.of.title,
		Lead: []string{
			fmt.Sprintf("%.0f requests a second for %v from a cold start, for each mode of each row; Redis is a process of its own that was empty at first.", r.Rate, r.Length),
			r.of.lead,
		},
		Tables: []report.Table{report.Rows("", r.Measured, notes...)},
	}
	for i := range r.Measured {
		m := &r.Measured[i]
		title := fmt.Sprintf("Redis CPU a decision, us: %s, %d nodes", m.Row, m.Nodes)
		if last := len(p.Charts) - 1; last < 0 || p.Charts[last].Title != title {
			p.Charts = append(p.Charts, report.Chart{Title: title})
		}
		c := &p.Charts[len(p.Charts)-1]
		c.Bars = append(c.Bars, report.Bar{Name: m.Mode, Value: m.CPU})
	}
	return p
}

var notes = []string{
	"us: processor time of Redis for one decision; the time of an idle Redis is subtracted. of baseline: to the baseline's in the same row; at most: what it should be, 0 where nothing is said. Columns without a figure are left out.",
	"warm: in the last third of the time. scripts, draws: claims of one key each, by the script or by plain commands, tried ones too; none in the baseline. bytes: to and from Redis.",
	"p50, p99, p99.9: of a call, from when it was meant to be made. refused early: while fewer than the limit had been admitted in the window.",
	"over: of the key and window that went furthest. under: less than an exact limiter had admitted of the same requests, over all keys and windows. Requests at the turn of a window count in neither.",
}

// Problems are what must not be.
func (r *Report) Problems() error { return report.Problems(r.Measured) }
