package sim

import (
	"math/rand/v2"

	"github.com/sluice-gate/sluice/ratelimit"
)

// reserves tells whether a history has rules with a reserve: one in five, and of those for draws.
func (o *Options) reserves() bool { return o.Seed%5 == 2 || o.Seed%40 == 39 }

// reserve gives the rule a reserve, and makes demand close to the rest of the limit, so that the last tokens
// are in demand. It draws its own random number, so that other histories stay the same.
func (h *historian) reserve() {
	own := &historian{Rand: rand.New(rand.NewPCG(h.o.Seed, 0x7e5e)), o: h.o}
	r := h.o.Rule
	c := &r.Coordination
	if c.Mode.Spec().Drifts {
		c.Mode = ratelimit.Leasing
	}
	if r.Limit.Algorithm != ratelimit.FixedWindow {
		r.Limit.Algorithm, r.Limit.Burst = ratelimit.FixedWindow, 0
	}
	r.Limit.Requests = max(r.Limit.Requests, pick(own, ratelimit.Tokens(40), 100, 1000))
	c.Audit = false
	c.Lease.Reserve = pick(own, ratelimit.Share{PPM: 4000}, ratelimit.Share{PPM: 50_000}, ratelimit.Share{PPM: 100_000}, ratelimit.Share{Tokens: 9})
	c.MaxNodes = pick(own, c.MaxNodes, h.o.Nodes, h.o.Nodes+1)
}

// rereserve gives one version of the rule another reserve, or none.
func (h *historian) rereserve() {
	own := rand.New(rand.NewPCG(h.o.Seed, 0x7e5f))
	for i := range h.o.Changes {
		c := &h.o.Changes[i]
		next := *c.Rule
		next.Coordination.Lease.Reserve = h.o.Rule.Coordination.Lease.Reserve
		if own.Float64() < 0.3 {
			next.Coordination.Lease.Reserve = ratelimit.Share{PPM: uint32(own.IntN(3)) * 20_000}
			c.What += " and lease.reserve"
		}
		c.Rule = &next
	}
}

// unreserved bounds the excess while versions of a rule have different reserves: nodes without a seat, and
// nodes with a version without a reserve, ignore the reserves of others.
func unreserved(versions []*ratelimit.Rule) ratelimit.Tokens {
	most, differ := ratelimit.Tokens(0), false
	for _, r := range versions {
		n := r.Reserve()
		most, differ = max(most, n), differ || n != versions[0].Reserve()
	}
	if !differ {
		return 0
	}
	return most
}
