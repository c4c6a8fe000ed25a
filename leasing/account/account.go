package account

import (
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// account is the ledger's state of a key in a window. The zero account is new. It is not safe for concurrent use, and
// has no clock: the ledger's time comes with each message.
type account struct {
	// Invariant: sum is the total of all holders, also of those whose records are dropped, and at least 0.
	sum tokens
	// Invariant: spent is the usage of all holders. The rest of the sum is in hand.
	spent tokens
	fence ratelimit.Fence // Invariant: each grant's is higher than all earlier ones

	recall

	records records
}

// mostSum bounds the sum, so that doubles are exact.
const mostSum tokens = 1 << 52

// draw adds to a holder's total without a check, like plain increments. There is no Seq that shows a repetition, so a
// draw that arrives twice counts twice. The sender finds that by the Total of its next draw, and claims. The record
// keeps its spent: for the ledger, drawn tokens are in hand until a claim.
func (a *account) draw(now instant, c *Claim, before tokens) Grant {
	r := a.records.findOrAdd(c.Holder)
	r.taken += c.Want
	a.sum += c.Want
	return Grant{Total: r.taken, Sum: a.sum + before, InHand: -1, At: now}
}

// claim books a holder's totals, and grants its need. before is the part of the previous window that counts. ask
// recalls holders. It allocates only for a new holder. A claim that was overtaken changes nothing, and adds no record.
func (a *account) claim(now instant, c *Claim, before tokens, ask func(ratelimit.Holder)) Grant {
	r := a.records.find(c.Holder)
	if r != nil && c.Seq <= r.seq {
		return Grant{Err: ErrOvertaken}
	}
	if r == nil || r.seq == 0 {
		a.dropEarlier(c.Holder, now)
	}
	r = a.records.findOrAdd(c.Holder)
	a.book(r, c)
	g := Grant{At: now, Granted: a.grant(r, c, before)}
	// The time takes the fence above those of an account that was lost, and began again at 0.
	a.fence = max(a.fence+1, ratelimit.Fence(now))
	r.fence = a.fence
	g.Total = r.taken
	g.Sum = a.sum + before
	g.InHand = a.inHand(r)
	g.Fence = a.fence
	// With debt, no holder may admit requests from its lease.
	short := g.Granted < c.Need || g.Sum > c.Limit.Capacity()
	if short && g.InHand > 0 {
		g.Recalling = a.recallAll(c.Holder, now, ask)
	}
	return g
}

// settledAfter is the time after its last claim from which a record can be dropped. It is longer than a message can be
// under way: Linux gives up a connection that its program has closed after some two minutes.
const settledAfter = 10 * time.Minute

// dropEarlier drops the records of a node's earlier names. Each time that a full table has dropped a key, the node uses
// it under another name, and has spent what it took under the one before. Without this, an account would grow with each
// return until its window ends. The sum keeps what was taken. A message of an earlier name that comes after all is
// booked whole, once more. So a record below 0 stays: its refund would count twice.
func (a *account) dropEarlier(h ratelimit.Holder, now instant) {
	a.records = slices.DeleteFunc(a.records, func(r record) bool {
		earlier := r.holder != h && r.holder>>namesOfANode == h>>namesOfANode
		settled := r.seq > 0 && now.Sub(instant(r.fence)) >= settledAfter
		if !earlier || !settled || r.taken < 0 {
			return false
		}
		a.spent += r.inHand()
		return true
	})
}

// book copies the holder's totals into the record. A part of a refund is cut if the sum would fall below the tokens
// that the holder has in hand (Grant.Cut). The record is cut as well, or totals that are stated after a loss would
// credit that part.
func (a *account) book(r *record, c *Claim) {
	had := r.taken
	total := max(clamped(c.Taken), clamped(c.Spent))
	// The sum after it, a.sum + total - had, stays within mostSum on both sides.
	total = max(min(total, had+mostSum-a.sum), had-mostSum-a.sum)
	hand := max(0, clamped(c.Taken)-clamped(c.Spent))
	// The cut is the part by which the sum after it would be below hand. Only a refund lowers the sum so far.
	cut := max(0, had-total-a.sum+hand)
	if total < had {
		a.pause = a.least // tokens were given back
	}
	total += cut
	// Usage beyond mostSum is in no total, so that the record's inHand never falls below 0.
	spent := min(clamped(c.Spent)+cut, total)
	a.sum += total - had
	a.spent += spent - r.spent
	r.taken = total
	r.spent = spent
	r.seq = c.Seq
}

// grant gives a holder its need, if that is free, and beyond it a share of the free tokens, up to Want. The need is
// spent as soon as it is granted, because requests wait for it: it is not in hand.
func (a *account) grant(r *record, c *Claim, before tokens) tokens {
	free := c.Limit.Capacity() - a.sum - before
	n := granted(free, c.Need, c.Want)
	used := min(n, max(0, c.Need))
	if used < c.Need {
		// A part of a unit serves no request. It stays in the holder's hand, so that another holder's claim can recall
		// it.
		used -= used % max(1, c.Unit)
	}
	r.taken, r.spent = r.taken+n, r.spent+used
	a.sum, a.spent = a.sum+n, a.spent+used
	return n
}

// granted is the size of a grant of free tokens. Several holders that claim at once each leave seven eighths of the
// rest for the others. So the parts get smaller as the limit comes near, and few tokens must be recalled.
func granted(free, need, want tokens) tokens { return max(0, min(free, want, max(need, free/Share))) }

// inHand is the tokens in hand of all holders except one, as reported.
func (a *account) inHand(but *record) tokens { return a.sum - a.spent - but.inHand() }

// readAgain is the minimum time between two reads of all records.
const readAgain = 10 * time.Millisecond
