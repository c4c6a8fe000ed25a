package leasing

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// This file has leases of a node that decides alone to others, of busy keys (mode routing without a store). The key's
// counter is its account, with one record for each holder. A holder's totals are the truth, and the record is a copy.
// So the next message takes back a lost answer, and a smaller total gives tokens back. If a record is missing because
// the previous owner crashed, the new owner charges the holder's total.

// Totals is the report of a holder on a key that it leases. The zero Totals is no report.
type Totals struct {
	// Life is the Seq of the first message in which the totals began at 0: a holder that drops a key begins another
	// life. Seq rises with each message. A message whose Seq is not above the last is overtaken.
	Life, Seq uint64
	// Window is the window of the totals, as named by the owner; 0: none yet.
	Window ratelimit.Window
	// Taken is its total of the window, spent or in hand. Spent is the usage that it admitted, which is more than
	// Taken after admissions without a lease. Refunds can take both below 0.
	Taken, Spent ratelimit.Tokens
	Want         ratelimit.Tokens // additional tokens in hand
	// Booked is the part of a total below 0 that an owner has booked in this window.
	Booked ratelimit.Tokens
}

// Lease is the owner's answer. The zero Lease is no answer.
type Lease struct {
	Window  ratelimit.Window // the current one: totals of another begin at 0
	Granted ratelimit.Tokens
	// Keep means that the tokens in hand may be kept. Otherwise the key is short, and all are to be given back.
	Keep bool
	// Void means that the tokens in hand are gone: the message arrived after the end of the lease.
	Void bool
	// For is the lifetime of the tokens in hand, from the sending of the message.
	For time.Duration
}

// Lessee is an owner's record of one holder.
type Lessee struct {
	Holder    ratelimit.Holder
	Life, Seq uint64 // Seq is 0 before its first message
	Window    ratelimit.Window
	Taken     ratelimit.Tokens     // Invariant: part of the counter's sum, if it is of the same window
	Before    ratelimit.Tokens     // part of the sum of the previous window; of a token_bucket: Hand of an ended lease
	Hand      ratelimit.Tokens     // of Taken, as last reported
	Until     ratelimit.LedgerTime // of a token_bucket: end of the tokens in hand
}

// MostTotal bounds the totals of a holder.
const MostTotal = account.MostBooked

// mostLessees bounds the records of a key: further holders ask for each request.
const mostLessees = 1 << 10

// scarce is the time after a refusal without leases: all tokens go to single requests.
const scarce = time.Second

// lent is the record of one key next to its counter: most keys have none.
type lent struct {
	lessees []Lessee
	slots   account.Slots // taken, under a concurrency limit
	soonest ledgerTime    // earliest end of a bucket's lease
	refused ledgerTime    // time of the last refusal
}

func newLent() *lent { return &lent{soonest: math.MaxInt64} }

// of is the record of a holder's life, or nil if the message was overtaken, or there are too many records.
func (k *lent) of(h ratelimit.Holder, m *Totals) *Lessee {
	i := slices.IndexFunc(k.lessees, func(r Lessee) bool { return r.Holder == h })
	if i < 0 {
		if len(k.lessees) >= mostLessees {
			return nil
		}
		k.lessees = append(k.lessees, Lessee{Holder: h, Life: m.Life})
		i = len(k.lessees) - 1
	}
	r := &k.lessees[i]
	switch {
	case m.Life < r.Life || m.Seq <= r.Seq:
		return nil
	case m.Life > r.Life: // its total in the previous life stays charged
		*r = Lessee{Holder: h, Life: m.Life, Hand: r.Hand, Until: r.Until}
	}
	return r
}

// decide answers an ask of any node.
func (k *lent) decide(now ledgerTime, c *counter, a *ask, v *verdict) {
	k.expire(now, c, &a.Rule.Limit)
	c.decide(now, a, v)
	if v.OverLimit {
		k.refused = now
	}
}

// decideFor books a holder's report, answers its ask, and leases it more.
func (k *lent) decideFor(now ledgerTime, c *counter, h ratelimit.Holder, m *Totals, a *ask, v *verdict) (x Lease) {
	l := &a.Rule.Limit
	k.expire(now, c, l)
	at := c.enter(now, l)
	k.forget(at, c, l)
	r := k.of(h, m)
	void := r != nil && r.book(at, c, m, l)
	c.answer(at, a, v)
	if v.OverLimit {
		k.refused = now
	}
	if r != nil {
		x = k.grant(at, c, r, m.Want, l)
		x.Void = void
	}
	return x
}

// book copies the holder's totals into the record. It reports whether the holder's tokens in hand are gone.
func (r *Lessee) book(now ledgerTime, c *counter, m *Totals, l *ratelimit.Limit) (void bool) {
	if l.Algorithm == ratelimit.TokenBucket {
		void = r.bookBucket(now, c, m, l)
	} else {
		r.bookWindow(c, m)
	}
	r.Seq = m.Seq
	return void
}

func (r *Lessee) bookWindow(c *counter, m *Totals) {
	total, goesOn := max(m.Taken, m.Spent), window(c.state)
	if r.Window != goesOn {
		r.Before = 0
		if r.Window == goesOn-1 {
			r.Before = r.Taken
		}
		r.Window, r.Taken = goesOn, 0
	}
	// Refunds that another owner has booked are of its charges. If that has crashed, they are lost with it.
	if r.Seq == 0 && m.Window == goesOn {
		r.Taken = m.Booked
	}
	r.Hand = max(0, m.Taken-m.Spent)
	// A late report is about an earlier window. It changes the part that a sliding_window still counts. A
	// fixed_window counts none of it.
	if m.Window != 0 && m.Window < goesOn {
		if m.Window == goesOn-1 {
			c.extra, r.Before = charged(c.extra, total-r.Before), total
		}
		total, r.Hand = 0, 0
	}
	c.sum = charged(c.sum, total-r.Taken)
	r.Taken = total
}

// charged is a sum with n more tokens, or fewer: never below 0, and without overflow.
func charged[T ~int64](sum T, n tokens) T {
	return T(max(0, min(int64(sum)+int64(n), int64(MostTotal))))
}

// bookBucket charges the level for the tokens that the holder took, and keeps room for its tokens in hand. These are
// gone at the end of its lease: the bucket may have filled in their place.
func (r *Lessee) bookBucket(now ledgerTime, c *counter, m *Totals, l *ratelimit.Limit) (void bool) {
	hand, more := max(0, m.Taken-m.Spent), m.Spent-r.Taken
	var paid tokens
	c.sum -= r.Hand
	switch {
	case r.Seq == 0: // new, or lost: its earlier usage is not owed, and its refunds were not credited
		paid = hand + max(0, m.Spent-m.Taken) + min(0, m.Taken-m.Booked)
	case now < r.Until:
		paid = hand + more
	default: // a refund is of usage before the last report: later usage was of the tokens in hand
		paid, hand, void = max(0, more)+min(0, more+r.Hand+r.Before), 0, hand > 0
	}
	c.sum += hand
	if paid >= 0 {
		c.drain(paid)
	} else {
		c.put(-paid, l)
	}
	r.Window, r.Before, r.Hand, r.Taken = bucketWindow, 0, hand, m.Spent+hand
	return void
}

// grant leases tokens, and sets their lifetime.
func (k *lent) grant(now ledgerTime, c *counter, r *Lessee, want tokens, l *ratelimit.Limit) (x Lease) {
	free := l.Requests - c.used(now, l)
	x.Window, x.For = window(c.state), c.ends.Sub(now)
	if l.Algorithm == ratelimit.TokenBucket {
		free, x.Window, x.For = c.whole(l), bucketWindow, account.BucketSlot(l)
		r.Until = now.Add(x.For)
		k.soonest = min(k.soonest, r.Until)
	}
	// Near its end the budget is exact: no tokens are in hand.
	x.Keep = free >= max(1, l.Capacity()/8) && (k.refused == 0 || now.Sub(k.refused) > scarce)
	if x.Keep {
		x.Granted = max(0, min(want, free/tokens(2*len(k.lessees))))
	}
	r.Taken += x.Granted
	r.Hand += x.Granted
	c.sum += x.Granted
	if l.Algorithm == ratelimit.TokenBucket {
		c.drain(x.Granted)
		c.ends = c.fullAt(now, l)
	}
	return x
}

// expire ends the leases of a bucket whose time is over: it refills in their place from then on. It may fill too
// little if some ended before others.
func (k *lent) expire(now ledgerTime, c *counter, l *ratelimit.Limit) {
	if now < k.soonest {
		return
	}
	over, gone := ledgerTime(0), tokens(0)
	k.soonest = math.MaxInt64
	for i := range k.lessees {
		switch r := &k.lessees[i]; {
		case r.Until > now:
			k.soonest = min(k.soonest, r.Until)
		case r.Until > 0 && r.Hand > 0:
			over = max(over, r.Until)
			gone += r.Hand
			r.Before, r.Hand = r.Hand, 0
		}
	}
	if gone > 0 {
		c.fill(over, l)
		c.sum -= gone
	}
}

// live tells whether a bucket has a current lease.
func (k *lent) live(now ledgerTime) bool {
	return slices.ContainsFunc(k.lessees, func(r Lessee) bool { return r.Until > now })
}

// forget drops records that can no longer matter: those of a window that no sum includes, or of a bucket's lease that
// ended a minute ago.
func (k *lent) forget(now ledgerTime, c *counter, l *ratelimit.Limit) {
	k.lessees = slices.DeleteFunc(k.lessees, func(r Lessee) bool {
		if l.Algorithm == ratelimit.TokenBucket {
			return now.Sub(r.Until) > time.Minute
		}
		return r.Window < window(c.state)-1
	})
}
