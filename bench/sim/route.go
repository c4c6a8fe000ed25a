package sim

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing"
)

// A node of mode routing asks the key's owner, as package routing does where
// there is a store: it waits for the answer for ratelimit.StoreDeadline, asks
// again whom it then takes for the owner when that node says it is not, and
// decides by on_store_failure when there is no answer in time. An answer that
// is late is taken back. Hot keys are not played: an owner here is never busy.

// forward is a request on its way to its key's owner.
type forward struct {
	node    *node
	request *request // as the node that was asked has it
}

const (
	noticed  = 2 * time.Second        // until a silent node is taken for dead
	askAgain = time.Millisecond       // after a node has said that it is not the owner
	spread   = 100 * time.Millisecond // until all have heard of a change
)

func (w *world) route(n *node, q *request) {
	if n.owner(q) == n.addr {
		w.decide(n, q)
		return
	}
	n.in(ratelimit.StoreDeadline, func() { n.giveUp(q) })
	w.forward(n, q)
}

func (n *node) owner(q *request) string { return n.view.Owner(routing.HashOf(q.asks[0].Key)) }

// hears tells whether a message from node to node arrives.
func (w *world) hears(from, to *node) bool {
	return from.parted == 0 && to.parted == 0 && !w.lost()
}

func (w *world) forward(n *node, q *request) {
	slot, ok := w.slots[n.owner(q)]
	w.result.Hops++
	if !ok || !w.hears(n, w.nodes[slot]) {
		return
	}
	owner := w.nodes[slot]
	w.in(w.travel(w.Net.Hop), func() {
		owner.run(func() {
			f := &forward{node: n, request: q}
			if owner.owner(q) != owner.addr {
				w.back(owner, n, func() { n.moved(q) })
				return
			}
			there := w.take(q.keys[0], q.asks[0])
			there.from = f
			w.decide(owner, there)
		})
	})
}

// back sends an answer.
func (w *world) back(from, to *node, do func()) {
	w.result.Hops++
	if w.hears(from, to) {
		w.in(w.travel(w.Net.Hop), func() { to.run(do) })
	}
}

// moved is when who was asked is not the owner.
func (n *node) moved(q *request) {
	if q.over {
		return
	}
	n.in(askAgain, func() {
		switch {
		case q.over:
		case n.owner(q) == n.addr:
			q.over = true
			own := n.take(q.keys[0], q.asks[0])
			own.at = q.at
			n.decide(n, own)
		default:
			n.forward(n, q)
		}
	})
}

// reply carries an owner's decision back.
func (w *world) reply(owner *node, there *request) {
	f, v, decided := there.from, there.verdicts[0], w.ledgerTime()
	ask := there.asks[0]
	w.back(owner, f.node, func() {
		q := f.request
		if !q.over {
			q.over = true
			q.verdicts[0] = v
			q.verdicts[0].Source = ratelimit.FromOwner
			w.waited(q)
			return
		}
		if v.OverLimit { // it was decided without the owner
			return
		}
		w.back(f.node, owner, func() {
			owner.stepped.Undo(owner.clock(), []ratelimit.Ask{ask}, []ratelimit.Verdict{v})
			q.keys[0].judge.Retract(decided, w.ledgerTime(), ask.Cost)
			w.result.Admitted -= ask.Cost
		})
	})
}

// giveUp decides without the key's owner.
func (n *node) giveUp(q *request) {
	if q.over {
		return
	}
	q.over = true
	a, v := q.asks[0], ratelimit.Verdict{}
	switch a.Rule.Coordination.OnStoreFailure {
	case ratelimit.FailOpen:
	case ratelimit.FailLocal:
		a.Rule = a.Rule.LocalShare()
		n.alone.Decide(context.Background(), n.clock(), []ratelimit.Ask{a}, q.verdicts[:1])
		v = q.verdicts[0]
	default:
		v.OverLimit = true
	}
	v.Source = ratelimit.FromFallback
	q.verdicts[0] = v
	n.count(n, q, 0)
	n.waited(q)
}

// Rings are built once for each set of members.
var (
	ringsMu sync.Mutex
	ringOf  = map[string]*routing.Ring{} // guarded by ringsMu
)

// mostRings are kept; then all are built anew.
const mostRings = 512

// members is the ring of all that are alive.
func (w *world) members() *routing.Ring {
	if w.Rule.Coordination.Mode != ratelimit.Routing {
		return nil
	}
	var members []routing.Member
	var name strings.Builder
	for _, n := range w.nodes {
		if n.alive {
			members = append(members, routing.Member{Addr: n.addr})
			name.WriteString(n.addr)
		}
	}
	ringsMu.Lock()
	defer ringsMu.Unlock()
	r := ringOf[name.String()]
	if r == nil {
		if len(ringOf) >= mostRings {
			clear(ringOf)
		}
		r = routing.NewRing(members)
		ringOf[name.String()] = r
	}
	return r
}

// met has all nodes hear of one more, each at its time.
func (w *world) met(n *node) {
	n.view = w.members()
	w.hear(0)
}

// gone has all nodes notice that one has ended.
func (w *world) gone(*node) { w.hear(noticed) }

func (w *world) hear(after time.Duration) {
	if w.Rule.Coordination.Mode != ratelimit.Routing {
		return
	}
	for _, n := range w.nodes {
		if n.alive {
			n.world.in(after+time.Duration(w.rnd.Int64N(int64(spread))), func() { n.run(func() { n.view = w.members() }) })
		}
	}
}
