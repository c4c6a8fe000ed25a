package account

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// account is the ledger's state of a key in a window. The zero account is new. It is not safe for concurrent use, and
// has no clock: the ledger's time comes with each message.
type account struct {
	// Invariant: sum is the total of all records. A message that restores a record lost by the ledger may leave it
	// larger, and never smaller.
	sum tokens
	// Invariant: spent is the reported usage of all records. The rest of the sum is in hand.
	spent tokens
	fence ratelimit.Fence // Invariant: each grant's is higher than all earlier ones

	learning
	recall

	// eagerly is the earliest time of the next search for ended eager leases; 0: there are none. Invariant: at most
	// readAgain after the end of any that was not credited.
	eagerly instant
	records records
}

// learning is the state of an account whose totals are restated after a loss.
type learning struct {
	learns  instant // end of it. Invariant: at most Learn from now
	learned tokens  // granted since it began. Invariant: at most one LearnPart-th of the limit, at least 1
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
	g := Grant{At: now, Missing: clamped(c.Taken) > r.taken && r.expires != closed}
	a.learn(now, c, g.Missing)
	g.Cut = a.book(r, c, now)
	g.Granted = a.grant(r, c, now, before)
	// With debt, no holder may admit requests from its lease.
	short := g.Granted < c.Need || a.sum+before > c.Limit.Capacity()
	a.fence = max(a.fence+1, ratelimit.Fence(now))
	r.fence = a.fence
	g.Total, g.Sum, g.InHand, g.Fence = r.taken, a.sum+before, a.inHand(r), a.fence
	if a.learns > now {
		g.Learning = a.learns
	}
	if short && g.InHand > 0 {
		g.Recalling = a.recallAll(c.Holder, now, ask)
	}
	return g
}

// learn notes that the account may have been lost: the holder read that, or has more than the record. Learning ends
// at most Learn from now: a later end is from before a clock was set back.
func (a *account) learn(now instant, c *Claim, missing bool) {
	until := max(a.learns, c.Learning)
	if missing {
		until = max(until, now.Add(Learn))
	}
	until = min(until, now.Add(Learn))
	if until > now && a.learns <= now {
		a.learned = 0
	}
	a.learns = until
}

// book copies the holder's totals into the record. It returns the part of a refund that is not credited, because the
// sum would fall below 0. The record is cut as well, or restated totals after a loss would credit that part. While
// the account learns, refunds are not cut: their charge may not have been restated yet.
func (a *account) book(r *record, c *Claim, now instant) (cut tokens) {
	had := r.taken
	total := max(clamped(c.Taken), clamped(c.Spent))
	total = max(min(total, had+mostSum-a.sum), had-mostSum-a.sum)
	if now >= a.learns {
		cut = min(max(0, had-total-a.sum), max(0, had-total))
	}
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
	if now < a.learns {
		free = min(free, max(1, limit/LearnPart)-a.learned)
	}
	n := Granted(free, c.Need, c.Want, c.Divisor)
	if now < a.learns {
		a.learned += n
	}
	r.taken += n
	a.sum += n
	return n
}

// Granted is the size of a grant. It is the need, as far as it is free, and beyond it up to Want, but at most one
// divisor-th of the free tokens in all.
func Granted(free, need, want tokens, divisor int) tokens {
	return max(0, min(free, want, max(need, free/tokens(max(1, divisor)))))
}

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
