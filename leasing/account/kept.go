package account

import "github.com/sluice-gate/sluice/ratelimit"

// kept is an account, or a bucket's, and the time from which it may be dropped.
type kept struct {
	account
	*bucket
	over instant
}

// effects is the recalls and events of a claim.
type effects struct {
	asked   []ratelimit.Holder
	expired []Event
}

// settle settles a claim of the account at an instant. own is the limit without the override. was is the previous
// window's account, or nil.
func (k *kept) settle(now instant, c *Claim, own *ratelimit.Limit, at *span, was *kept, t *effects) Grant {
	if c.Window == 0 {
		if k.bucket == nil {
			k.bucket = &bucket{}
		}
		g := k.bucket.claim(now, c)
		full := k.full(&c.Limit, own)
		k.over = max(k.over, full) // a node that has not read a refund still states its total
		k.forget(now, full)
		return g
	}
	k.over = max(k.over, at.over)
	sum := tokens(0)
	if was != nil {
		sum = was.sum
	}
	before := at.before(now, &c.Limit, sum)
	if c.Kind == Draws {
		return k.draw(now, c, before)
	}
	if c.Limit.Carries {
		before = was.debt(now, c, at)
	}
	var over []ratelimit.Holder
	if c.Audit != "" {
		over = k.account.records.over(now)
	}
	fence := k.account.fence
	g := k.account.claim(now, c, before, func(h ratelimit.Holder) { t.asked = append(t.asked, h) })
	for _, h := range over {
		if r := k.account.records.find(h); r.expires == closed {
			g := Grant{Total: r.spent, Sum: g.Sum - g.Granted, Fence: fence, At: now}
			t.expired = append(t.expired, expiry(h, NewEvent(c, &g)))
		}
	}
	return g
}

// debt is the previous window's excess over the limit; below 0: it is unknown, or no longer counts.
func (k *kept) debt(now instant, c *Claim, at *span) tokens {
	if k == nil || now >= at.ends {
		return -1
	}
	return max(0, k.sum-c.Limit.Capacity())
}

// holders are all holders with a record.
func (k *kept) holders() (all []ratelimit.Holder) {
	of := k.account.records
	if k.bucket != nil {
		of = k.bucket.records
	}
	for i := range of {
		if of[i].holder != debtor {
			all = append(all, of[i].holder)
		}
	}
	return all
}

// look is an account, without the counting part of the previous window.
func (k *kept) look(now instant, limit *ratelimit.Limit) *ratelimit.AccountLook {
	v := &ratelimit.AccountLook{Limit: limit.Capacity(), Charged: k.sum, Relearning: k.account.learns > now}
	of := k.account.records
	if b := k.bucket; b != nil {
		b.shown(now, limit)
		v.Charged = b.used(v.Limit)
		b.records.findOrAdd(debtor).taken = 0 // it is no debt
		of = b.records
		v.Relearning = b.learns > now
	}
	for i := range of {
		r := &of[i]
		if r.holder == debtor {
			v.Carried = r.taken
			continue
		}
		x := ratelimit.HolderLook{Holder: r.holder, Granted: r.taken, Spent: r.spent, Fence: r.fence}
		if k.bucket == nil {
			if x.Closed = r.expires == closed; r.expires > safe {
				x.Expires = r.expires.Sub(now)
			}
		}
		x.Outstanding = max(0, x.Granted-x.Spent)
		v.Holders = append(v.Holders, x)
	}
	return v
}
