package bench

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The order: cases and ways as data, then the play of a case in all ways (measure), then one way's requests (player).

// TokensOptions are limits in tokens whose cost is known when a request is done.
type TokensOptions struct {
	report.Setup `examples:"sluicelab bench tokens|sluicelab bench tokens --case five --case fifty"`
	Nodes        int           `in:"1..10" default:"3" help:"Nodes of each fleet."`
	Length       time.Duration `in:"10s..50s" default:"15s" help:"Length of the longest case, without its last responses. A case is within a window of a minute."`
	Case         []string      `placeholder:"NAME" help:"Cases: half, twice, flight, five, fifty. Default: all."`
	Seed         uint64        `default:"1" help:"Seed of the demand."`
}

// tokenCase is a limit of a minute and the demand for it. An open loop has a demand and a part of the length, and a
// closed one has callers.
type tokenCase struct {
	id, name string
	limit    int64
	most     int64 // that a request costs
	held     int64 // by a constant estimate
	cost     func(r *rand.Rand) int64
	// demand is that of an open loop, in limits. In a closed loop so many callers ask for a while, and all is used soon.
	demand  float64
	callers int
	part    float64 // of the options' length, in an open loop
	// Responses take from first to last of the case's length.
	first, last float64
}

const tailMost, tailMean = 20_000, 960

// tail is a cost with a heavy tail: Pareto, 1.5, from 350 up to tailMost, with a mean of about tailMean. Costs of
// requests to language models have such a tail: few requests cost most of the tokens. It is the inverse of the
// distribution function.
func tail(r *rand.Rand) int64 { return min(tailMost, int64(350/math.Pow(1-r.Float64(), 1/1.5))) }

var tokenCases = []tokenCase{
	{
		id: "half", name: "1,000,000 a minute, demand of half the limit", limit: 1_000_000, most: tailMost, held: tailMean, cost: tail,
		demand: 0.5, part: 1, last: 1. / 12,
	},
	{
		id: "twice", name: "1,000,000 a minute, demand of twice the limit", limit: 1_000_000, most: tailMost, held: tailMean, cost: tail,
		demand: 2, part: 1, last: 1. / 12,
	},
	{
		id: "flight", name: "1,000,000 a minute, demand of twice the limit, 1,000 requests in flight if all pass", limit: 1_000_000,
		most: tailMost, held: tailMean, cost: tail, demand: 2, part: 0.6, first: 0.25, last: 0.75,
	},
	{
		id: "five", name: "5 at once, limit 100, 1 to 30 each (litellm's case)", limit: 100, most: 30, held: 15,
		cost: func(r *rand.Rand) int64 { return 1 + r.Int64N(30) }, callers: 5, first: 1. / 30, last: 1. / 30,
	},
	{
		id: "fifty", name: "50 at once, limit 10,000, 5,000 each after 300 ms", limit: 10_000, most: 5000, held: 2000,
		cost: func(*rand.Rand) int64 { return 5000 }, callers: 50, first: 0.1, last: 0.1,
	},
}

// length is for how long requests come, of the options' length.
func (c *tokenCase) length(of time.Duration) time.Duration {
	if c.callers > 0 {
		return 3 * time.Second
	}
	return time.Duration(c.part * float64(of))
}

// load is when requests come.
func (c *tokenCase) load(of time.Duration) load.Load {
	length := c.length(of)
	rate := c.demand * float64(c.limit) / tailMean / length.Seconds()
	return load.Load{Rate: max(1, rate), Keys: 1, Length: length}
}

// tokenWay is how requests are limited whose cost is not known. A way without a hold asks first and charges the cost
// afterwards, so the costs of requests in flight are in no account.
type tokenWay struct {
	name string
	hold func(c *tokenCase) string // of the rule; nil: it has none, and a request peeks
	// says that the client says the most that its request may cost.
	says, baseline bool
}

var tokenWays = []tokenWay{
	{name: "peek and charge, as envoyproxy/ratelimit", baseline: true},
	{name: "peek and charge"},
	{name: "constant", hold: func(c *tokenCase) string { return fmt.Sprintf("{amount: %d}", c.held) }},
	{name: "header", says: true, hold: func(c *tokenCase) string { return fmt.Sprintf("{from: request, max: %d}", c.most) }},
	{name: "learned", hold: func(c *tokenCase) string { return fmt.Sprintf("{learned: 0.97, max: %d}", c.most) }},
	{name: "maximum", hold: func(c *tokenCase) string { return fmt.Sprintf("{amount: %d}", c.most) }},
}

// TokensMeasured is one way in one case.
type TokensMeasured struct {
	Case       string        `json:"case"`
	Way        string        `json:"way" col:"way"`
	Requests   int64         `json:"requests" col:"requests"`
	Refused    int64         `json:"refused" col:"refused"`
	Fitted     int64         `json:"refused_though_it_fitted" col:"of them fitted"`
	Failed     int64         `json:"failed"` // calls without an answer
	Used       int64         `json:"used"`   // the cost of what passed
	Over       int64         `json:"over" col:"over"`
	Bound      int64         `json:"bound" col:"at most"`               // the most that requests in flight cost beyond what they held
	Share      float64       `json:"share" col:"used|%.1f%%"`           // of the limit
	Operations float64       `json:"operations" col:"Redis/1,000|%.1f"` // of Redis, for 1,000 requests
	P99        time.Duration `json:"latency_p99" col:"p99"`
	Problem    string        `json:"problem,omitempty"`
}

// TokensReport is all that was measured.
type TokensReport struct {
	Nodes    int              `json:"nodes"`
	Measured []TokensMeasured `json:"measured"`
}

// Measure implements [report.Measurement]: each case, all ways at the same time.
func (o *TokensOptions) Measure(ctx context.Context) (report.Result, error) {
	var b report.Bounds
	b.Check(o)
	chosen := report.Choose(&b, "--case", o.Case, tokenCases, func(c *tokenCase) string { return c.id })
	if err := b.Err(); err != nil {
		return nil, err
	}
	r := &TokensReport{Nodes: o.Nodes}
	for i := range chosen {
		o.Tell(len(chosen), chosen[i].name)
		all, err := o.measure(ctx, &chosen[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", chosen[i].name, err)
		}
		r.Measured = append(r.Measured, all...)
	}
	return r, nil
}

// player is a way with its fleet, and what the caller counts.
type player struct {
	calls
	way     *tokenWay
	of      *tokenCase
	o       *TokensOptions
	fleet   *process.Fleet
	envoy   envoy.LLM
	refused int64 // guarded by mu, as all below
	fitted  int64 // of them, those whose cost fitted into the limit with that of all that passed
	used    int64 // the cost of all that passed
	// excess is the cost of requests in flight above their holds, and mostExcess its maximum.
	excess, mostExcess int64
}

// measure plays a case in all ways. All ways run at once, in the same window: one after the other would take as many
// minutes as there are ways. The machine must be fast enough for all of them. A window that turned meanwhile is a
// problem of the result, because used would be of two windows.
func (o *TokensOptions) measure(ctx context.Context, c *tokenCase) ([]TokensMeasured, error) {
	players := make([]player, len(tokenWays))
	var starts, plays errgroup.Group
	for i := range players {
		p := &players[i]
		p.way = &tokenWays[i]
		p.of = c
		p.o = o
		p.latency = newLatencies()
		starts.Go(func() error { return p.open(ctx) })
		defer func() {
			if p.fleet != nil {
				p.fleet.Stop()
			}
		}()
	}
	if err := starts.Wait(); err != nil {
		return nil, err
	}
	whole := time.Duration((1 + c.last) * float64(c.length(o.Length)))
	if err := caller.Sleep(ctx, untilFits(time.Now(), time.Minute, whole)); err != nil {
		return nil, err
	}
	start := time.Now()
	all := make([]TokensMeasured, len(players))
	for i := range players {
		plays.Go(func() error {
			all[i] = players[i].play(ctx, start)
			if start.Truncate(time.Minute) != time.Now().Truncate(time.Minute) {
				all[i].Problem = "the window turned before all requests were done: this machine is too busy"
			}
			return ctx.Err()
		})
	}
	return all, plays.Wait()
}

// spare is how much longer than it should a case may take. On a busy machine, the last responses come later.
const spare = 2 * time.Second

// untilFits is how long to wait so that no window turns within a length. A tenth of a second after the turn, all nodes
// are in the new window.
func untilFits(now time.Time, window, length time.Duration) time.Duration {
	left := window - time.Duration(now.UnixNano()%int64(window))
	if left > length+spare {
		return 0
	}
	return left + time.Second/10
}

// open starts the fleet. Domain and key are those of deploy/envoy/llm.yaml. Requests without an answer of Redis are
// refused, so that over-admission is the way's. Each node then settles some 20 requests, of keys of their own, and
// learns what requests cost. Only the way with learned holds needs these requests; the others get them so that all are
// equal.
func (p *player) open(ctx context.Context) (err error) {
	const warmKeys, warmRequests = 10, 2
	hold := ""
	if p.way.hold != nil {
		hold = "hold: " + p.way.hold(p.of) + ", "
	}
	rules := fmt.Sprintf("domain: llm\ncoordination: {on_store_failure: closed, store_deadline: 1s}\ndescriptors:\n"+
		"  - {key: team, %srate_limit: {unit: %v, requests_per_unit: %d}}\n", hold, ratelimit.Minute, p.of.limit)
	if p.way.baseline {
		p.fleet, err = openBaseline(p.o.Lab, p.of.limit, time.Minute, p.o.Nodes)
	} else {
		p.fleet, err = openFleet(p.o.Binary, rules, p.o.Nodes, 0)
	}
	if err != nil {
		return err
	}
	p.envoy = envoy.LLM{
		Domain: "llm", Timeout: caller.Timeout, Peeks: p.way.hold == nil,
		Service: func() rls.RateLimitServiceClient { return rls.NewRateLimitServiceClient(p.fleet.Pool.Next()) },
	}
	for i := range warmKeys * p.o.Nodes {
		for range warmRequests {
			p.request(ctx, load.Request{At: time.Duration(i)}, fmt.Sprint("warm-", i))
		}
	}
	return ctx.Err()
}

// measuredTeam is the one key that is measured. Other teams' requests warm up a node and have their own budgets.
const measuredTeam = "measured"

// again is when a caller of a closed loop asks again that was refused. Without the pause, refused callers would ask in
// a busy loop and slow the others down.
const again = 50 * time.Millisecond

// play sends the case's requests, and waits until all are done.
func (p *player) play(ctx context.Context, start time.Time) TokensMeasured {
	before := p.fleet.Redis.Used()
	drive(ctx, p.of.callers, p.of.load(p.o.Length), p.o.Seed, start, func(r load.Request, _ time.Time) {
		if !p.request(ctx, r, measuredTeam) && p.of.callers > 0 {
			_ = caller.Sleep(ctx, again)
		}
	})
	return p.measured(p.fleet.Redis.Used().Since(before).Commands)
}

// request plays one request, and reports whether it passed. Its cost and its time are the same in each way. Those of
// other teams take no time, and are not counted. The random numbers of a request come from the seed and its arrival, so
// that all ways play the same costs and times in any order.
func (p *player) request(ctx context.Context, r load.Request, team string) bool {
	random := rand.New(rand.NewPCG(p.o.Seed, uint64(r.At)))
	cost := p.of.cost(random)
	takes := time.Duration((p.of.first + random.Float64()*(p.of.last-p.of.first)) * float64(p.of.length(p.o.Length)))
	q := &envoy.Request{Team: team}
	if p.way.says { // as clients do: a round number that is enough
		q.Most = uint64(min(p.of.most, 1<<bits.Len64(uint64(cost-1))))
	}
	known := wrapperspb.UInt64(uint64(cost))
	sent := time.Now()
	err := p.envoy.Begin(ctx, q)
	took := time.Since(sent)
	if err != nil {
		known = nil
	}
	if team != measuredTeam {
		_ = p.envoy.End(q, known)
		return false
	}
	excess := max(0, cost-held(q.Hold))
	p.begins(err, cost, excess, took)
	if err == nil && caller.Sleep(ctx, takes) != nil {
		known = nil
	}
	p.ends(err, p.envoy.End(q, known), excess)
	return err == nil
}

// held is how much a hold's text says: of one budget, behind 15 bytes. It reads only the amount, a varint behind 15
// bytes of other fields; see package holds.
func held(hold string) int64 {
	raw, err := base64.RawURLEncoding.DecodeString(hold)
	if err != nil || len(raw) < 16 {
		return 0
	}
	n, _ := binary.Uvarint(raw[15:])
	return int64(n) //nolint:gosec // at most what the rule says
}

// begins counts a request's own call, and the cost above its hold of one that passes. A refusal is an answer and not a
// failure. fitted counts refusals that cost a user something: the request would not have gone over the limit.
func (p *player) begins(err error, cost, excess int64, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	over := errors.Is(err, envoy.ErrOver)
	switch {
	case err == nil:
		p.used += cost
		p.excess += excess
		p.mostExcess = max(p.mostExcess, p.excess)
	case over:
		p.refused++
		err = nil
		if p.used+cost <= p.of.limit {
			p.fitted++
		}
	}
	p.addLocked(took, err)
}

// ends counts the end of a request that began with an error or none: its call then may have had no answer.
func (p *player) ends(began, err error, excess int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failLocked(err)
	if began == nil {
		p.excess -= excess
	}
}

// measured is what came of it. Ways without a hold have no bound: their overshoot is the result to show, and not a
// problem.
func (p *player) measured(commands map[string]int64) TokensMeasured {
	limit := p.of.limit
	m := TokensMeasured{
		Case: p.of.name, Way: p.way.name, Requests: p.asked, Refused: p.refused, Fitted: p.fitted, Failed: p.failed,
		Used: p.used, Share: float64(p.used) / float64(limit), Over: max(0, p.used-limit), Bound: p.mostExcess, P99: p.latency.at(99),
	}
	for _, name := range []string{"eval", "evalsha", "exec", "incrby"} {
		m.Operations += 1000 * float64(commands[name]) / float64(max(1, p.asked))
	}
	switch {
	case p.failed > 0:
		m.Problem = fmt.Sprintf("%d calls had no answer, such as: %v", p.failed, p.lastErr)
	case p.way.hold != nil && m.Over > m.Bound:
		m.Problem = fmt.Sprintf("%d over, and requests in flight cost %d beyond what they held at most", m.Over, m.Bound)
	}
	return m
}

// Page shows the report: a table for each case.
func (r *TokensReport) Page() *report.Page {
	p := &report.Page{
		Lead: []string{
			fmt.Sprintf("Each way has %d nodes in mode leasing and a Redis of its own, and gets the same requests in the same seconds.", r.Nodes),
			"The stand-in for Envoy makes two calls for a request that passes: at its start, and with its cost when it is done.",
		},
	}
	for ways := range slices.Chunk(r.Measured, len(tokenWays)) {
		p.Tables = append(p.Tables, report.Rows(ways[0].Case, ways))
	}
	last := &p.Tables[len(p.Tables)-1]
	last.Notes = []string{
		"of them fitted: refused, though their cost fitted beside the cost of all that had passed. at most: what requests in flight cost beyond what they held, at its highest; over is at most that.",
		"used: of the limit, by the cost of what passed. Redis/1,000: scripts, transactions and INCRBY for 1,000 requests and their settlements, with the script that each node runs every two seconds anyhow. p99: of a request's own call.",
		"header: the client names the next power of two above its cost. learned: the 0.97-quantile of recent costs. Each node has seen some before.",
	}
	return p
}
