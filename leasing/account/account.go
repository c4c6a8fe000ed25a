package account

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// account is the ledger's state of a key in a window. The zero account is new. It is not safe for concurrent use, and
// has no clock: the ledger's time comes with each message.
type account struct {
	// Invariant: sum is the total of all records.
	sum tokens
	// Invariant: spent is the reported usage of all records. The rest of the sum is in hand.
	spent tokens
	fence ratelimit.Fence // Invariant: each grant's is higher than all earlier ones

	recall

	// eagerly is the earliest time of the next search for ended eager leases; 0: there are none. Invariant: at most
	// readAgain after the end of any that was not credited.
	eagerly instant
	records records
}

// mostSum bounds the sum, so that doubles are exact.
const mostSum tokens = 1 << 52

// draw adds to a holder's total without a check, like plain increments.
func (a *account) draw(now instant, c *Claim, before tokens) Grant {
	r := a.records.findOrAdd(c.Holder)
	r.taken += c.Want
	a.sum += c.Want
	return Grant{Total: r.taken, Sum: a.sum + before, InHand: -1, At: now}
}

// claim books a holder's totals, and grants its need. before is the part of the previous window that counts. ask
// recalls holders. It allocates only
// for a new holder.
func (a *account) claim(now instant, c *Claim, before tokens, ask func(ratelimit.Holder)) Grant {
	r := a.records.find(c.Holder)
	if r != nil && c.Seq <= r.seq {
		return Grant{Err: ErrOvertaken}
	}
	r = a.records.findOrAdd(c.Holder)
	g := Grant{At: now}
	g.Cut = a.book(r, c, now)
	g.Granted = a.grant(r, c, now, before)
	// With debt, no holder may admit requests from its lease.
	short := g.Granted < c.Need || a.sum+before > c.Limit.Capacity()
	a.fence = max(a.fence+1, ratelimit.Fence(now))
	r.fence = a.fence
	g.Total, g.Sum, g.InHand, g.Fence = r.taken, a.sum+before, a.inHand(r), a.fence
	if short && g.InHand > 0 {
		g.Recalling = a.recallAll(c.Holder, now, ask)
	}
	return g
}

// book copies the holder's totals into the record. It returns the part of a refund that is not credited, because the
// sum would fall below 0. The record is cut as well, or totals that are stated after a loss would credit that part.
func (a *account) book(r *record, c *Claim, now instant) (cut tokens) {
	had := r.taken
	total := max(clamped(c.Taken), clamped(c.Spent))
	total = max(min(total, had+mostSum-a.sum), had-mostSum-a.sum)
	cut = min(max(0, had-total-a.sum), max(0, had-total))
	if total < had {
		a.pause = a.least // tokens were given back
	}
	total += cut
	spent := min(clamped(c.Spent)+cut, total)
	a.sum += total - had
	a.spent += spent - r.spent
	r.taken, r.spent, r.seq, r.expires = total, spent, c.Seq, safe
	if c.Eager() {
		a.lease(r, now.Add(c.TTL))
	}
	return cut
}

// lease ends the holder's lease, unless the holder renews it.
func (a *account) lease(r *record, expires instant) {
	r.expires = expires
	if a.eagerly == 0 || expires < a.eagerly {
		a.eagerly = expires
	}
}

// grant gives a holder its need, if that is free, and beyond it a share of the free tokens, up to Want.
func (a *account) grant(r *record, c *Claim, now instant, before tokens) tokens {
	limit := c.Limit.Capacity()
	free := limit - max(0, a.sum) - before
	if c.Eager() && free < c.Need && a.eagerly != 0 && now >= a.eagerly {
		a.credit(r, now)
		free = limit - max(0, a.sum) - before
	}
	n := granted(free, c.Need, c.Want)
	r.taken += n
	a.sum += n
	return n
}

// granted is the size of a grant of free tokens.
func granted(free, need, want tokens) tokens { return max(0, min(free, want, max(need, free/Share))) }

// credit takes back the tokens in hand of ended eager leases, and closes them: their holders have not reported that
// they spent them. It reads all records.
func (a *account) credit(but *record, now instant) {
	a.eagerly = but.expires
	for i := range a.records {
		r := &a.records[i]
		if r.expires <= safe {
			continue
		}
		if r != but && r.expires <= now {
			a.sum -= r.inHand()
			r.taken, r.expires = r.spent, closed
		} else {
			a.eagerly = min(a.eagerly, r.expires)
		}
	}
	a.eagerly = max(a.eagerly, now.Add(readAgain))
}

// inHand is the tokens in hand of all holders except one, as reported.
func (a *account) inHand(but *record) tokens { return a.sum - a.spent - but.inHand() }

// readAgain is the minimum time between two reads of all records.
const readAgain = 10 * time.Millisecond
