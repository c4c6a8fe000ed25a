package sim

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// bound is how far a key may go over its limit: what the rule declares, and
// what it declares for each thing that went wrong while that may matter.
type bound struct {
	*world
	declared ratelimit.Tokens // without any fault
	lease    ratelimit.Tokens // more, for each silent node
	lasts    int64            // nanoseconds for which something that went wrong matters
	silences []int64          // when the ledger did not hear of a node that may hold leases
	forgets  []int64          // when the ledger forgot
	outages  bool
	used     float64 // the highest share of the bound that a key has used
}

func (b *bound) open(w *world) {
	b.world = w
	b.declared = w.Rule.Declare(0, true).Over
	b.lease = w.Rule.Declare(1, true).Over - b.declared
	if b.lease > 0 {
		b.lease = max(b.lease, ratelimit.Tokens(w.Load.Cost))
	}
	b.lasts = int64(3*w.Rule.Limit.Period() + w.Rule.Coordination.Lease.TTL)
	if w.Rule.Limit.Algorithm == ratelimit.TokenBucket {
		if b.lease > 0 {
			b.lease = max(b.lease, ratelimit.Tokens(w.Load.Cost))
		}
		b.lasts = 1 << 62 // what went over stays owed
	}
}

// silent is when the ledger does not hear of a node that may hold leases, or
// hears of it late.
func (b *bound) silent() { b.silences = append(b.silences, b.now) }

// late tells the bound how long a message to the store took: one that takes
// longer than a report may is as good as lost.
func (b *bound) late(took time.Duration) {
	if took >= b.Rule.Coordination.Lease.TTL/8 {
		b.silent()
	}
}

// outage is when on_store_failure may decide.
func (b *bound) outage() { b.outages = true }

// forgot is when the ledger forgets.
func (b *bound) forgot() { b.forgets = append(b.forgets, b.now) }

// recent is how many of the times still matter.
func (b *bound) recent(times []int64) ratelimit.Tokens {
	n := len(times)
	for n > 0 && times[len(times)-n] < b.now-b.lasts {
		n--
	}
	return ratelimit.Tokens(n)
}

// tokens is the bound now; -1: there is none.
func (b *bound) tokens() ratelimit.Tokens {
	r := b.Rule
	most := b.declared + b.recent(b.silences)*b.lease + b.recent(b.forgets)*r.Limit.Capacity()
	if r.Coordination.Mode != ratelimit.Routing && !b.outages && !b.slowed() {
		return most
	}
	var share ratelimit.Tokens
	switch r.Coordination.OnStoreFailure {
	case ratelimit.FailOpen:
		return -1
	case ratelimit.FailLocal:
		share = r.LocalShare().Limit.Capacity()
	case ratelimit.FailCached:
		if r.Limit.Algorithm == ratelimit.TokenBucket {
			return -1 // declared for each outage, and each late answer is one
		}
		share = r.Limit.Capacity()
	default:
		return most
	}
	switch r.Limit.Algorithm { // declared for each window, and each incarnation has its own
	case ratelimit.SlidingWindow:
		share *= 2
	case ratelimit.TokenBucket: // for each time to fill the bucket, and all of it stays owed
		full := float64(r.Limit.Burst) / float64(r.Limit.Requests) * float64(r.Limit.Period())
		share *= 2 + ratelimit.Tokens(float64(b.now)/full)
	}
	return most + ratelimit.Tokens(b.names)*share
}

// slowed tells whether answers may come too late, which is an outage for the
// one who waits.
func (b *bound) slowed() bool {
	return b.Net.Loss > 0 || b.Net.Trip.Tail > 0 || b.Net.Trip.Least >= ratelimit.StoreDeadline/2 || b.store.slow > 0
}

// check ends the run when a key went further.
func (b *bound) check(key int, over ratelimit.Tokens) {
	most := b.tokens()
	if most > 0 {
		b.used = max(b.used, float64(over)/float64(most))
	}
	if most >= 0 && over > most {
		b.violate(-1, key, "%d tokens were admitted beyond the limit of %d, and at most %d may be", over, b.Rule.Limit.Capacity(), most)
	}
}

// check looks at a node's lease on a key.
func (n *node) check(key int) {
	r := n.Rule
	c := &r.Coordination
	if c.OnStoreFailure != ratelimit.FailClosed || c.Eager() || len(n.bound.forgets) > 0 {
		return // then more may be spent than was granted, as declared
	}
	share := ratelimit.Tokens(0)
	if c.Mode == ratelimit.Approx {
		share = r.DriftShare()
	}
	if err := n.stepped.Check(n.keys[key].name, share); err != nil {
		n.violate(n.slot, key, "%v", err)
	}
}

// checkClaims looks at the leases that an answer was about.
func (n *node) checkClaims(claims []ratelimit.Claim) {
	if !n.Check {
		return
	}
	for i := range claims {
		n.check(n.store.byName[claims[i].Key])
	}
}
