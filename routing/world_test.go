package routing_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/bench/queue"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/routing"
	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

type (
	ask     = ratelimit.Ask
	verdict = ratelimit.Verdict
	tokens  = ratelimit.Tokens
)

// began is the time of all clocks at the start of a world.
var began = time.Unix(1_800_000_000, 0)

// world is a fleet in virtual time, on one rule. Its nodes are routing.Stepped, or peers whose frames a test writes.
// The same calls have the same results in every run.
type world struct {
	testing.TB
	queue       queue.Queue
	now         ratelimit.Instant
	rnd         *rand.Rand
	nodes       map[string]*node
	addrs       []string // that discovery finds
	lives       uint64
	delay, tail time.Duration // of a frame: at least, and at most so much more
	rule        *ratelimit.Rule
	admitted    []tokens // by key
	failed      int      // decisions without the key's owner
	parcels     int      // without a receipt
	hotRate     float64
	table       int             // keys that a node has room for
	records     *table.Table    // nil: nodes share no records
	ledger      *account.Memory // nil: budgets are in the nodes
	// carries is asked about each frame. If it reports false, the stream breaks, and the frame is lost.
	carries func(from, to string, f *wire.Frame) bool
}

func newWorld(t testing.TB, keys int, limit tokens) *world {
	return &world{
		TB: t, now: ratelimit.Instant(time.Second), rnd: rand.New(rand.NewPCG(1, 2)), nodes: map[string]*node{},
		delay: 100 * time.Microsecond, tail: 400 * time.Microsecond, rule: routed(limit), admitted: make([]tokens, keys),
		table: 100_000, carries: func(string, string, *wire.Frame) bool { return true },
	}
}

// newPair is a world of one key with a limit of 10, and nodes that have met: a:1, b:1 and more.
func newPair(t testing.TB, more ...string) (w *world, a, b *node) {
	w = newWorld(t, 1, 10)
	w.ring(append([]string{"a:1", "b:1"}, more...)...)
	return w, w.nodes["a:1"], w.nodes["b:1"]
}

// routed is a rule of a year, so that no window ends during a test.
func routed(limit tokens) *ratelimit.Rule {
	r := &ratelimit.Rule{
		Domain: "d", Limit: ratelimit.Limit{Unit: ratelimit.Year, Requests: limit},
		Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{},
	}
	r.Coordination.Mode, r.Coordination.OnStoreFailure = ratelimit.Routing, ratelimit.FailClosed
	return r
}

func keyOf(i int) []byte {
	b := ratelimit.AppendPrefix(nil, "d", ratelimit.Limit{Unit: ratelimit.Year})
	return ratelimit.AppendEntry(b, "user", fmt.Sprint(i), false)
}

// keyIn is the first key from number i on that a ring of these nodes gives to the first of them.
func keyIn(i int, addrs ...string) []byte {
	for r := ring.Of(append([]string{}, addrs...)); ; i++ {
		if key := keyOf(i); r.Owner(ring.HashOf(key)) == addrs[0] {
			return key
		}
	}
}

// wall is the right time of day.
func (w *world) wall() time.Time { return began.Add(time.Duration(w.now) - time.Second) }

func (w *world) in(d time.Duration, do func()) { w.queue.Push(int64(w.now.Add(max(d, 1))), do) }

// play goes on for a while.
func (w *world) play(d time.Duration) {
	end := w.now.Add(d)
	for w.queue.Next() <= int64(end) {
		w.now = ratelimit.Instant(w.queue.Next())
		w.queue.Pop()()
	}
	w.now = end
}

// toTurn goes on until so long before the end of the rule's window.
func (w *world) toTurn(before time.Duration) {
	at := ratelimit.LedgerTime(w.wall().UnixMicro())
	w.play(w.rule.Limit.WindowEnd(w.rule.Limit.WindowAt(at)).Sub(at) - before)
}

// until goes on until something is so.
func (w *world) until(what string, ok func() bool) {
	w.Helper()
	for end := w.now.Add(30 * time.Second); !ok(); w.play(100 * time.Microsecond) {
		if w.now > end {
			for _, n := range w.nodes {
				if n.Stepped != nil {
					w.Logf("%s ready %v: %+v", n.addr, n.Ready(), n.Stats())
				}
			}
			w.Fatal("not within 30 s: ", what)
		}
	}
}

// node is one incarnation of a node, and its wires.
type node struct {
	*world
	*routing.Stepped // nil: a peer
	at               end
	addr             string
	life             uint64
	store            *leasing.Stepped
	local            *local.Limiter
	ended            bool
	paused           bool
	cut              bool              // no frames arrive, in both directions
	deaf             bool              // its store does not answer
	port             ratelimit.Instant // from when on it accepts streams
	later            []func()
	streams          map[string]*stream // that it has opened
	said             []string           // what it decided for others, and took back
}

// end is one end of streams: a routing.Stepped, or a peer.
type end interface {
	Accept(hello []byte) (welcome []byte, err error)
	Opened(to string, welcome []byte)
	Closed(to string)
	Receive(from string, answer bool, frame []byte)
}

// add adds a node without its end.
func (w *world) add(addr string) *node {
	w.lives++
	n := &node{world: w, addr: addr, life: w.lives, streams: map[string]*stream{}}
	w.nodes[addr] = n
	return n
}

// start starts a node, or another incarnation of one.
func (w *world) start(addr string) *node {
	n := w.add(addr)
	after := func(d time.Duration, do func()) { w.in(d, func() { n.do(do) }) }
	clock := func() ratelimit.Instant { return w.now }
	o := routing.SteppedOptions{
		Options:     routing.Options{Addr: addr, HotRate: w.hotRate, Table: w.records},
		Incarnation: n.life, Clock: clock, Wall: w.wall(), After: after, Random: w.rnd.Float64, Wires: n,
		Decided: func(a *ask, v *verdict) {
			n.said = append(n.said, fmt.Sprintf("%d of %d", v.Charged, a.Cost))
		},
		Undone: func(a *ask, _ *verdict) { n.said = append(n.said, fmt.Sprint("undo ", a.Cost)) },
	}
	if w.ledger != nil {
		n.store = leasing.NewStepped(ratelimit.Holder(n.life)<<28, 1000, clock, w.wall(), after, w.rnd.Float64)
		n.store.Nodes = func() int { return len(w.nodes) }
		o.Store = n.store
		var sweep func()
		sweep = func() { n.store.Sweep(w.now); after(leasing.SweepEvery, sweep) }
		sweep()
	} else {
		n.local = local.New(w.table, w.now, w.wall()).Predictable()
		o.Local = n.local
	}
	n.Stepped = routing.NewStepped(o)
	n.at = n.Stepped
	w.Cleanup(n.End)
	n.do(func() { n.Found(w.addrs) })
	return n
}

// do does something at the node: later, if it is paused; never, if it has ended.
func (n *node) do(do func()) {
	switch {
	case n.ended:
	case n.paused:
		n.later = append(n.later, do)
	default:
		do()
		n.settle()
	}
}

// settle has the store answer all claims at once.
func (n *node) settle() {
	for n.store != nil {
		b := n.store.Batch()
		if b == nil || n.deaf {
			return
		}
		grants := make([]account.Grant, len(b.Claims()))
		epoch, at, err := n.ledger.Settle(context.Background(), b.Claims(), grants)
		if err != nil {
			n.Fatal(err)
		}
		b.Answer(epoch, at, grants)
		n.Pump()
	}
}

// resume ends a pause.
func (n *node) resume() {
	n.paused = false
	for _, do := range n.later {
		n.do(do)
	}
	n.later = nil
}

// stream is a connection that one node has opened to another.
type stream struct {
	from, to *node
	addr     string // of the other, which there may not be
	open     bool   // or being opened
	last     [2]ratelimit.Instant
}

const opening = 500 * time.Millisecond // for a stream to open

// Dial implements routing.Wires.
func (n *node) Dial(to string, hello []byte) {
	s := &stream{from: n, to: n.nodes[to], addr: to, open: true}
	n.streams[to] = s
	if s.to == nil || s.to.ended || n.now < s.to.port {
		s.breaks()
		return
	}
	welcomed := false
	n.in(opening, func() {
		if !welcomed {
			s.breaks()
		}
	})
	s.carry(0, func() {
		welcome, err := s.to.at.Accept(hello)
		if err == nil {
			s.carry(1, func() { welcomed = true; n.at.Opened(to, welcome) })
		}
	})
}

// carry delivers something after what was sent before, there or back.
func (s *stream) carry(way int, do func()) {
	w := s.from.world
	at := max(w.now.Add(w.delay+time.Duration(w.rnd.Int64N(int64(w.tail)+1))), s.last[way]+1)
	s.last[way] = at
	w.in(at.Sub(w.now), func() {
		if s.open && !s.from.cut && !s.to.cut {
			[2]*node{s.to, s.from}[way].do(do)
		}
	})
}

// breaks ends a stream, and reports that to the node that has opened it.
func (s *stream) breaks() {
	if s == nil || !s.open {
		return
	}
	s.open = false
	s.from.in(s.from.delay, func() {
		s.from.do(func() {
			if s.from.streams[s.addr] == s {
				delete(s.from.streams, s.addr)
				s.from.at.Closed(s.addr)
			}
		})
	})
}

// HangUp implements routing.Wires.
func (n *node) HangUp(to string) {
	if s := n.streams[to]; s != nil {
		s.open = false
		delete(n.streams, to)
	}
}

// Send implements routing.Wires.
func (n *node) Send(to string, answer bool, frame []byte) {
	other, way := n.nodes[to], 0
	s := n.streams[to]
	if answer && other != nil {
		s, way = other.streams[n.addr], 1
	}
	if s == nil || !s.open || s.from != n && s.to != n {
		return
	}
	var f wire.Frame
	if err := proto.Unmarshal(frame, &f); err != nil {
		n.Fatal(err)
	}
	if f.GetParcel() != nil {
		n.parcels++
	}
	n.parcels -= len(f.GetReceipts())
	if !n.carries(n.addr, to, &f) {
		s.breaks()
		return
	}
	s.carry(way, func() { other.at.Receive(n.addr, answer, frame) })
}

// breakAll breaks the streams between two nodes.
func (w *world) breakAll(a, b string) {
	w.nodes[a].streams[b].breaks()
	w.nodes[b].streams[a].breaks()
}

// reach has a node reach the others from now on, or not.
func (n *node) reach(others bool) {
	n.cut = !others
	for addr := range n.nodes {
		if addr != n.addr {
			n.breakAll(n.addr, addr)
		}
	}
	n.play(time.Millisecond)
}

// crash ends a node without a word.
func (w *world) crash(addr string) {
	n := w.nodes[addr]
	n.ended = true
	n.End()
	for other := range w.nodes {
		w.nodes[other].streams[addr].breaks()
	}
}

// leaves has a node leave, and waits until it has.
func (w *world) leaves(addr string) {
	w.Helper()
	gone := false
	w.nodes[addr].Leave(func() { gone = true })
	w.until(addr+" has left", func() bool { return gone })
}

// ring starts nodes, and waits until they agree.
func (w *world) ring(addrs ...string) {
	w.join(addrs...)
	w.agree(w.addrs...)
}

// join starts more nodes, and has all find them.
func (w *world) join(addrs ...string) *node {
	w.addrs = append(w.addrs, addrs...)
	for _, a := range w.addrs {
		if n := w.nodes[a]; n != nil && n.Stepped != nil {
			n.do(func() { n.Found(w.addrs) })
		}
	}
	for _, a := range addrs {
		w.start(a)
	}
	return w.nodes[addrs[0]]
}

// sees reports whether so many are in a node's ring.
func (n *node) sees(members int) func() bool {
	return func() bool { return len(n.Stats().Members) == members }
}

// agree waits until all live nodes are ready in the same ring, and accounts have moved.
func (w *world) agree(live ...string) {
	w.Helper()
	w.until("all agree", func() bool {
		for _, a := range live {
			if n := w.nodes[a]; !n.Ready() || !n.sees(len(live))() {
				return false
			}
		}
		return true
	})
	w.play(100 * time.Millisecond)
}

// ask asks a node, and counts. What was admitted without the owner does not count.
func (w *world) ask(addr string, k int, cost tokens) {
	v := make([]verdict, 1)
	n := w.nodes[addr]
	n.do(func() {
		n.Ask([]ask{{Rule: w.rule, Key: keyOf(k), Cost: cost}}, v, nil, func() {
			switch {
			case v[0].Source == ratelimit.FromFallback:
				w.failed++
			case !v[0].OverLimit:
				w.admitted[k] += cost
			}
		})
	})
}

// one asks a node by the rule of the world, and waits for the verdict.
func (w *world) one(addr string, a ask) verdict { return w.all(addr, a)[0] }

// all is a request of several asks.
func (w *world) all(addr string, asks ...ask) []verdict {
	v := make([]verdict, len(asks))
	for i := range asks {
		asks[i].Rule = cmp.Or(asks[i].Rule, w.rule)
		v[i].OverLimit = true // of an earlier request
	}
	n := w.nodes[addr]
	n.do(func() { n.Ask(asks, v, nil, func() {}) })
	w.play(50 * time.Millisecond)
	return v
}

// left is what a node says is left of a key.
func (w *world) left(addr string, key []byte) tokens {
	return w.one(addr, ask{Key: key, Kind: ratelimit.Peek}).Remaining
}

// admits is how many of so many requests a node admits.
func (w *world) admits(addr string, key []byte, asks int) (n int) {
	for range asks {
		if !w.one(addr, ask{Key: key, Cost: 1}).OverLimit {
			n++
		}
	}
	return n
}

// load asks some nodes at random, for a while.
func (w *world) load(d, every time.Duration, addrs ...string) {
	for at := time.Duration(0); at < d; at += every {
		w.in(at, func() { w.ask(addrs[w.rnd.IntN(len(addrs))], w.rnd.IntN(len(w.admitted)), 1) })
	}
}

// fill has each key ask for some, at any of these nodes.
func (w *world) fill(cost tokens, addrs ...string) {
	for k := range w.admitted {
		w.ask(addrs[k%len(addrs)], k, cost)
		if k%50 == 0 {
			w.play(time.Millisecond)
		}
	}
	w.play(50 * time.Millisecond)
}

// exact uses up what is left of each key, and holds what was admitted in all against the limit, and so much more.
func (w *world) exact(over tokens, addrs ...string) {
	w.Helper()
	w.failed = 0
	limit := w.rule.Limit.Requests
	for range limit + 2 {
		w.fill(1, addrs...)
	}
	w.within(limit, limit+over)
	if w.failed > 0 {
		w.Errorf("%d decisions failed", w.failed)
	}
}

// within holds what keys were admitted against a least and a most.
func (w *world) within(least, most tokens) {
	w.Helper()
	wrong := 0
	for k, n := range w.admitted {
		if n < least || n > most {
			if wrong++; wrong == 1 {
				w.Errorf("key %d was admitted %d, want %d to %d", k, n, least, most)
			}
		}
	}
	if wrong > 1 {
		w.Errorf("%d of %d keys", wrong, len(w.admitted))
	}
}
