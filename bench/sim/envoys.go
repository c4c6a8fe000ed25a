package sim

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/declare"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// Envoys lease parts of a limit from nodes, and enforce them themselves. Requests come to Envoys. The way between an
// Envoy and its node is that of Net.Hop. A node asks the ledger in no time, or gets no answer. Storeless, the one
// node's ledger is its own memory.
type Envoys struct {
	Count  int     `in:"1..10000"`
	Direct float64 `in:"0..1"` // share of the requests that come to nodes instead, over RLS
	Skewed bool    // the n-th Envoy has about 1/n of the first one's requests
	// Bursts gives each Envoy its requests in turns of some seconds, with hardly any in between. Then Load.Rate is the
	// rate while all have their turn.
	Bursts bool
	Quirks envoy.Quirks
}

// envoys are the Envoys of a run, and their judge: the tokens that they may still spend are checked after every event.
type envoys struct {
	*world
	rules *config.Rules
	all   []*player
}

// newEnvoys makes rules of a run's rule, for the descriptor entry "k". Without Envoys, it is nil.
func newEnvoys(o *Options) (*envoys, error) {
	if o.Envoys == nil {
		return nil, nil
	}
	l := &o.Rule.Limit
	if err := sublease.Servable(o.Rule); err != nil {
		return nil, fmt.Errorf("the rule cannot be divided: %w", err)
	}
	text := fmt.Sprintf("domain: d\ndescriptors:\n- key: k\n  algorithm: %s\n"+
		"  rate_limit: {unit: %s, requests_per_unit: %d}\n", l.Algorithm, l.Unit, l.Requests)
	if l.Algorithm == ratelimit.TokenBucket {
		text += fmt.Sprintf("  burst: %d\n", l.Burst)
	}
	files := []config.Text{{Name: "envoys", Data: []byte(text)}}
	rules, _, problems := config.Parse(files, config.Options{Coordination: o.Rule.Coordination})
	if problems != nil {
		return nil, fmt.Errorf("the rule cannot be used: %w", problems)
	}
	o.Rule = rules.All()[0]
	return &envoys{rules: rules}, nil
}

func (e *envoys) open(w *world) {
	e.world = w
	for i := range max(1, w.Load.Keys) {
		w.key(w.Rule, i).id = map[string]string{"k": strconv.Itoa(i)}
	}
	for range w.Envoys.Count {
		e.join()
	}
	if w.Envoys.Direct > 0 { // RLS callers of a bucket may take the tokens that are held back for leases
		e.mayPass(w.Rule.Limit.WindowAt(w.ledgerTime()), never, sublease.DeclareEach(w.Rule).Held)
	}
}

// serve has a node divide budgets among Envoys.
func (e *envoys) serve(n *node) {
	n.limiter = prompt{n}
	wall := func() time.Time { return time.UnixMicro(int64(e.ledgerTime())) }
	if e.Storeless {
		n.limiter = local.New(1<<10, n.clock(), wall())
	}
	rules := func() *config.Rules { return e.rules }
	n.core = rlqs.NewNode(rlqs.Source{Rules: rules, Limiter: n.limiter, Wall: wall}, rlqs.DefaultOptions())
}

// prompt is a limiter whose ledger answers in no time, or never.
type prompt struct{ *node }

// Decide implements [ratelimit.Limiter].
func (p prompt) Decide(_ context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	wait := p.stepped.Ask(now, asks, verdicts)
	p.send()
	for wait != nil && wait.Advance(now) {
		if !p.send() {
			wait.TimeOver()
		}
	}
	p.send()
	for i := range asks {
		p.books.decided(p.node, p.named[string(asks[i].Key)], &asks[i], &verdicts[i])
	}
}

// Undo implements [ratelimit.Limiter].
func (p prompt) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		p.books.undo(p.node, p.named[string(asks[i].Key)], &asks[i], &verdicts[i])
	}
	p.stepped.Undo(now, asks, verdicts)
}

// decide has a node decide on a request of RLS.
func (n *node) decide(rule *ratelimit.Rule, k *key, kind ratelimit.Kind, cost ratelimit.Tokens) ratelimit.Verdict {
	var v [1]ratelimit.Verdict
	n.limiter.Decide(n.store.ctx, n.clock(), []ratelimit.Ask{{Rule: rule, Key: k.name, Kind: kind, Cost: cost}}, v[:])
	return v[0]
}

// arrive sends a request to an Envoy, or to a node.
func (e *envoys) arrive(k *key) {
	if e.Envoys.Direct == 0 || e.rnd.Float64() >= e.Envoys.Direct {
		e.chosen().arrive(k)
	} else if n := e.ask(-1); n != nil {
		v := n.decide(e.Rule, k, ratelimit.Spend, 1)
		e.judge(k, !v.OverLimit, ratelimit.Sources[v.Source])
	}
}

// chosen is the Envoy of a request.
func (e *envoys) chosen() *player {
	if !e.Envoys.Skewed {
		return e.all[e.rnd.IntN(len(e.all))]
	}
	return e.all[int(math.Pow(float64(len(e.all)+1), e.rnd.Float64()))-1]
}

// judge compares a decision with the limit.
func (e *envoys) judge(k *key, allowed bool, by string) {
	a, code := ratelimit.Ask{Cost: 1}, uint64(k.index)<<8
	e.result.Requests++
	e.result.Sources[by]++
	e.offer(&a)
	if allowed {
		code |= 1
		e.admit(k, a.Cost)
	} else {
		e.refuse(k, a.Cost)
	}
	e.printed(code)
	if e.Decisions {
		e.trace("%s: key %d: allowed %v", by, k.index, allowed)
	}
}

// check ends the run if Envoys may pass more than there is: the usage, and the rest of their leases.
func (e *envoys) check() {
	for _, k := range e.keys {
		may, room := e.rest(k), k.judge.Room(k.part.time())
		for _, p := range e.all {
			if p.frozen == 0 {
				may += p.client.Live(p.clock(), k.id)
			}
		}
		if most := e.bound.tokens(k); may > room+most {
			e.violate(-1, k.index, "Envoys may pass %d, %d of %v are left, and %d are declared beyond",
				may, room, e.Rule.Limit, most)
		}
	}
}

// rest is the level of a bucket's account: it may be granted and spent at this instant, too. It is known of a node
// whose ledger is its own memory.
func (e *envoys) rest(k *key) ratelimit.Tokens {
	if !e.Storeless || e.Rule.Limit.Algorithm != ratelimit.TokenBucket || !e.nodes[0].alive {
		return 0
	}
	rule := e.Rule
	if e.Envoys.Direct == 0 { // no request adds to it
		rule = sublease.Rule(rule)
	}
	return e.nodes[0].decide(rule, k, ratelimit.Peek, 0).Remaining
}

// strike makes a fault happen to an Envoy.
func (e *envoys) strike(f Fault) {
	switch p := e.all[f.Node%len(e.all)]; f.Kind {
	case Enter:
		e.join()
	case Break:
		if p.call != nil {
			p.call.end()
		}
	case Freeze:
		p.freeze(f.For)
	case Stall:
		p.slow = max(p.slow, e.now+int64(f.For))
		p.late = max(p.late, p.slow)
	case Lag:
		p.late = max(p.late, e.now+int64(f.For))
	}
}

// never is a window that no run reaches.
const never = ratelimit.Window(1 << 40)

// mayPass declares tokens beyond the limit of each key, in the windows from first to last.
func (e *envoys) mayPass(first, last ratelimit.Window, n ratelimit.Tokens) {
	l := &e.Rule.Limit
	switch l.Algorithm {
	case ratelimit.TokenBucket:
		last = never // what went over a bucket's limit stays owed
	case ratelimit.SlidingWindow:
		last++ // the usage counts in the next window, too
	}
	x := extra{at: int64(l.WindowEnd(first - 1).Sub(e.origin)), n: n, to: 1 << 62}
	if last < never {
		x.to = int64(l.WindowEnd(last).Sub(e.origin))
	}
	for _, k := range e.keys {
		k.extra = append(k.extra, x)
	}
}

func (e *envoys) window() ratelimit.Window { return e.Rule.Limit.WindowAt(e.ledgerTime()) }

// silent declares that an Envoy may spend a lease in a window in which it was not charged.
func (e *envoys) silent(w ratelimit.Window) { e.mayPass(w, w, sublease.DeclareEach(e.Rule).SilentEach) }

// ended ends the streams of a node that ended. One whose ledger is its own memory loses its grants.
func (e *envoys) ended(n *node) {
	if e.Storeless {
		e.mayPass(e.window(), e.window(), e.Rule.Limit.Capacity())
	}
	for _, p := range e.all {
		if c := p.call; c != nil && c.node == n && !c.ended {
			c.lost()
		}
	}
}

// forgot declares the grants until all nodes have restated their totals, and the totals of nodes that ended. There is
// nothing to declare where a node's ledger is its own memory.
func (e *envoys) forgot() {
	if e.Storeless {
		return
	}
	l := &e.Rule.Limit
	n := declare.Of(e.Rule, len(e.nodes), declare.SharedStore).OnLoss
	if slices.ContainsFunc(e.Faults, func(f Fault) bool { return f.Kind == Crash }) {
		n = l.Capacity()
	}
	if slidingForgets && l.Algorithm == ratelimit.SlidingWindow {
		n += l.Capacity()
	}
	e.mayPass(e.window(), e.window(), n)
}

// outage declares that on_store_failure decides at each node, until its leases are confirmed again.
func (e *envoys) outage(d time.Duration) {
	if e.Storeless {
		return
	}
	l := &e.Rule.Limit
	n := declare.Of(e.Rule, len(e.nodes), declare.SharedStore).OnOutage.Fleet().At(0)
	if l.Algorithm == ratelimit.TokenBucket { // it is declared for each time to fill the bucket
		n *= 2 + ratelimit.Tokens(d/l.Refill(l.Burst))
	}
	e.mayPass(e.window(), l.WindowAt(e.ledgerTime().Add(d+time.Second)), n)
}
