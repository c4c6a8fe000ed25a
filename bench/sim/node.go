package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
)

// node is one incarnation of a node: the real lease table and seat keeper, and a shell with virtual time. A restarted
// node is another value with the same slot and address, and with a new name. Events that were scheduled for the ended
// one find it dead and do nothing (run).
type node struct {
	*world
	*place
	slot    int
	addr    string // the same for all incarnations in its slot
	name    ratelimit.Holder
	stepped *leasing.Stepped
	known   map[*key]known
	keeper  *approx.Keeper
	born    int64
	rate    float64 // of its clock, relative to the ledger's

	alive  bool
	paused bool
	later  []func() // events during its pause
	rule   *ratelimit.Rule
	asleep int64 // nanoseconds for which it was suspended
	sleeps int64 // when its clock stopped, if it is suspended now
	clocks ratelimit.Clock
	waits  []*request
	ring   *ring // nil: no ring

	limiter ratelimit.Limiter // of requests of Envoys
	core    *rlqs.Node        // nil: there are no Envoys
}

// place is the network of a slot. All incarnations in the slot have the same one: a fault of the network outlasts a
// process. Numbers are of faults that last.
type place struct {
	late   time.Duration // additional delay of answers to it
	deaf   int           // drop answers to it
	cut    []int         // cut it off each part of the ledger
	parted int           // cut it off other nodes
}

// tableSize is the maximum of keys that a node tracks.
const tableSize = 1 << 20

func (w *world) join() *node {
	w.names++
	n := &node{world: w, place: &place{cut: make([]int, len(w.store.parts))}, slot: len(w.nodes), alive: true}
	w.nodes = append(w.nodes, n)
	n.start()
	return n
}

// restart replaces an ended node by a new one without state.
func (w *world) restart(old *node) *node {
	w.names++
	n := &node{world: w, place: old.place, slot: old.slot, alive: true}
	w.nodes[n.slot] = n
	n.start()
	return n
}

// start gives the node its name, its clock and its real parts, and schedules its periodic work. The first verify and
// sweep come after a random part of their intervals: nodes of a fleet do not work in step.
func (n *node) start() {
	w := n.world
	w.bound.starts()
	n.name, n.born, n.addr = w.names, w.now, fmt.Sprint("node-", n.slot)
	w.slots[n.addr] = n.slot
	n.rate = 1 + w.Net.Skew*(w.rnd.Float64()-0.5)
	if w.Storeless { // nodes divide windows by their own clocks, which are right here
		n.rate = 1
	}
	n.rule = w.rules[len(w.rules)-1]
	n.clocks = ratelimit.NewClock(n.running, n.elapsed)
	// Each incarnation has random numbers of its own. If nodes shared the world's, one more draw in one node would
	// change all later faults.
	rnd := rand.New(rand.NewPCG(w.Seed, 0x1000+uint64(n.name)))
	wall := time.UnixMicro(int64(w.ledgerTime()))
	n.keeper = approx.NewKeeper(nil, n.name, n.clock)
	n.known = map[*key]known{}
	n.stepped = leasing.NewStepped(n.name<<nameBits, cmp.Or(w.Table, tableSize), n.clock, wall, n.after, rnd.Float64)
	n.stepped.Divide(&w.store)
	n.stepped.Nodes, n.stepped.Peers, n.stepped.Drift = w.alive, w.alive, n.keeper
	// The keeper must see losses of the ledger. Without its data, the ledger gives away seats that are taken.
	n.keeper.Epoch = n.stepped.Epoch
	n.in(time.Duration(w.rnd.Int64N(int64(verifyEvery))), n.verify)
	n.joinRing()
	if w.envoys != nil {
		w.envoys.serve(n)
	}
	n.in(time.Duration(w.rnd.Int64N(int64(leasing.SweepEvery))), n.sweep)
	n.in(0, n.sit)
}

// clock is the node's own.
func (n *node) clock() ratelimit.Instant { return n.clocks() }

// running is a clock that stops while the node is suspended. elapsed is one that does not. A node runs on
// CLOCK_MONOTONIC, which stands still in a suspension, and finds out about it by CLOCK_BOOTTIME, which goes on
// (ratelimit.NewClock). Both run at the node's rate.
func (n *node) running() time.Duration {
	at := n.now
	if n.sleeps > 0 {
		at = min(at, n.sleeps)
	}
	return time.Duration(float64(at-n.born-n.asleep) * n.rate)
}

func (n *node) elapsed() time.Duration { return time.Duration(float64(n.now-n.born) * n.rate) }

// in schedules an event by the node's clock, for as soon as it runs. A nanosecond is added because the division rounds
// down: a timer must not fire before its time by the node's clock.
func (n *node) in(d time.Duration, do func()) {
	n.world.in(time.Duration(float64(d)/n.rate)+1, func() { n.run(do) })
}

// after schedules work of the lease table, which can decide waiting requests and send claims.
func (n *node) after(d time.Duration, do func()) {
	n.in(d, func() {
		do()
		n.answered()
	})
}

// run does work at the node: later, if it is paused; never, if it ended. A paused node gets its messages and timers
// late, in their order, as a process after SIGCONT does.
func (n *node) run(do func()) {
	switch {
	case !n.alive:
	case n.paused:
		n.later = append(n.later, do)
	default:
		do()
	}
}

func (n *node) sweep() {
	n.stepped.Sweep(n.clock())
	n.in(leasing.SweepEvery, n.sweep)
	n.send()
}

// verify reads the ledger's epoch, as each process does periodically, and prolongs its youth while the node has more to
// state. It also looks for tokens of ended nodes. All of this is periodic work of leasing.Fleet.Run.
func (n *node) verify() {
	n.stepped.Beat()
	n.send()
	if n.stepped.Restating() {
		n.store.prolong(n)
	}
	n.stepped.Short(n.clock(), func(c account.Claim, then func(nodes, closed int)) { n.store.takeBack(n, c, then) })
	n.in(verifyEvery, n.verify)
}

const (
	// verifyEvery is the interval of a node's reads of the epoch.
	verifyEvery = 500 * time.Millisecond
	// nameBits are the counting bits of a holder's name: see account.NewHolder.
	nameBits = 28
)

// alive is the number of nodes that a node sees. It divides limits in an outage, so the smallest number that a node saw
// bounds the admissions. Nodes see at once who is alive. In the product, they learn it later, from registrations and
// the ring.
func (w *world) alive() int {
	n := 0
	for _, other := range w.nodes {
		if other.alive {
			n++
		}
	}
	w.fewest = min(w.fewest, max(1, n))
	return n
}

// impatient is the end of a request's wait, or of the wait before it drifts. A request of a rule that drifts has two
// deadlines: check_timeout, after which it may drift, and the deadline of the rule. TimeOver returns the time between
// them, and 0 after the last.
func (n *node) impatient(q *request) {
	if q.over {
		return
	}
	more := q.wait.TimeOver()
	n.advance(q)
	if !q.over && more > 0 {
		n.in(more, func() { n.impatient(q) })
	}
	n.send()
}

// advance decides a request, if that is possible now. A request of two descriptors may have one of them decided now.
// Its tokens are spent from then on, so it is counted although the other still waits.
func (n *node) advance(q *request) {
	switch {
	case q.over:
	case !q.wait.Advance(n.clock()):
		n.decided(n, q)
	default:
		n.counts(n, q)
	}
}

// send sends the claims that are ready, and the node's registration if that is due. Every change of a node's state ends
// with it: Stepped sends nothing by itself.
func (n *node) send() (sent bool) {
	if now := n.clock(); n.stepped.RegisterDue(now) {
		n.store.register(n, now)
	}
	for b := n.stepped.Batch(); b != nil; b = n.stepped.Batch() {
		n.store.ask(n, b)
		sent = true
	}
	return sent
}

// answered continues all requests that waited for an answer. answered follows each answer and timer of the lease table.
// Any waiting request may be decidable now, also those of other keys, whose leases came with the same batch.
func (n *node) answered() {
	for i := range n.waits { // in the order of their arrival
		if q := n.waits[i]; !q.over && q.wait != nil {
			n.wakes(q)
		}
	}
	n.dropDecided()
	n.send()
	if n.ring != nil {
		n.ring.Pump()
		n.send()
	}
}

// wakes continues a request after an answer: at once, or when the machine has time for it. In the product, the waiting
// goroutine runs some time after the answer. Other requests may spend the tokens first, and a message may leave in
// between.
func (n *node) wakes(q *request) {
	if n.Net.Wake == 0 {
		n.advance(q)
		return
	}
	n.in(time.Duration(n.wakeRnd.Int64N(int64(n.Net.Wake))), func() {
		n.advance(q)
		n.dropDecided()
		n.send()
	})
}

// dropDecided drops requests that no longer wait. Requests in a ring are dropped now and again only (route), so the
// list may have some that are over.
func (n *node) dropDecided() {
	n.waits = slices.DeleteFunc(n.waits, func(q *request) bool { return q.over })
}

// end stops a node for good. Its tokens in hand are lost to it and still in the ledger's accounts. Its Stepped is not
// stopped, because nothing calls it any more.
func (n *node) end() {
	n.alive = false
	n.forsake()
	n.later = nil
	n.gone(n)
	if n.envoys != nil {
		n.envoys.ended(n)
	}
}

// forsake ends waiting requests without an answer. forsake ends waiting requests without an answer. A descriptor that
// was counted before is not counted again.
func (n *node) forsake() {
	for _, q := range n.waits {
		for i := range q.n {
			if a := &q.asks[i]; !q.over && !q.counted[i] && a.Kind == ratelimit.Spend {
				n.result.Unanswered += a.Cost
			}
		}
		q.over = true
	}
	n.waits = nil
}

// leave gives back the node's tokens, and ends it. A node of a ring first hands its keys over to others (leaveRing),
// which takes time. Any other ends at once.
func (n *node) leave() {
	if n.ring != nil {
		n.leaveRing()
		return
	}
	n.goodbye()
}

// goodbye gives back leases. The last messages are not repeated. If the wire loses one, the tokens stay with a node
// that has ended, as after a crash.
func (n *node) goodbye() {
	n.store.tell(n, n.stepped.Release())
	if a, ok := n.keeper.Resign(!n.stepped.Drifting()); ok {
		n.store.leave(n, a)
	}
	n.end()
}

// sit keeps a seat, as approx.Keeper.Run does. It looks twenty times in the life of a seat; the keeper says whether an
// application is due. After one, it looks again when that is answered (sat), so there is one at a time.
func (n *node) sit() {
	sent, plan := n.clock(), n.plan()
	if plan.Seats > 0 {
		if a, due := n.keeper.Due(sent, plan); due {
			n.store.sit(n, sent, a, plan)
			return
		}
	}
	n.in(approx.SeatTTL/20, n.sit)
}

// sat applies the answer.
func (n *node) sat(sent ratelimit.Instant, a approx.Application, plan approx.Plan, t approx.Tenancy, err error) {
	n.keeper.Answer(sent, a, plan, t, err)
	n.trace("node %d: seat %d, fence %d, windows from %d (%v)", n.slot, t.Seat, t.Fence, t.NotBefore, err)
	n.in(approx.SeatTTL/20, n.sit)
}
