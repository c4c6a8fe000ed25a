package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// overridden is an override that was set, or removed.
type overridden struct {
	ratelimit.Override
	removed bool
}

// override lets an operator set an override. From then on, the ledger must apply it.
func (w *world) override(x Override) {
	k := w.key(w.Rule, x.Key)
	p := k.part
	c := account.OverrideChange{Key: string(k.name), Limit: w.Rule.Limit, Match: ratelimit.Match{Any: true}}
	if x.To != nil {
		o := *x.To
		if x.For > 0 {
			o.Expires = p.time().Add(x.For)
		}
		c.Override = &o
	}
	if w.Storeless {
		w.overrideAtOwner(k, c.Override)
		return
	}
	l, ok := p.ledger.(account.Overrider)
	if !ok || p.down > 0 || p.hung > 0 {
		return
	}
	is, err := l.SetOverride(p.ctx, &c)
	if err != nil {
		w.violate(-1, k.index, "an override cannot be set: %v", err)
		return
	}
	w.overrides(k, &is, x.To == nil)
}

// overrides takes in what is set.
func (w *world) overrides(k *key, is *ratelimit.Override, removed bool) {
	w.trace("the override of key %d is %+v", k.index, is)
	if removed {
		is.Set = k.part.time()
	}
	k.sets = append(k.sets, overridden{*is, removed})
	slices.SortStableFunc(k.sets, func(a, b overridden) int { return cmp.Compare(a.Set, b.Set) }) // answers overtake
	w.mayHave(k, is)
}

// mayHave has a key go up to an override's limit, where it may be in force.
func (w *world) mayHave(k *key, o *ratelimit.Override) {
	for _, file := range k.files {
		own := *file
		own.Limit = own.Limit.Under(o)
		k.rule = larger(k.rule, &own)
	}
	w.judges(k)
}

// overrideAtOwner lets any node of a ring without a store set an override, which the key's owner keeps. Until an
// answer arrives, and without one for good, it may be in force.
func (w *world) overrideAtOwner(k *key, o *ratelimit.Override) {
	n := w.ask(-1)
	if n == nil || n.ring == nil || n.paused {
		return
	}
	k.unsure++
	w.mayHave(k, o)
	a := ratelimit.Ask{Rule: n.rule, Key: k.name}
	n.ring.SetOverride(&a, o, func(is ratelimit.Override, err error) {
		if err == nil {
			k.unsure--
			w.overrides(k, &is, o == nil)
		}
	})
}

// loses tells whether a fault may have lost overrides in owners' memory.
func (w *world) loses() bool {
	return w.Storeless && slices.ContainsFunc(w.Faults, func(f Fault) bool {
		return int64(f.At) <= w.now && f.Kind != Join && f.Kind != Leave && f.Kind != Restart
	})
}

// inForce is the largest limit that may have been in force since the account could be claimed: the start of the window
// before. For a bucket, with its short leases, it is the current one. A ledger that has lost data may apply any.
func (w *world) inForce(k *key) ratelimit.Limit {
	at := k.part.time()
	if len(k.sets) == 0 || k.unsure > 0 || w.loses() || w.bound.lossy() || w.books.stepped(k.part) {
		return k.rule.Limit
	}
	since := at
	if l := &k.rule.Limit; l.Algorithm != ratelimit.TokenBucket {
		since = l.WindowEnd(l.WindowAt(at) - 2)
	}
	var is ratelimit.Limit
	found := false
	add := func(from, to ratelimit.LedgerTime, o *ratelimit.Override) {
		if from > at || to <= since || to <= from {
			return
		}
		for _, file := range k.files { // the one of a smaller limit may have the larger burst: that of an override is scaled
			l := file.Limit.Under(o)
			if !found {
				is, found = l, true
			}
			is.Requests, is.Burst = max(is.Requests, l.Requests), max(is.Burst, l.Burst)
		}
	}
	add(0, k.sets[0].Set, nil)
	for i := range k.sets {
		o, next := &k.sets[i], at+1
		if i+1 < len(k.sets) {
			next = k.sets[i+1].Set
		}
		ends := o.Set
		if !o.removed {
			ends = next
			if o.Expires > 0 {
				ends = min(next, o.Expires)
			}
			add(o.Set, ends, &o.Override)
		}
		add(ends, next, nil)
	}
	return is
}

// overridden tells whether the ledger judged a message by the current override, or after a loss by an earlier
// one.
func (b *books) overridden(k *key, c *account.Claim, g *account.Grant) {
	if g.Err != nil || len(k.sets) == 0 || !c.Limit.Overridable() {
		if g.Override != nil {
			b.violate(-1, k.index, "the ledger judged by %+v, and nobody has set it", *g.Override)
		}
		return
	}
	last := k.sets[len(k.sets)-1]
	switch {
	case g.Override != nil && g.Override.Removed:
		if !last.removed && len(b.bound.forgets) == 0 && !b.stepped(k.part) {
			b.violate(-1, k.index, "the ledger judged by %+v, and %+v is set", *g.Override, last)
		}
	case g.Override != nil && !slices.Contains(k.sets, overridden{*g.Override, false}):
		b.violate(-1, k.index, "the ledger judged by %+v, and nobody has set it", *g.Override)
	case len(b.bound.forgets) > 0 || b.stepped(k.part): // it may have lost the override, or its time
	case last.removed || !last.In(g.At):
		if g.Override != nil {
			b.violate(-1, k.index, "the ledger judged by %+v, and that is over", *g.Override)
		}
	case g.Override == nil || *g.Override != last.Override:
		b.violate(-1, k.index, "the ledger judged by %+v, and %+v is set", g.Override, last)
	}
}

// lostTries is the number of times that a node restates an override that the ledger has lost.
const lostTries = 50

// tellAgain restates an override that a ledger has lost.
func (s *store) tellAgain(n *node, c account.OverrideChange, tries int) {
	p := s.parts[s.Partition(c.Key)]
	s.in(s.travel(s.Net.Trip), func() {
		if n.alive && s.reaches(n, p) {
			if l, ok := p.ledger.(account.Overrider); ok {
				_, _ = l.SetOverride(p.ctx, &c) // an override set in the meantime stays
			}
		} else if tries > 0 {
			s.in(leasing.SweepEvery, func() { s.tellAgain(n, c, tries-1) })
		}
	})
}

// overrides lets operators override limits, in some histories, independent of their other parts.
func (h *historian) overrides() {
	h.Rand = rand.New(rand.NewPCG(h.o.Seed, 0x416))
	l := h.o.Rule.Limit
	if !h.chance(0.3) {
		return
	}
	ceiling := 3 * l.Requests
	r := *h.o.Rule
	r.Limit.Ceiling = ceiling
	h.o.Rule = &r
	for i := range h.o.Changes {
		r := *h.o.Changes[i].Rule
		r.Limit.Ceiling = ceiling
		h.o.Changes[i].Rule = &r
	}
	for range 1 + h.IntN(12) {
		x := Override{At: time.Duration(h.Int64N(int64(h.o.Load.Length))), Key: h.IntN(h.o.Load.Keys)}
		if h.chance(0.8) {
			x.To = &ratelimit.Override{Requests: pick(h, 0, 1, l.Requests/2, l.Requests, 2*l.Requests, 5*l.Requests)}
		}
		if x.To != nil && h.chance(0.1) {
			x.To = &ratelimit.Override{Unlimited: true}
		}
		if h.chance(0.4) {
			x.For = time.Duration(h.Int64N(int64(5 * time.Second)))
		}
		h.o.Overrides = append(h.o.Overrides, x)
	}
}
