package leasing

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What a node that decides alone leases to others (mode routing without a store, of hot keys). The key's counter is
// its account, and beside it there is one record for each holder that leases. A holder's totals are the truth, and the
// record a copy of them: so an answer that is lost is taken back by the next message, a node that has no record of a
// holder (its owner before crashed) charges what that has, and giving back is a message with a smaller total.

// Totals is what a holder says of a key that it leases. The zero Totals says nothing.
type Totals struct {
	// Life is the Seq of the first message in which the totals began at 0: a holder that forgets a key begins another
	// life. Seq rises with each message; one that is not above the last is overtaken.
	Life, Seq uint64
	// Window is that of the totals, as the owner has named it; 0: none was named yet.
	Window ratelimit.Window
	// Taken is what it has of the window, spent or in hand, and Spent what it has admitted, which may be more: what
	// was admitted without asking. Both may be below nothing by refunds.
	Taken, Spent ratelimit.Tokens
	Want         ratelimit.Tokens // in hand, besides
}

// Lease is what the owner answers. The zero Lease is no answer.
type Lease struct {
	Window  ratelimit.Window // that goes on: totals of another begin at 0
	Granted ratelimit.Tokens
	// Keep says that what is in hand may be kept. If not, the key is short: all is to be given back.
	Keep bool
	// Void says that what was in hand is gone: the message came when its lease was over.
	Void bool
	// For is how long what is in hand may be spent, from when the message was sent.
	For time.Duration
}

// Lessee is what an owner knows of one holder.
type Lessee struct {
	Holder    ratelimit.Holder
	Life, Seq uint64 // Seq is 0 before its first message
	Window    ratelimit.Window
	Taken     ratelimit.Tokens     // Invariant: the counter's sum has it, if it is of the same window
	Before    ratelimit.Tokens     // and the sum of the window before has this
	Hand      ratelimit.Tokens     // of Taken, as far as it has said
	Until     ratelimit.LedgerTime // of a token_bucket, what is in hand lasts
}

// MostTotal bounds what a holder says of itself.
const MostTotal = account.MostBooked

// mostLessees bounds the records of a key: others ask for each request.
const mostLessees = 1 << 10

// scarce is for how long after a refusal nothing is leased: what there is goes to whoever asks.
const scarce = time.Second

// lent is what there is of one key beside its counter: most keys have none.
type lent struct {
	lessees []Lessee
	slots   account.Slots // taken, under a concurrency limit
	over    *ownOverride  // nil: none was set
	soonest ledgerTime    // before then no bucket's lease is over
	refused ledgerTime    // when a request was last refused
}

func newLent() *lent { return &lent{soonest: math.MaxInt64} }

// of is the record of a holder's life; nil if the message was overtaken, or there are too many.
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
	case m.Life > r.Life: // what it had in the life before stays charged
		*r = Lessee{Holder: h, Life: m.Life, Hand: r.Hand, Until: r.Until}
	}
	return r
}

// decide answers an ask of any node.
func (k *lent) decide(now ledgerTime, c *counter, a *ask, v *verdict) {
	k.expire(now, c, &a.Rule.Limit)
	if c.decide(now, a, v); v.OverLimit {
		k.refused = now
	}
}

// decideFor books what a holder says, answers its ask, and leases it more.
func (k *lent) decideFor(now ledgerTime, c *counter, h ratelimit.Holder, m *Totals, a *ask, v *verdict) (x Lease) {
	l := &a.Rule.Limit
	k.expire(now, c, l)
	at, was := c.enter(now, l)
	defer c.leave(was, l)
	k.forget(at, c, l)
	r := k.of(h, m)
	void := r != nil && r.book(at, c, m, l)
	if c.answer(at, a, v); v.OverLimit {
		k.refused = now
	}
	if r != nil {
		x = k.grant(at, c, r, m.Want, l)
		x.Void = void
	}
	return x
}

// book makes the record a copy of what the holder says. It reports whether what that has in hand is gone.
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
		if r.Before = 0; r.Window == goesOn-1 {
			r.Before = r.Taken
		}
		r.Window, r.Taken = goesOn, 0
	}
	r.Hand = max(0, m.Taken-m.Spent)
	// A report that comes late is of a window that is over. It changes what a sliding_window still counts of it; a
	// fixed_window weighs that with nothing.
	if m.Window != 0 && m.Window < goesOn {
		if m.Window == goesOn-1 {
			c.extra, r.Before = charged(c.extra, total-r.Before), total
		}
		total, r.Hand = 0, 0
	}
	c.sum = charged(c.sum, total-r.Taken)
	r.Taken = total
}

// charged is a sum with n more tokens, or less: never below nothing, and never so many that sums overflow.
func charged[T ~int64](sum T, n tokens) T {
	return T(max(0, min(int64(sum)+int64(n), int64(MostTotal))))
}

// bookBucket has the level pay for what the holder took, and keep room for what it has in hand. What it has in hand
// is gone when its lease is over: the bucket may have filled in its place.
func (r *Lessee) bookBucket(now ledgerTime, c *counter, m *Totals, l *ratelimit.Limit) (void bool) {
	hand, live := max(0, m.Taken-m.Spent), now < r.Until
	if live {
		c.sum -= r.Hand
	}
	var paid tokens
	switch {
	case r.Seq == 0:
		// New, or lost: of what it has spent before nothing is owed. A refund is one in the first message only.
		if paid = hand + max(0, m.Spent-m.Taken); m.Seq == m.Life {
			paid += min(0, m.Taken)
		}
	case live:
		paid = max(m.Taken, m.Spent) - r.Taken
	default:
		paid, hand, void = max(0, m.Spent-r.Taken), 0, hand > 0
	}
	c.sum += hand
	if paid >= 0 {
		c.drain(paid)
	} else {
		c.pour(-paid, l)
	}
	r.Window, r.Hand, r.Taken = bucketWindow, hand, m.Spent+hand
	return void
}

// grant leases what may be leased, and says for how long.
func (k *lent) grant(now ledgerTime, c *counter, r *Lessee, want tokens, l *ratelimit.Limit) (x Lease) {
	free := l.Requests - c.used(now, l)
	x.Window, x.For = window(c.state), c.ends.Sub(now)
	if l.Algorithm == ratelimit.TokenBucket {
		free, x.Window, x.For = c.whole(l), bucketWindow, hold.Slot(l)
		r.Until = now.Add(x.For)
		k.soonest = min(k.soonest, r.Until)
	}
	// Near its end the budget is exact: nothing is in hand anywhere then.
	x.Keep = free >= max(1, l.Capacity()/8) && (k.refused == 0 || now.Sub(k.refused) > scarce)
	if x.Keep {
		x.Granted = account.Granted(free, 0, want, 2*len(k.lessees))
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

// expire has leases of a bucket end that are over by now: it fills in their place from then on. It may fill too
// little, where some were over before others.
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
			r.Hand = 0
		}
	}
	if gone > 0 {
		c.fill(over, l)
		c.sum -= gone
	}
}

// inHand is what all have in hand, as far as they have said.
func (k *lent) inHand() (n tokens) {
	for i := range k.lessees {
		n += k.lessees[i].Hand
	}
	return n
}

// live tells whether any bucket's lease goes on, or the record of an override.
func (k *lent) live(now ledgerTime) bool {
	return k.over != nil && now < k.over.Until() ||
		slices.ContainsFunc(k.lessees, func(r Lessee) bool { return r.Until > now })
}

// forget drops records of which nothing will come any more: of a window that no sum has any part of, or of a bucket's
// lease that has been over for a minute.
func (k *lent) forget(now ledgerTime, c *counter, l *ratelimit.Limit) {
	k.lessees = slices.DeleteFunc(k.lessees, func(r Lessee) bool {
		if l.Algorithm == ratelimit.TokenBucket {
			return now.Sub(r.Until) > time.Minute
		}
		return r.Window < window(c.state)-1
	})
}
