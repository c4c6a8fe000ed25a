package account

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Micro is the number of millionths in a token, the unit of buckets.
const Micro = 1_000_000

// mostBurst: doubles are exact for that many millionths.
const mostBurst = ratelimit.MostBurst

// bucket is the account of a token bucket: a level that refills, and the tokens in hand of live leases.
//
// Guarantee: holders spend at most burst + rate x t of their leases in any time t, and the refunds that take effect
// then, within two slots. For any length of slots, a lease counts as live for at least one slot from its claim, and its
// tokens have their room. The zero bucket is new, and full. It is not safe for concurrent use. A full account expires,
// and its holders drop it when they can compute that: a holder with a total in a missing bucket means that it was lost.
// debtor is the name of a bucket's record about itself. It is no holder's.
const debtor ratelimit.Holder = 0

type bucket struct {
	// Invariant: level + hand + old, and what learn withholds, are at most the burst; below 0, level is debt.
	level int64 // millionths
	carry int64 // remainder of a refill: millionths x seconds of the period
	at    instant
	// hand is the tokens claimed in this slot and not reported as spent, and old those of the slot before.
	hand, old tokens
	// owed is refunds without room while others have tokens in hand, of this slot and the previous one: their charge
	// may be among those tokens. They are credited as reports and ends of slots make room, or dropped.
	owed [2]tokens
	turn instant // counts the slots. The expiry of a record is the turn of its last claim
	ends instant // this slot. Invariant: at most one slot from at
	// slot is the lifetime of leases. It grows with the first claim of a longer one, and shrinks when nothing is in
	// hand: nodes may have different ones for a while.
	slot    time.Duration
	fence   ratelimit.Fence // Invariant: as in account
	learns  instant         // end of the learning after a loss. Invariant: as in account
	records records         // that of debtor is about the bucket itself
}

// claim books a holder's totals and grants its need, like that of account. A holder whose lease has ended has nothing
// in hand.
func (b *bucket) claim(now instant, c *Claim) Grant {
	r := b.records.find(c.Holder)
	if r != nil && c.Seq <= r.seq {
		return Grant{Err: ErrOvertaken}
	}
	burst := burstOf(&c.Limit)
	g := Grant{At: now, Missing: r == nil && c.Taken > 0}
	b.advance(b.since(now), c, burst, g.Missing && b.slot == 0)
	r = b.records.findOrAdd(c.Holder)
	refunded := b.book(r, c)
	g.InHand = b.hand + b.old - handOf(r.taken, r.spent)
	g.Cut = b.cut(now, burst, refunded, g.InHand)
	r.taken, r.spent = r.taken+g.Cut, r.spent+g.Cut
	g.Granted = Granted(tokens(max(0, b.level)/Micro), c.Need, c.Want, c.Divisor)
	b.level -= int64(g.Granted) * Micro
	b.hand += g.Granted
	r.taken += g.Granted
	b.fence = max(b.fence+1, ratelimit.Fence(now))
	r.seq, r.fence = c.Seq, b.fence
	g.Total, g.Fence = r.taken, b.fence
	if g.Sum = b.used(burst); b.learns > now {
		g.Learning = b.learns
	}
	return g
}

func burstOf(l *ratelimit.Limit) tokens { return max(0, min(l.Burst, mostBurst)) }

// handOf is the tokens in hand of a holder with these totals.
func handOf(taken, spent tokens) tokens { return max(0, min(taken-spent, mostBurst)) }

// bucketWaits bounds the time for which a bucket stands still if the clock goes back.
const bucketWaits = time.Second

// since is the effective time: not before the last claim, unless the clock was set back by more. Where each node has a
// clock of its own, it goes back again and again, and must not refill each time.
func (b *bucket) since(now instant) instant {
	if now < b.at && b.at.Sub(now) < bucketWaits {
		return b.at
	}
	return now
}

// advance moves the bucket to now, and sets the length of slots.
func (b *bucket) advance(now instant, c *Claim, burst tokens, lost bool) {
	slot := max(time.Microsecond, c.TTL.Truncate(time.Microsecond))
	if b.slot == 0 {
		b.at, b.ends, b.slot, b.level = now, now.Add(slot), slot, int64(burst)*Micro
	}
	b.refill(now, &c.Limit, burst)
	if slot > b.slot {
		b.slot = slot
	} else if b.hand+b.old == 0 {
		b.slot, b.ends = slot, min(b.ends, now.Add(slot))
	}
	until := c.Learning
	if lost {
		until = now.Add(Learn)
	}
	b.learn(now, c, burst, until)
}

// learn restores a bucket that was lost, or continues with an older copy, if that may be so until a time. It grants a
// LearnPart-th and the refill at first. The rest of the level is withheld in the record of debtor, whose seq is the
// time, and has its room until the learning ends. Each holder's first claim lowers it to that of the holder's last
// answer: the last grant's is the level of the lost bucket. What the level lacked counts as leased in the slot before.
func (b *bucket) learn(now instant, c *Claim, burst tokens, until instant) {
	first := min(burst, max(1, burst/LearnPart))
	if b.learns <= now && until > now {
		rest := max(0, tokens(b.level/Micro)-first)
		b.level, b.carry, b.ends = min(b.level, int64(first)*Micro), 0, now.Add(b.slot)
		// Earlier grants of a bucket that was emptier than full are no credit when they are given back.
		b.hand, b.old, b.records = 0, burst-first-rest, records{{holder: debtor, seq: uint64(now), taken: rest}}
		b.owed = [2]tokens{}
	}
	b.learns = min(max(b.learns, until), now.Add(Learn))
	if d := b.records.findOrAdd(debtor); b.learns > now && b.records.find(c.Holder) == nil {
		missing, _ := Refilled(0, 0, max(0, int64(c.Full)-int64(d.seq)), int64(burst)*Micro, &c.Limit)
		left := max(0, min(d.taken, burst-first-tokens(missing/Micro)))
		b.old, d.taken = b.old+d.taken-left, left
	}
}

// used is the burst less the level, and less the tokens that return when the learning ends.
func (b *bucket) used(burst tokens) tokens {
	return tokens(roundUp(int64(burst)*Micro-b.level, Micro)) - b.records.findOrAdd(debtor).taken
}

// refill brings the bucket to now, slot by slot: leases that end on the way make room.
func (b *bucket) refill(now instant, l *ratelimit.Limit, burst tokens) {
	if now < b.at { // the clock was set back: no lease ends
		b.at, b.ends = now, min(b.ends, now.Add(b.slot))
	}
	for b.at < now {
		end := min(now, b.ends)
		idle := b.hand+b.old == 0
		if idle {
			end = now
		}
		b.fill(int64(end-b.at), l, burst)
		b.at = end
		switch {
		case idle && end >= b.ends: // two turns: all earlier claims have ended
			b.turn, b.ends, b.owed = b.turn+2, now.Add(b.slot), [2]tokens{}
		case end == b.ends:
			b.turn, b.old, b.hand, b.ends = b.turn+1, b.hand, 0, b.ends.Add(b.slot)
			b.repay(burst)
			b.owed = [2]tokens{0, b.owed[0]}
		}
	}
	if d := b.records.findOrAdd(debtor); b.learns <= now {
		b.level, d.taken = b.level+max(0, int64(d.taken)*Micro+min(0, b.room(burst)-b.level)), 0
	}
}

// shown brings the bucket to now, as the next claim will.
func (b *bucket) shown(now instant, l *ratelimit.Limit) {
	if burst := burstOf(l); b.slot == 0 {
		b.level = int64(burst) * Micro
	} else {
		b.refill(b.since(now), l, burst)
	}
}

// fill adds the refill of that many microseconds, as far as there is room. It carries the rounding remainder over.
func (b *bucket) fill(elapsed int64, l *ratelimit.Limit, burst tokens) {
	if room := b.room(burst); b.level < room {
		b.level, b.carry = Refilled(b.level, b.carry, elapsed, room, l)
	} else {
		b.carry = 0
	}
}

// room is the maximum of the level; below 0 after a loss: holders report tokens in hand that old counts already.
func (b *bucket) room(burst tokens) int64 {
	return int64(max(-mostBurst, burst-b.hand-b.old-b.records.findOrAdd(debtor).taken)) * Micro
}

// book copies the holder's totals into the record, and charges the level. It returns the refund.
func (b *bucket) book(r *record, c *Claim) (refunded tokens) {
	taken, spent := clamped(c.Taken), clamped(c.Spent)
	hand, had := handOf(taken, spent), r.taken
	var paid tokens
	switch {
	case r.seq == 0:
		// New, or lost: its earlier usage is not owed, and an earlier refund was credited.
		paid = hand + max(0, spent-taken)
		if c.Seq < Answered {
			paid += min(0, taken)
		}
	case b.turn-r.expires <= 1:
		own := handOf(had, r.spent)
		if b.turn == r.expires {
			b.hand -= own
		} else {
			b.old -= own
		}
		paid = max(taken, spent) - had
	default: // its lease has ended: the bucket may have filled in its place
		paid, hand = max(0, spent-had)+min(0, spent-r.spent), 0
		taken = spent
	}
	b.hand += hand
	b.level = max(b.level-int64(max(-mostBurst, min(paid, mostBurst)))*Micro, -int64(mostSum))
	r.taken, r.spent, r.expires = max(taken, spent), spent, b.turn
	return max(0, -paid)
}

// cut keeps room for the tokens in hand. It returns the part of a refund that is neither credited nor owed. While the
// bucket learns, nothing is: earlier grants are no credit.
func (b *bucket) cut(now instant, burst, refunded, others tokens) (cut tokens) {
	if over := min(b.level, b.level-b.room(burst)); over > 0 {
		b.level, b.carry, cut = b.level-over, 0, min(refunded, tokens(over/Micro))
		if owed := min(cut, max(0, others-b.owed[0]-b.owed[1])); b.learns <= now {
			b.owed[0], cut = b.owed[0]+owed, cut-owed
		}
	}
	b.repay(burst)
	return cut
}

// repay credits refunds that are owed, the older first, as far as there is room.
func (b *bucket) repay(burst tokens) {
	n := min(b.owed[0]+b.owed[1], max(0, tokens((b.room(burst)-b.level)/Micro)))
	b.level += int64(n) * Micro
	b.owed = [2]tokens{b.owed[0] - max(0, n-b.owed[1]), max(0, b.owed[1]-n)}
}

// leftKept is the time for which a record stays after its holder has taken another name.
const leftKept = 2 * time.Second

// forget drops records of holders that have taken another name: an account of their last claim would have expired, and
// a bucket in use does not. The record of debtor notes the latest end of such accounts (spent). From expires on,
// records up to its fence are dropped.
func (b *bucket) forget(now, full instant) {
	d := b.records.findOrAdd(debtor)
	d.seq, d.spent = max(1, d.seq), max(d.spent, tokens(full.Add(leftKept)))
	if now < d.expires {
		return
	}
	last := d.fence
	d.fence, d.expires = b.fence, instant(d.spent)
	b.records = slices.DeleteFunc(b.records, func(r record) bool { return r.holder != debtor && r.fence <= last })
}

// full is the time at which the level alone is full; at least after two slots, when all leases have ended. Usage
// before an override counts as long as without one, by the rule's own limit.
func (b *bucket) full(l, own *ratelimit.Limit) instant {
	us := 0.0
	if missing := float64(max(burstOf(l), burstOf(own)))*Micro - float64(b.level); missing > 0 {
		us = missing / float64(max(l.Requests, own.Requests)) * l.Period().Seconds() // never, without a refill
	}
	return max(b.ends.Add(b.slot), b.at+instant(min(math.Ceil(us), float64(2*ratelimit.MaxPeriod.Microseconds()))))
}
