package account

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Micro is how many millionths are in a token: buckets count in them.
const Micro = 1_000_000

// mostBurst: doubles hold that many millionths.
const mostBurst = ratelimit.MostBurst

// bucket is the account of a token bucket: a level that refills, and what live leases have in hand.
//
// Guarantee: what holders spend of their leases in any time t is at most burst + rate x t. Whatever a slot is long, a
// lease counts as live for one at least from when it was claimed, and what is in hand keeps its room until then.
// The zero bucket is new, and full. It is not safe for concurrent use. An account that is full expires, and holders
// that know it to be full forget it: who has taken something of a bucket that is not there says that it was lost.
// Claim.Learning is of a bucket until when one that was empty when the data was lost has filled.
type bucket struct {
	// Invariant: level + hand + old is at most the burst; level is below nothing by charges that were not asked for.
	level int64 // millionths
	carry int64 // what is left of a refill: millionths x seconds of the period
	at    instant
	// hand is what was claimed, and is not known to be spent, in this slot, and old in the one before. So what expires
	// is seen without a look at the records.
	hand, old tokens
	turn      instant // counts the slots. A record's expiry is the turn of its last claim
	ends      instant // this slot. Invariant: at most one slot from at
	// slot is how long leases last. It grows with the first claim that asks for more, and shrinks when nothing is in
	// hand: nodes may have different ones for a while.
	slot    time.Duration
	fence   ratelimit.Fence // Invariant: as in account
	learns  instant         // until when it is known that it was lost, and has begun empty
	records records
}

// claim books what a holder says and grants what it needs, as that of account does. Whoever comes when its lease is
// over has nothing in hand.
func (b *bucket) claim(now instant, c *Claim) Grant {
	r := b.records.find(c.Holder)
	if r != nil && c.Seq <= r.seq {
		return Grant{Err: ErrOvertaken}
	}
	burst := burstOf(&c.Limit)
	g := Grant{At: now, Missing: r == nil && c.Taken > 0}
	b.advance(now, c, burst, g.Missing)
	r = b.records.findOrAdd(c.Holder)
	refunded := b.book(r, c)
	g.Cut = b.cut(burst, refunded)
	r.taken, r.spent = r.taken+g.Cut, r.spent+g.Cut
	if c.Kind == Leaves {
		r.taken, r.spent, r.expires = 0, r.taken, min(-now, closed-1)
	} else {
		g.Granted = granted(tokens(max(0, b.level)/Micro), c)
	}
	b.level -= int64(g.Granted) * Micro
	b.hand += g.Granted
	r.taken += g.Granted
	b.fence = max(b.fence+1, ratelimit.Fence(now))
	r.seq, r.fence = c.Seq, b.fence
	g.Total, g.Fence, g.InHand = r.total(), b.fence, b.hand+b.old-handOf(r.total(), r.spent)
	g.Sum = tokens(roundUp(int64(burst)*Micro-b.level, Micro))
	return g
}

func burstOf(l *ratelimit.Limit) tokens { return max(0, min(l.Burst, mostBurst)) }

// handOf is what a holder with these totals has in hand.
func handOf(taken, spent tokens) tokens { return max(0, min(taken-spent, mostBurst)) }

// advance has time pass, and slots have the length that leases have.
func (b *bucket) advance(now instant, c *Claim, burst tokens, missing bool) {
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
	if missing || c.Learning > now {
		b.lose(now, c, burst)
	}
}

// lose has a bucket that was lost, or goes on with an older copy, begin as if all of it were leased in the slot
// before: empty, and it fills once the leases of before are over. Who tells of the same loss later changes nothing;
// but the first message may have been one that did not know of it.
func (b *bucket) lose(now instant, c *Claim, burst tokens) {
	if b.learns <= now {
		b.level, b.carry, b.ends = min(0, b.level), 0, now.Add(b.slot)
		// What was granted of a bucket that was not so full is no credit when it is given back.
		b.hand, b.old, b.records = 0, burst, nil
	}
	b.learns = max(b.learns, c.Learning, now.Add(Learn))
}

// refill brings the bucket to now, slot by slot: what expires on the way makes room.
func (b *bucket) refill(now instant, l *ratelimit.Limit, burst tokens) {
	if now < b.at { // the clock was set back: no lease is over for that
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
		case idle && end >= b.ends: // two turns: whatever was claimed before is over
			b.turn, b.ends = b.turn+2, now.Add(b.slot)
		case end == b.ends:
			b.turn, b.old, b.hand, b.ends = b.turn+1, b.hand, 0, b.ends.Add(b.slot)
		}
	}
}

// fill adds what comes in so many microseconds, as far as there is room. Nothing is lost to rounding: what makes no
// whole millionth is carried over.
func (b *bucket) fill(elapsed int64, l *ratelimit.Limit, burst tokens) {
	if room := b.room(burst); b.level < room {
		b.level, b.carry = Refilled(b.level, b.carry, elapsed, room, l)
	} else {
		b.carry = 0
	}
}

// room is how far the level may rise. It is below nothing after a loss: holders tell what they have in hand of leases
// that old counts already.
func (b *bucket) room(burst tokens) int64 { return int64(max(-mostBurst, burst-b.hand-b.old)) * Micro }

// book makes the record a copy of what the holder says, and has the level pay for what it took. It returns how much
// was refunded.
func (b *bucket) book(r *record, c *Claim) (refunded tokens) {
	taken, spent := clamped(c.Taken), clamped(c.Spent)
	hand, had := handOf(taken, spent), r.total()
	var paid tokens
	switch {
	case r.seq == 0:
		// New, or lost: of what it has spent before nothing is owed. A refund is one in the first claim only.
		paid = hand + max(0, spent-taken)
		if c.Seq == 1 {
			paid += min(0, taken)
		}
	case !r.left() && b.turn-r.expires <= 1:
		own := handOf(had, r.spent)
		if b.turn == r.expires {
			b.hand -= own
		} else {
			b.old -= own
		}
		paid = max(taken, spent) - had
	default: // its lease is over: the bucket may have filled in its place
		paid, hand = max(0, spent-had)+min(0, spent-r.spent), 0
		taken = spent
	}
	b.hand += hand
	b.level = max(b.level-int64(max(-mostBurst, min(paid, mostBurst)))*Micro, -int64(mostSum))
	r.taken, r.spent, r.expires = max(taken, spent), spent, b.turn
	return max(0, -paid)
}

// cut keeps the level where there is room for what is in hand, and returns what of a refund is not credited for that.
func (b *bucket) cut(burst, refunded tokens) tokens {
	over := min(b.level, b.level-b.room(burst))
	if over <= 0 {
		return 0
	}
	b.level, b.carry = b.level-over, 0
	return min(refunded, tokens(over/Micro))
}

// full is when the level alone will be full; not before two slots are over, as leases are by then. What was spent
// before an override counts as long as without one, by the rule's own limit.
func (b *bucket) full(l, own *ratelimit.Limit) instant {
	us := 0.0
	if missing := float64(max(burstOf(l), burstOf(own)))*Micro - float64(b.level); missing > 0 {
		us = missing / float64(max(l.Requests, own.Requests)) * l.Period().Seconds() // never, if nothing comes in
	}
	return max(b.ends.Add(b.slot), b.at+instant(min(math.Ceil(us), float64(2*ratelimit.MaxPeriod.Microseconds()))))
}
