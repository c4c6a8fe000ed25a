package declare

import (
	"fmt"
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// EnvoyTimeout is how long Envoy's rate limit filter waits for an answer where its
// configuration does not say (timeout).
const EnvoyTimeout = 20 * time.Millisecond

// Doubts returns remarks on the rule's coordination: valid settings that cannot have their effect.
func Doubts(r *ratelimit.Rule) []string {
	c := &r.Coordination
	if r.Unlimited {
		return nil
	}
	var doubts []string
	if d := c.Deadline(); d >= EnvoyTimeout {
		doubts = append(doubts,
			fmt.Sprintf("store_deadline %v is not below %v, the default timeout of Envoy's rate_limit filter: "+
				"set that above the deadline, or requests are charged and not limited (failure_mode_deny: refused) "+
				"while the store is slow", d, EnvoyTimeout))
	}
	if h := r.Hold; (r.Quota || r.Shadow) && h != nil && !h.Identified() {
		doubts = append(doubts, fmt.Sprintf("quota_mode, or shadow_mode, and hold.on: a request that passes although "+
			"this limit is full holds nothing of it, and its end credits up to %d; remove one of the two", h.Amount))
	}
	if r.Limit.Algorithm == ratelimit.Concurrency {
		return append(doubts, doubtSlots(r)...)
	}
	if r.Limit.Requests > math.MaxUint32 {
		doubts = append(doubts,
			fmt.Sprintf("requests_per_unit is %d, and RLS has 32 bits for it: answers show at most %d, also of "+
				"the rest, and counts and headers are exact",
				r.Limit.Requests, uint32(math.MaxUint32)))
	}
	if burst := r.Limit.Burst; r.Limit.Algorithm == ratelimit.TokenBucket && burst > ratelimit.MostBurst {
		doubts = append(doubts, fmt.Sprintf("burst is %d, and with a store a bucket holds at most %d: a larger "+
			"request is refused; use fixed_window, or a smaller burst", burst, ratelimit.MostBurst))
	}
	if more := modes[c.Mode].doubts; more != nil {
		doubts = append(doubts, more(r)...)
	}
	return doubts
}
