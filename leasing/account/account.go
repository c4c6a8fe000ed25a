package account

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// account is what the ledger has of a key in a window. The zero account is new. It is not safe for concurrent use,
// and knows no clock: the ledger's time comes with each message.
type account struct {
	// Invariant: sum is the totals of all records, and of those that were dropped; but for what a message of a
	// record that the ledger had lost has put right, in no case less.
	sum tokens
	// Invariant: spent is what all records have said, and the totals of dropped ones: the rest of the sum is in hand.
	spent tokens
	fence ratelimit.Fence // Invariant: each grant's is higher than all before it

	learning
	recall

	// eagerly is before when no eager lease is looked for that is over; 0: there is none. Invariant: at most readAgain
	// after the end of any that was not credited.
	eagerly instant
	records records
}

// learning is how far an account is told again what its ledger has lost.
type learning struct {
	learns  instant // until when. Invariant: at most Learn from now
	learned tokens  // granted since it began to. Invariant: at most one LearnPart-th of the limit, at least 1
}

// mostSum bounds what all holders have together, so that doubles hold it.
const mostSum tokens = 1 << 52

// draw adds to a holder's total, with nothing looked at, as plain increments do.
func (a *account) draw(now instant, c *Claim, before tokens) Grant {
	r := a.records.findOrAdd(c.Holder)
	r.taken += c.Want
	a.sum += c.Want
	return Grant{Total: r.taken, Sum: a.sum + before, InHand: -1, At: now}
}

// claim books what a holder says, and grants what it needs. before is what counts of the window before; where debt is
// carried, the debt of that window, and below 0: it is not known. Whoever is to give back something is told through
// ask. It allocates only for a new holder.
func (a *account) claim(now instant, c *Claim, before tokens, ask func(ratelimit.Holder)) Grant {
	r := a.records.find(c.Holder)
	if r != nil && c.Seq <= r.seq {
		return Grant{Err: ErrOvertaken}
	}
	if c.Limit.Carries {
		a.carry(before)
		before = 0
	}
	r = a.records.findOrAdd(c.Holder)
	g := Grant{At: now, Missing: clamped(c.Taken) > r.total() && r.expires != closed}
	a.learn(now, c, g.Missing)
	g.Cut = a.book(r, c, now)
	short := false
	if c.Kind == Leaves {
		a.leave(r, now)
	} else {
		g.Granted = a.grant(r, c, now, before)
		// Where more is charged than there is, nobody is to admit from what he has in hand.
		short = g.Granted < c.Need || a.sum+before > c.Limit.Capacity()
	}
	a.fence = max(a.fence+1, ratelimit.Fence(now))
	r.fence = a.fence
	g.Total, g.Sum, g.InHand, g.Fence = r.total(), a.sum+before, a.inHand(r), a.fence
	if a.learns > now {
		g.Learning = a.learns
	}
	if short && g.InHand > 0 {
		g.Recalling = a.recallAll(c.Holder, now, ask)
	}
	return g
}

// debtor is the name by which an account has the debt of the window before: no holder's.
const debtor ratelimit.Holder = 0

// carry has the account count the debt of the window before, as that has it now: late reports and refunds change it.
// Once counted it stays when the account before is gone.
func (a *account) carry(debt tokens) {
	r := a.records.find(debtor)
	if debt < 0 || debt == 0 && r == nil {
		return
	}
	if r == nil {
		r = a.records.findOrAdd(debtor)
	}
	debt = max(0, min(debt, mostSum-a.sum+r.taken))
	a.sum, a.spent = a.sum+debt-r.taken, a.spent+debt-r.taken
	r.taken, r.spent, r.seq = debt, debt, 1
}

// learn notes that the account may have been lost: as the holder knows, or because it had more of it than is here.
// Nobody learns for longer than Learn from now: what is further ahead is from before a clock was set back.
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

// book makes the record a copy of what the holder says. It returns what of a refund is not credited: the account would
// be below nothing. That is cut from the record as well, for a ledger that is told again would credit it then. While
// the account learns nothing is cut: what was refunded may not have been told yet.
func (a *account) book(r *record, c *Claim, now instant) (cut tokens) {
	had := r.total()
	total := max(clamped(c.Taken), clamped(c.Spent))
	total = max(min(total, had+mostSum-a.sum), had-mostSum-a.sum)
	if now >= a.learns {
		cut = min(max(0, had-total-a.sum), max(0, had-total))
	}
	if total < had {
		a.pause = a.least // somebody gave something back
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

func clamped(n tokens) tokens { return max(-MostBooked, min(n, MostBooked)) }

// lease has what the holder has in hand end, unless it renews it.
func (a *account) lease(r *record, expires instant) {
	r.expires = expires
	if a.eagerly == 0 || expires < a.eagerly {
		a.eagerly = expires
	}
}

// leave drops the record of a holder that ends, but for its name. What it has counts as spent: nobody has it in hand.
func (a *account) leave(r *record, now instant) {
	a.spent += r.total() - r.spent
	r.taken, r.spent, r.expires = 0, r.total(), min(-now, closed-1)
}

// grant gives a holder what it needs, if that is free, and of what it wants beyond that a share of what is free.
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
	n := granted(free, c)
	if now < a.learns {
		a.learned += n
	}
	r.taken += n
	a.sum += n
	return n
}

// granted is how much of what is free a claim gets.
func granted(free tokens, c *Claim) tokens { return Granted(free, c.Need, c.Want, c.Share) }

// Granted is what is needed, where that is free; of what is wanted beyond it, at most one share-th of what is free.
func Granted(free, need, want tokens, share int) tokens {
	return max(0, min(free, want, max(need, free/tokens(max(1, share)))))
}

// credit takes back what holders had in hand whose eager leases are over, and closes them: they have not told whether
// they spent it. It reads all records.
func (a *account) credit(but *record, now instant) {
	a.eagerly = 0
	for i := range a.records {
		r := &a.records[i]
		if r.expires <= safe {
			continue
		}
		if r != but && r.expires <= now {
			a.sum -= r.inHand()
			r.taken, r.expires = r.spent, closed
		} else if a.eagerly == 0 || r.expires < a.eagerly {
			a.eagerly = r.expires
		}
	}
	if a.eagerly != 0 {
		a.eagerly = max(a.eagerly, now.Add(readAgain))
	}
}

// inHand is what others than a holder have in hand, as far as they have said.
func (a *account) inHand(but *record) tokens { return a.sum - a.spent - but.inHand() }

// readAgain is after what time all records may be read again.
const readAgain = 10 * time.Millisecond
