package hold

import (
	"github.com/sluice-gate/sluice/ratelimit"
)

// Sizing bounds the size of a claim for a key.
type Sizing struct {
	Rule  *ratelimit.Rule
	Nodes int // live nodes, by the last answer; at least 1
}

// Wants is the size of a claim beyond the waiting tokens, and the divisor of the free tokens.
func (e Entry) Wants(now instant, need tokens, s Sizing) (want tokens, divisor int) {
	e.measure(now, need)
	divisor = 2 * s.Nodes
	if now < e.scarce {
		return need, divisor
	}
	// Others would have to recall tokens beyond a share of the limit.
	if want = s.most(); !e.plenty(s.Rule) {
		want = min(want, e.Demand.Want(s.Rule, 0))
	}
	return max(need, want-e.InHand(now)), divisor
}

// WantsEarly is the size of a claim for the next window.
func (e Entry) WantsEarly(s Sizing) (want tokens, divisor int) {
	want = s.most()
	if !s.Rule.Stretched() {
		want = min(want, e.Demand.Want(s.Rule, 0))
	}
	return want, 2 * s.Nodes
}

// most is the part of the limit that a node takes while there is plenty.
func (s *Sizing) most() tokens {
	return max(1, s.Rule.Limit.Capacity()/tokens(max(leastShare, 5*s.Nodes)))
}

// leastShare is the least divisor of a limit for a node's part, while there is plenty: that of a fleet of four.
const leastShare = 5 * 4

// measure ends a stretch of use, with that many tokens still waiting. It counts requests of the largest cost in it:
// one request of thousands of tokens proves no higher rate than one of a single token.
func (u *Use) measure(now instant, need tokens) {
	each := max(1, u.largest)
	d := u.Demand
	d.Used, d.Refused, d.PerSec = d.Used/each, d.Refused/each, d.PerSec/float64(each)
	d.Measure(now, need/each)
	d.PerSec *= float64(each)
	u.Demand, u.largest = d, 0
}

// plenty tells whether a share of the limit may be kept until the window ends.
func (k *Key) plenty(r *ratelimit.Rule) bool {
	l := &r.Limit
	return l.Algorithm == ratelimit.FixedWindow && r.Stretched() &&
		k.Sum <= l.Capacity()-l.Capacity()/8
}
