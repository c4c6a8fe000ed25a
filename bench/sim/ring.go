package sim

import (
	"math/rand/v2"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
	"github.com/sluice-gate/sluice/routing"
)

// A node of mode routing is a routing.Stepped, over the node's leases or, without a store, over its own
// budgets. This file has the wires between such nodes: encoded frames, in streams that keep their order and
// break as a whole.

// ring is a node's part in a ring, or nil for rules of other modes. It is the driver of its routing.Stepped, and
// implements its Wires: Dial, HangUp and Send. Frames, timers and requests reach Stepped through step.
type ring struct {
	*node
	*routing.Stepped
	local   *local.Limiter     // the node's budgets, without a store
	streams map[string]*stream // to others, by their addresses
	leaving bool
	left    bool
}

// stream is a connection from one incarnation of a node to one of another. Each node of a pair opens a stream of its
// own. It sends its calls over that and gets their answers back over it (way 0 and 1). A stream belongs to two
// incarnations: one that starts again needs new ones.
type stream struct {
	from, to *node
	ended    bool
	stalled  bool     // a frame was lost: the stream breaks
	last     [2]int64 // arrival of the last frame, there and back
}

const (
	opening   = 500 * time.Millisecond // for a stream to open
	leaveTime = 15 * time.Second       // for a leaving node to hand over its accounts
	found     = time.Second            // until all nodes look for a new one
)

// joinRing makes the node's part in a ring, if the rule is of mode routing. With a store, an owner decides by the
// node's leases (o.Store); without one, by its own memory (o.Local).
func (n *node) joinRing() {
	w := n.world
	if !w.Rule.Coordination.Mode.Spec().Owned {
		return
	}
	wall := time.UnixMicro(int64(w.ledgerTime()))
	r := &ring{node: n, streams: map[string]*stream{}}
	o := routing.SteppedOptions{
		Options:     routing.Options{Addr: n.addr, Region: w.region(n.slot), HotRate: w.HotRate},
		Incarnation: uint64(n.name), Clock: n.clock, Wall: wall, Wires: r,
		Random: rand.New(rand.NewPCG(w.Seed, 0x2000+uint64(n.name))).Float64, Decided: r.decidedFor, Undone: r.undoneFor,
		After: func(d time.Duration, do func()) { n.in(d, func() { r.step(do) }) },
	}
	if w.Storeless {
		r.local = local.New(max(1<<10, 4*w.Load.Keys), n.clock(), wall).Predictable()
		o.Local = r.local
	} else {
		o.Store = n.stepped
	}
	n.ring = r
	r.Stepped = routing.NewStepped(o)
	n.look()
}

// look makes the node look for others, periodically.
func (n *node) look() {
	n.lookOnce()
	n.in(found, n.look)
}

// step makes an event happen at the node's ring. Its wall clock is right. step ends with send, because an event of the
// ring may spend a lease and make a claim due.
func (r *ring) step(do func()) {
	if r.local != nil {
		wall := time.UnixMicro(int64(r.ledgerTime()))
		r.local.SyncClock(r.clock(), wall)
		r.SyncClock(r.clock(), wall)
	}
	do()
	r.send()
}

// route lets a node decide as a part of its ring. A decision of this node is counted at once (counts), and one of the
// key's owner is counted at the owner, at its instant (decidedFor). Counting at the answer would be late by a hop,
// perhaps in another window.
func (w *world) route(n *node, q *request) {
	n.waits = append(n.waits, q)
	counts := func(int) {
		if !q.over && !q.counted[0] && q.verdicts[0].Source != ratelimit.FromOwner { // otherwise the owner's decision was counted
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
	if len(n.waits) >= 64 { // now and again
		n.dropDecided()
	}
}

// decidedFor counts the decision of an owner for another node, at its time. An owner that lacks the account forwards
// the request to the node that has it: that node was counted. A decision by on_store_failure is not one of the ledger,
// so the asking node counts it when it uses it. The owner has booked its charge.
func (r *ring) decidedFor(a *ratelimit.Ask, v *ratelimit.Verdict) {
	if v.Source == ratelimit.FromOwner {
		return
	}
	k := r.named[string(a.Key)]
	if v.Source == ratelimit.FromFallback { // the asking node is counted
		if r.Check && !r.Storeless {
			r.books.decided(r.node, k, a, v)
		}
		return
	}
	q := r.take(k, *a)
	q.verdicts[0] = *v
	r.count(r.node, q, 0)
}

// undoneFor takes back the decision of an owner for another node, which did not wait for it. The admission was counted
// at the owner's decision, whose instant is no longer known. It is in the verdict's window, so at is put into that.
func (r *ring) undoneFor(a *ratelimit.Ask, v *ratelimit.Verdict) {
	k := r.named[string(a.Key)]
	at := r.ledgerTime()
	if l := &a.Rule.Limit; l.Algorithm != ratelimit.TokenBucket && v.Window > 0 {
		at = min(at, l.WindowEnd(v.Window)-1)
	}
	r.books.undo(r.node, k, a, v)
	r.retract(k, at, a.Cost)
	if r.Decisions {
		r.trace("node %d: key %d: %d are taken back, for who asked has not waited", r.slot, k.index, a.Cost)
	}
}

// hears reports whether a frame from node to node arrives. Lost frames are sent again, as in TCP. If the second is
// lost, too, the stream breaks. Both numbers are drawn in any case, so that a frame uses as many random numbers whether
// it arrives or not.
func (w *world) hears(from, to *node) bool {
	if from.parted > 0 || to.parted > 0 {
		return false
	}
	first, again := w.lost(), w.lost()
	return !first || !again
}

// Dial implements routing.Wires. A hello travels to the other node, which answers with a welcome. A refusal ends the
// stream after another trip, and silence ends it after opening. Stepped must not be called within Dial, so that every
// outcome is an event.
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

// Send implements routing.Wires. After a lost frame the stream is stalled: TCP delivers nothing behind a gap. Without a
// partition it breaks soon, and in one it stays silent until the node notices that pings have no answers.
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
	case s.stalled: // an earlier frame is missing
		s.end(r.travel(r.Net.Hop))
	default:
		s.carry(way, func() { other.ring.Receive(r.addr, answer, frame) })
	}
}

// carry delivers a frame, after those sent before. It looks at the stream again on arrival: it may have broken on the
// way.
func (s *stream) carry(way int, do func()) {
	to := [2]*node{s.to, s.from}[way]
	s.from.behind(&s.last[way], 0, func() {
		if !s.ended && !s.stalled {
			to.run(func() {
				if !s.ended {
					to.ring.step(do)
				}
			})
		}
	})
}

// end breaks a stream, at both sides. Only the side that opened the stream reports Closed: the other one has a stream
// of its own.
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

// leaveRing takes a node out of its ring with a handover, then ends it. Meanwhile the node is not ready, so a balancer
// sends it no requests.
func (n *node) leaveRing() {
	if n.ring.leaving {
		return
	}
	n.ring.leaving = true
	n.ring.step(func() { n.ring.Leave(func() { n.ring.left = true }) })
	n.goAway(n.now + int64(leaveTime))
}

// goAway ends a node after its handover, or at a time. A node that is cut off can never finish its handover, so
// leaveTime bounds it.
func (n *node) goAway(until int64) {
	switch {
	case n.ring.left:
		if len(n.ring.Stats().Members) == 0 {
			n.bound.apart(0) // there was no heir
		}
		n.in(n.rule.Coordination.Deadline(), n.goodbye) // answers in flight arrive
	case n.now >= until:
		n.bound.apart(0) // the rest is lost
		n.goodbye()
	default:
		n.in(time.Millisecond, func() { n.goAway(until) })
	}
}

// gone breaks the streams of an ended node. The others notice after a hop, as by a TCP reset.
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

// met makes all nodes look for a new one, each at its time.
func (w *world) met(n *node) {
	for _, other := range w.nodes {
		if other.ring != nil && other.alive && other != n {
			w.in(time.Duration(w.rnd.Int64N(int64(found))), func() { other.run(other.lookOnce) })
		}
	}
}

// lookOnce passes the addresses of the node's region to its ring. Discovery lists ended nodes, too, as a stale DNS
// answer does.
func (n *node) lookOnce() {
	var addrs []string
	for _, other := range n.nodes {
		if n.region(other.slot) == n.region(n.slot) {
			addrs = append(addrs, other.addr)
		}
	}
	n.ring.step(func() { n.ring.Found(addrs) })
}

// ready reports whether a balancer uses the node: not if it is away, leaves, or has not joined. Without a ring, a live
// node is ready at once.
func (n *node) ready() bool {
	return n.alive && (n.ring == nil || !n.ring.leaving && n.ring.Ready())
}

// takenOver is the silence after which others may own a node's keys: its last ping was one interval earlier. Pings
// leave every half a second, and travel for up to a tenth.
const takenOver = routing.TakeOver - 600*time.Millisecond

// apart notes that some nodes may count separately for a while. Three seconds more are for the nodes to see each other
// again.
func (b *bound) apart(d time.Duration) {
	if b.Storeless {
		b.splits = append(b.splits, span{b.now, b.now + int64(d) + int64(3*time.Second)})
	}
}

// ownerless notes that keys may have no owner that answers, until nodes agree on the members again.
func (b *bound) ownerless(d time.Duration) {
	b.lost = append(b.lost, span{b.now, b.now + int64(d) + int64(3*time.Second)})
}

// split is the additional bound of a key for each of these: its limit once more, because they count separately.
// A bucket, whose debt stays, refills on both sides for that time.
func (b *bound) split(r *ratelimit.Rule) ratelimit.Tokens {
	each := declare.Of(r, len(b.nodes), declare.OwnMemory).Over.EachOwner
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
