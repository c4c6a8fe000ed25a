package sublease

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// ShortestWindow is the shortest window that can be divided: around each turn a holder
// may be without a lease for Slack and a second, and it reports every ReportEvery.
const ShortestWindow = time.Minute

// Servable returns why a rule's budget cannot be granted on, and what to use instead; nil: it can be.
func Servable(r *ratelimit.Rule) error {
	l := &r.Limit
	switch {
	case r.Unlimited || r.Shadow || r.RefusesAll():
		return nil
	case l.Algorithm == ratelimit.Concurrency:
		return errors.New("it limits requests in flight, and a report of RLQS does not say when a request has ended; " +
			"use RLS")
	case r.Hold != nil:
		return errors.New("its rule has a hold, and a report of RLQS does not state costs; remove hold, or " +
			"use RLS")
	case l.Algorithm == ratelimit.TokenBucket && l.Requests == 0:
		return errors.New("its token_bucket does not refill without an override; use a window, or RLS")
	case l.Algorithm == ratelimit.TokenBucket && l.Refill(l.Burst) < ShortestWindow:
		return fmt.Errorf("a burst of %d fills up in %v, must be at least %v: the refill of %v is held back, because "+
			"tokens may be at Envoys for that long; use a burst of %d, or RLS", l.Burst,
			l.Refill(l.Burst).Truncate(time.Millisecond), ShortestWindow, BucketWindow, refills(l, ShortestWindow))
	case l.Algorithm == ratelimit.TokenBucket:
		return nil
	case l.Period() < ShortestWindow:
		return fmt.Errorf("a window of %v is shorter than %v: Envoy reports every %v, and leases last whole seconds; "+
			"use a longer window, or RLS", l.Period(), ShortestWindow, ReportEvery)
	}
	return nil
}
