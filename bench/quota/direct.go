package quota

import (
	"context"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// ask has the next request come that is asked over RLS: at any node, and of the whole limit.
func (w *world) ask() {
	w.in(time.Duration(w.rnd.ExpFloat64()/w.Direct*float64(time.Second)), func() {
		n, k := w.nodes[w.rnd.IntN(len(w.nodes))], w.keys[w.rnd.IntN(len(w.keys))]
		if n.alive {
			v := n.decide(w.rules.All()[0], k, ratelimit.Spend, 1)
			w.admit(k, !v.OverLimit)
		}
		w.ask()
	})
}

// decide has the node decide on a request of RLS for a key, by a rule.
func (n *node) decide(rule *ratelimit.Rule, k *key, kind ratelimit.Kind, cost ratelimit.Tokens) ratelimit.Verdict {
	_, key := n.rules.Domain("d").MatchUnordered([]config.Entry{{Key: "k", Value: k.id["k"]}}, nil)
	var v [1]ratelimit.Verdict
	n.limiter.Decide(context.Background(), n.clock(), []ratelimit.Ask{{Rule: rule, Key: key, Kind: kind, Cost: cost}}, v[:])
	return v[0]
}

// shared: RLS callers of the same bucket may take the tokens that are held back for leases.
func (b *bound) shared(w *world) {
	b.add(w.window(), w.window(), sublease.DeclareEach(w.rules.All()[0]).Held)
}
