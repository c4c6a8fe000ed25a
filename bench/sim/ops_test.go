package sim

import (
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// opsCounter counts the claims of each node for each key in each window, and the demand that determines the declared
// maximum of claims. It keeps the window that used most of that.
type opsCounter struct {
	*world
	counts map[opsOf]*ops
	used   float64
	claims int64
	demand ratelimit.Demand
}

// opsOf identifies a node and a key.
type opsOf struct {
	node ratelimit.Holder
	key  *key
}

// ops are those of one node for one key in a window.
type ops struct {
	rule    *ratelimit.Rule
	stretch int64 // number of the window, or of the times that a bucket could have filled
	first   int64 // nanoseconds
	last    int64
	short   spell // half of the limit or less is left
	refused spell // requests are refused
	claims  int64
	demand  ratelimit.Demand
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

func (c *opsCounter) open(w *world) { c.world, c.counts = w, map[opsOf]*ops{} }

// at is the count of a node and a key at this instant.
func (c *opsCounter) at(node ratelimit.Holder, k *key) *ops {
	at, l := opsOf{node, k}, &k.rule.Limit
	stretch := int64(l.WindowAt(k.part.time()))
	if l.Algorithm == ratelimit.TokenBucket {
		stretch = int64(float64(c.now) / float64(l.Period()) * float64(l.Requests) / float64(l.Burst))
	}
	if o := c.counts[at]; o != nil && o.stretch != stretch {
		c.close(o)
		delete(c.counts, at)
	}
	if c.counts[at] == nil {
		c.counts[at] = &ops{rule: k.rule, stretch: stretch, first: c.now}
	}
	c.counts[at].last = c.now
	return c.counts[at]
}

// close compares the claims in a window with the declared maximum.
func (c *opsCounter) close(o *ops) {
	o.demand.Time, o.demand.Windows = time.Duration(o.last-o.first), 1
	o.demand.Short, o.demand.Refused = o.short.lasts, o.refused.lasts
	declared := o.rule.Declare(len(c.nodes), ratelimit.SharedStore).StoreOps
	if share := float64(o.claims) / declared.Most(&o.demand); share > c.used {
		c.used, c.claims, c.demand = share, o.claims, o.demand
	}
}

func (c *opsCounter) claimed(node ratelimit.Holder, k *key) { c.at(node, k).claims++ }

func (c *opsCounter) asked(n *node, k *key, a *ratelimit.Ask, v *ratelimit.Verdict) {
	if a.Kind != ratelimit.Spend {
		return
	}
	o := c.at(n.name, k)
	owned := k.rule.Coordination.Mode.Spec().Owned // but while an outage of the ring matters, its owner may not answer
	if owned && slices.ContainsFunc(c.bound.lost, func(s span) bool { return s.from <= c.now && c.now <= s.to }) {
		o.demand.Unowned += a.Cost
	}
	if k.judge.Room(k.part.time()) <= k.rule.Limit.Capacity()/2 {
		o.short.seen(c.now)
	}
	if v.OverLimit {
		o.refused.seen(c.now)
		return
	}
	o.demand.Tokens += a.Cost
}

// finish ends all windows that are still counted.
func (c *opsCounter) finish() {
	for _, o := range c.counts {
		c.close(o)
	}
}
