package sublease

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// ShortestWindow is the shortest window that can be divided: around each turn a holder
// may be without a lease for Slack and a second, and it reports every ReportEvery.
const ShortestWindow = time.Minute

// Servable returns why a rule's budget cannot be granted on, and what to use instead;
// nil: it can be.
func Servable(r *ratelimit.Rule) error {
	l := &r.Limit
	switch {
	case r.Unlimited || l.Requests == 0:
		return nil
	case l.Algorithm == ratelimit.TokenBucket:
		return fmt.Errorf("algorithm %s cannot be divided into leases: a bucket would refill while its tokens lie "+
			"unspent at Envoys; use fixed_window or sliding_window, or ask over RLS", l.Algorithm)
	case l.Period() < ShortestWindow:
		return fmt.Errorf("a window of %v is shorter than %v: Envoy reports every %v, and leases last whole seconds; "+
			"use a longer window, or ask over RLS", l.Period(), ShortestWindow, ReportEvery)
	}
	return nil
}
