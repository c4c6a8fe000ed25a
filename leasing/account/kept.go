package account

import "github.com/sluice-gate/sluice/ratelimit"

// kept is an account, or a bucket's, and the time from which it may be dropped. The bucket is nil for an account of a
// window. A bucket's account part stays zero.
type kept struct {
	account
	*bucket
	over instant
}

// settle settles a claim of the account at an instant. was is the previous window's account, or nil. ask recalls
// holders. The caller has checked that the span is kept. A bucket's end changes with each claim: it is the time at
// which it is full again.
func (k *kept) settle(now instant, c *Claim, at *span, was *kept, ask func(ratelimit.Holder)) Grant {
	if c.bucket() {
		if k.bucket == nil {
			k.bucket = &bucket{}
		}
		g := k.bucket.claim(now, c)
		k.over = k.full(&c.Limit)
		return g
	}
	k.over = max(k.over, at.over)
	sum := tokens(0)
	if was != nil {
		sum = was.sum
	}
	before := at.before(now, &c.Limit, sum)
	if c.Draws() {
		return k.draw(now, c, before)
	}
	return k.account.claim(now, c, before, ask)
}

// look is an account, without the counting part of the previous window.
func (k *kept) look(now instant, limit *ratelimit.Limit) *ratelimit.AccountLook {
	v := &ratelimit.AccountLook{Limit: limit.Capacity(), Charged: k.sum}
	if b := k.bucket; b != nil {
		b.refill(now, limit)
		v.Charged = b.used(burstOf(limit))
	}
	for i := range k.records {
		r := &k.records[i]
		v.Holders = append(v.Holders, ratelimit.HolderLook{
			Holder: r.holder, Seq: r.seq, Fence: r.fence,
			Granted: r.taken, Spent: r.spent, Outstanding: max(0, r.inHand()),
		})
	}
	return v
}
