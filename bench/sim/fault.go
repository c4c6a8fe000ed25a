package sim

import (
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// strike makes a fault happen. A fault hits, by its kind, an Envoy, the fleet, a part of the ledger, a key or a node,
// and Node counts among these. Faults that make no sense at their time do nothing, such as a crash of an ended node:
// random histories need not avoid them.
//
// A fault that can cost tokens notes so in the bound. Of Sever, Node counts nodes first, and parts by rounds of these.
func (w *world) strike(f Fault) {
	w.trace("%v node %d for %v", f.Kind, f.Node, f.For)
	var n *node
	if f.Node < len(w.nodes) {
		n = w.nodes[f.Node]
	}
	if f.Kind == Sever {
		n = w.nodes[f.Node%len(w.nodes)]
	}
	switch f.Kind {
	case Break, Freeze, Stall, Lag, Enter:
		if w.envoys != nil {
			w.envoys.strike(f)
		}
		return
	// More nodes than Options may have are not made.
	case Join:
		if len(w.nodes) < MaxNodes {
			w.met(w.join())
		}
		return
	case Restart:
		if n != nil && !n.alive {
			w.met(w.restart(n))
		} else if n != nil && n.ring != nil && n.ring.leaving { // it starts again when it has left
			w.in(time.Second, func() { w.strike(f) })
		}
		return
	case Slow:
		w.store.slow = f.For
		return
	case Hang, Down, Amnesia, FailOver, Ahead, Back:
		w.strikePart(w.partOf(f), f)
		return
	case Move:
		if len(w.keys) > 0 && len(w.store.parts) > 1 {
			w.move(w.keys[f.Node%len(w.keys)], f.Node)
		}
		return
	case Evict, Reset:
		if len(w.keys) > 0 {
			w.lose(w.keys[f.Node%len(w.keys)], f.Kind)
		}
		return
	}
	if n != nil && (n.alive || slices.Contains(networkFaults, f.Kind)) {
		w.strikeNode(n, f)
	}
}

// networkFaults are faults of a place. They also hit the node that starts there meanwhile.
var networkFaults = []FaultKind{Cut, Sever, Part, Deaf, Late}

// partOf is the part of the ledger of a fault. Any number names one, so that a fault drawn for a node can also hit a
// part.
func (w *world) partOf(f Fault) *part { return w.store.parts[f.Node%len(w.store.parts)] }

// move moves a key's accounts to another part, unless one of both does not answer. Only ledgers in memory can move
// accounts. In a Cluster, both servers answer during a migration, so a part that is down moves none.
func (w *world) move(k *key, by int) {
	all, from := w.store.parts, k.part
	to := all[(from.index+1+by%(len(all)-1))%len(all)]
	a, ok1 := from.ledger.(*memory)
	b, ok2 := to.ledger.(*memory)
	if !ok1 || !ok2 || from.down+from.hung+to.down+to.hung > 0 {
		return
	}
	w.trace("key %d moves from part %d to part %d", k.index, from.index, to.index)
	a.Move(string(k.name), b.MemoryStore)
	k.enter(to)
}

// strikePart makes a fault happen at a part of the ledger. A hung part and one that is down can have several faults at
// once: each counts (during), so that the end of the first does not revive it.
func (w *world) strikePart(p *part, f Fault) {
	switch f.Kind {
	case Hang:
		w.bound.outage(f.For)
		w.during(&p.hung, f.For)
	case Down:
		w.bound.outage(f.For)
		w.during(&p.down, f.For)
	case Amnesia:
		p.forget()
		w.bound.forgot(p)
	case FailOver:
		p.failOver(w.now)
		w.bound.forgot(p)
	case Ahead, Back:
		p.setClock(f)
	}
}

// strikeNode makes a fault happen at a node. A node that cannot reach the store may miss an epoch that begins
// meanwhile, so it is noted at the beginning (miss). A paused one is noted at its end, too: it may have missed an epoch
// that began within the pause.
func (w *world) strikeNode(n *node, f Fault) {
	switch f.Kind {
	case Crash:
		w.bound.miss(n)
		w.bound.ownerless(0)
		w.bound.apart(0)
		n.end()
	case Leave:
		n.leave()
	case Pause, Suspend:
		if n.paused {
			return
		}
		w.bound.miss(n)
		n.paused = true
		w.bound.ownerless(f.For)
		if f.For > takenOver {
			w.bound.apart(f.For)
		}
		if f.Kind == Suspend {
			// The process stops before the clock does, and starts after it, as on a real machine: ratelimit.NewClock
			// relies on that.
			n.sleeps = w.now + int64(stops)
		}
		w.in(f.For, func() {
			w.bound.miss(n)
			if n.sleeps > 0 {
				n.asleep += max(0, w.now-int64(stops)-n.sleeps)
				n.sleeps = 0
			}
			n.resume()
		})
	case Cut, Sever:
		w.bound.miss(n)
		w.bound.outage(f.For)
		for i := range n.cut {
			if f.Kind == Cut || i == f.Node/len(w.nodes)%len(n.cut) {
				w.during(&n.cut[i], f.For)
			}
		}
	case Deaf:
		w.bound.miss(n)
		w.bound.outage(f.For)
		w.during(&n.deaf, f.For)
	case Late:
		// Answers of messages that leave at the end of the fault are late for as long again.
		w.bound.outage(2 * f.For)
		n.late += f.For
		w.in(f.For, func() { n.late -= f.For })
	case Part:
		w.bound.ownerless(f.For)
		if f.For > takenOver {
			w.bound.apart(f.For)
		}
		w.during(&n.parted, f.For)
	}
}

// stops is the time that a suspended node does not run before its clock stops, and after it continues.
const stops = 2 * time.Millisecond

// setClock sets the clock of a part of the ledger. A clock that goes ahead skips windows, so leases of the skipped ones
// end unreported. One that goes back enters a window for the second time: the judge must add both uses, or the first
// would count for nothing.
func (p *part) setClock(f Fault) {
	by := ratelimit.LedgerTime(f.For / time.Microsecond)
	if f.Kind == Back {
		by = -by
	}
	from := p.time()
	p.set += by
	p.bound.steps = append(p.bound.steps, step{p.now, p})
	if by > 0 {
		for _, n := range p.nodes { // its leases end at once
			p.bound.miss(n)
		}
		return
	}
	for _, k := range p.keys {
		if k.part == p {
			k.judge.StepBack(from, p.time())
		}
	}
}

// lose loses a key's account, or lets an operator reset it: either can grant its spent and drifted tokens once more.
// The bound rises after the loss, by a deferred call, because reset can find more than the limit in the account.
func (w *world) lose(k *key, kind FaultKind) {
	drift := ratelimit.Tokens(0)
	for _, r := range w.bound.versions(k) { // nodes may have any of them
		own := *r
		own.Limit = k.rule.Limit
		drift = max(drift, declare.Of(&own, len(w.nodes), declare.SharedStore).Over.Drift)
	}
	n := k.rule.Limit.Capacity()
	defer func() { k.extra = append(k.extra, extra{at: w.now, n: n + drift}) }()
	if kind == Evict {
		w.bound.evicts = true
		k.part.evict(k)
		return
	}
	// A failed draw is in the sum until its sender takes it back, and is refunded with the rest.
	n = max(n, k.part.reset(k))
}

// operator is the first name of operators that reset keys.
const operator ratelimit.Holder = 1 << 32

// prepare makes copies of the ledger for later failovers. A replica that takes over has what it had received at an
// earlier instant. The copy must be made then, before the run reaches the fault.
func (w *world) prepare() {
	for _, f := range w.Faults {
		switch f.Kind {
		case FailOver:
			at := int64(f.At)
			w.queue.Push(max(0, at-int64(f.For)), func() { w.partOf(f).keep(at) })
			w.bound.losable = true
		case Amnesia, Evict:
			w.bound.losable = true
		}
	}
}

// change gives each node a new version of the rule, at its own time. A paused node reads the new version when it goes
// on. Nodes that start later begin with the newest.
func (w *world) change(c Change) {
	w.rules = append(w.rules, c.Rule)
	w.trace("the rules change (%s): %v", c.What, c.Rule.Limit)
	for _, n := range w.nodes {
		after := time.Duration(0)
		if c.Spread > 0 {
			after = time.Duration(w.rnd.Int64N(int64(c.Spread)))
		}
		n.world.in(after, func() { n.run(func() { n.rule = c.Rule }) })
	}
}

// during counts a state up, and down again later. A count and not a flag, because two faults of a kind may overlap.
func (w *world) during(state *int, d time.Duration) {
	*state++
	w.in(d, func() { *state-- })
}

// resume runs the work that a paused node delayed. Its delayed events run in their order, and may pause or end it
// again: run asks each time.
func (n *node) resume() {
	n.paused = false
	if !n.alive {
		return
	}
	n.trace("node %d goes on", n.slot)
	later := n.later
	n.later = nil
	for _, do := range later {
		n.run(do)
	}
}
