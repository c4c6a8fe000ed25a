package lease

import (
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A node has at most one lease of a bucket. Taken is the lease, and Spent what was spent of it. A Spent above Taken is
// a charge after the fact, and one below 0 a refund. The lease ends by its deadline, three quarters of a slot after its
// claim was sent, or a later claim carries its rest on, or gives it back. A claim states it once: if the claim has no
// answer, the lease ends by its deadline. A charge is stated until it is answered, and a refund once.

// stateLease writes a claim about a bucket. It states the lease that goes on or back, and the charge or the refund
// since. Then the part has only that of the lease that goes on: the answer makes it the new one.
func (p *Part) stateLease(c *account.Claim, q *Asking) {
	if q.Young {
		c.Window, c.Taken = account.Stated, p.mostLevel(q.Now, &c.Limit)
		return
	}
	c.Window = p.Window
	c.Taken = p.Taken
	c.Spent = p.Spent
	if p.Window == 0 {
		c.Taken, c.Spent = 0, p.beyondLease()
	}
	keeps := c.Want
	if c.Need > 0 { // the rest of the lease serves no request that waits
		keeps = 0
	}
	p.Taken -= max(0, p.Unspent()-keeps)
	p.Window = 0
	// A refund is stated once.
	p.Spent = max(0, p.Spent)
	p.unclaimed = 0
}

// beyondLease is the charge or the refund that a claim states, without the lease.
func (p *Part) beyondLease() tokens { return min(p.Spent, 0) + p.Drift() }

// Unsent has the next message state the refund of a message that never left.
func (p *Part) Unsent(m *Message) {
	if p.bucket {
		p.Spent += min(0, m.Claim.Spent)
	}
}

// endLease drops the tokens in hand: the bucket fills in their place. With a credit for them, more than burst + rate x
// t would pass (docs/adr, decision 1).
func (p *Part) endLease() {
	p.Window = 0
	p.Spent = p.beyondLease()
	p.Taken = 0
}

// mostLevel is the most that the bucket's level can be, by the last answer. The 1 is for the fraction of a token that
// Sum rounds up.
func (p *Part) mostLevel(now instant, l *ratelimit.Limit) tokens {
	if p.LastAnswer == 0 {
		return l.Burst
	}
	refilled := float64(now.Sub(p.LastAnswer)) / float64(l.Period()) * float64(l.Requests)
	return min(l.Burst, l.Burst-p.Sum+1+tokens(min(refilled, float64(l.Burst+p.Sum))))
}

// Full reports whether the bucket is certainly full, by the last answer, and nothing of it is in hand.
func (k *Key) Full(now instant, l *ratelimit.Limit) bool {
	return k.bucket && k.LastAnswer != 0 && k.inFlight == 0 && k.InHand(now) == 0 && !k.Unreported() &&
		now.Sub(k.LastAnswer) >= max(account.BucketSlot(l), l.Refill(k.Sum))
}

// lasts is the lifetime of a lease, from the sending of its claim.
func lasts(l *ratelimit.Limit) time.Duration { return account.BucketSlot(l) * 3 / 4 }

// leased applies the answer to a claim about a bucket. need is the part of the grant for the requests that wait: the
// ledger counts it as spent. Drift that the level did not cover stays in the share of the node.
func (k *Key) leased(m *Message, g *account.Grant, a *Answer) (need tokens) {
	c := &m.Claim
	need = min(g.Granted, c.Need)
	over := max(0, g.Sum-c.Limit.Capacity())
	k.carried = min(k.carried+m.Drift(), over)
	k.Window = account.BucketSlotAt(g.At, &c.Limit)
	k.Taken = g.Total
	// What was spent while the claim was under way is spent of the new lease.
	k.Spent = k.unclaimed
	k.mustClaim = false
	k.Sum = g.Sum
	k.LastAnswer = a.Now
	k.Deadline = m.At.Add(lasts(&c.Limit))
	k.full = c.Limit.Capacity() <= g.Sum && g.InHand == 0
	return need
}

// refundLease takes back a charge: of the lease, and beyond it at the bucket.
func (p *Part) refundLease(n tokens) {
	n = max(0, min(n, account.MostBooked+p.Spent))
	p.record(-n)
}
