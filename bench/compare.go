package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// comparison measures rows in several ways, one after the other. measure chooses rows and ways, and calls one for each
// of them and each round. one starts a fleet, plays the row's load against it (play), and computes the figures from
// what Redis, the nodes and the caller have counted meanwhile.
type comparison struct {
	*FleetsOptions
	// All that can be named; without names, those without extra are measured.
	rows []row
	ways []way
	// The folder of other limiters' programs, and what is said of them.
	programs, built string
}

// Measured is one way to answer under one row: the median of each figure in all rounds. Its tags make the table and the
// JSON: see report.Rows. Figures of processor time are for one decision, so that ways with different numbers of
// decisions compare.
type Measured struct {
	Row         string        `json:"row" col:"row"`
	Mode        string        `json:"mode" col:"mode"`
	Nodes       int           `json:"nodes" col:"nodes"`
	CPU         float64       `json:"redis_us" col:"Redis, us"`                    // processor time of Redis for a decision
	MostCPU     float64       `json:"redis_us_most,omitempty" col:"most"`          // of the rounds
	Ratio       float64       `json:"ratio,omitempty" col:"of first|%.3f"`         // of CPU to that of the row's first mode
	Claims      float64       `json:"claims,omitempty" col:"scripts/1,000|%.1f"`   // that Redis ran, for 1,000 decisions
	Draws       float64       `json:"draws,omitempty" col:"draws/1,000|%.1f"`      // claims that were plain commands, for 1,000 decisions
	Each        float64       `json:"commands_each" col:"commands"`                // that Redis ran, for a decision
	Bytes       float64       `json:"bytes" col:"bytes|%.0f"`                      // to and from Redis, for a decision
	NodeCPU     float64       `json:"node_us" col:"nodes' CPU, us|%.1f"`           // processor time of all nodes for a decision
	MostNodeCPU float64       `json:"node_us_most,omitempty" col:"most|%.1f"`      // of the rounds
	NodeRatio   float64       `json:"node_ratio,omitempty" col:"of first|%.2f"`    // of NodeCPU to that of the row's first mode
	P50         time.Duration `json:"latency_p50" col:"p50"`                       // of a call
	P99         time.Duration `json:"latency_p99" col:"p99"`                       //
	MostP99     time.Duration `json:"latency_p99_most,omitempty" col:"most"`       // of the rounds
	P999        time.Duration `json:"latency_p999" col:"p99.9"`                    //
	Asked       int64         `json:"decisions" col:"decisions"`                   //
	Second      float64       `json:"decisions_per_second" col:"decisions/s|%.0f"` //
	Admitted    int64         `json:"admitted" col:"admitted"`                     // with what was before the measurement
	Early       int64         `json:"refused_early,omitempty" col:"refused early"` // while fewer than the limit had been admitted
	Over        int64         `json:"over" col:"over"`                             // of the key and window that went furthest
	Declared    int64         `json:"declared" col:"declared"`                     // that it may be
	Under       int64         `json:"under" col:"under"`                           // less than an exact limiter had admitted, of all keys
	Allowed     int64         `json:"allowed" col:"of allowed"`                    // what an exact limiter had admitted
	Failed      int64         `json:"failed,omitempty" col:"failed"`               // calls without an answer
	Problem     string        `json:"problem,omitempty"`
	// Commands are those that Redis ran, and Fallbacks the reasons of decisions without Redis.
	Commands  map[string]int64 `json:"commands"`
	Fallbacks map[string]int64 `json:"fallback_reasons,omitempty"`
}

// Compared is all that was measured. It keeps the comparison for the text of its page.
type Compared struct {
	Measured []Measured    `json:"measured"`
	Rate     float64       `json:"rate"`
	Length   time.Duration `json:"length"`
	of       *comparison
}

// measure checks options, and measures each chosen row in each chosen way. All problems with options are reported at
// once, before anything starts. Ratios are to the first way, and only where that is the reference: with a selection,
// the first may be another one.
func (c *comparison) measure(ctx context.Context) (report.Result, error) {
	var b report.Bounds
	b.Check(c.FleetsOptions)
	rows := report.Choose(&b, "--rows", c.Rows, c.rows, func(r *row) string { return r.id })
	ways := report.Choose(&b, "--ways", c.Ways, c.ways, func(w *way) string { return w.name })
	if err := b.Err(); err != nil {
		return nil, err
	}
	if len(c.Rows) == 0 {
		rows = slices.DeleteFunc(rows, func(r row) bool { return r.extra })
	}
	if len(c.Ways) == 0 {
		ways = slices.DeleteFunc(ways, func(w way) bool { return w.extra })
	}
	// A build takes minutes, so it comes after the options are checked.
	if slices.ContainsFunc(ways, func(w way) bool { return w.built }) {
		defer func() { _ = os.RemoveAll(c.programs) }()
		if err := c.build(ctx); err != nil {
			return nil, err
		}
	}
	var places []row // with a number of nodes each
	for _, r := range rows {
		sizes := c.Nodes
		if r.nodes > 0 {
			sizes = []int{r.nodes}
		}
		for _, r.nodes = range sizes {
			places = append(places, r)
		}
	}
	r := &Compared{Rate: c.Rate, Length: c.Length, of: c}
	for i := range places {
		at, all := &places[i], make([][]Measured, len(ways))
		err := inTurn(c.Rounds, len(ways), func(_, w int) error {
			what := fmt.Sprintf("%s, %s, %d nodes", ways[w].name, at.id, at.nodes)
			c.Tell(len(places)*len(ways)*c.Rounds, what)
			m, err := c.one(ctx, at, &ways[w])
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			all[w] = append(all[w], m)
			return nil
		})
		if err != nil {
			return nil, err
		}
		first := ofRounds(all[0])
		for _, rounds := range all {
			m := ofRounds(rounds)
			if ways[0].reference {
				m.Ratio, m.NodeRatio = m.CPU/first.CPU, m.NodeCPU/first.NodeCPU
			}
			r.Measured = append(r.Measured, m)
		}
	}
	return r, nil
}

// ofRounds has the median of each figure, and of several rounds also the most of some. A problem of any round is a
// problem of the whole. Bounds hold in each round, and a median would hide the one that broke it.
func ofRounds(rounds []Measured) Measured {
	m := middle(rounds)
	if len(rounds) == 1 {
		return m
	}
	var problems []string
	for _, r := range rounds {
		m.MostCPU = max(m.MostCPU, r.CPU)
		m.MostNodeCPU = max(m.MostNodeCPU, r.NodeCPU)
		m.MostP99 = max(m.MostP99, r.P99)
		if r.Problem != "" {
			problems = append(problems, r.Problem)
		}
	}
	m.Problem = strings.Join(problems, "; ")
	return m
}

// idleTime is how long Redis is watched without requests. An idle Redis works ten times a second for its timers, so a
// second has several of them.
const idleTime = time.Second

// one plays one row in one way. Each measurement has a new fleet and a new Redis: no way inherits accounts or warm
// tables of another.
func (c *comparison) one(ctx context.Context, r *row, w *way) (Measured, error) {
	var idle float64
	var watching errgroup.Group // beside the fleet, which waits until its Redis is old enough
	watching.Go(func() (err error) { idle, err = idleRedis(ctx); return err })
	f, err := c.open(r, w)
	if f != nil {
		defer f.Stop()
	}
	if err := errors.Join(err, watching.Wait()); err != nil {
		return Measured{}, err
	}
	t := newTally(r.limit, r.window())
	if err := caller.Sleep(ctx, untilTurnIsHalfway(time.Now(), r.window(), c.Length)); err != nil {
		return Measured{}, err
	}
	before, start := f.Redis.Used(), time.Now()
	cpu, err := process.Spent(f, func() error { return c.play(ctx, r, w, f, t, start) })
	if err != nil {
		return Measured{}, err
	}
	used, took := f.Redis.Used().Since(before), time.Since(start)
	m := Measured{
		Row: r.id + ": " + r.name, Mode: w.name, Nodes: r.nodes,
		CPU: micros(beyond(used.CPU, took, idle), t.asked), NodeCPU: micros(cpu, t.asked),
		Commands: used.Commands, Fallbacks: sum(f, fallbacks),
	}
	asked := float64(max(1, t.asked))
	m.Claims = 1000 * float64(used.Commands["eval"]+used.Commands["evalsha"]) / asked
	// A draw is two HINCRBY: the account's sum, and the holder's total.
	m.Draws = 1000 * float64(used.Commands["hincrby"]) / 2 / asked
	m.Bytes = float64(used.Bytes) / asked
	m.Second = asked / c.Length.Seconds()
	for name, n := range used.Commands {
		if name != "info" { // of this measurement
			m.Each += float64(n) / asked
		}
	}
	m.count(t)
	// Only Sluice declares a worst case; others have no bound to compare with.
	if w.fields != nil {
		declared := declare.Of(r.rule(w.fields), r.nodes, declare.SharedStore)
		m.Declared = int64(declared.Over.Tokens)
		if r.amnesia {
			m.Declared += int64(declared.OnLoss)
		}
	}
	m.check(r, w, t, sum(f, counted))
	return m, nil
}

// open starts a fleet that answers in a way.
func (c *comparison) open(r *row, w *way) (*process.Fleet, error) {
	if w.open != nil {
		return w.open(c, r)
	}
	return openFleet(c.Binary, r.file(w.fields), r.nodes, r.others, r.flags...)
}

// play makes the row's requests, while things go wrong. Faults come from a goroutine of their own, because the load
// must not wait for them. It has ended when play returns: the fleet may be stopped then.
func (c *comparison) play(ctx context.Context, r *row, w *way, f *process.Fleet, t *tally, start time.Time) error {
	struck := make(chan error, 1)
	go func() { struck <- r.fails(ctx, f, c.Length) }()
	ask := w.ask
	if ask == nil {
		ask = askAsEnvoy
	}
	drive(ctx, r.callers, r.load(c.Rate, c.Length), c.Seed, start, func(q load.Request, intended time.Time) {
		t.ask(ctx, f.Pool.Next(), r, ask, q.Key, intended)
	})
	return errors.Join(<-struck, ctx.Err())
}

// fails has things go wrong, and right again. Each step waits for a third of the length first. Without a strike, the
// mend comes after the first third, but no row has that.
func (r *row) fails(ctx context.Context, f *process.Fleet, length time.Duration) error {
	for _, step := range []func(*process.Fleet) error{r.strike, r.mend} {
		if step == nil {
			continue
		}
		if err := caller.Sleep(ctx, length/3); err != nil {
			return err
		}
		if err := step(f); err != nil {
			return err
		}
	}
	return nil
}

// asker makes one request, and returns whether it passed. It must be safe for concurrent use, and ends when ctx does.
type asker func(ctx context.Context, node *grpc.ClientConn, r *row, key string) (ok bool, err error)

// askAsEnvoy makes a call of Envoy's protocol.
func askAsEnvoy(ctx context.Context, node *grpc.ClientConn, _ *row, key string) (ok bool, err error) {
	answer, err := rls.NewRateLimitServiceClient(node).ShouldRateLimit(ctx, caller.Request(domain, entry, key))
	return answer.GetOverallCode() == rls.RateLimitResponse_OK, err
}

// errNoNode says that no node can take a call. It counts like a call without an answer.
var errNoNode = errors.New("no node runs")

// ask makes one call to a node, and counts the answer. A fleet without a running node counts the call as failed, and
// the load goes on.
func (t *tally) ask(ctx context.Context, node *grpc.ClientConn, r *row, ask asker, key int, intended time.Time) {
	ctx, cancel := context.WithTimeout(ctx, caller.Timeout)
	defer cancel()
	sent := time.Now()
	if node == nil {
		t.answered(key, intended, sent, sent, false, errNoNode)
		return
	}
	ok, err := ask(ctx, node, r, fmt.Sprintf("client-%d", key))
	t.answered(key, intended, sent, time.Now(), ok, err)
}

// check compares measurements with what is declared, and with what the nodes have counted. The first problem is the one
// that matters most: over-admission, then calls without an answer, then counters of nodes that differ from the
// caller's.
func (m *Measured) check(r *row, w *way, t *tally, counted map[string]int64) {
	hits, within := counted["total_hits"], counted["within_limit"]
	switch {
	case w.fields != nil && m.Over > m.Declared:
		// A busy machine can make replies late, and then the rule's on_store_failure has decided.
		m.Problem = fmt.Sprintf("%d over the limit of %d, and %d are declared while the store answers in time; decisions without it: %v",
			m.Over, r.limit, m.Declared, m.Fallbacks)
	case r.strike != nil: // calls fail, and nodes that have ended take their counts along
	case m.Failed > 0:
		m.Problem = fmt.Sprintf("%d of %d calls had no answer, such as: %v", m.Failed, m.Asked, t.lastErr)
	case w.fields != nil && (hits != m.Asked || within != m.Admitted):
		m.Problem = fmt.Sprintf("the nodes count %d hits and %d within the limit, the caller %d and %d", hits, within, m.Asked, m.Admitted)
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

// longestWait is that for the turn of a window. A window of an hour would turn in the middle only after up to an hour.
const longestWait = time.Minute

// beyond is what Redis used in a time beyond what an idle one does. That was measured before, and may have been more on
// a machine that had more to do then. A Redis without requests still runs its timers.
func beyond(used, took time.Duration, idle float64) time.Duration {
	return max(0, used-time.Duration(float64(took)*idle))
}

// idleRedis is the processor use of a Redis without connections. The result is in processors: 0.002 is 2 ms in each
// second.
func idleRedis(ctx context.Context) (float64, error) {
	r, err := process.OpenRedis()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	used, err := process.Spent(r, func() error { return caller.Sleep(ctx, idleTime) })
	return float64(used) / float64(idleTime), err
}

// Page shows the report: a table of all.
func (r *Compared) Page() *report.Page {
	return &report.Page{
		Lead: []string{
			fmt.Sprintf("%.0f requests a second for %v from a cold start, for each mode of each row; Redis is a process of its own that was empty at first.", r.Rate, r.Length),
			"The baseline asks Redis for each request as envoyproxy/ratelimit does (INCRBY and EXPIRE in one pipeline); strict is a lease of one token." + r.of.built,
		},
		Tables: []report.Table{report.Rows("", r.Measured, notes...)},
	}
}

var notes = []string{
	"Redis: its processor time for one decision, without that of an idle one. nodes' CPU: processor time of all nodes for one decision. most: of the rounds; other figures are their medians. of first: to that of the first mode in the same row. Columns without a figure are left out.",
	"scripts, draws: claims of one key each, by the script or by plain commands, tried ones too; none in the baseline. commands: that Redis ran for one decision. bytes: to and from Redis.",
	"p50, p99, p99.9: of a call, from when it was meant to be made. refused early: while fewer than the limit had been admitted in the window.",
	"over: of the key and window that went furthest. under: less than an exact limiter had admitted of the same requests, over all keys and windows. Requests at the turn of a window count in neither.",
}
