package leasing

import "github.com/sluice-gate/sluice/ratelimit"

const (
	fixed, sliding, bucket = ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.TokenBucket
	safe, eager            = ratelimit.ReclaimSafe, ratelimit.ReclaimEager
)

// scopes are what is searched: the small ones with each test, the large ones by
// make exhaust.
func scopes(large bool) []*scope {
	ahead := func(s *scope) { s.ahead = true }
	until := func(tick int) func(*scope) { return func(s *scope) { s.horizon = tick } }
	three := func(s *scope) { s.holders = 3 }
	direct := func(s *scope) { s.direct, s.horizon = true, 4 }
	two := func(s *scope) { s.costTwo = true }
	all := []*scope{
		newScope("bucket, no faults", bucket, safe, 4, 2, 1).with(until(2)),
		newScope("bucket, loss", bucket, safe, 4, 2, 1, faultLoss).with(until(2)),
		newScope("bucket of 3, no faults", bucket, safe, 3, 2, 1).with(until(3)),
		newScope("bucket, direct no faults", bucket, safe, 3, 2, 1).with(direct),
		newScope("bucket, direct loss", bucket, safe, 3, 2, 1, faultLoss).with(direct),
		newScope("eager, no faults", fixed, eager, 3, 3, 2),
		newScope("eager, loss", fixed, eager, 3, 3, 2, faultLoss),
		newScope("eager, crash", fixed, eager, 3, 3, 2, faultCrash),
		newScope("eager, pause", fixed, eager, 3, 3, 2, faultPause),
		newScope("eager 4, no faults", fixed, eager, 4, 3, 2),
		newScope("eager sliding, crash", sliding, eager, 3, 3, 2, faultCrash),
		newScope("eager bucket, crash", bucket, eager, 3, 3, 2, faultCrash).with(until(3)),
		newScope("sliding, loss", sliding, safe, 3, 2, 1, faultLoss),
		newScope("sliding, crash", sliding, safe, 3, 2, 1, faultCrash),
		newScope("sliding, amnesia", sliding, safe, 3, 2, 1, faultAmnesia),
		newScope("sliding, duplicate", sliding, safe, 3, 2, 1, faultDuplicate),
		newScope("sliding of 4", sliding, safe, 4, 2, 1),
		newScope("fixed, three", fixed, safe, 3, 2, 1).with(three),
		newScope("fixed, three of 4", fixed, safe, 4, 2, 1).with(three),
		newScope("fixed, ahead", fixed, safe, 3, 2, 1).with(ahead),
		newScope("fixed, duplicate", fixed, safe, 3, 2, 1, faultDuplicate),
		newScope("fixed, delay", fixed, safe, 3, 2, 1, faultDelay),
		newScope("fixed, pause 4", fixed, safe, 4, 2, 1, faultPause),
		newScope("fixed, crash 4", fixed, safe, 4, 2, 1, faultCrash),
		newScope("fixed, amnesia 4", fixed, safe, 4, 2, 1, faultAmnesia),
		newScope("fixed, end 4", fixed, safe, 4, 2, 1, faultEnd),
		newScope("fixed, four", fixed, safe, 4, 2, 1),
		newScope("fixed, two 4", fixed, safe, 4, 2, 1).with(two),
		newScope("fixed, loss duplicate", fixed, safe, 3, 2, 1, faultLoss, faultDuplicate),
		newScope("fixed, loss crash", fixed, safe, 3, 2, 1, faultLoss, faultCrash),
		newScope("fixed, loss pause", fixed, safe, 3, 2, 1, faultLoss, faultPause),
		newScope("fixed, crash pause", fixed, safe, 3, 2, 1, faultCrash, faultPause),
		newScope("fixed, crash amnesia", fixed, safe, 3, 2, 1, faultCrash, faultAmnesia),
		newScope("fixed, ahead loss", fixed, safe, 3, 2, 1, faultLoss).with(ahead),
	}
	return all
}
