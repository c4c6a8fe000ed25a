package sim

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/declare"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// Envoys lease parts of a limit from nodes, and enforce them themselves. Requests come to Envoys. The way between an
// Envoy and its node is that of Net.Hop. A node asks the ledger in no time, or gets no answer. Storeless, the one
// node's ledger is its own memory. The file has four parts: the fleet of Envoys with its judge (envoys), the declared
// bounds of faults (mayPass and its callers), one Envoy (player), and its stream (call).
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
// For a grant that is never spent, no admission would show that it was too large. So the check counts unspent leases as
// admissions.
type envoys struct {
	*world
	rules *config.Rules
	all   []*player
}

// newEnvoys makes rules of a run's rule, for the descriptor entry "k". Without Envoys, it is nil. RLQS needs rules of a
// file, because a node finds a bucket's rule by its descriptor. o.Rule becomes the parsed rule, so that both sides
// share one.
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
		k := w.key(w.Rule, i)
		k.id = map[string]string{"k": strconv.Itoa(i)}
		k.bucket = envoy.NameOf(k.id)
	}
	for range w.Envoys.Count {
		e.join()
	}
	if w.Envoys.Direct > 0 { // RLS callers of a bucket may take the tokens that are held back for leases
		e.mayPass(w.Rule.Limit.WindowAt(w.ledgerTime()), never, sublease.DeclareEach(w.Rule).Held)
	}
}

// serve has a node divide budgets among Envoys. Storeless, the wall clock is the ledger's: there is no other one to
// agree with.
func (e *envoys) serve(n *node) {
	n.limiter = prompt{n}
	wall := func() time.Time { return time.UnixMicro(int64(e.ledgerTime())) }
	if e.Storeless {
		n.limiter = local.New(1<<10, n.clock(), wall())
	}
	rules := func() *config.Rules { return e.rules }
	n.core = rlqs.NewNode(rlqs.Source{Rules: rules, Limiter: n.limiter, Wall: wall}, rlqs.DefaultOptions())
}

// prompt is a limiter whose ledger answers in no time, or never. A session of RLQS calls its limiter and needs the
// verdict on return. It cannot come back to it later, as requests do.
type prompt struct{ *node }

// Decide implements [ratelimit.Limiter]. Each turn of the loop sends the due batch, whose answer is applied within
// send. If there is nothing to send, only the deadline can end the wait.
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

// chosen is the Envoy of a request. The power of a uniform number is a log-uniform one from 1 to the number of Envoys
// and 1.
func (e *envoys) chosen() *player {
	if !e.Envoys.Skewed {
		return e.all[e.rnd.IntN(len(e.all))]
	}
	return e.all[int(math.Pow(float64(len(e.all)+1), e.rnd.Float64()))-1]
}

// judge compares a decision with the limit.
func (e *envoys) judge(k *key, allowed bool, by string) {
	a := ratelimit.Ask{Cost: 1}
	e.result.Requests++
	e.result.Sources[by]++
	e.offer(&a)
	if allowed {
		e.admit(k, a.Cost)
	} else {
		e.refuse(k, a.Cost)
	}
	if e.Decisions {
		e.trace("%s: key %d: allowed %v", by, k.index, allowed)
	}
}

// check ends the run if Envoys may pass more than there is: the usage, and the rest of their leases. Room is below 0
// where more has been admitted than the limit. A frozen Envoy decides nothing now; freeze declares what it may pass
// when it goes on.
func (e *envoys) check() {
	for _, k := range e.keys {
		may, room := e.rest(k), k.judge.Room(k.part.time())
		for _, p := range e.all {
			if p.frozen == 0 {
				may += p.client.Live(p.clock(), k.bucket)
			}
		}
		if most := e.bound.tokens(k); may > room+most {
			e.violate(-1, k.index, "Envoys may pass %d, %d of %v are left, and %d are declared beyond",
				may, room, e.Rule.Limit, most)
		}
	}
}

// rest is the level of a bucket's account: it may be granted and spent at this instant, too. It is known of a node
// whose ledger is its own memory. A peek of a rule that Envoys share sees the level less the refill that is held back.
// Without direct requests, only that part can be granted.
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

// strike makes a fault happen to an Envoy. Stall holds up both directions, and Lag only answers. Held messages arrive
// later in their order, as from a socket's buffer.
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

// ended ends the streams of a node that ended. One whose ledger is its own memory loses its grants. Its streams end
// without Close: a crash sends no last message.
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
	n := declare.Of(e.Rule, len(e.nodes), declare.SharedStore).OnLoss
	if slices.ContainsFunc(e.Faults, func(f Fault) bool { return f.Kind == Crash }) {
		n += e.Rule.Limit.Capacity()
	}
	e.mayPass(e.window(), e.window(), n)
}

// outage declares that on_store_failure decides at each node, until its leases are confirmed again. A second more
// covers the messages that were under way when the outage ended.
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

// player is one Envoy: the client of package envoy, with the waits and messages of its streams.
type player struct {
	*envoys
	name   string
	client *envoy.Client
	call   *call // nil: it has no stream
	slow   int64 // its reports are held up until then
	late   int64 // answers to it are held up until then
	frozen int64 // it stands still until then; 0: it does not
	later  []func()
	queued []*key // requests that wait while it stands still
	timer  int64  // when its next Tick is due
	quiet  bool   // between two bursts
}

const (
	quietPart  = 0.0125 // of the requests of a burst
	longBurst  = 12 * time.Second
	longQuiet  = 30 * time.Second
	mostQueued = 1000 // requests in the sockets of one that stands still
)

func (e *envoys) join() {
	p := &player{envoys: e, name: fmt.Sprint("Envoy ", len(e.all))}
	p.client = envoy.New("d", e.Envoys.Quirks, p)
	e.all = append(e.all, p)
	if e.Envoys.Bursts {
		p.turn()
	}
}

// turn begins a burst, or ends one.
func (p *player) turn() {
	p.quiet = !p.quiet
	longest := longBurst
	if p.quiet {
		longest = longQuiet
	}
	p.in(1+time.Duration(p.rnd.Int64N(int64(longest))), p.turn)
}

// arrive has a request come.
func (p *player) arrive(k *key) {
	switch {
	case p.quiet && p.rnd.Float64() > quietPart:
	case p.frozen == 0:
		p.request(k)
	case len(p.queued) < mostQueued:
		p.queued = append(p.queued, k)
	}
}

func (p *player) request(k *key) {
	p.judge(k, p.client.Request(p.clock(), k.id), "envoy")
	p.schedule()
}

// clock is the Envoy's own, and right. It begins at a second and not at 0, because instant 0 means "none" to the
// client.
func (p *player) clock() ratelimit.Instant {
	return ratelimit.Instant(p.now) + ratelimit.Instant(time.Second)
}

// run does something on its main thread: later, if it stands still.
func (p *player) run(do func()) {
	if p.frozen != 0 {
		p.later = append(p.later, do)
		return
	}
	do()
	p.schedule()
}

// schedule makes it look at its timers when the next is due. Every call of the client may change its next timer, so
// this follows each.
func (p *player) schedule() {
	if next := p.client.Next(); next != 0 {
		at := max(p.now, int64(next)-int64(time.Second))
		p.alarm(&p.timer, at, func() { p.run(func() { p.client.Tick(p.clock()) }) })
	}
}

// freeze makes it stand still. When it goes on, with the lease that it had, requests that waited come before its
// timers. Envoy decides requests on worker threads, and looks at expired assignments on its main thread. After a stop,
// workers may be first, under an assignment that has ended.
func (p *player) freeze(d time.Duration) {
	if p.frozen != 0 {
		return
	}
	p.frozen = p.now + int64(d)
	since := p.window()
	p.in(d, func() {
		if now := p.window(); since < now {
			p.silent(now)
		}
		p.frozen = 0
		queued, later := p.queued, p.later
		p.queued, p.later = nil, nil
		for _, k := range queued {
			p.request(k)
		}
		for _, do := range later {
			p.run(do)
		}
	})
}

// call is a stream of an Envoy to a node. Messages of each direction keep their order. Those on their way to the Envoy
// when the stream breaks are read before the break is, as with TCP. The session is the node's side, and the client the
// Envoy's. They see the end of a stream at different times: ended is the node's view, and player.call the Envoy's.
type call struct {
	*player
	node    *node
	session *rlqs.Session
	ended   bool  // for the node
	endedAt int64 // then
	there   int64 // arrival of the last message
	back    int64 // the same
	answers uint64
	wake    int64 // when the session's next work is due
}

// Open implements envoy.Wire. A new stream can reach another node, as through a balancer.
func (p *player) Open() bool {
	n := p.ask(-1)
	if n == nil {
		return false
	}
	p.call = &call{player: p, node: n, session: n.core.NewSession()}
	p.result.Streams++
	return true
}

// Send implements envoy.Wire.
func (p *player) Send(m *rlqsv3.RateLimitQuotaUsageReports) {
	c := p.call
	message, err := proto.Marshal(m)
	if err != nil {
		p.violate(-1, -1, "%s cannot report: %v", p.name, err)
		return
	}
	p.trace("%s reports %d buckets to node %d", p.name, len(m.GetBucketQuotaUsages()), c.node.slot)
	p.behind(&c.there, p.slow, func() {
		c.atNode(func() {
			if err := c.session.Reports(p.store.ctx, c.node.clock(), message); err != nil {
				p.violate(c.node.slot, -1, "%s is told: %v", p.name, err)
			}
		})
	})
}

// atNode acts at the node's side of the stream, if there still is one, and sends the resulting messages. A stuck
// session has sent an answer that was not acknowledged in time. The real service ends such a stream, too.
func (c *call) atNode(do func()) {
	if c.ended || !c.node.alive {
		return
	}
	do()
	if c.session.Stuck(c.node.clock()) {
		c.end()
		return
	}
	c.answer()
}

// answer sends the answer that is ready, and wakes the session when that is due. An Envoy must acknowledge an answer
// before the next one is sent, so n is the number that it acknowledges.
func (c *call) answer() {
	now := c.node.clock()
	if answer := c.session.Answer(now); answer != nil {
		m := new(rlqsv3.RateLimitQuotaResponse)
		if err := proto.Unmarshal(answer, m); err != nil {
			c.violate(c.node.slot, -1, "%s cannot read an answer: %v", c.name, err)
		}
		c.answers++
		n, sent := c.answers, c.window()
		c.behind(&c.back, c.late, func() { c.receive(m, n, sent) })
	}
	if next := c.session.Next(); next != 0 {
		at := c.now + max(1, int64(next.Sub(now)))
		c.alarm(&c.wake, at, func() { c.atNode(func() { c.session.Wake(c.store.ctx, c.node.clock()) }) })
	}
}

// receive has the Envoy read an answer that was sent in a window, and acknowledge it. late is set at the arrival, and
// not when a frozen Envoy reads on.
func (c *call) receive(m *rlqsv3.RateLimitQuotaResponse, n uint64, sent ratelimit.Window) {
	late := c.frozen != 0 || c.ended && c.now > c.endedAt+int64(sublease.Slack)
	c.run(func() {
		if late {
			c.readLate(m, sent)
		}
		c.trace("%s reads answer %d: %d actions", c.name, n, len(m.GetBucketAction()))
		c.client.Receive(c.clock(), m)
		c.behind(&c.there, c.slow, func() {
			c.atNode(func() { c.session.Acked(c.store.ctx, c.node.clock(), n) })
		})
	})
}

// readLate declares that the Envoy reads an answer long after it was sent, because it stood still, or the node has
// ended the stream. It may spend those tokens now and, if the lease lasts, in the next window, where they were never
// charged. Within its own window it is charged.
func (c *call) readLate(m *rlqsv3.RateLimitQuotaResponse, sent ratelimit.Window) {
	now, longest := c.window(), time.Duration(0)
	for _, a := range m.GetBucketAction() {
		x := a.GetQuotaAssignmentAction()
		if x.GetRateLimitStrategy().GetTokenBucket() != nil {
			longest = max(longest, x.GetAssignmentTimeToLive().AsDuration())
		}
	}
	if sent < now {
		c.silent(now)
	}
	if c.Rule.Limit.WindowAt(c.ledgerTime().Add(longest)) > now {
		c.silent(now + 1)
	}
}

// end breaks the stream, in an orderly way for the node. Close returns debts: charges and refunds that come due after
// the end, which the node settles then if it still runs.
func (c *call) end() {
	if c.ended {
		return
	}
	n := c.node
	if n.alive {
		for _, d := range c.session.Close(n.clock()) {
			n.in(d.At.Sub(n.clock()), func() { n.core.Settle(c.store.ctx, n.clock(), []*rlqs.Debt{&d}) })
		}
	}
	c.lost()
}

// lost makes the Envoy notice the break, after the messages on their way to it.
func (c *call) lost() {
	c.ended, c.endedAt = true, c.now
	c.behind(&c.back, c.late, func() {
		c.run(func() {
			if c.call == c {
				c.call = nil
				c.client.Broken()
			}
		})
	})
}
