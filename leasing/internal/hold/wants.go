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
	if now < e.scarce {
		return need, s.divisor()
	}
	return max(need, e.lease(e.Sum, &s)-e.InHand(now)), s.divisor()
}

// WantsEarly is the size of a claim for the next window.
func (e Entry) WantsEarly(s Sizing) (want tokens, divisor int) { return e.lease(0, &s), s.divisor() }

// lease is the number of tokens that a node has in hand after a claim, by the sum of the account. It is its part of the
// limit, or of the free tokens if its demand is larger. Beyond that, others would have to recall tokens.
func (u *Use) lease(sum tokens, s *Sizing) tokens {
	limit := s.Rule.Limit.Capacity()
	demand := u.Demand.Want(s.Rule, 0)
	size := max(1, limit/tokens(max(leastShare, 5*s.Nodes)))
	if s.Rule.Stretched() {
		size = max(size, min(demand, (limit-sum)/tokens(s.divisor())))
	}
	if !plenty(s.Rule, sum) {
		size = min(size, demand)
	}
	return size
}

// divisor is that of the free tokens of an account. Of a key in mode routing, the owner takes them for all nodes.
func (s *Sizing) divisor() int {
	if s.Rule.Coordination.Mode.Spec().Owned {
		return 2
	}
	return 2 * s.Nodes
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
func plenty(r *ratelimit.Rule, sum tokens) bool {
	l := &r.Limit
	return l.Algorithm == ratelimit.FixedWindow && r.Stretched() && sum <= l.Capacity()-l.Capacity()/8
}
