package account

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Micro is the number of millionths in a token, the unit of buckets.
const Micro = 1_000_000

// mostBurst: doubles are exact for that many millionths.
const mostBurst = ratelimit.MostBurst

// bucket is the account of a token bucket: a level that refills where leases leave room. It has no records of holders.
// What a claim needs is spent when it is granted. A lease beyond the need counts in the slot of its claim and in the
// next one, and its unspent tokens are lost then.
//
// Guarantee: in any time t at most burst + rate x t is spent, and the refunds that take effect then. For that, a holder
// spends a lease for less than a slot from its claim. The zero bucket is new, and full. It is not safe for concurrent
// use.
type bucket struct {
	// Invariant: level + hand + old is at most the burst. Below 0, the level is debt.
	level int64   // millionths
	carry int64   // remainder of a refill: millionths x seconds of the period
	at    instant // the time up to which it has refilled; 0: it is new
	// hand is the tokens in hand of leases that were claimed in the slot of at, and old of those in the slot before.
	hand, old tokens
	fence     ratelimit.Fence // Invariant: as in account
}

// BucketSlot is the time by which leases of a bucket are counted. It is short, because tokens in hand delay the refill.
func BucketSlot(l *ratelimit.Limit) time.Duration {
	return min(time.Second, max(50*time.Millisecond, l.Period()/10))
}

// BucketSlotAt is the number of the slot of a time.
func BucketSlotAt(at ratelimit.LedgerTime, l *ratelimit.Limit) ratelimit.Window {
	return ratelimit.Window(at / instant(BucketSlot(l)/time.Microsecond))
}

// claim books what a holder says of its lease, and grants its need, and a lease beyond it. Its steps: bring the level
// to now; carry on the rest of the holder's lease; charge or refund costs; grant. After a loss of data, nodes state a
// level in place of a cost, and the lowest of them counts.
func (b *bucket) claim(now instant, c *Claim) Grant {
	l, burst := &c.Limit, burstOf(&c.Limit)
	b.refill(now, l)
	left := b.resume(c)
	b.level = min(b.level, b.room(burst)) // also under a smaller burst than before
	if c.Window == Stated {
		most := max(-mostBurst, min(c.Taken, mostBurst))
		b.level = max(-int64(mostSum), min(b.level, int64(most-b.hand-b.old)*Micro))
	} else {
		b.book(c, burst)
	}
	// The rest that goes on counts towards Want.
	need, lease := b.grant(c, c.Want-left)
	b.fence = max(b.fence+1, ratelimit.Fence(now))
	return Grant{
		Granted: need + lease, Total: left + lease, Sum: b.used(burst), InHand: b.hand + b.old - left - lease,
		Fence: b.fence, At: b.at,
	}
}

func burstOf(l *ratelimit.Limit) tokens { return max(0, min(l.Burst, mostBurst)) }

// bucketWaits bounds the time for which a bucket stands still if the clock goes back.
const bucketWaits = time.Second

// refill brings the bucket to now, slot by slot: leases that end on the way make room. Where each node has a clock of
// its own, time goes back again and again, and must not refill each time. If the clock was set back by more, the bucket
// goes on from there.
func (b *bucket) refill(now instant, l *ratelimit.Limit) {
	if b.at == 0 {
		b.at, b.level = now, int64(burstOf(l))*Micro
	}
	if b.at.Sub(now) >= bucketWaits {
		b.at = now
	}
	slot := instant(BucketSlot(l) / time.Microsecond)
	for b.at < now {
		end := now
		// Without live leases, slots make no difference, and one step refills for all the time since the last claim.
		if b.hand+b.old > 0 {
			end = min(now, (b.at/slot+1)*slot)
		}
		b.level, b.carry = Refilled(b.level, b.carry, int64(end-b.at), b.room(burstOf(l)), l)
		// The leases in old are at least a slot old, and their holders spend them for less than that. Their room is
		// free for the refill from here on.
		if end%slot == 0 {
			b.hand, b.old = 0, b.hand
		}
		b.at = end
	}
}

// room is the most that the level may be, in millionths. Each token in hand keeps its place in the bucket, or a holder
// could spend it in addition to a full burst.
func (b *bucket) room(burst tokens) int64 { return int64(burst-b.hand-b.old) * Micro }

// resume makes the rest of a holder's lease one of this slot, as far as it is wanted, and returns that. What is not
// wanted returns to the level, which has kept room for it, and all of it if requests wait that it does not serve. The
// rest of a lease that has ended is lost: the bucket may have filled in its place.
func (b *bucket) resume(c *Claim) (left tokens) {
	taken := max(0, min(c.Taken, mostBurst))
	switch BucketSlotAt(b.at, &c.Limit) {
	case c.Window:
		b.hand -= min(taken, b.hand)
	case c.Window + 1:
		b.old -= min(taken, b.old)
	default:
		return 0
	}
	rest := max(0, taken-max(0, c.Spent))
	if c.Need <= 0 {
		left = max(0, min(rest, c.Want))
	}
	b.hand += left
	b.level += int64(rest-left) * Micro
	return left
}

// book charges costs after the fact, whole, and credits a refund, as far as there is room. A Spent above Taken is a
// charge, and one below 0 a refund. A refund beyond the room is lost: the level has refilled in its place.
func (b *bucket) book(c *Claim, burst tokens) {
	charge := max(0, clamped(c.Spent)-max(0, clamped(c.Taken)))
	b.level = max(b.level-int64(min(charge, mostBurst))*Micro, -int64(mostSum))
	if refund := int64(min(-clamped(c.Spent), mostBurst)) * Micro; refund > 0 {
		b.level += max(0, min(refund, b.room(burst)-b.level))
	}
}

// grant spends the need, or the whole units of it that there are, and leases a share of the level beyond it. A part of
// a unit serves no request. Only the lease counts in hand: the need is spent at this instant, between the arrival of a
// request and its answer.
func (b *bucket) grant(c *Claim, want tokens) (need, lease tokens) {
	level := tokens(max(0, b.level) / Micro)
	if level < c.Need {
		level -= level % max(1, c.Unit)
	}
	n := granted(level, c.Need, want)
	need = max(0, min(n, c.Need))
	b.level -= int64(n) * Micro
	b.hand += n - need
	return need, n - need
}

// used is the burst less the level.
func (b *bucket) used(burst tokens) tokens { return tokens(roundUp(int64(burst)*Micro-b.level, Micro)) }

// full is the time at which the level alone is full; at least after two slots, when all leases have ended. A bucket
// that is dropped then returns as a new and full one, so no token is lost or won.
func (b *bucket) full(l *ratelimit.Limit) instant {
	us := 0.0
	if missing := float64(burstOf(l))*Micro - float64(b.level); missing > 0 {
		us = missing / float64(l.Requests) * l.Period().Seconds() // never, without a refill
	}
	us = min(math.Ceil(us), float64(2*ratelimit.MaxPeriod.Microseconds()))
	return max(b.at.Add(2*BucketSlot(l)), b.at+instant(us))
}
