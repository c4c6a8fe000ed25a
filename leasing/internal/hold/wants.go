package hold

import (
	"github.com/sluice-gate/sluice/ratelimit"
)

// Sizing is what a claim of a key may ask for.
type Sizing struct {
	Rule  *ratelimit.Rule
	Nodes int // alive, as far as is known; at least 1
}

// Wants is how much is to be asked for, beside what waits, and into how many parts what is free is shared.
func (e Entry) Wants(now instant, need tokens, s Sizing) (want tokens, share int) {
	e.measure(now, need)
	share = 2 * max(1, s.Nodes)
	if now < e.scarce {
		return need, share
	}
	// Of more than a share of the limit, others would have to ask for it back.
	if want = s.most(); !e.plenty(s.Rule) {
		want = min(want, e.Demand.Want(s.Rule, 0))
	}
	return max(need, want-e.InHand(now)), share
}

// WantsEarly is how much is to be asked for of the next window.
func (e Entry) WantsEarly(s Sizing) (want tokens, share int) {
	want = s.most()
	if !s.Rule.Stretched() {
		want = min(want, e.Demand.Want(s.Rule, 0))
	}
	return want, 2 * max(1, s.Nodes)
}

// most is the share of the limit that a node takes while there is plenty.
func (s *Sizing) most() tokens {
	return max(1, s.Rule.Limit.Capacity()/tokens(max(leastShare, 5*s.Nodes)))
}

// leastShare is which part of a limit a node takes at most, while there is plenty: of a fleet of four, or fewer.
const leastShare = 5 * 4

// measure ends a stretch of use, with so much still asked for. What is counted are requests of the largest cost in it:
// one of thousands of tokens proves no more of a rate than one of a single token.
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
