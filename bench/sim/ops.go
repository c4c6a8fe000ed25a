package sim

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/declare"

	"github.com/sluice-gate/sluice/ratelimit"
)

// ops counts the claims of one node for one key in each window, and its demand, which determines the declared
// maximum of claims.
type ops struct {
	rule    *ratelimit.Rule
	stretch int64 // number of the window, or of the times that a bucket could have filled
	first   int64 // nanoseconds
	last    int64
	short   spell // half of the limit or less is left
	refused spell // requests are refused
	claims  int64
	demand  declare.Demand
}

// spell is a state of a key, which each request in that state confirms. The zero spell never was.
type spell struct {
	until int64
	lasts time.Duration
}

// seen notes that the state holds now, and may guide the node for a while.
func (s *spell) seen(now int64) {
	until := now + int64(2*ratelimit.ClaimBackOff)
	s.lasts += time.Duration(until - max(now, s.until))
	s.until = until
}

// opsOf identifies a node and a key.
type opsOf struct {
	node ratelimit.Holder
	key  *key
}

// opsAt is the count of a node and a key at this instant, or nil if ops are not counted.
func (w *world) opsAt(node ratelimit.Holder, k *key) *ops {
	if !w.CountOps {
		return nil
	}
	o := w.ops[opsOf{node, k}]
	stretch := int64(k.rule.Limit.WindowAt(k.part.time()))
	if l := &k.rule.Limit; l.Algorithm == ratelimit.TokenBucket {
		stretch = int64(float64(w.now) / float64(l.Period()) * float64(l.Requests) / float64(l.Burst))
	}
	if o == nil {
		o = &ops{rule: k.rule, first: w.now}
		w.ops[opsOf{node, k}] = o
	} else if o.stretch != stretch {
		w.closeOps(o)
		*o = ops{rule: k.rule, first: w.now}
	}
	o.stretch, o.last = stretch, w.now
	return o
}

// closeOps compares the claims in a window with the declared maximum.
func (w *world) closeOps(o *ops) {
	o.demand.Time, o.demand.Windows = time.Duration(o.last-o.first), 1
	o.demand.Short, o.demand.Refused = o.short.lasts, o.refused.lasts
	declared := declare.Of(o.rule, len(w.nodes), declare.SharedStore).StoreOps
	r := &w.result
	if share := float64(o.claims) / declared.Most(&o.demand); share > r.OpsUsed {
		r.OpsUsed, r.Ops, r.OpsDemand = share, o.claims, o.demand
	}
}

// claimed counts a claim that reached the store.
func (w *world) claimed(node ratelimit.Holder, key string) {
	if o := w.opsAt(node, w.named[key]); o != nil {
		o.claims++
	}
}

// asked counts a decision of a node.
func (w *world) asked(n *node, k *key, a *ratelimit.Ask, v *ratelimit.Verdict) {
	o := w.opsAt(n.name, k)
	if o == nil || a.Kind != ratelimit.Spend {
		return
	}
	owned := k.rule.Coordination.Mode.Spec().Owned // but while an outage of the ring matters, its owner may not answer
	if owned && slices.ContainsFunc(w.bound.lost, func(s span) bool { return s.from <= w.now && w.now <= s.to }) {
		o.demand.Unowned += a.Cost
	}
	if k.judge.Room(k.part.time()) <= k.rule.Limit.Capacity()/2 {
		o.short.seen(w.now)
	}
	if v.OverLimit {
		o.refused.seen(w.now)
		return
	}
	o.demand.Tokens += a.Cost
}

// finishOps ends all windows that are still counted.
func (w *world) finishOps() {
	for _, k := range w.keys { // in a fixed order, because of equal shares the first is reported
		for name := ratelimit.Holder(1); name <= w.names; name++ {
			if o := w.ops[opsOf{name, k}]; o != nil {
				w.closeOps(o)
			}
		}
	}
	w.result.OpsUsed = math.Round(w.result.OpsUsed*1e3) / 1e3
}
