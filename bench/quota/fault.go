package quota

import (
	"fmt"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

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
			w.losses++
			w.ledger.Lose(nil, fmt.Sprint("after ", w.losses))
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
	n.alive = false
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
	counts int64 // the number of windows after its own in which usage counts: 1 for a sliding one
	stays  bool  // what went over a bucket's limit stays owed
}

// extra may be let pass beyond the limit in the windows from first to last.
type extra struct {
	first, last int64
	tokens      ratelimit.Tokens
}

func (b *bound) add(first, last int64, n ratelimit.Tokens) {
	b.extra = append(b.extra, extra{first, last, n})
	if b.stays {
		last = first // later windows have no less
	}
	for w := first; w <= last+b.counts; w++ {
		b.most = max(b.most, b.now(w))
	}
}

// now is what may be let pass beyond the limit in a window.
func (b *bound) now(window int64) (n ratelimit.Tokens) {
	for _, e := range b.extra {
		if e.first <= window && (b.stays || window <= e.last+b.counts) {
			n += e.tokens
		}
	}
	return n
}

// silent: an Envoy may spend a lease in a window in which that was not charged for it.
func (b *bound) silent(w *world, window int64) {
	b.add(window, window, sublease.DeclareEach(w.rules.All()[0]).SilentEach)
}

// wentOn: an Envoy that has stood still since then goes on with the lease that it had.
func (b *bound) wentOn(w *world, since int64) {
	if since < w.window() {
		b.silent(w, w.window())
	}
}

// readLate: an Envoy reads an answer long after it was sent, because it stood still, or the node has ended the
// stream. It may spend those tokens now and, if the lease lasts, in the next window, where they were never
// charged. Within its own window it is charged.
func (b *bound) readLate(w *world, m *rlqsv3.RateLimitQuotaResponse, sent int64) {
	now := w.window()
	if sent < now {
		b.silent(w, now)
	}
	over := w.ledgerTime().Add(longest(m))
	if last := int64(w.Rule.Limit.WindowAt(over)); last > now {
		b.silent(w, now+1)
	}
}

// longest is for how long the longest lease of an answer lasts.
func longest(m *rlqsv3.RateLimitQuotaResponse) (d time.Duration) {
	for _, a := range m.GetBucketAction() {
		x := a.GetQuotaAssignmentAction()
		if x.GetRateLimitStrategy().GetTokenBucket() != nil {
			d = max(d, x.GetAssignmentTimeToLive().AsDuration())
		}
	}
	return d
}

// killed: a node whose ledger is its memory loses its grants.
func (b *bound) killed(w *world) {
	if w.ledger == nil {
		b.add(w.window(), w.window(), w.Rule.Limit.Capacity())
	}
}

// declared is what the rule promises of the nodes themselves.
func (w *world) declared() ratelimit.Bounds {
	return w.rules.All()[0].Declare(len(w.nodes), ratelimit.SharedStore)
}

// Grants until all nodes have restored their totals, and the totals of nodes that ended.
func (b *bound) forgot(w *world) {
	r := w.rules.All()[0]
	n := w.declared().OnLoss
	for _, f := range w.Faults {
		if f.Kind == Kill {
			n = r.Limit.Capacity()
		}
	}
	b.add(w.window(), w.window(), n)
}

// outage: on_store_failure decides, at each node, until its leases are confirmed again.
func (b *bound) outage(w *world, d time.Duration) {
	l := &w.Rule.Limit
	last := int64(l.WindowAt(w.ledgerTime().Add(d + time.Second)))
	n := w.declared().OnOutage.Fleet().At(0)
	if b.stays { // it is declared for each time to fill the bucket
		n *= 2 + ratelimit.Tokens(d/l.Refill(l.Burst))
	}
	b.add(w.window(), last, n)
}

// check looks whether Envoys may pass more than there is: their usage of the window, and the rest of their
// leases.
func (w *world) check() {
	window := w.window()
	beyond := w.bound.now(window)
	for _, k := range w.keys {
		var may ratelimit.Tokens
		for _, p := range w.envoys {
			if p.frozen == 0 {
				may += p.client.Live(p.clock(), k.id)
			}
		}
		rest := w.rest(k)
		if room := w.room(k, window); may+rest > room+beyond {
			w.violate("of key %v Envoys may let pass %d, and %d are there to be granted; of %v are left %d, with %d declared "+
				"beyond it", k.id, may, rest, w.Rule.Limit, room, beyond)
			return
		}
	}
}

// rest is what a bucket's account has: all of it may be granted and spent at this instant, too.
// It is known of a node whose ledger is its own memory; else it is taken to be nothing.
func (w *world) rest(k *key) ratelimit.Tokens {
	if !w.bound.stays || w.ledger != nil || !w.nodes[0].alive {
		return 0
	}
	rule := w.rules.All()[0]
	if w.Direct == 0 { // no request adds to it
		rule = sublease.Rule(rule)
	}
	return w.nodes[0].decide(rule, k, ratelimit.Peek, 0).Remaining
}

// room is the rest of a key's limit: for a bucket, its level if all usage had been taken from it. Below 0,
// more passed.
func (w *world) room(k *key, window int64) ratelimit.Tokens {
	if w.bound.stays {
		return k.judge.Room(w.ledgerTime())
	}
	return w.Rule.Limit.Requests - k.spent[window]
}
