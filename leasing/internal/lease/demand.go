package lease

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Demand is the measured demand for a key at one holder. The zero demand is unmeasured.
type Demand struct {
	Used    tokens // admitted since the last claim
	Refused tokens // refused since then
	Since   instant
	PerSec  float64 // the rate at Since
	LastUse instant
}

const (
	// Horizon is the time that a lease should last. It is renewed shortly before its end (soon), so that a busy key
	// costs less than a claim a second.
	Horizon = ratelimit.LeaseHorizon
	// shortest is the shortest time for a rate: the first requests of a burst are not representative.
	shortest = 10 * time.Millisecond
	// memory is the length of a stretch that counts as much as all earlier ones together: after it, the error of the
	// rate is halved.
	memory = time.Second
	// proof is the number of standard deviations by which a count must exceed a rate to prove a higher rate. n random
	// requests have a deviation of the root of n, so fewer than five prove nothing.
	proof = 2
)

// Measure ends a stretch of use at now, with that many tokens still waiting.
func (d *Demand) Measure(now instant, waiting tokens) {
	d.PerSec = d.rate(now, ratelimit.AddTokens(d.Used, waiting))
	d.Since = now
	d.Used = 0
	d.Refused = 0
}

// Rate is the current demand in tokens a second, including refused ones.
func (d *Demand) Rate(now instant) float64 {
	return d.rate(now, ratelimit.AddTokens(d.Used, d.Refused))
}

// rate is the rate, with a demand of n tokens in the stretch until now. It moves towards the stretch's rate, the more
// the longer the stretch is. It rises at once to the rate that n proves, because a lease that is too small makes
// requests wait. A single request soon after a claim is no rate: otherwise a fleet of many nodes with few requests
// each leases far too much.
func (d *Demand) rate(now instant, n tokens) float64 {
	if d.Since == 0 {
		return d.PerSec
	}
	seconds := max(now.Sub(d.Since), shortest).Seconds()
	weight := seconds / (seconds + memory.Seconds())
	proven := float64(n) - proof*math.Sqrt(float64(n))
	return max(d.PerSec+weight*(float64(n)/seconds-d.PerSec), proven/seconds)
}

// Want is the size of a claim: the demand of the horizon, or the rule's size, and at least the waiting tokens.
func (d *Demand) Want(rule *ratelimit.Rule, waiting tokens) tokens {
	if size := rule.Coordination.Lease.Fixed; size > 0 {
		return max(size, waiting)
	}
	ahead := min(Horizon, rule.Limit.Period()).Seconds() * d.PerSec
	return max(tokens(math.Ceil(min(ahead, float64(rule.Limit.Capacity())))), waiting)
}

// fillsSlots reports whether each slot of a bucket has a request. Otherwise a lease mostly ends unspent.
func (u *Use) fillsSlots(l *ratelimit.Limit) bool {
	return u.Demand.PerSec*account.BucketSlot(l).Seconds() >= 1
}

// Sizing bounds the size of a claim for a key.
type Sizing struct {
	Rule  *ratelimit.Rule
	Nodes int // live nodes, by the last answer; at least 1
	// Trip is the time of a round trip to the ledger, of late; 0: it is unknown.
	Trip time.Duration
}

// Wants is the size of a claim beyond the waiting tokens, and the unit of the need. Where nothing is taken ahead,
// tokens that no request waits for go back. It also ends a stretch of the demand, so it is called once for each
// message.
func (e Entry) Wants(now instant, need tokens, s Sizing) (want, unit tokens) {
	unit = max(1, min(need, e.largest))
	e.measure(now, need)
	if !s.Ahead() {
		e.GiveBack(need)
	}
	if now < e.scarceUntil {
		return need, unit
	}
	if e.bucket {
		return need + e.lease(e.Sum, &s), unit
	}
	return max(need, e.lease(e.Sum, &s)-e.InHand(now)), unit
}

// lease is the number of tokens that a node has in hand after a claim, by the sum of the account. Beyond its part of
// the limit, others would have to recall tokens, and denials meanwhile charge what they give back. An owner in mode
// routing, which takes tokens for all nodes, leases half of the free tokens if its demand is that large.
func (u *Use) lease(sum tokens, s *Sizing) tokens {
	if !s.Ahead() {
		return 0
	}
	if l := &s.Rule.Limit; l.Algorithm == ratelimit.TokenBucket && !u.fillsSlots(l) {
		return 0
	}
	limit := s.Rule.Limit.Capacity()
	demand := u.Demand.Want(s.Rule, 0)
	size := max(1, limit/tokens(max(leastShare, 5*s.Nodes)))
	if s.Rule.Stretched() && s.owned() {
		size = max(size, min(demand, (limit-sum)/account.Share))
	}
	if !plenty(s.Rule, sum) {
		size = min(size, demand)
	}
	return size
}

// Ahead reports whether a node takes tokens ahead of requests. Of a small limit, those may be all that a request at
// another node could get, and a peek there shows less than what is left. An owner answers for all nodes.
func (s Sizing) Ahead() bool { return s.owned() || !s.small() }

// small reports whether a limit has few tokens for each node that takes some. Its price is that a decision under such a
// limit costs the ledger half as much again (docs/adr, decision 39).
func (s Sizing) small() bool {
	return s.Rule.Limit.Capacity() < leastShare*tokens(max(2, s.takers()))
}

// takers is the number of nodes that take tokens of a key.
func (s Sizing) takers() int {
	if s.owned() {
		return 1
	}
	return s.Nodes
}

func (s Sizing) owned() bool { return s.Rule.Coordination.Mode.Spec().Owned }

// leastShare is the least divisor of a limit for a node's part, while there is plenty: that of a fleet of four.
const leastShare = 5 * 4

// measure ends a stretch of use, with that many tokens still waiting. It counts requests of the largest cost in it:
// one request of thousands of tokens proves no higher rate than one of a single token.
func (u *Use) measure(now instant, need tokens) {
	each := max(1, u.largest)
	d := u.Demand
	d.Used /= each
	d.Refused /= each
	d.PerSec /= float64(each)
	d.Measure(now, need/each)
	d.PerSec *= float64(each)
	u.Demand, u.largest = d, 0
}

// plenty reports whether a share of the limit may be kept until the window ends.
func plenty(r *ratelimit.Rule, sum tokens) bool {
	l := &r.Limit
	return l.Algorithm == ratelimit.FixedWindow && r.Stretched() && sum <= l.Capacity()-l.Capacity()/8
}
