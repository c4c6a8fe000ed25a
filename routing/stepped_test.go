package routing

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/ring"
)

// script is a ring in virtual time: what happens in which order is written down, and the same in each run.
type script struct {
	*testing.T
	now      instant
	events   []scriptEvent
	turn     int
	rnd      *rand.Rand
	nodes    map[string]*scriptNode
	addrs    []string // that nodes find
	rule     *ratelimit.Rule
	admitted []ratelimit.Tokens
	failed   int
	lives    uint64
	delay    time.Duration // of a frame, at least
	tail     time.Duration // and at most so much more
	hotRate  float64
}

type scriptEvent struct {
	at   instant
	turn int
	do   func()
}

// scriptNode is one incarnation, and its wires.
type scriptNode struct {
	*Stepped
	*script
	addr    string
	local   *local.Limiter
	alive   bool
	paused  bool
	later   []func()
	cut     bool            // no messages arrive, in both directions
	streams map[string]*int // by whom they go to; a counter that a break counts up
	last    map[string]instant
	frames  int
	port    instant // from when on it is open
}

func newScript(t *testing.T, keys int, limit ratelimit.Tokens) *script {
	return &script{
		T: t, now: instant(time.Second), rnd: rand.New(rand.NewPCG(1, 2)), nodes: map[string]*scriptNode{},
		rule: routed(limit), admitted: make([]ratelimit.Tokens, keys), delay: 100 * time.Microsecond, tail: 400 * time.Microsecond,
	}
}

// newPair is a script of one key with a limit of 10, and nodes that have met, a:1, b:1 and more, of which it returns
// the first.
func newPair(t *testing.T, more ...string) (*script, *scriptNode) {
	s := newScript(t, 1, 10)
	s.ring(append([]string{"a:1", "b:1"}, more...)...)
	return s, s.nodes["a:1"]
}

func (s *script) in(d time.Duration, do func()) {
	s.turn++
	e := scriptEvent{s.now.Add(max(d, 1)), s.turn, do}
	at, _ := slices.BinarySearchFunc(s.events, e, func(a, b scriptEvent) int { return cmp.Or(cmp.Compare(b.at, a.at), cmp.Compare(b.turn, a.turn)) })
	s.events = slices.Insert(s.events, at, e)
}

// play goes on for a while.
func (s *script) play(d time.Duration) {
	end := s.now.Add(d)
	for len(s.events) > 0 && s.events[len(s.events)-1].at <= end {
		e := s.events[len(s.events)-1]
		s.events = s.events[:len(s.events)-1]
		s.now = e.at
		e.do()
	}
	s.now = end
}

// until goes on until something is so.
func (s *script) until(what string, ok func() bool) {
	s.Helper()
	for end := s.now.Add(30 * time.Second); !ok(); s.play(time.Millisecond) {
		if s.now > end {
			s.show()
			s.Fatal("not within 30 s: ", what)
		}
	}
}

func (s *script) show() {
	for _, a := range s.addrs {
		if n := s.nodes[a]; n != nil {
			v := n.view.Load()
			s.Logf("%s alive %v present %v stable %v ring %v mover %v underway %d", a, n.alive, n.present, v.stable.Load(), v.ring, n.mover.state, len(n.mover.underway))
			for _, m := range n.sorted() {
				s.Logf("    %s alive %v ready %v holds %v done %v", m.addr, m.alive, m.ready.Load(), m.holds, m.done == v.digest)
			}
		}
	}
}

// start starts a node, or another incarnation of one.
func (s *script) start(addr string) *scriptNode {
	s.lives++
	n := &scriptNode{script: s, addr: addr, alive: true, streams: map[string]*int{}, last: map[string]instant{}}
	s.nodes[addr] = n
	clock := func() instant { return s.now }
	n.local = local.New(100_000, s.now, time.Unix(1_800_000_000, 0)).Predictable()
	n.Stepped = NewStepped(SteppedOptions{
		Options: Options{Addr: addr, HotRate: max(s.hotRate, 0)}, Incarnation: s.lives, Clock: clock, Wall: time.Unix(1_800_000_000, 0), After: func(d time.Duration, do func()) {
			s.in(d, func() { n.do(do) })
		}, Random: s.rnd.Float64, Local: n.local, Wires: n,
	})
	s.Cleanup(n.End)
	n.Found(s.addrs)
	return n
}

func (n *scriptNode) do(do func()) {
	switch {
	case !n.alive:
	case n.paused:
		n.later = append(n.later, do)
	default:
		do()
	}
}

// Dial implements Wires.
func (n *scriptNode) Dial(to string, hello []byte) {
	life := new(int)
	n.streams[to] = life
	alive := *life
	n.in(n.travel(), func() {
		other := n.nodes[to]
		if other == nil || !other.alive || n.now < other.port || other.cut || n.cut || *life != alive {
			wait := time.Duration(1)
			if other != nil && other.cut || n.cut {
				wait = 500 * time.Millisecond
			}
			n.in(wait, func() { n.do(func() { n.ended(to, life) }) })
			return
		}
		other.do(func() {
			welcome, err := other.Accept(hello)
			n.in(n.travel(), func() {
				n.do(func() {
					if *life != alive || err != nil || other.cut || n.cut {
						n.ended(to, life)
						return
					}
					n.Opened(to, welcome)
				})
			})
		})
	})
}

// ended tells a node that its stream has.
func (n *scriptNode) ended(to string, life *int) {
	if n.streams[to] == life {
		delete(n.streams, to)
		n.Closed(to)
	}
}

// HangUp implements Wires.
func (n *scriptNode) HangUp(to string) { n.end(to, false) }

// end breaks the stream to a node, and reports that to this one if necessary.
func (n *scriptNode) end(to string, tell bool) {
	life := n.streams[to]
	if life == nil {
		return
	}
	*life++
	if !tell {
		delete(n.streams, to)
		return
	}
	n.in(n.travel(), func() { n.do(func() { n.ended(to, life) }) })
}

// Send implements Wires.
func (n *scriptNode) Send(to string, answer bool, frame []byte) {
	n.frames++
	other := n.nodes[to]
	if other == nil {
		return
	}
	life := n.streams[to]
	if answer {
		life = other.streams[n.addr]
	}
	if life == nil {
		return
	}
	alive := *life
	// In order, as a stream is.
	name := fmt.Sprint(to, answer)
	at := max(n.now.Add(n.travel()), n.last[name]+1)
	n.last[name] = at
	n.in(at.Sub(n.now), func() {
		if *life != alive || n.cut || other.cut || n.nodes[to] != other {
			return
		}
		other.do(func() { other.Receive(n.addr, answer, frame) })
	})
}

func (s *script) travel() time.Duration {
	return s.delay + time.Duration(s.rnd.Int64N(int64(s.tail)+1))
}

// crash ends a node without a word.
func (s *script) crash(addr string) {
	n := s.nodes[addr]
	n.alive = false
	n.End()
	for _, a := range s.addrs {
		if other := s.nodes[a]; other != nil && other.alive {
			other.end(addr, true)
		}
	}
}

// breakAll breaks all streams between two nodes.
func (s *script) breakAll(a, b string) {
	for _, p := range [2][2]string{{a, b}, {b, a}} {
		if n := s.nodes[p[0]]; n != nil && n.alive {
			n.end(p[1], true)
		}
	}
}

func (s *script) ring(addrs ...string) {
	s.addrs = append(s.addrs, addrs...)
	for _, a := range addrs {
		s.start(a)
	}
	s.agree(addrs)
}

// accounts is how many accounts a node has.
func (n *scriptNode) accounts() (all int) {
	for v := (local.Visit{}); !n.local.Visit(&v, func([]byte) { all++ }); {
	}
	return all
}

// ask asks a node, and counts.
func (s *script) ask(addr string, k int, cost ratelimit.Tokens) {
	asks, v := []ask{{Rule: s.rule, Key: keyOf(k), Cost: cost}}, make([]verdict, 1)
	s.nodes[addr].Ask(asks, v, nil, func() {
		switch {
		case v[0].Source == ratelimit.FromFallback:
			s.failed++
		case !v[0].OverLimit:
			s.admitted[k] += cost
		}
	})
}

// one asks a node by the rule of the script, and waits for the verdict.
func (s *script) one(addr string, a ask) verdict {
	a.Rule = s.rule
	v := make([]verdict, 1)
	s.nodes[addr].Ask([]ask{a}, v, nil, func() {})
	s.play(50 * time.Millisecond)
	return v[0]
}

// admits is how many of so many requests a node admits.
func (s *script) admits(addr string, key []byte, asks int) (n int) {
	for range asks {
		if !s.one(addr, ask{Key: key, Cost: 1}).OverLimit {
			n++
		}
	}
	return n
}

// load asks random nodes of some, for a while.
func (s *script) load(d, every time.Duration, addrs ...string) {
	for at := time.Duration(0); at < d; at += every {
		s.in(at, func() { s.ask(addrs[s.rnd.IntN(len(addrs))], s.rnd.IntN(len(s.admitted)), 1) })
	}
}

// fill has each key ask for some, at any node.
func (s *script) fill(cost ratelimit.Tokens, addrs ...string) {
	for k := range s.admitted {
		s.ask(addrs[k%len(addrs)], k, cost)
		if k%50 == 0 {
			s.play(time.Millisecond)
		}
	}
	s.play(50 * time.Millisecond)
}

// exact uses up what is left of each key, and checks what was admitted in all.
func (s *script) exact(over ratelimit.Tokens, addrs ...string) {
	s.Helper()
	limit, bad := s.rule.Limit.Requests, 0
	for range limit + 2 {
		s.fill(1, addrs...)
	}
	for k, got := range s.admitted {
		if got < limit || got > limit+over {
			if bad++; bad < 5 {
				s.Errorf("key %d admitted %d of %d", k, got, limit)
			}
		}
	}
	if bad > 0 {
		s.show()
		s.Errorf("%d of %d keys", bad, len(s.admitted))
	}
}

func (s *script) atMost(most ratelimit.Tokens) {
	s.Helper()
	for k, n := range s.admitted {
		if n > most {
			s.Fatalf("key %d admitted %d of %d", k, n, most)
		}
	}
}

func (s *script) noFailures() {
	s.Helper()
	if s.failed > 0 {
		s.Errorf("%d decisions failed", s.failed)
	}
}

// Nodes that are started at once, and asked at once.
func TestStepsStartedTogether(t *testing.T) {
	s := newScript(t, 500, 10)
	s.addrs = []string{"a:1", "b:1", "c:1", "d:1", "e:1"}
	for i, a := range s.addrs { // their ports open after they have looked for each other
		s.in(time.Duration(i)*20*time.Millisecond, func() { s.start(a).port = s.now.Add(200 * time.Millisecond) })
	}
	s.play(time.Millisecond)
	for i, a := range s.addrs {
		s.in(time.Duration(i)*20*time.Millisecond, func() { s.load(3*time.Second, time.Millisecond, a) })
	}
	s.play(100 * time.Millisecond) // all have started
	s.agree(s.addrs)
	s.play(4 * time.Second)
	s.exact(0, s.addrs...)
}

// Three join at once, while requests go on.
func TestStepsJoinOfThree(t *testing.T) {
	s := newScript(t, 3000, 10)
	s.ring("a:1", "b:1")
	s.fill(5, "a:1", "b:1")
	s.load(5*time.Second, 300*time.Microsecond, "a:1", "b:1")
	s.addrs = append(s.addrs, "c:1", "d:1", "e:1")
	s.nodes["a:1"].Found(s.addrs)
	s.nodes["b:1"].Found(s.addrs)
	for _, a := range s.addrs[2:] {
		s.start(a)
	}
	s.agree(s.addrs)
	s.play(6 * time.Second)
	s.noFailures()
	s.exact(0, s.addrs...)
}

// Each node counts keys of mode leasing by itself: a change of the ring neither takes their usage away nor
// brings another node's.
func TestLeasingUsageStaysAtItsNode(t *testing.T) {
	const keys = 200
	s := newScript(t, keys, 10)
	s.ring("a:1", "b:1")
	s.fill(10, "a:1", "b:1")
	each := *s.rule
	each.Coordination.Mode = ratelimit.Leasing
	admits := func(addr string) (n ratelimit.Tokens) {
		var v [1]verdict
		for k := range keys {
			key := ratelimit.AppendEntry(keyOf(k), "alone", "x", false)
			s.nodes[addr].local.Decide(t.Context(), s.now, []ask{{Rule: &each, Key: key, Cost: 10}}, v[:])
			n, v[0] = n+v[0].Charged, verdict{}
		}
		return n
	}
	s.addrs = append(s.addrs, "c:1")
	for _, addr := range s.addrs[:2] {
		if n := admits(addr); n != 10*keys {
			t.Fatalf("%s admits %d of %d", addr, n, 10*keys)
		}
	}
	c := s.start("c:1")
	s.until("a third node has its keys", c.Ready)
	s.leaves("b:1")
	for addr, want := range map[string]ratelimit.Tokens{"a:1": 0, "b:1": 0, "c:1": 10 * keys} {
		if n := admits(addr); n != want {
			t.Errorf("%s admits %d more, want %d", addr, n, want)
		}
	}
	s.exact(0, "a:1", "c:1")
}

// A rule of mode leasing gets mode routing. What a node had counted by itself is no account of the key's owner: when
// the node owns the key, it waits for that.
func TestStepsModeChanges(t *testing.T) {
	s := newScript(t, 500, 10)
	s.ring("a:1", "b:1")
	s.rule.Coordination.Mode = ratelimit.Leasing
	for k := range s.admitted {
		if s.nodes["a:1"].ownerOf(keyOf(k)) == "b:1" {
			s.nodes["a:1"].has(keyOf(k))
		}
	}
	s.rule = routed(10)
	s.fill(10, "a:1", "b:1")
	s.nodes["b:1"].Leave(func() {})
	s.until("it is leaving", func() bool { return len(s.nodes["a:1"].Stats().Members) == 1 })
	s.fill(1, "a:1")
	s.atMost(10)
}

// Another node joins, and one leaves, before the first hand-over has ended.
func TestStepsRingChangesDuringHandOver(t *testing.T) {
	s := newScript(t, 4000, 10)
	s.delay, s.tail = time.Millisecond, time.Millisecond // so that parcels are on their way for longer
	s.ring("a:1", "b:1")
	s.fill(5, "a:1", "b:1")
	s.addrs = append(s.addrs, "c:1", "d:1")
	c := s.start("c:1")
	s.until("accounts are on their way", func() bool { return len(s.nodes["a:1"].mover.underway) > 0 })
	s.load(4*time.Second, 500*time.Microsecond, "b:1")
	s.start("d:1")
	s.until("the second joins", func() bool { return s.nodes["d:1"].present })
	s.until("accounts are on their way", func() bool { return len(s.nodes["a:1"].mover.underway) > 0 })
	s.leaves("a:1")
	s.until("all are ready", func() bool { return c.Ready() && s.nodes["d:1"].Ready() })
	s.play(5 * time.Second)
	s.crash("a:1")
	s.play(3 * time.Second)
	s.failed = 0
	s.exact(0, "b:1", "c:1", "d:1")
	s.noFailures()
}

// Streams break again and again while accounts move: parcels and receipts are
// lost with them, and none counts twice or not at all.
func TestStepsBrokenStreams(t *testing.T) {
	s := newScript(t, 4000, 10)
	s.delay = time.Millisecond
	s.ring("a:1", "b:1")
	s.fill(5, "a:1", "b:1")
	s.addrs = append(s.addrs, "c:1")
	c := s.start("c:1")
	s.until("it joins", func() bool { return c.present })
	received := func(from string) uint64 {
		if in := c.inboxes[s.nodes[from].incarnation]; in != nil {
			return in.last
		}
		return 0
	}
	for i := range 4 { // a parcel arrives, and its receipt does not
		from := []string{"a:1", "b:1"}[i%2]
		for before, end := received(from), s.now.Add(time.Second); received(from) == before && s.now < end; {
			s.play(20 * time.Microsecond)
		}
		s.breakAll("c:1", from)
		s.play(time.Millisecond)
		s.breakAll("c:1", []string{"b:1", "a:1"}[i%2]) // perhaps parcels that have not arrived
	}
	s.until("it has its keys", func() bool { return c.Ready() && c.view.Load().stable.Load() })
	gone := false
	s.nodes["b:1"].Leave(func() { gone = true })
	for i := range 12 {
		s.in(time.Duration(i)*5*time.Millisecond, func() { s.breakAll("b:1", []string{"a:1", "c:1"}[i%2]) })
	}
	s.until("it has left", func() bool { return gone })
	s.play(time.Second)
	s.failed = 0
	s.exact(0, "a:1", "c:1")
	s.noFailures()
}

// A node crashes while accounts are on their way to it: what it has no receipt for goes on elsewhere.
func TestStepsReceiverCrashes(t *testing.T) {
	s := newScript(t, 4000, 10)
	s.delay = 2 * time.Millisecond
	s.ring("a:1", "b:1")
	s.fill(5, "a:1", "b:1")
	s.addrs = append(s.addrs, "c:1")
	s.start("c:1")
	s.until("accounts are on their way", func() bool { return len(s.nodes["a:1"].mover.underway) > 100 })
	had := s.nodes["c:1"].accounts() // which it takes with it
	way := len(s.nodes["a:1"].mover.underway) + len(s.nodes["b:1"].mover.underway)
	s.crash("c:1")
	s.play(3 * time.Second)
	s.exact(5, "a:1", "b:1") // what c's accounts had been charged
	over := 0
	for _, got := range s.admitted {
		if got > 10 {
			over++
		}
	}
	t.Logf("c had %d accounts, and %d were on their way: %d keys went over", had, way, over)
	if over > had+way || over < had-way {
		t.Errorf("%d keys went over, and %d accounts were lost", over, had)
	}
	if over >= had+way && way > 0 {
		t.Errorf("%d keys went over: what was on its way was lost, too", over)
	}
}

// Two nodes leave at once, and another crashes before all have handed over. The rest goes on with its keys without a
// search, which the one that crashed would not answer.
func TestStepsCrashWhileTwoLeave(t *testing.T) {
	s := newScript(t, 4000, 10)
	s.ring("a:1", "b:1", "c:1", "d:1")
	s.fill(1, "a:1")
	s.delay = 4 * time.Millisecond // accounts travel for a while
	a := s.nodes["a:1"]
	own := a.ownedBy("a:1") // without an account
	a.local.TakeOut(s.now, own)
	s.nodes["c:1"].Leave(func() {})
	s.nodes["d:1"].Leave(func() {})
	s.until("both have left", func() bool { return len(a.Stats().Members) == 2 })
	s.crash("b:1")
	if v := s.one("a:1", ask{Key: own, Cost: 1}); v.Source == ratelimit.FromFallback || v.OverLimit {
		t.Errorf("%+v", v)
	}
	if a.view.Load().stable.Load() {
		t.Error("all have handed over")
	}
}

// A node is cut off for longer than TakeOver and comes back: each half counts by
// itself, as declared, and then they count together again.
func TestStepsPartitionHeals(t *testing.T) {
	s := newScript(t, 300, 10)
	s.ring("a:1", "b:1", "c:1")
	s.fill(3, "a:1")
	c := s.nodes["c:1"]
	c.cut = true
	s.until("both see that", func() bool { return len(c.Stats().Members) == 1 && len(s.nodes["a:1"].Stats().Members) == 2 })
	s.fill(4, "a:1", "b:1")
	s.fill(4, "c:1")
	c.cut = false
	s.agree(s.addrs)
	s.play(time.Second)
	s.failed = 0
	s.atMost(11) // 3, and up to 4 on each side
	s.fill(1, "a:1", "b:1", "c:1")
	s.atMost(12)
	s.exact(3, "a:1", "b:1", "c:1")
	s.noFailures()
}

// Keys that one half of a ring has begun are not new for the other, as soon as the halves see each other again.
func TestStepsHalvesWaitForAccounts(t *testing.T) {
	s := newScript(t, 4000, 10)
	s.ring("a:1", "b:1")
	a, b := s.nodes["a:1"], s.nodes["b:1"]
	a.cut = true
	s.until("both see that", func() bool { return len(a.Stats().Members)+len(b.Stats().Members) == 2 })
	s.fill(10, "a:1")
	a.cut, s.delay = false, 4*time.Millisecond // accounts travel for a while
	s.until("they see each other", func() bool { return len(a.Stats().Members)+len(b.Stats().Members) == 4 })
	s.fill(1, "b:1")
	s.atMost(10)
}

// The last nodes of a ring have left it. Until they end, they decide on their keys, of which no other node has any.
func TestStepsLastNodesLeave(t *testing.T) {
	for _, addrs := range [][]string{{"a:1"}, {"a:1", "b:1"}} {
		s := newScript(t, 200, 10)
		s.ring(addrs...)
		for k := range 100 * len(addrs) { // others are new afterwards
			s.ask("a:1", k, 5)
		}
		s.play(time.Second)
		view := s.nodes["a:1"].view.Load()
		for _, addr := range addrs {
			s.nodes[addr].Leave(func() {})
		}
		s.play(time.Second)
		for i := range 12 * len(s.admitted) {
			k := i % len(s.admitted)
			s.ask(view.ring.Owner(ring.HashOf(keyOf(k))), k, 1)
		}
		s.play(time.Second)
		s.noFailures()
		s.atMost(10)
	}
}

// A node is paused for longer than TakeOver: when it goes on it is no owner, and
// what it had is charged to those who are.
func TestStepsPause(t *testing.T) {
	s := newScript(t, 300, 10)
	s.ring("a:1", "b:1", "c:1")
	s.fill(3, "a:1")
	c := s.nodes["c:1"]
	c.paused = true
	s.play(TakeOver + time.Second)
	s.fill(4, "a:1", "b:1")
	before := slices.Clone(s.admitted)
	c.paused = false
	for k := range s.admitted { // the first decisions after the resume, before its own timers
		s.ask("c:1", k, 1)
	}
	for k := range before {
		if s.admitted[k] != before[k] {
			t.Fatalf("key %d was admitted by a node that had slept", k)
		}
	}
	for _, do := range c.later {
		do()
	}
	s.agree(s.addrs)
	s.play(time.Second)
	s.failed = 0
	s.exact(3, "a:1", "b:1", "c:1")
	s.noFailures()
}

// A node has slept, and others reach it again after it has joined the ring. It does not take the accounts that they
// have begun meanwhile for new keys: a sleep costs the limit once more, as a crash does, and not twice.
func TestStepsSleeperWaitsForItsAccounts(t *testing.T) {
	s := newScript(t, 4000, 10)
	s.ring("a:1", "b:1")
	s.fill(10, "a:1", "b:1")
	b := s.nodes["b:1"]
	b.paused, b.port = true, s.now.Add(time.Hour)
	s.play(TakeOver + time.Second)
	s.fill(10, "a:1")
	s.delay = 4 * time.Millisecond // accounts travel for a while
	b.paused, b.port = false, s.now.Add(200*time.Millisecond)
	for _, do := range b.later {
		do()
	}
	s.until("it owns keys again", func() bool { return b.core.view.Load().mine && !b.unconfirmed.Load() })
	s.fill(1, "b:1")
	s.play(time.Second)
	s.atMost(20)
}

// Nodes come and go in good order, streams break, at random: nothing is lost, nothing counts twice.
func TestStepsAtRandom(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newScript(t, 400, 10)
			s.rnd = rand.New(rand.NewPCG(seed, 7))
			s.delay, s.tail = time.Duration(s.rnd.Int64N(int64(2*time.Millisecond))), time.Duration(s.rnd.Int64N(int64(2*time.Millisecond)))
			s.ring("a:1", "b:1", "c:1")
			s.fill(2, "a:1", "b:1")
			live := []string{"a:1", "b:1", "c:1"}
			s.load(6*time.Second, time.Millisecond, "a:1")
			s.churn(&live)
			s.play(5 * time.Second)
			s.agree(live)
			s.play(3 * time.Second)
			// A request whose stream broke may have been charged, without an answer. So fewer may be admitted,
			// as many as failed, but never more.
			failed := s.failed
			s.failed = 0
			for range 12 {
				s.fill(1, live...)
			}
			s.noFailures()
			missing := ratelimit.Tokens(0)
			for k, got := range s.admitted {
				if got > 10 {
					t.Errorf("key %d admitted %d of 10", k, got)
				}
				missing += 10 - got
			}
			if missing > ratelimit.Tokens(failed) {
				t.Errorf("%d tokens were not admitted, and %d asks failed", missing, failed)
			}
		})
	}
}

// A node that was cut off until the others have dropped it returns: it still has the numbers of their parcels,
// and its new parcels count.
func TestStepsForgottenNodeComesBack(t *testing.T) {
	s := newScript(t, 300, 10)
	s.ring("a:1", "b:1")
	s.fill(3, "a:1")
	s.addrs = append(s.addrs, "c:1")
	c := s.start("c:1")
	look := func() {
		for _, a := range s.addrs {
			s.nodes[a].Found(s.addrs)
		}
	}
	look()
	s.agree(s.addrs) // the third has its keys, in parcels that are numbered from 1
	c.cut = true
	s.play(TakeOver + forgetAfter + time.Second)
	if n := len(s.nodes["a:1"].core.members) + len(c.core.members); n != 1 {
		t.Fatalf("%d members are known, not one alone", n)
	}
	s.fill(4, "a:1", "b:1")
	s.fill(4, "c:1")
	c.cut = false
	look()
	s.agree(s.addrs)
	s.play(time.Second)
	s.failed = 0
	s.exact(3, "a:1", "b:1", "c:1")
	s.noFailures()
	for _, n := range s.nodes {
		if got := n.Stats().Malformed; got > 0 {
			t.Errorf("%s took %d messages for malformed", n.addr, got)
		}
	}
}

// churn lets nodes join and leave, and breaks streams, at random.
func (s *script) churn(live *[]string) {
	next := 0
	for range 12 {
		switch s.rnd.IntN(4) {
		case 0:
			next++
			addr := fmt.Sprintf("n%d:1", next)
			s.addrs = append(s.addrs, addr)
			s.start(addr)
			*live = append(*live, addr)
		case 1:
			if len(*live) > 2 {
				i := 1 + s.rnd.IntN(len(*live)-1)
				addr := (*live)[i]
				*live = slices.Delete(*live, i, i+1)
				s.nodes[addr].Leave(func() { s.in(time.Second, func() { s.crash(addr) }) })
			}
		default:
			s.breakAll((*live)[s.rnd.IntN(len(*live))], (*live)[s.rnd.IntN(len(*live))])
		}
		s.play(time.Duration(s.rnd.Int64N(int64(300 * time.Millisecond))))
	}
}

// leaves has a node leave, and waits until it has.
func (s *script) leaves(addr string) {
	gone := false
	s.nodes[addr].Leave(func() { gone = true })
	s.until(addr+" has left", func() bool { return gone })
}

// agree waits until all live nodes are ready, in the same stable ring.
func (s *script) agree(live []string) {
	s.until("all agree", func() bool {
		for _, a := range live {
			if !s.nodes[a].Ready() || len(s.nodes[a].Stats().Members) != len(live) || !s.nodes[a].view.Load().stable.Load() {
				return false
			}
		}
		return true
	})
}
