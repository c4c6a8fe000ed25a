package sim

import (
	"fmt"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

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

// schedule makes it look at its timers when the next is due.
func (p *player) schedule() {
	if next := p.client.Next(); next != 0 {
		at := max(p.now, int64(next)-int64(time.Second))
		p.alarm(&p.timer, at, func() { p.run(func() { p.client.Tick(p.clock()) }) })
	}
}

// freeze makes it stand still. When it goes on, with the lease that it had, requests that waited come before its timers.
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
// when the stream breaks are read before the break is, as with TCP.
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

// Open implements envoy.Wire.
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

// atNode acts at the node's side of the stream, if there still is one, and sends the resulting messages.
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

// answer sends the answer that is ready, and wakes the session when that is due.
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

// receive has the Envoy read an answer that was sent in a window, and acknowledge it.
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

// end breaks the stream, in an orderly way for the node.
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
