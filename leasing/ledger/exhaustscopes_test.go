package ledger

import "github.com/sluice-gate/sluice/ratelimit"

const (
	fixed, sliding, bucket = ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.TokenBucket
	safe, eager            = ratelimit.ReclaimSafe, ratelimit.ReclaimEager
)

// scopes are what is searched: the small ones with each test, the large ones by
// make exhaust. Windows of two seconds and leases of one are the least in which a
// lease expires before its window does; eager reclaim needs three and two, for a
// holder to report in time. A limit of 4 gives a node that is alone more than it
// asked for; with one of 3 tokens go one by one.
func scopes(large bool) []*scope {
	if large {
		return largeScopes()
	}
	return []*scope{
		newScope("fixed", fixed, safe, 4, 2, 1),
		newScope("fixed, loss", fixed, safe, 3, 2, 1, faultLoss),
		newScope("fixed, amnesia", fixed, safe, 3, 2, 1, faultAmnesia).with(until(2)),
		newScope("fixed, ahead", fixed, safe, 3, 2, 1).with(ahead, until(2)),
		newScope("fixed, all", fixed, safe, 3, 2, 1, everyFault...).with(steps(9)),
		newScope("sliding", sliding, safe, 3, 2, 1),
		newScope("bucket, loss", bucket, safe, 3, 2, 1, faultLoss).with(until(1)),
		newScope("bucket, direct", bucket, safe, 3, 2, 1).with(direct, until(2)),
		newScope("eager, crash", fixed, eager, 2, 3, 2, faultCrash).with(until(2)),
		newScope("recall", fixed, safe, 3, 2, 1).with(recalls),
		newScope("recall, at once", fixed, safe, 4, 2, 1).with(recalls, until(0)),
		newScope("recall, all", fixed, safe, 4, 2, 1, everyFault...).with(recalls, steps(8)),
		newScope("draws", fixed, safe, 3, 2, 1).with(recalls, draws, steps(14)),
		newScope("draws, all", fixed, safe, 3, 2, 1, faultLoss, faultDelay, faultCrash, faultPause, faultAmnesia).with(recalls, draws, steps(10)),
	}
}

var everyFault = []int{faultLoss, faultDuplicate, faultDelay, faultCrash, faultPause, faultAmnesia}

func ahead(s *scope) { s.ahead, s.keeps = true, true }

// recalls has the ledger reach holders, as a Redis and a Memory do: they ask for more
// and longer leases, and give back what others wait for.
func recalls(s *scope) {
	s.recalls = true
	s.rule.Coordination.Lease.Auto, s.rule.Coordination.Lease.Max = true, 0
}

// draws has claims be draws where they may be. No message comes twice then: a draw that was taken is
// followed by no claim with its number, and a second copy of one here would be settled as such.
func draws(s *scope) { s.draws = true }

func three(s *scope)  { s.holders = 3 }
func direct(s *scope) { s.direct = true }
func two(s *scope)    { s.costTwo = true }

func until(tick int) func(*scope) { return func(s *scope) { s.horizon = tick + 1 } }

func steps(n int) func(*scope) { return func(s *scope) { s.steps = n } }

func largeScopes() []*scope {
	return []*scope{
		newScope("draws", fixed, safe, 3, 2, 1).with(recalls, draws, steps(22)),
		newScope("draws, all", fixed, safe, 3, 2, 1, faultLoss, faultDelay, faultCrash, faultPause, faultAmnesia).with(recalls, draws, steps(13)),
		newScope("draws, three", fixed, safe, 3, 2, 1).with(recalls, draws, three, steps(13)),
		newScope("fixed, loss", fixed, safe, 4, 2, 1, faultLoss),
		newScope("fixed, duplicate", fixed, safe, 3, 2, 1, faultDuplicate),
		newScope("fixed, delay", fixed, safe, 3, 2, 1, faultDelay),
		newScope("fixed, crash", fixed, safe, 3, 2, 1, faultCrash),
		newScope("fixed, pause", fixed, safe, 3, 2, 1, faultPause),
		newScope("fixed, amnesia", fixed, safe, 3, 2, 1, faultAmnesia),
		newScope("sliding, loss", sliding, safe, 3, 2, 1, faultLoss),
		newScope("sliding, duplicate", sliding, safe, 3, 2, 1, faultDuplicate).with(until(2)),
		newScope("sliding, delay", sliding, safe, 3, 2, 1, faultDelay).with(until(2)),
		newScope("sliding, crash", sliding, safe, 3, 2, 1, faultCrash),
		newScope("sliding, pause", sliding, safe, 3, 2, 1, faultPause),
		newScope("sliding, amnesia", sliding, safe, 3, 2, 1, faultAmnesia).with(until(2)),
		newScope("bucket, loss", bucket, safe, 3, 2, 1, faultLoss).with(until(2)),
		newScope("bucket, duplicate", bucket, safe, 3, 2, 1, faultDuplicate).with(until(1)),
		newScope("bucket, delay", bucket, safe, 3, 2, 1, faultDelay).with(until(1)),
		newScope("bucket, crash", bucket, safe, 3, 2, 1, faultCrash).with(until(2)),
		newScope("bucket, pause", bucket, safe, 3, 2, 1, faultPause).with(until(2)),
		newScope("bucket, amnesia", bucket, safe, 3, 2, 1, faultAmnesia).with(until(2)),
		newScope("bucket, direct", bucket, safe, 3, 2, 1).with(direct, until(3)),
		newScope("eager, loss", fixed, eager, 3, 3, 2, faultLoss).with(until(3)),
		newScope("eager, duplicate", fixed, eager, 3, 3, 2, faultDuplicate).with(until(2)),
		newScope("eager, delay", fixed, eager, 3, 3, 2, faultDelay).with(until(2)),
		newScope("eager, crash", fixed, eager, 3, 3, 2, faultCrash).with(until(2)),
		newScope("eager, pause", fixed, eager, 3, 3, 2, faultPause).with(until(2)),
		newScope("eager, amnesia", fixed, eager, 3, 3, 2, faultAmnesia).with(until(2)),
		newScope("fixed, ahead, loss", fixed, safe, 3, 2, 1, faultLoss).with(ahead, steps(28)),
		newScope("fixed, ahead, forgetting", fixed, safe, 3, 2, 1).with(ahead, func(s *scope) { s.keeps = false }),
		newScope("fixed, end", fixed, safe, 4, 2, 1, faultEnd),
		newScope("fixed, costs of 2", fixed, safe, 4, 2, 1).with(two),
		newScope("fixed, three nodes", fixed, safe, 3, 2, 1).with(three, until(2)),
		newScope("fixed, loss and crash", fixed, safe, 3, 2, 1, faultLoss, faultCrash),
		newScope("fixed, delay and amnesia", fixed, safe, 3, 2, 1, faultDelay, faultAmnesia).with(steps(17)),
		newScope("fixed, crash and amnesia", fixed, safe, 3, 2, 1, faultCrash, faultAmnesia).with(steps(17)),
		newScope("fixed, all", fixed, safe, 3, 2, 1, everyFault...).with(steps(11)),
		newScope("sliding, all", sliding, safe, 3, 2, 1, everyFault...).with(steps(11)),
		newScope("bucket, all", bucket, safe, 3, 2, 1, everyFault...).with(steps(11)),
		newScope("recall", fixed, safe, 4, 2, 1).with(recalls),
		newScope("recall, loss", fixed, safe, 3, 2, 1, faultLoss).with(recalls, until(2)),
		newScope("recall, duplicate", fixed, safe, 3, 2, 1, faultDuplicate).with(recalls, until(2)),
		newScope("recall, delay", fixed, safe, 3, 2, 1, faultDelay).with(recalls, until(2)),
		newScope("recall, crash", fixed, safe, 3, 2, 1, faultCrash).with(recalls, until(2)),
		newScope("recall, pause", fixed, safe, 3, 2, 1, faultPause).with(recalls, until(2)),
		newScope("recall, amnesia", fixed, safe, 3, 2, 1, faultAmnesia).with(recalls, until(2)),
		newScope("recall, ahead", fixed, safe, 3, 2, 1).with(recalls, ahead, until(2)),
		newScope("recall, three nodes", fixed, safe, 3, 2, 1).with(recalls, three, until(2)),
		newScope("recall, sliding", sliding, safe, 3, 2, 1).with(recalls),
		newScope("recall, bucket", bucket, safe, 3, 2, 1).with(recalls, until(2)),
		newScope("recall, eager", fixed, eager, 3, 3, 2).with(recalls, until(2)),
		newScope("recall, all", fixed, safe, 3, 2, 1, everyFault...).with(recalls, steps(11)),
		newScope("eager sliding, crash", sliding, eager, 2, 3, 2, faultCrash).with(until(5)),
		newScope("eager bucket, crash", bucket, eager, 2, 3, 2, faultCrash).with(until(2)),
	}
}
