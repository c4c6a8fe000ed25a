package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Options are how Run measures.
type Options struct {
	report.Setup
	Nodes   []int         `default:"3,10" help:"Sizes of the fleets of processes."`
	Virtual []int         `default:"3,30,100" help:"Sizes of the fleets in virtual time, up to 1000 (0: none)."`
	Rate    float64       `default:"3000" help:"Requests a second."`
	Length  time.Duration `default:"15s" help:"Length of each mode in each row. From 30s on, rows with windows of minutes start so that a window turns halfway."`
	Rows    []int         `placeholder:"N" help:"Rows to measure, from 1 to 8."`
	Modes   []string      `placeholder:"MODE" help:"Modes to measure with the baseline: strict, leasing, routing, approx, and with large limits leasing-reserve and routing-reserve."`
	Rounds  int           `default:"1" help:"Measurements of each mode of a row, in turn."`
	Warm    bool          `help:"Call each node once for each key before the measurement."`
	Seed    uint64        `default:"1" help:"Seed of the demand."`
}

// Examples implements [report.Measurement].
func (*Options) Examples() string {
	return "  sluicelab bench store --nodes 3 --virtual 0\n  sluicelab bench store --nodes 3 --virtual 0 --rows 2,3 --length 60s --warm"
}

// Measure implements [report.Measurement].
func (o *Options) Measure(ctx context.Context) (report.Result, error) { return Run(ctx, *o) }

// validate reports every problem.
func (o *Options) validate() error {
	b := report.Bounds(load.Load{Rate: o.Rate, Keys: 1, Length: o.Length}.Validate())
	for _, n := range o.Nodes {
		report.Within(&b, "--nodes", n, 1, 20)
	}
	for _, n := range o.Virtual {
		report.Within(&b, "--virtual", n, 0, 1000)
	}
	report.Within(&b, "--rate", o.Rate, 0, 100_000)
	report.Within(&b, "--length", o.Length, time.Second, 10*time.Minute)
	report.Within(&b, "--rounds", o.Rounds, 0, 10)
	for _, n := range o.Rows {
		report.Within(&b, "--rows", n, 1, len(rows))
	}
	for _, name := range o.Modes {
		if !slices.ContainsFunc(modes[1:], func(m mode) bool { return m.name == name }) {
			b.Refuse("--modes", name, strings.Join(modeNames(), ", "))
		}
	}
	return b.Err()
}

func (o *Options) rows() (chosen []Row) {
	for i, r := range rows {
		if len(o.Rows) == 0 || slices.Contains(o.Rows, i+1) {
			chosen = append(chosen, r)
		}
	}
	return chosen
}

// modes are those in which a row is measured: not with a reserve that is no token for each node.
func (o *Options) modes(r *Row) (chosen []mode) {
	for i, m := range modes {
		if _, reserves := m.fields["lease.reserve"]; reserves && r.rule(&m).Reserve() == 0 {
			continue
		}
		if i == 0 || len(o.Modes) == 0 || slices.Contains(o.Modes, m.name) {
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

// Count is how many measurements Run makes with processes.
func (o *Options) Count() (n int) {
	for _, r := range o.rows() {
		n += len(o.fleets(&r)) * len(o.modes(&r)) * o.rounds()
	}
	return n
}

// Measured is one mode under one row.
type Measured struct {
	Row      string        `json:"row" col:"row"`
	Mode     string        `json:"mode" col:"mode"`
	Nodes    int           `json:"nodes" col:"nodes"`
	CPU      float64       `json:"redis_us" col:"us"`                  // processor time of Redis for a decision, in microseconds
	Ratio    float64       `json:"ratio" col:"of baseline|%.3f"`       // of CPU to the baseline's
	Least    float64       `json:"ratio_least" col:"least|%.3f"`       // that Ratio was in a round
	Greatest float64       `json:"ratio_greatest" col:"greatest|%.3f"` //
	Most     float64       `json:"most,omitempty" col:"at most|%.3g"`  // that Ratio should be; 0: nothing is said
	Warm     float64       `json:"redis_us_warm" col:"warm, us"`       // as CPU, in the last third of the time
	WarmRate float64       `json:"ratio_warm" col:"of baseline|%.3f"`  // of Warm to the baseline's
	Claims   float64       `json:"claims" col:"scripts/1,000|%.1f"`    // that Redis ran, for 1,000 decisions
	Draws    float64       `json:"draws" col:"draws/1,000|%.1f"`       // claims that were plain commands, for 1,000 decisions
	Bytes    float64       `json:"bytes" col:"bytes|%.0f"`             // to and from Redis, for a decision
	NodeCPU  float64       `json:"node_us" col:"nodes' CPU, us|%.0f"`  // processor time of all nodes for a decision, in microseconds
	P50      time.Duration `json:"latency_p50" col:"p50"`              // of a call
	P99      time.Duration `json:"latency_p99" col:"p99"`              //
	Asked    int64         `json:"decisions" col:"decisions"`          //
	Early    int64         `json:"refused_early" col:"refused early"`  // while fewer than the limit had been admitted
	Half     int64         `json:"refused_half" col:"below half"`      // while fewer than half of the limit had
	Over     int64         `json:"over" col:"over"`                    // of the key and window that went furthest
	Declared int64         `json:"declared" col:"declared"`            // that it may be
	Under    int64         `json:"under" col:"under"`                  // less than an exact limiter had admitted, of all keys
	Allowed  int64         `json:"allowed" col:"of allowed"`           // what an exact limiter had admitted
	Idle     float64       `json:"redis_idle"`                         // of a processor, without connections; not in CPU
	Failed   int64         `json:"failed"`                             // calls without an answer
	Problem  string        `json:"problem,omitempty"`
	// Commands are those that Redis ran, Reasons those of the nodes' claims, and Fallbacks those of decisions
	// without the ledger.
	Commands  map[string]process.RedisCommand `json:"commands"`
	Reasons   map[string]int64                `json:"claim_reasons,omitempty"`
	Fallbacks map[string]int64                `json:"fallbacks,omitempty"`
}

// Report is all that was measured.
type Report struct {
	Measured []Measured    `json:"measured"`
	Costs    []ClaimCost   `json:"claim_costs,omitempty"`
	Virtual  []Virtual     `json:"virtual,omitempty"`
	Rate     float64       `json:"rate"`
	Length   time.Duration `json:"length"`
	Warm     bool          `json:"warm"`
	Rounds   int           `json:"rounds"`
}

// Run measures each row with each mode, one after the other, and then what larger
// fleets do in virtual time.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	r := &Report{Rate: o.Rate, Length: o.Length, Warm: o.Warm, Rounds: o.rounds()}
	o.Virtual = slices.DeleteFunc(slices.Clone(o.Virtual), func(n int) bool { return n == 0 })
	tell := func(what string) { o.Tell(o.Count(), what) }
	for _, row := range o.rows() {
		for _, nodes := range o.fleets(&row) {
			all, err := o.measureRow(ctx, &row, nodes, tell)
			if err != nil {
				return nil, err
			}
			r.Measured = append(r.Measured, all...)
		}
	}
	if len(o.Virtual) > 0 {
		tell("what claims cost Redis")
		var err error
		if r.Costs, err = claimCosts(ctx); err != nil {
			return nil, err
		}
		if r.Virtual, err = o.virtual(ctx, r, tell); err != nil {
			return nil, err
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
	f, err := openFleet(o, row, m, nodes)
	if err != nil {
		return Measured{}, err
	}
	defer f.Close()

	t := newTally(row.Limit, row.window())
	earlier := int64(0) // decisions that are not measured
	if o.Warm {
		if err := f.warm(ctx, t, row.Keys); err != nil {
			return Measured{}, err
		}
		earlier = t.begin()
	}
	if err := caller.Sleep(ctx, untilTurnIsHalfway(time.Now(), row.window(), o.Length)); err != nil {
		return Measured{}, err
	}
	l := row.load(o.Rate, o.Length)
	ask := func(r load.Request, intended time.Time) { f.ask(ctx, t, r.Key, intended) }
	var warmUse process.RedisUse
	var warmAsked int64
	before, cpu, start := f.Redis.Used(), f.cpu(), time.Now()
	timer := time.AfterFunc(o.Length*2/3, func() { warmUse, warmAsked = f.Redis.Used(), t.decisions() })
	defer timer.Stop()
	if row.Callers > 0 {
		caller.Closed(ctx, row.Callers, l, o.Seed, start, ask)
	} else {
		caller.Open(ctx, l, o.Seed, start, ask)
	}
	if err := ctx.Err(); err != nil {
		return Measured{}, err
	}
	after, took := f.Redis.Used(), time.Since(start)
	used, asked := after.Since(before), max(1, t.decisions()-earlier)
	got := Measured{
		Row: row.Name, Mode: m.name, Nodes: nodes, Asked: asked, Failed: t.failed, Idle: idle,
		CPU:     micros(beyond(used.CPU, took, idle), asked),
		Warm:    micros(beyond(after.Since(warmUse).CPU, took-o.Length*2/3, idle), asked+earlier-warmAsked),
		Claims:  1000 * float64(used.Scripts) / float64(asked),
		Draws:   1000 * float64(used.Commands["hincrby"].Calls) / 2 / float64(asked),
		Bytes:   float64(used.In+used.Out) / float64(asked),
		NodeCPU: micros(f.cpu()-cpu, asked),
		P50:     t.quantile(50), P99: t.quantile(99), Early: t.early, Half: t.half,
		Commands: used.Commands, Reasons: f.byReason(claims), Fallbacks: f.byReason(fallbacks),
	}
	got.Over, got.Under, got.Allowed = t.sums()
	if m.fields != nil {
		got.Declared = int64(row.rule(m).Declare(nodes, ratelimit.SharedStore).Over.Tokens)
		if got.Over > got.Declared {
			got.Problem = fmt.Sprintf("%d over the limit of %d, and %d are declared", got.Over, row.Limit, got.Declared)
		}
		name := strings.TrimSuffix(m.name, reserve)
		if i := slices.Index([]string{"leasing", "routing", "approx"}, name); i >= 0 && row.Most != nil {
			got.Most = row.Most[i]
		}
	}
	if t.failed > 0 && got.Problem == "" {
		got.Problem = fmt.Sprintf("%d of %d calls had no answer, such as: %v", t.failed, asked, t.lastErr)
	}
	return got, nil
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
	r, err := process.OpenRedis("")
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

// warmers is how many calls are under way at a time while a fleet gets warm.
const warmers = 16

// warm asks each node for each key once, so that it has a lease of it.
func (f *Fleet) warm(ctx context.Context, t *tally, keys int) error {
	var wg sync.WaitGroup
	next := make(chan int)
	for range warmers {
		wg.Go(func() {
			for key := range next {
				for _, node := range f.Pool.All() {
					f.askAt(ctx, node, t, key, time.Now())
				}
			}
		})
	}
	for key := range keys {
		next <- key
	}
	close(next)
	wg.Wait()
	// Background claims are over by then.
	return caller.Sleep(ctx, time.Second)
}

// ask makes one call to the node whose turn it is, and counts the answer.
func (f *Fleet) ask(ctx context.Context, t *tally, key int, intended time.Time) {
	f.askAt(ctx, f.Pool.Next(), t, key, intended)
}

func (f *Fleet) askAt(ctx context.Context, node *grpc.ClientConn, t *tally, key int, intended time.Time) {
	ctx, cancel := context.WithTimeout(ctx, caller.Timeout)
	defer cancel()
	sent := time.Now()
	answer, err := rls.NewRateLimitServiceClient(node).ShouldRateLimit(ctx, &rls.RateLimitRequest{
		Domain: domain, Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: entry, Value: fmt.Sprintf("client-%d", key)}}}},
	})
	t.answered(key, intended, sent, time.Now(), answer.GetOverallCode() == rls.RateLimitResponse_OK, err)
}

// Problems are what must not be.
func (r *Report) Problems() error { return report.Problems(r.Measured) }
