package tokens

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/bench/store"
)

// Options are what is measured.
type Options struct {
	report.Setup
	Nodes  int           `in:"1..10" default:"3" help:"Nodes of each fleet."`
	Length time.Duration `in:"10s..50s" default:"15s" help:"Length of the longest case, without its last responses. A case is within a window of a minute."`
	Case   []string      `placeholder:"NAME" help:"Cases: half, twice, flight, five, fifty. Default: all."`
	Seed   uint64        `default:"1" help:"Seed of the demand."`
}

// Examples implements [report.Measurement].
func (*Options) Examples() string {
	return "  sluicelab bench tokens\n  sluicelab bench tokens --case five --case fifty"
}

// Report is all that was measured.
type Report struct {
	Nodes    int        `json:"nodes"`
	Cases    []Case     `json:"cases"`
	Measured []Measured `json:"measured"`
}

// Measure implements [report.Measurement]: each case, all ways at the same time.
func (o *Options) Measure(ctx context.Context) (report.Result, error) {
	var b report.Bounds
	b.Check(o)
	chosen := report.Choose(&b, "--case", o.Case, cases, func(c *Case) string { return c.ID })
	if err := b.Err(); err != nil {
		return nil, err
	}
	r := &Report{Nodes: o.Nodes, Cases: chosen}
	for i := range r.Cases {
		o.Tell(len(r.Cases), r.Cases[i].Name)
		all, err := o.measure(ctx, &r.Cases[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Cases[i].Name, err)
		}
		r.Measured = append(r.Measured, all...)
	}
	return r, nil
}

// player is a way with its fleet.
type player struct {
	way    *Way
	of     *Case
	length time.Duration
	seed   uint64
	fleet  *process.Fleet
	envoy  envoy.LLM
	tally  *tally
	used   process.RedisUse
}

// measure plays a case in all ways.
func (o *Options) measure(ctx context.Context, c *Case) ([]Measured, error) {
	players := make([]player, len(ways))
	var starts, plays errgroup.Group
	for i := range players {
		p := &players[i]
		p.way, p.of, p.length, p.seed = &ways[i], c, o.Length, o.Seed
		starts.Go(func() error { return p.open(ctx, o) })
		defer func() {
			if p.fleet != nil {
				p.fleet.Stop()
			}
		}()
	}
	if err := starts.Wait(); err != nil {
		return nil, err
	}
	if err := caller.Sleep(ctx, untilFits(time.Now(), c.Limit.Period(), c.whole(o.Length))); err != nil {
		return nil, err
	}
	start := time.Now()
	all := make([]Measured, len(ways))
	for i := range players {
		plays.Go(func() error {
			players[i].play(ctx, start)
			all[i] = players[i].measured()
			if period := int64(c.Limit.Period()); start.UnixNano()/period != time.Now().UnixNano()/period {
				all[i].Problem = "the window turned before all requests were done: this machine is too busy"
			}
			return ctx.Err()
		})
	}
	return all, plays.Wait()
}

// spare is how much longer than it should a case may take.
const spare = 2 * time.Second

// untilFits is how long to wait so that no window turns within a length.
func untilFits(now time.Time, window, length time.Duration) time.Duration {
	left := window - time.Duration(now.UnixNano()%int64(window))
	if left > length+spare {
		return 0
	}
	return left + time.Second/10
}

// open starts the fleet, and has each node learn what requests cost.
func (p *player) open(ctx context.Context, o *Options) (err error) {
	if p.way.baseline {
		p.fleet, err = store.OpenBaseline(o.Lab, int64(p.of.Limit.Requests), p.of.Limit.Period(), o.Nodes)
	} else {
		p.fleet, err = store.Open(o.Binary, p.way.rules(p.of), o.Nodes, 0)
	}
	if err != nil {
		return err
	}
	p.envoy = envoy.LLM{
		Domain: domain, Timeout: caller.Timeout, Peeks: p.way.hold == nil,
		Service: func() rls.RateLimitServiceClient { return rls.NewRateLimitServiceClient(p.fleet.Pool.Next()) },
	}
	p.tally = newTally(int64(p.of.Limit.Requests))
	for i := range warmKeys * o.Nodes {
		for range warmRequests {
			p.request(ctx, load.Request{At: time.Duration(i)}, fmt.Sprint("warm-", i))
		}
	}
	p.tally = newTally(int64(p.of.Limit.Requests))
	return ctx.Err()
}

// measuredTeam is the one key that is measured.
const measuredTeam = "measured"

// Before it is, nodes settle some 20 requests each, of keys of their own.
const warmKeys, warmRequests = 10, 2

// play sends the case's requests, and waits until all are done.
func (p *player) play(ctx context.Context, start time.Time) {
	before := p.fleet.Redis.Used()
	call := func(r load.Request, intended time.Time) {
		if !p.request(ctx, r, measuredTeam) && p.of.Callers > 0 {
			_ = caller.Sleep(ctx, again)
		}
	}
	if l := p.of.load(p.length); p.of.Callers > 0 {
		caller.Closed(ctx, p.of.Callers, l, p.seed, start, call)
	} else {
		caller.Open(ctx, l, p.seed, start, call)
	}
	p.used = p.fleet.Redis.Used().Since(before)
}

// again is when a caller of a closed loop asks again that was refused.
const again = 50 * time.Millisecond

// request plays one request, and reports whether it passed. Its cost and its time are the same in each way.
func (p *player) request(ctx context.Context, r load.Request, team string) bool {
	random := rand.New(rand.NewPCG(p.seed, uint64(r.At)))
	cost := p.of.cost(random)
	takes := p.of.takes(random, p.length)
	if team != measuredTeam {
		takes = 0
	}
	q := &envoy.Request{Team: team}
	if p.way.says { // as clients do: a round number that is enough
		q.Most = uint64(min(p.of.Most, 1<<bits.Len64(uint64(cost-1))))
	}
	sent := time.Now()
	err := p.envoy.Begin(ctx, q)
	p.tally.answered(err, cost, time.Since(sent))
	var known *wrapperspb.UInt64Value
	if err == nil {
		excess := max(0, cost-held(q.Hold))
		p.tally.flies(excess)
		if caller.Sleep(ctx, takes) == nil {
			known = wrapperspb.UInt64(uint64(cost))
		}
		defer p.tally.flies(-excess)
	}
	if err := p.envoy.End(q, known); err != nil {
		p.tally.fails(err)
	}
	return err == nil
}

// held is how much a hold's text says: of one budget, behind 15 bytes.
func held(hold string) int64 {
	raw, err := base64.RawURLEncoding.DecodeString(hold)
	if err != nil || len(raw) < 16 {
		return 0
	}
	n, _ := binary.Uvarint(raw[15:])
	return int64(n) //nolint:gosec // at most what the rule says
}

// measured is what came of it.
func (p *player) measured() Measured {
	t := p.tally
	m := Measured{
		Case: p.of.ID, Way: p.way.Name, Requests: t.asked, Refused: t.refused, Fitted: t.fitted, Failed: t.failed,
		Used: t.used, Share: float64(t.used) / float64(t.limit), Over: max(0, t.used-t.limit), Bound: t.mostExcess,
		P99: time.Duration(t.latency.ValueAtQuantile(99)) * time.Microsecond, Commands: p.used.Commands,
	}
	for _, name := range []string{"eval", "evalsha", "exec", "incrby"} {
		m.Operations += float64(p.used.Commands[name].Calls)
	}
	m.Operations *= 1000 / float64(max(1, t.asked))
	switch {
	case t.failed > 0:
		m.Problem = fmt.Sprintf("%d calls had no answer, such as: %v", t.failed, t.lastErr)
	case p.way.hold != nil && m.Over > m.Bound:
		m.Problem = fmt.Sprintf("%d over, and requests in flight cost %d beyond what they held at most", m.Over, m.Bound)
	}
	return m
}
