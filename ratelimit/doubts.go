package ratelimit

import (
	"fmt"
	"math"
	"time"
)

// EnvoyTimeout is how long Envoy's rate limit filter waits for an answer where its
// configuration does not say (timeout).
const EnvoyTimeout = 20 * time.Millisecond

// Doubts returns remarks on the rule's coordination: valid settings that cannot have their effect.
func (r *Rule) Doubts() []string {
	c, limit := &r.Coordination, r.Limit.Capacity()
	if r.Unlimited {
		return nil
	}
	var doubts []string
	if d := c.Deadline(); d >= EnvoyTimeout {
		doubts = append(doubts,
			fmt.Sprintf("store_deadline %v is not below %v, for which Envoy waits by default: set the "+
				"timeout of its rate_limit filter above the deadline, or it goes on without the answer, and the "+
				"request is "+
				"charged and not limited (failure_mode_deny: refused) while the store is slow", d, EnvoyTimeout))
	}
	if h := r.Hold; r.Quota && h != nil && !h.Identified() {
		doubts = append(doubts, fmt.Sprintf("quota_mode and hold.on: a request that passes although this limit is "+
			"full holds nothing of it, and its end credits up to %d; remove one of the two", h.Amount))
	}
	if r.Limit.Algorithm == Concurrency {
		return append(doubts, r.doubtSlots()...)
	}
	if r.Limit.Requests > math.MaxUint32 {
		doubts = append(doubts,
			fmt.Sprintf("requests_per_unit is %d, and RLS has 32 bits for it: it is counted exactly, "+
				"and answers say %d of it, and of what is left while that is more; headers say both exactly",
				r.Limit.Requests, uint32(math.MaxUint32)))
	}
	if n := len(r.Domain) + len(r.Path); c.Lease.Reserve != (Share{}) && n > MostReserveName {
		doubts = append(doubts, fmt.Sprintf("lease.reserve %v has no effect: the rule's name has %d bytes, and with a "+
			"reserve it may have %d; shorten its keys or values", c.Lease.Reserve, n, MostReserveName))
	}
	if reserve := c.Lease.Reserve.Of(limit); reserve > 0 && reserve < Tokens(c.MaxNodes) && r.reserves() {
		doubts = append(doubts, fmt.Sprintf("lease.reserve %v of %d is %d tokens, less than one for each of max_nodes "+
			"%d: nothing is held back; raise it to %d tokens, or lower max_nodes", c.Lease.Reserve, limit, reserve,
			c.MaxNodes, c.MaxNodes))
	}
	if more := c.Mode.Spec().Doubts; more != nil {
		doubts = append(doubts, more(r)...)
	}
	return doubts
}
