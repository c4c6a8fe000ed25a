package quota

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// strike has a fault happen.
func (w *world) strike(f Fault) {
	switch f.Kind {
	case Join:
		w.join()
	case Kill:
		w.kill(w.nodes[f.Who%len(w.nodes)], f.For)
	case Hang:
		w.hung++
		w.bound.outage(w, f.For)
		w.in(f.For, func() { w.hung-- })
	case Forget:
		if w.ledger != nil {
			w.ledger.Forget()
			w.bound.forgot(w)
		}
	default:
		w.strikeEnvoy(w.envoys[f.Who%len(w.envoys)], f)
	}
}

func (w *world) strikeEnvoy(p *player, f Fault) {
	switch f.Kind {
	case Cut:
		if p.stream != nil {
			p.stream.end()
		}
	case Freeze:
		p.freeze(f.For)
	case Stall:
		p.slow = max(p.slow, w.now+int64(f.For))
		p.late = max(p.late, p.slow)
	case Late:
		p.late = max(p.late, w.now+int64(f.For))
	}
}

// kill ends a node, and starts another in its place.
func (w *world) kill(n *node, d time.Duration) {
	if !n.alive {
		return
	}
	w.bound.killed(w)
	n.end()
	for _, p := range w.envoys {
		if p.stream != nil && p.stream.node == n && !p.stream.ended {
			p.stream.lost()
		}
	}
	w.in(d, func() {
		w.nodes[n.slot] = &node{world: w, slot: n.slot}
		w.nodes[n.slot].start()
	})
}

// bound is what may be let pass beyond the limit, by what has gone wrong: as sluice check
// --rlqs declares it.
type bound struct {
	extra  []extra
	most   ratelimit.Tokens
	counts int64 // in how many windows after its own what was let pass counts: 1 of a sliding one
}

// extra may be let pass beyond the limit in the windows from first to last.
type extra struct {
	first, last int64
	tokens      ratelimit.Tokens
}

func (b *bound) add(first, last int64, n ratelimit.Tokens) {
	b.extra = append(b.extra, extra{first, last, n})
	for w := first; w <= last+b.counts; w++ {
		b.most = max(b.most, b.now(w))
	}
}

// now is what may be let pass beyond the limit in a window.
func (b *bound) now(window int64) (n ratelimit.Tokens) {
	for _, e := range b.extra {
		if e.first <= window && window <= e.last+b.counts {
			n += e.tokens
		}
	}
	return n
}

// silent: an Envoy that stood still goes on with a lease, or one whose stream the node has
// ended reads only now what was sent on it.
func (b *bound) silent(w *world) {
	b.add(w.window(), w.window(), sublease.DeclareEach(w.rules.All()[0]).SilentEach)
}

// killed: a node whose ledger is its memory forgets what it has granted.
func (b *bound) killed(w *world) {
	if w.ledger == nil {
		b.add(w.window(), w.window(), w.Rule.Limit.Requests)
	}
}

// declared is what the rule promises of the nodes themselves.
func (w *world) declared() ratelimit.Bounds {
	return w.rules.All()[0].Declare(len(w.nodes), ratelimit.SharedStore)
}

// forgot: what is granted until all have told what they spent, and what those had spent who
// are no more.
func (b *bound) forgot(w *world) {
	r := w.rules.All()[0]
	n := w.declared().OnLoss
	for _, f := range w.Faults {
		if f.Kind == Kill {
			n = r.Limit.Requests
		}
	}
	b.add(w.window(), w.window(), n)
}

// outage: on_store_failure decides, at each node, until its leases are confirmed again.
func (b *bound) outage(w *world, d time.Duration) {
	last := int64(w.Rule.Limit.WindowAt(w.ledgerTime().Add(d + time.Second)))
	b.add(w.window(), last, w.declared().OnOutage.Fleet().At(0))
}

// check looks whether Envoys may let more pass than there is: what they have let pass of
// the window, and what they may still of what they have.
func (w *world) check() {
	window := w.window()
	most := w.Rule.Limit.Requests + w.bound.now(window)
	for _, k := range w.keys {
		sum := k.spent[window]
		for _, p := range w.envoys {
			if p.frozen == 0 {
				sum += p.client.Live(p.clock(), k.id)
			}
		}
		if sum > most {
			w.violate("Envoys have let pass, or may, %d of key %v, and the limit is %d with %d declared beyond it",
				sum, k.id, w.Rule.Limit.Requests, most-w.Rule.Limit.Requests)
			return
		}
	}
}
