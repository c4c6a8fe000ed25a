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
			w.admit(k, n.decide(k))
		}
		w.ask()
	})
}

// entries are the key's, as RLS has them.
func (k *key) entries() []config.Entry { return []config.Entry{{Key: "k", Value: k.id["k"]}} }

// decide has the node decide on a request for one token.
func (n *node) decide(k *key) (allowed bool) {
	rule, key := n.rules.Domain("d").MatchUnordered(k.entries(), nil)
	var v [1]ratelimit.Verdict
	n.limiter.Decide(context.Background(), n.clock(), []ratelimit.Ask{{Rule: rule, Key: key, Kind: ratelimit.Spend, Cost: 1}}, v[:])
	return v[0].Err == nil && !v[0].OverLimit
}

// shared: RLS callers of the same bucket may take the tokens that are held back for leases.
func (b *bound) shared(w *world) {
	b.add(w.window(), w.window(), sublease.DeclareEach(w.rules.All()[0]).Held)
}
