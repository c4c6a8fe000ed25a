package leasing

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A key that is busy shortly before its window rolls has the next one's lease
// claimed by then, so that no request waits for it. Of a fixed window only: the
// others do not begin anew. The two leases are held under the node's two names,
// in turn, so that the ledger has a record of each.

// nextLease is a lease of the window to come.
type nextLease struct {
	lease lease
	renewal
	heard  instant
	jitter float64
	over   instant // from here on this window may be over
	start  instant // from here on the next certainly has begun
}

// The next window is claimed this long before it begins: early enough for a
// slow ledger, and not all keys and nodes at once.
const (
	leadShare = 4 // of a period, at most
	leadMost  = time.Second
)

// renew has a claim sent in the background, for the next window if it is time
// for that. The caller holds the shard's lock.
func (f *Fleet) renew(h *held, now instant, hash uint64, key []byte) {
	fl := newFlight(hash, key)
	fl.ahead = now >= h.aheadAt
	if f.launch(h, fl) && fl.ahead {
		h.aheadAt, h.triedAhead = never, h.lease.window+1
	}
}

// planAhead decides when the next window is claimed.
func (h *held) planAhead(sent, now instant, jitter float64) {
	h.aheadAt = never
	period := h.rule.Limit.Period()
	if h.lease.algorithm != ratelimit.FixedWindow || h.triedAhead > h.lease.window {
		return
	}
	lead := min(period/leadShare, leadMost, h.rule.Coordination.Lease.TTL/2)
	lead -= time.Duration(jitter * float64(lead) / 2)
	h.aheadAt = h.lease.reset.Add(-min(period/2, max(lead, 2*now.Sub(sent))))
}

// claimAhead writes the claim for the next window, or returns its lease.
func (h *held) claimAhead(now instant, seq uint64, giveUp bool) ratelimit.Claim {
	if giveUp && h.next != nil {
		c := h.next.lease.release(now, seq)
		c.Ahead = true
		return c
	}
	h.demand.measure(now, 0)
	var fresh lease
	c := fresh.claim(now, seq, h.rule, 0, max(1, h.demand.want(h.rule, 0)), false)
	c.Ahead, c.Window = true, h.triedAhead
	return c
}

// keepNext takes in the answer to claimAhead.
func (h *held) keepNext(sent, now instant, there ledgerClock, fl *flight, g *ratelimit.Grant, jitter float64) {
	if fl.giveUp || g.Window != fl.claim.Window || g.At == 0 {
		return
	}
	begins := windowEnd(g.Window-1, &fl.claim.Limit)
	n := &nextLease{
		heard: now, jitter: jitter, over: there.notBefore(now, begins), start: there.surelyBy(now, begins),
		lease: lease{seq: g.Seq, window: g.Window},
	}
	n.lease.apply(sent, &fl.claim, g, margin(g.TTL), lasts(sent, now, there, &fl.claim.Limit, g))
	n.renewal = h.demand.renewal(sent, now, n.lease.unspent(), &fl.claim.Limit, g)
	h.next = n
}

// turn makes the next window's lease the current one, once its time has come.
func (h *held) turn(now instant) bool {
	n := h.next
	if n == nil || now < n.start {
		return false
	}
	h.lease, h.renewal, h.heard, h.next = n.lease, n.renewal, n.heard, nil
	h.name ^= 1
	h.settled = false
	h.payOwed()
	h.planAhead(now, now, n.jitter)
	return true
}

// untilTurn is a flight that ends when the next window has begun: shorter than
// a round trip, for that is how well the ledger's clock is known. The caller
// holds the shard's lock.
func (f *Fleet) untilTurn(h *held, now instant, hash uint64, key []byte) *flight {
	fl := newFlight(hash, key)
	fl.sent = true
	h.flight = fl
	time.AfterFunc(h.next.start.Sub(now), func() {
		s := f.shard(hash)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leases.get(hash, fl.key).val.flight = nil // it is not evicted while in flight
		close(fl.done)
	})
	return fl
}
