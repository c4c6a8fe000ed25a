package quota

import (
	"context"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// player is one Envoy, and what sends it requests.
type player struct {
	*world
	index  int
	client *envoy.Client
	stream *stream // nil: it has none
	slow   int64   // until when its reports are held up
	late   int64   // until when answers to it are
	frozen int64   // until when it stands still; 0: it does not
	later  []func()
	queued []*key // requests that wait while it stands still
	timer  int64  // when its next Tick is due
	quiet  bool   // it has hardly any requests, of those that come in bursts
	turns  int64  // until when
}

// Of requests that come in bursts.
const (
	burstOf   = 4.0 // times the mean rate while there is one
	quietOf   = 0.05
	longBurst = 12 * time.Second // at most
	longQuiet = 30 * time.Second
)

// mostQueued is how many requests wait in the sockets of one that stands still.
const mostQueued = 1000

func (w *world) join() {
	p := &player{world: w, index: len(w.envoys)}
	p.client = envoy.New(envoy.Options{Domain: "d", Quirks: w.Quirks}, p)
	w.envoys = append(w.envoys, p)
	p.arrive()
}

// rate is its requests a second.
func (p *player) rate() float64 {
	times := 1.0
	switch {
	case p.Bursts && p.quiet:
		times = quietOf
	case p.Bursts:
		times = burstOf
	}
	if !p.Skewed {
		return times * p.Rate / float64(p.Envoys)
	}
	sum := 0.0
	for i := range p.Envoys {
		sum += 1 / float64(i+1)
	}
	return times * p.Rate / sum / float64(p.index+1)
}

// arrive has the next request come.
func (p *player) arrive() {
	took := time.Duration(p.rnd.ExpFloat64() / p.rate() * float64(time.Second))
	if p.Bursts && p.now+int64(took) > p.turns {
		p.at(p.turns, p.turn)
		return
	}
	p.in(took, func() {
		k := p.keys[p.rnd.IntN(len(p.keys))]
		if p.frozen == 0 {
			p.request(k)
		} else if len(p.queued) < mostQueued {
			p.queued = append(p.queued, k)
		}
		p.arrive()
	})
}

// turn begins a burst, or ends one. What comes at random has no memory: the next request may
// be drawn anew.
func (p *player) turn() {
	p.quiet = !p.quiet
	longest := longBurst
	if p.quiet {
		longest = longQuiet
	}
	p.turns = p.now + 1 + p.rnd.Int64N(int64(longest))
	p.arrive()
}

func (p *player) clock() ratelimit.Instant {
	return ratelimit.Instant(p.now) + ratelimit.Instant(time.Second)
}

func (p *player) request(k *key) {
	p.admit(k, p.client.Request(p.clock(), k.id))
	p.schedule()
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

// schedule has its timers looked at when the next is due.
func (p *player) schedule() {
	next := p.client.Next()
	if next == 0 {
		return
	}
	due := max(p.now, int64(next)-int64(time.Second))
	if p.timer > p.now && p.timer <= due {
		return
	}
	p.timer = due
	p.at(due, func() {
		if p.timer == due {
			p.timer = 0
			p.run(func() { p.client.Tick(p.clock()) })
		}
	})
}

// freeze has it stand still. When it goes on, requests that waited come before its timers.
func (p *player) freeze(d time.Duration) {
	if p.frozen != 0 {
		return
	}
	p.frozen = p.now + int64(d)
	since := p.window()
	p.at(p.frozen, func() {
		p.bound.wentOn(p.world, since)
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

// stream is one, with its messages in both directions in order.
type stream struct {
	*player
	node     *node
	session  *rlqs.Session
	ended    bool  // for the node
	endedAt  int64 // then
	there    int64
	back     int64
	answers  uint64
	lastWake int64
}

// Open implements envoy.Wire.
func (p *player) Open() bool {
	var alive []*node
	for _, n := range p.nodes {
		if n.alive {
			alive = append(alive, n)
		}
	}
	if len(alive) == 0 {
		return false
	}
	n := alive[p.rnd.IntN(len(alive))]
	p.stream = &stream{player: p, node: n, session: n.core.NewSession()}
	p.result.Streams++
	return true
}

// Send implements envoy.Wire.
func (p *player) Send(m *rlqsv3.RateLimitQuotaUsageReports) {
	s := p.stream
	p.result.Reports++
	message, err := proto.Marshal(m)
	if err != nil {
		p.violate("Envoy %d cannot report: %v", p.index, err)
		return
	}
	s.travel(&s.there, func() { s.atNode(func() { s.reported(message) }) })
}

// travel carries something, behind what goes the same way.
func (s *stream) travel(last *int64, do func()) {
	took := s.Trip/2 + time.Duration(s.rnd.ExpFloat64()*float64(s.Trip)/2)
	held := s.slow
	if last == &s.back {
		held = s.late
	}
	*last = max(*last+1, s.now+int64(took), held)
	s.at(*last, do)
}

// atNode acts at the node's side of the stream, if there still is one, and sends the resulting messages.
func (s *stream) atNode(do func()) {
	if s.ended || !s.node.alive {
		return
	}
	do()
	if s.session.Stuck(s.node.clock()) {
		s.end()
		return
	}
	s.answer()
}

func (s *stream) reported(message []byte) {
	if err := s.session.Reports(context.Background(), s.node.clock(), message); err != nil {
		s.violate("Envoy %d is told: %v", s.index, err)
	}
}

// answer sends what there is, and wakes the session when it is to be.
func (s *stream) answer() {
	if answer := s.session.Answer(s.node.clock()); answer != nil {
		m := new(rlqsv3.RateLimitQuotaResponse)
		if err := proto.Unmarshal(answer, m); err != nil {
			s.violate("Envoy %d cannot read an answer: %v", s.index, err)
		}
		s.answers++
		s.result.Answers++
		n := s.answers
		sent := s.window()
		s.travel(&s.back, func() {
			late := s.frozen != 0 || s.ended && s.now > s.endedAt+int64(sublease.Slack)
			s.run(func() {
				if late {
					s.bound.readLate(s.world, m, sent)
				}
				s.client.Receive(s.clock(), m)
				s.travel(&s.there, func() {
					s.atNode(func() { s.session.Acked(context.Background(), s.node.clock(), n) })
				})
			})
		})
	}
	next := s.session.Next()
	if next == 0 {
		return
	}
	at := max(s.now+1, s.node.born+int64(next)-int64(time.Second))
	if s.lastWake > s.now && s.lastWake <= at {
		return
	}
	s.lastWake = at
	s.at(at, func() {
		if s.lastWake == at {
			s.atNode(func() { s.session.Wake(context.Background(), s.node.clock()) })
		}
	})
}

// end breaks the stream, in an orderly way for the node.
func (s *stream) end() {
	if s.ended {
		return
	}
	if s.node.alive {
		for _, d := range s.session.Close(s.node.clock()) {
			s.at(s.node.born+int64(d.At)-int64(time.Second), func() {
				s.node.run(func() { s.node.core.Settle(context.Background(), s.node.clock(), []*rlqs.Debt{&d}) })
			})
		}
	}
	s.lost()
}

// lost has the Envoy notice, after the messages on their way to it.
func (s *stream) lost() {
	s.ended, s.endedAt = true, s.now
	s.travel(&s.back, func() {
		s.run(func() {
			if s.stream == s {
				s.stream = nil
				s.client.Broken()
			}
		})
	})
}
