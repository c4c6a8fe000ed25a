// Package leasing_test plays fleets: on a stage, in a time that the test keeps, in the simulator, or on real stores.
package leasing_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

type (
	tokens  = ratelimit.Tokens
	instant = ratelimit.Instant
	window  = ratelimit.Window
	ask     = ratelimit.Ask
	verdict = ratelimit.Verdict
	fields  = map[string]string
)

// beatEvery is the time between two beats of a node (docs/reference/protocol.md).
const beatEvery = 500 * time.Millisecond

// limitOf is a limit of n tokens. A bucket has n tokens, too.
func limitOf(a ratelimit.Algorithm, n tokens, u ratelimit.Unit) ratelimit.Limit {
	return ratelimit.Limit{Algorithm: a, Unit: u, Multiplier: 1, Requests: n, Burst: n}
}

func fixed(n tokens, u ratelimit.Unit) ratelimit.Limit { return limitOf(ratelimit.FixedWindow, n, u) }

func bucketOf(rate, burst tokens, u ratelimit.Unit) ratelimit.Limit {
	l := limitOf(ratelimit.TokenBucket, rate, u)
	l.Burst = burst
	return l
}

func ruleOf(t testing.TB, limit ratelimit.Limit, f fields) *ratelimit.Rule {
	t.Helper()
	r := &ratelimit.Rule{Domain: "d", Path: "p", Limit: limit, Coordination: ratelimit.DefaultCoordination()}
	r.Counters = &ratelimit.RuleCounters{}
	for field, text := range f {
		if err := r.Coordination.Set(field, text); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// stage is nodes with ledgers of their own on one store in memory, as processes are. Each has its own distance to the
// store and its own outages. Time passes in goOn, in milliseconds.
type stage struct {
	*testing.T
	now    instant
	rule   *ratelimit.Rule
	ledger *account.Memory // as operators see it; its epoch is old
	nodes  []*node
	events []event
	keys   int           // maximum that a node tracks
	ahead  time.Duration // of the store's clock
	skew   time.Duration // of that clock, as nodes read it that start now
	claims int
	deaf   bool // recalls are lost
	keeps  bool // the store drops ended accounts late

	settles bool
}

type event struct {
	at instant
	do func()
}

// node is a process on the stage.
type node struct {
	*stage
	*leasing.Stepped
	name    ratelimit.Holder
	ledger  *account.CAS
	oneWay  time.Duration
	hangs   time.Duration                                                      // messages do, while the store is down
	share   tokens                                                             // for drift
	down    bool                                                               // it does not reach the store
	gone    bool                                                               // it has crashed
	paused  bool                                                               // it does nothing, and gets answers when it continues
	mute    bool                                                               // answers to it are lost
	unnamed bool                                                               // its registrations are lost
	lie     func(c *account.Claim, g *account.Grant, at *ratelimit.LedgerTime) // in answers to it
	beat    instant
	waiting []*request
}

type request struct {
	wait     *leasing.Wait
	asks     []ask
	verdicts []verdict
	began    instant
	drifts   bool
	then     func(verdict)
}

var errDown = errors.New("down")

func newStage(t *testing.T, nodes int, limit ratelimit.Limit, f fields) *stage {
	t.Helper()
	s := &stage{T: t, now: instant(time.Hour), rule: ruleOf(t, limit, f), keys: 100}
	s.ledger = account.NewMemory(s.time)
	for range nodes {
		s.start()
	}
	return s
}

// newFresh has a store without an epoch, and no node.
func newFresh(t *testing.T, limit ratelimit.Limit, f fields) *stage {
	s := newStage(t, 0, limit, f)
	store := account.NewMemoryStore(s.time)
	s.ledger = &account.Memory{CAS: account.NewCAS(store, ""), MemoryStore: store}
	return s
}

// time is what the store's clock shows.
func (s *stage) time() ratelimit.LedgerTime {
	return 1_800_144_000_000_000 + ratelimit.LedgerTime(s.now.Add(s.ahead)/1000)
}

// skewed is a store as a node with another clock reads it.
type skewed struct {
	account.Store
	by time.Duration
}

func (s skewed) Read(ctx context.Context, keys []account.StoreKey) (account.Snapshot, error) {
	x, err := s.Store.Read(ctx, keys)
	x.Now = x.Now.Add(s.by)
	return x, err
}

// whole is a ledger of one part.
type whole struct{ *account.CAS }

func (whole) Partitions() int      { return 1 }
func (whole) Partition(string) int { return 0 }

// Ask implements [account.Partitioned]. A driven node does not call it.
func (whole) Ask(context.Context, int) (e ratelimit.Epoch, from, to ratelimit.LedgerTime, err error) {
	return e, 0, 0, errDown
}

// start starts a process. All count each other.
func (s *stage) start() *node {
	n := &node{stage: s, ledger: account.NewCAS(skewed{s.ledger.MemoryStore, s.skew}, ""), beat: s.now.Add(beatEvery)}
	n.name = ratelimit.Holder(len(s.nodes)+1) << 28
	n.Stepped = leasing.NewStepped(n.name, s.keys, func() instant { return s.now }, time.UnixMicro(0), s.after,
		func() float64 { return 0.5 })
	n.Divide(whole{n.ledger})
	n.Nodes = func() int { return len(s.nodes) }
	n.Peers, n.Drift = n.Nodes, n
	n.ledger.OnRecall = func(h ratelimit.Holder, key string, w window) {
		s.after(0, func() {
			if to := s.nodes[h>>28-1]; to.runs() && !s.deaf {
				to.Recalled(key, w)
			}
		})
	}
	s.nodes = append(s.nodes, n)
	return n
}

// far sets the distance of all nodes to the store.
func (s *stage) far(oneWay time.Duration) {
	for _, n := range s.nodes {
		n.oneWay = oneWay
	}
}

// down has no node reach the store, or all.
func (s *stage) down(is bool) {
	for _, n := range s.nodes {
		n.down = is
	}
}

func (n *node) runs() bool { return !n.gone && !n.paused }

// Share implements [leasing.Drift].
func (n *node) Share(instant, *ratelimit.Rule, ratelimit.LedgerTime) tokens { return n.share }

func (s *stage) after(d time.Duration, do func()) {
	s.events = append(s.events, event{s.now.Add(d), do})
}

// goOn has time pass, to whatever comes next: a millisecond at a time while requests wait.
func (s *stage) goOn(d time.Duration) {
	for end := s.now.Add(d); s.now < end; {
		s.now = min(end, s.next())
		for _, n := range s.nodes {
			if n.runs() {
				n.tick()
			}
		}
		s.settle()
	}
}

// next is the next instant at which something may happen: an event, a beat, a sweep, or a deadline.
func (s *stage) next() instant {
	const ms, sweep = instant(time.Millisecond), instant(leasing.SweepEvery)
	soon, next := s.now+ms, (s.now/sweep+1)*sweep
	for _, e := range s.events {
		next = min(next, e.at)
	}
	for _, n := range s.nodes {
		if n.runs() {
			next = min(next, n.beat)
		}
		if len(n.waiting) > 0 {
			next = soon
		}
	}
	return max(soon, (next+ms-1)/ms*ms)
}

// tick is what a process does from time to time.
func (n *node) tick() {
	if n.now >= n.beat {
		n.beat = max(n.beat.Add(beatEvery), n.now)
		if !n.Restating() {
			n.Beat()
		} else if n.runs() && !n.down {
			_, _ = n.ledger.Prolong(n.Context())
		}
		if !n.down && !n.mute {
			n.Short(n.now, n.takeBack)
		}
	}
	if n.now%instant(leasing.SweepEvery) == 0 {
		n.Sweep(n.now)
	}
}

// takeBack takes back what ended nodes have in hand.
func (n *node) takeBack(c account.Claim, then func(nodes, closed int)) {
	is, err := n.ledger.Look(n.Context(), c.Key, c.Window, &c.Limit)
	if is == nil || err != nil {
		return
	}
	nodes := account.Lapsing(is.Holders, n.name)
	over, err := n.ledger.Over(n.Context(), nodes)
	closes := account.Closes(c, is.Holders, over)
	_, _, err2 := n.ledger.Settle(n.Context(), closes, make([]account.Grant, len(closes)))
	if err = errors.Join(err, err2); err != nil {
		n.Fatal(err)
	}
	then(len(nodes), len(over))
}

// settle has all happen that can happen now.
func (s *stage) settle() {
	if s.settles { // in one of its events
		return
	}
	s.settles = true
	defer func() { s.settles = false }()
	for again, rounds := true, 0; again; rounds++ {
		if rounds > 1000 {
			s.Fatalf("a busy loop at %v", time.Duration(s.now))
		}
		again = s.play()
		for _, n := range s.nodes {
			again = n.runs() && n.works() || again
		}
	}
}

// play plays the events that are due.
func (s *stage) play() (any bool) {
	due := s.events
	s.events = nil
	for _, e := range due {
		if e.at > s.now {
			s.events = append(s.events, e)
		} else {
			any = true
			e.do()
		}
	}
	return any
}

// works advances requests, and sends messages.
func (n *node) works() (any bool) {
	waiting := n.waiting
	n.waiting = nil
	for _, r := range waiting {
		if n.waits(r) {
			n.waiting = append(n.waiting, r)
		} else {
			r.then(r.verdicts[0])
		}
	}
	if sent := n.now; n.RegisterDue(sent) {
		any = true
		n.register(sent)
	}
	for b := n.Batch(); b != nil; b = n.Batch() {
		any = true
		n.send(b)
	}
	return any
}

func (n *node) waits(r *request) bool {
	if !r.wait.Advance(n.now) {
		return false
	}
	took := n.now.Sub(r.began)
	if (r.drifts || took < r.wait.Patience()) && took < r.asks[0].Rule.Coordination.Deadline() {
		return true
	}
	r.wait.TimeOver()
	r.drifts = true
	return r.wait.Advance(n.now)
}

func (n *node) register(sent instant) {
	if n.down || n.unnamed {
		n.after(max(n.hangs, time.Millisecond), func() { n.RegisterAnswered(sent, errDown) })
		return
	}
	n.after(n.oneWay, func() {
		err := n.ledger.Register(n.Context(), n.name)
		n.hears(n.oneWay, func() { n.RegisterAnswered(sent, err) })
	})
}

// hears carries an answer to a process, which gets it when it runs.
func (n *node) hears(after time.Duration, answer func()) {
	n.after(after, func() {
		if n.paused {
			n.hears(time.Millisecond, answer)
		} else if !n.gone {
			answer()
		}
	})
}

func (n *node) send(b *leasing.Batch) {
	n.claims += len(b.Claims())
	if n.down {
		n.after(max(n.hangs, time.Millisecond), func() { b.Fail(errDown) })
		return
	}
	n.after(n.oneWay, func() {
		answer, lose := n.book(b)
		if n.mute {
			answer = lose
		}
		n.hears(n.oneWay, answer)
	})
}

// book has the ledger settle a batch, after it has dropped ended accounts. Its answer arrives, or is lost.
func (n *node) book(b *leasing.Batch) (answer, lose func()) {
	if !n.keeps {
		_ = n.ledger.Sweep(n.Context())
	}
	grants := make([]account.Grant, len(b.Claims()))
	epoch, at, err := n.ledger.Settle(n.Context(), b.Claims(), grants)
	lose = func() { b.Fail(errDown) }
	if err != nil {
		return lose, lose
	}
	for i := range grants {
		if n.lie != nil {
			n.lie(&b.Claims()[i], &grants[i], &at)
		}
	}
	return func() { b.Answer(epoch, at, grants) }, lose
}

// batch is the next batch of a node, which the test carries itself.
func (s *stage) batch(node int) *leasing.Batch {
	s.Helper()
	for range 3000 {
		if b := s.nodes[node].Batch(); b != nil {
			return b
		}
		s.now = s.now.Add(time.Millisecond)
		s.play()
		if s.now%instant(leasing.SweepEvery) == 0 {
			s.nodes[node].Sweep(s.now)
		}
	}
	s.Fatal("nothing is to be sent")
	return nil
}

// whole is an ask with the stage's rule and the key "k", if it has none.
func (s *stage) whole(a ask) []ask {
	if a.Rule == nil {
		a.Rule = s.rule
	}
	if a.Key == nil {
		a.Key = []byte("k")
	}
	return []ask{a}
}

// hold has a node begin a request that the test advances itself.
func (s *stage) hold(node int, a ask) (*leasing.Wait, *verdict) {
	v := make([]verdict, 1)
	return s.nodes[node].Ask(s.now, s.whole(a), v), &v[0]
}

// begin has a node decide, and calls then with the verdict, now or later.
func (s *stage) begin(node int, a ask, then func(verdict)) {
	r := &request{asks: s.whole(a), verdicts: make([]verdict, 1), began: s.now, then: then}
	if r.wait = s.nodes[node].Ask(s.now, r.asks, r.verdicts); r.wait == nil {
		then(r.verdicts[0])
		return
	}
	s.nodes[node].waiting = append(s.nodes[node].waiting, r)
	s.settle()
}

func (s *stage) decide(node int, a ask) (v verdict) {
	done := false
	s.begin(node, a, func(is verdict) { v, done = is, true })
	for !done {
		s.goOn(time.Millisecond)
	}
	return v
}

func (s *stage) ask(node int, key string, cost tokens) verdict {
	return s.decide(node, ask{Key: []byte(key), Cost: cost})
}

func (s *stage) peek(node int) verdict { return s.decide(node, ask{Kind: ratelimit.Peek}) }

// overdue has a node decide without an answer in time.
func (s *stage) overdue(node int, a ask) verdict {
	w, v := s.hold(node, a)
	for w != nil && w.Advance(s.now) {
		w.TimeOver()
	}
	return *v
}

// undo has a node take back a decision about a key.
func (s *stage) undo(node int, a ask, v verdict) { s.nodes[node].Undo(s.now, s.whole(a), []verdict{v}) }

// takes is what a node admits of a key by requests of a cost, until it refuses.
func (s *stage) takes(node int, key string, cost tokens) (n tokens) {
	for n < 3*s.rule.Limit.Capacity() && !s.ask(node, key, cost).OverLimit {
		n += cost
	}
	return n
}

// takesFor is what nodes admit of a key in turn for a time.
func (s *stage) takesFor(d time.Duration, key string, nodes ...int) (n tokens) {
	for end := s.now.Add(d); s.now < end; s.goOn(10 * time.Millisecond) {
		for _, node := range nodes {
			n += s.takes(node, key, 1)
		}
	}
	return n
}

// takesAll is what all nodes admit in turn, until all refuse for a while.
func (s *stage) takesAll(key string) (n tokens) {
	for refused := 0; refused < 3; refused++ {
		for node := range s.nodes {
			if more := s.takes(node, key, 1); more > 0 {
				n, refused = n+more, 0
			}
		}
		s.goOn(200 * time.Millisecond)
	}
	return n
}

// passes checks that a request passes, and that no account counts as lost.
func (s *stage) passes(node int, cost tokens) {
	s.Helper()
	if v := s.ask(node, "k", cost); v.OverLimit || s.lost() > 0 {
		s.Errorf("a request for %d: %+v, and %d accounts count as lost", cost, v, s.lost())
	}
}

func (s *stage) lost() (n uint64) {
	for _, f := range s.nodes {
		n += f.Stats().Missing
	}
	return n
}

// lease is what a node has of a key.
func (s *stage) lease(node int, key string) ratelimit.LeaseLook {
	look := s.nodes[node].Look(s.Context(), s.now, &ask{Rule: s.rule, Key: []byte(key)})
	if look.Lease == nil {
		return ratelimit.LeaseLook{}
	}
	return *look.Lease
}

func (s *stage) hand(node int) tokens { return s.lease(node, "k").Unspent }

// window is the one that goes on at the ledger.
func (s *stage) window() window {
	if s.rule.Limit.Algorithm == ratelimit.TokenBucket {
		return 0
	}
	return s.rule.Limit.WindowAt(s.time())
}

// used is what the ledger has of a key.
func (s *stage) used(key string) tokens { return s.usedIn(key, s.window()) }

func (s *stage) usedIn(key string, w window) tokens {
	s.Helper()
	is, err := s.ledger.Look(s.Context(), key, w, &s.rule.Limit)
	if err != nil {
		s.Fatal(err)
	}
	if is == nil {
		return 0
	}
	return is.Charged
}

// jump has no time pass for nodes until so long before the window's end; below 0: after it.
func (s *stage) jump(before time.Duration) {
	s.now = s.now.Add(s.rule.Limit.WindowEnd(s.rule.Limit.WindowAt(s.time())).Sub(s.time()) - before)
}

// toTurn has time pass until so long before the window's end; below 0: after it.
func (s *stage) toTurn(before time.Duration) {
	s.goOn(s.rule.Limit.WindowEnd(s.rule.Limit.WindowAt(s.time())).Sub(s.time()) - before)
}

// limited has all nodes ask under another limit from now on. A bucket's burst changes in proportion.
func (s *stage) limited(n tokens) {
	own := *s.rule
	own.Limit.Requests, own.Limit.Burst = n, own.Limit.Burst*n/own.Limit.Requests
	s.rule = &own
}
