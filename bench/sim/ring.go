package sim

import (
	"math/rand/v2"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing"
)

// A node of mode routing is a routing.Stepped, over the node's leases or, without
// a store, over budgets of its own. Here are the wires between such nodes: frames
// as they are encoded, in streams that keep their order and break as a whole.

// ring is what a node is as one of a ring; nil where the rule is of another mode.
type ring struct {
	*node
	*routing.Stepped
	local   *leasing.Local     // the node's budgets, where there is no store
	streams map[string]*stream // to others, by their addresses
	leaving bool
	left    bool
}

// stream is what one incarnation of a node opened to one of another.
type stream struct {
	from, to *node
	ended    bool
	stalled  bool     // something did not arrive: it breaks
	last     [2]int64 // when the last frame arrives, there and back
}

const (
	opening   = 500 * time.Millisecond // for a stream to open
	leaveTime = 15 * time.Second       // for accounts to be handed over by one who leaves
	found     = time.Second            // until all look for one more
)

func (n *node) joinRing() {
	w := n.world
	if !w.Rule.Coordination.Mode.Spec().Owned {
		return
	}
	wall := time.UnixMicro(int64(w.ledgerTime()))
	r := &ring{node: n, streams: map[string]*stream{}}
	o := routing.SteppedOptions{
		Addr: n.addr, Incarnation: uint64(n.name), HotRate: w.HotRate, Clock: n.clock, Wall: wall, Wires: r,
		Random: rand.New(rand.NewPCG(w.Seed, 0x2000+uint64(n.name))).Float64, Decided: r.decidedFor, Undone: r.undoneFor,
		After: func(d time.Duration, do func()) { n.in(d, func() { r.step(do) }) },
	}
	if w.Storeless {
		r.local = leasing.NewLocal(max(1<<10, 4*w.Load.Keys), n.clock(), wall).Predictable()
		o.Local = r.local
	} else {
		o.Store = n.stepped
	}
	n.ring = r
	r.Stepped = routing.NewStepped(o)
	n.look()
}

// look has the node look for others, now and again.
func (n *node) look() {
	addrs := make([]string, len(n.nodes))
	for i, other := range n.nodes {
		addrs[i] = other.addr
	}
	n.ring.step(func() { n.ring.Found(addrs) })
	n.in(found, n.look)
}

// step has something happen to the node as one of its ring. Its wall clock is
// right.
func (r *ring) step(do func()) {
	if r.local != nil {
		wall := time.UnixMicro(int64(r.ledgerTime()))
		r.local.SyncClock(r.clock(), wall)
		r.SyncClock(r.clock(), wall)
	}
	do()
	r.send()
}

// route has a node decide as one of its ring.
func (w *world) route(n *node, q *request) {
	n.waits = append(n.waits, q)
	counts := func(int) {
		if !q.over && !q.counted[0] && q.verdicts[0].Source != ratelimit.FromOwner { // else the owner's was counted
			q.counted[0] = true
			w.count(n, q, 0)
		}
	}
	n.ring.step(func() {
		n.ring.Ask(q.asks[:q.n], q.verdicts[:q.n], counts, func() {
			if !q.over {
				counts(0)
				q.over = true
				w.waited(q)
			}
		})
	})
	n.forget()
}

// forget drops those who wait no longer.
func (n *node) forget() {
	if len(n.waits) < 64 {
		return
	}
	waits := n.waits[:0]
	for _, q := range n.waits {
		if !q.over {
			waits = append(waits, q)
		}
	}
	clear(n.waits[len(waits):])
	n.waits = waits
}

// decidedFor counts what an owner decides for another node, when it does. An owner that
// has not got the account yet passes the ask on to who has: that node was counted.
func (r *ring) decidedFor(a *ratelimit.Ask, v *ratelimit.Verdict) {
	if v.Source == ratelimit.FromOwner {
		return
	}
	k := r.named[string(a.Key)]
	q := r.take(k, *a)
	q.verdicts[0] = *v
	r.count(r.node, q, 0)
	r.free = append(r.free, q)
}

// undoneFor takes back what an owner had decided for another node, which did not
// wait for it.
func (r *ring) undoneFor(a *ratelimit.Ask, v *ratelimit.Verdict) {
	k := r.named[string(a.Key)]
	at := r.ledgerTime()
	if l := &a.Rule.Limit; l.Algorithm != ratelimit.TokenBucket && v.Window > 0 {
		at = min(at, l.WindowEnd(v.Window)-1)
	}
	r.books.undo(r.node, k, a, v)
	k.judge.Retract(at, r.ledgerTime(), a.Cost)
	r.result.Admitted -= a.Cost
	if r.Decisions {
		r.trace("node %d: key %d: %d are taken back, for who asked has not waited", r.slot, k.index, a.Cost)
	}
}

// hears tells whether a frame from node to node arrives. What is lost is sent
// again, as TCP does; where that is lost, too, the stream breaks.
func (w *world) hears(from, to *node) bool {
	if from.parted > 0 || to.parted > 0 {
		return false
	}
	first, again := w.lost(), w.lost()
	return !first || !again
}

// Dial implements routing.Wires.
func (r *ring) Dial(to string, hello []byte) {
	slot, ok := r.slots[to]
	if !ok {
		r.world.in(time.Microsecond, func() { r.run(func() { r.step(func() { r.Closed(to) }) }) })
		return
	}
	s := &stream{from: r.node, to: r.nodes[slot]}
	r.streams[to] = s
	r.result.Hops++
	refused := func() { s.end(r.travel(r.Net.Hop)) }
	if !r.hears(r.node, s.to) {
		r.in(opening, refused)
		return
	}
	r.in(opening, func() {
		if !s.ended && s.last[1] == 0 {
			refused()
		}
	})
	r.world.in(r.travel(r.Net.Hop), func() {
		if !s.to.alive || s.to.ring == nil {
			refused()
			return
		}
		s.to.run(func() {
			if s.ended {
				return
			}
			var welcome []byte
			var err error
			s.to.ring.step(func() { welcome, err = s.to.ring.Accept(hello) })
			if err != nil || !r.hears(s.to, r.node) {
				s.stalled = true
				return
			}
			s.carry(1, func() { r.Opened(to, welcome) })
		})
	})
}

// HangUp implements routing.Wires.
func (r *ring) HangUp(to string) {
	if s := r.streams[to]; s != nil {
		s.ended = true
		delete(r.streams, to)
	}
}

// Send implements routing.Wires.
func (r *ring) Send(to string, answer bool, frame []byte) {
	slot, ok := r.slots[to]
	if !ok {
		return
	}
	other := r.nodes[slot]
	s, way := r.streams[to], 0
	if answer && other.ring != nil {
		s, way = other.ring.streams[r.addr], 1
	}
	if s == nil || s.ended || s.from != r.node && s.to != r.node {
		return
	}
	r.result.Hops++
	if r.Trace != nil && !answer {
		r.trace("node %d to %d: %s", r.slot, slot, routing.Describe(frame))
	}
	switch {
	case !r.hears(r.node, other):
		s.stalled = true
		if r.parted == 0 && other.parted == 0 {
			s.end(r.travel(r.Net.Hop))
		}
	case s.stalled: // what was before it is missing
		s.end(r.travel(r.Net.Hop))
	default:
		s.carry(way, func() { other.ring.Receive(r.addr, answer, frame) })
	}
}

// carry has something arrive, behind what was sent before.
func (s *stream) carry(way int, do func()) {
	w, to := s.from.world, [2]*node{s.to, s.from}[way]
	at := max(w.now+int64(w.travel(w.Net.Hop)), s.last[way]+1)
	s.last[way] = at
	w.queue.push(at, func() {
		if !s.ended && !s.stalled {
			to.run(func() {
				if !s.ended {
					to.ring.step(do)
				}
			})
		}
	})
}

// end breaks a stream: both sides hear of it.
func (s *stream) end(after time.Duration) {
	if s.ended {
		return
	}
	s.ended = true
	w := s.from.world
	w.in(after, func() {
		s.from.run(func() {
			if r := s.from.ring; r.streams[s.to.addr] == s {
				delete(r.streams, s.to.addr)
				r.step(func() { r.Closed(s.to.addr) })
			}
		})
	})
}

// leaveRing takes a node out of its ring in good order; then it ends.
func (n *node) leaveRing() {
	if n.ring.leaving {
		return
	}
	n.ring.leaving = true
	n.ring.step(func() { n.ring.Leave(func() { n.ring.left = true }) })
	n.goAway(n.now + int64(leaveTime))
}

// goAway ends a node when it has handed over all, or at a time.
func (n *node) goAway(until int64) {
	switch {
	case n.ring.left:
		if len(n.ring.Stats().Members) == 0 {
			n.bound.apart(0) // nobody was there to hand over to
		}
		n.in(ratelimit.StoreDeadline, n.goodbye) // what it was asked is answered
	case n.now >= until:
		n.bound.apart(0) // what it has not handed over is lost
		n.goodbye()
	default:
		n.in(time.Millisecond, func() { n.goAway(until) })
	}
}

// gone has the streams of a node end that has.
func (w *world) gone(n *node) {
	if n.ring == nil {
		return
	}
	n.ring.End()
	for _, other := range w.nodes {
		if other.ring != nil {
			if s := other.ring.streams[n.addr]; s != nil {
				s.end(w.travel(w.Net.Hop))
			}
		}
	}
}

// met has all nodes look for one more, each at its time.
func (w *world) met(n *node) {
	for _, other := range w.nodes {
		if other.ring != nil && other.alive && other != n {
			w.in(time.Duration(w.rnd.Int64N(int64(found))), func() { other.run(other.lookOnce) })
		}
	}
}

func (n *node) lookOnce() {
	addrs := make([]string, len(n.nodes))
	for i, other := range n.nodes {
		addrs[i] = other.addr
	}
	n.ring.step(func() { n.ring.Found(addrs) })
}

// ready tells whether a balancer asks the node: it knows who is away, who leaves
// and who has not joined.
func (n *node) ready() bool {
	return n.alive && (n.ring == nil || !n.ring.leaving && n.ring.Ready())
}

// takenOver is how long a node may be silent before others may own its keys: it
// was heard a ping before.
const takenOver = routing.TakeOver - 600*time.Millisecond

// apart is when some nodes may count by themselves for a while.
func (b *bound) apart(d time.Duration) {
	if b.Storeless {
		b.splits = append(b.splits, span{b.now, b.now + int64(d) + int64(3*time.Second)})
	}
}

// ownerless is when keys may have no owner that answers: until nodes agree again on who
// there is.
func (b *bound) ownerless(d time.Duration) {
	b.lost = append(b.lost, span{b.now, b.now + int64(d) + int64(3*time.Second)})
}

// split is how much more each of those may have cost a key: its limit once more,
// for they count by themselves. A bucket, which owes what went over for ever, is
// refilled on both sides for as long as they do.
func (b *bound) split(r *ratelimit.Rule) ratelimit.Tokens {
	each := r.Declare(len(b.nodes), ratelimit.OwnMemory).Over.EachOwner
	n := ratelimit.Tokens(0)
	for _, s := range b.splits {
		if s.to < b.now-b.lasts(r) {
			continue
		}
		n += each
		if l := &r.Limit; l.Algorithm == ratelimit.TokenBucket {
			n += 1 + ratelimit.Tokens(float64(min(b.now, s.to)-s.from)/float64(l.Period())*float64(l.Requests))
		}
	}
	return n
}
