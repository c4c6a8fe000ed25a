package ledger

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// At the first instant of a window that slides, the one before counts in full, to the
// token, however large it was.
func TestWindowBeforeCountsInFullAtFirst(t *testing.T) {
	w := newTwins(t)
	l := ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Second, Requests: 1_000_000_000}
	a := w.tenant(1, l)
	a.gets(l.Requests, l.Requests, l.Requests)
	a.c.Spent = l.Requests
	a.gets(0, 0, 0)
	w.passes(time.Second)
	g := w.tenant(2, l).gets(1, 1, 0)
	w.expect("0 1µs", g.Available, g.RetryAfter)
}

// What a holder says of a window that ended two windows ago adds nothing to what the
// last one had over its limit.
func TestTallyOfLongAgo(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, perMinute100)
	a.c.Tally = true
	a.gets(100, 100, 100)
	a.c.Spent = 100
	a.gets(0, 0, 0)
	w.passes(2 * time.Minute)
	a.c.Spent = 250 // more than this limit, and that of the window before, were
	g := a.gets(1, 1, 1)
	w.expect("0 0 99", g.OverAdmitted, g.Over, g.Available)
}

// What others still hold of the window before does not make this one plenty.
func TestLeasesOfTheWindowBeforeMakeNoPlenty(t *testing.T) {
	w := newTwins(t)
	a, b, c := w.tenant(1, perMinute100), w.tenant(2, perMinute100), w.tenant(3, perMinute100)
	b.c.TTL = 4 * time.Hour
	b.gets(60, 60, 60)
	w.passes(time.Minute)
	a.c.Tally, c.c.Tally = true, true // whose claims keep the records of the window before
	c.gets(50, 50, 50)
	c.c.Spent = 50
	c.gets(0, 0, 0)
	a.c.Stretch = true
	g := a.gets(1, 1, 1) // half is left, and no more
	w.expect("false", g.Plenty)
}

// A bucket's account is kept while a lease of it is out, be it of one token.
func TestBucketWithOneTokenOutIsKept(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, bucket100)
	a.c.TTL = 90 * time.Second
	a.gets(1, 1, 1) // it is full in a second
	w.expect("1m30s", w.dead(0))
}

// A bucket has what was unspent of a lease again when that is reclaimed, also where its
// holder did not hear of the last grant: what that says of it later changes nothing.
func TestBucketReclaimsAGrantThatWasNotHeardOf(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, bucket100), w.tenant(2, bucket100)
	a.c.Reclaim, b.c.Reclaim = ratelimit.ReclaimEager, ratelimit.ReclaimEager
	a.gets(20, 20, 20)
	a.c.Spent = 12
	a.says(func(c *ratelimit.Claim) { c.Waiting, c.Want = 10, 10 })
	w.passes(10 * time.Second)
	g := b.gets(0, 0, 0)
	w.expect("98 0", g.Available, g.Outstanding)
	a.c.Returned = 8
	g = a.gets(0, 0, 0)
	w.expect("false 98", g.Void, g.Available)
}

// An account of a bucket is kept for as long as a lease of one token may be spent: a new one would be
// full, and that token would be there twice.
func TestBucketOutlivesALeaseOfOneToken(t *testing.T) {
	quick := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 1000, Burst: 1000}
	w := newTwins(t)
	a := w.tenant(1, quick)
	a.c.TTL = 2 * time.Hour
	a.gets(0, 0, 0) // it is there
	a.gets(1, 1, 1)
	w.expect("2h0m0s", w.dead(time.Hour))
	b := w.tenant(2, quick)
	b.c.TTL = 4 * time.Hour
	b.gets(1, 1, 1)
	w.expect("4h0m0s", w.dead(time.Hour))
}

// A bucket that takes a hundred years to fill up says so to the microsecond.
func TestBucketThatFillsInACentury(t *testing.T) {
	slow := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Year, Requests: 1, Burst: 120}
	w := newTwins(t)
	a := w.tenant(1, slow)
	a.gets(0, 0, 0)
	g := a.gets(119, 119, 119)
	w.expect("1042440h0m0s", g.ResetAfter) // 119 years of 365 days
}

// Accounts that a release before has written have fewer numbers: what they lack counts as 0, and claims
// are answered as by an account that has them.
func TestAccountOfAReleaseBefore(t *testing.T) {
	for _, numbers := range []int{13, 17, 25, 26} {
		for _, limit := range []ratelimit.Limit{perMinute100, sliding100, bucket100} {
			w := newTwins(t)
			a, b := w.tenant(1, limit), w.tenant(2, limit)
			a.gets(10, 10, 10)
			a.c.Spent = 10
			const cut = `local a = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'a'))
				for i = ARGV[1] + 1, #a do a[i] = nil end
				return redis.call('HSET', KEYS[1], 'a', cmsgpack.pack(a))`
			if err := w.redis.client.Eval(t.Context(), cut, []string{"t:k"}, numbers).Err(); err != nil {
				t.Fatal(err)
			}
			g := b.gets(20, 20, 20)
			w.expect("70", g.Available)
			a.gets(5, 5, 5)
			c := w.tenant(3, limit) // it has a fence of this window, and no record
			c.c.Window, c.c.Fence = g.Window, g.Fence
			c.asks(1, 1)
			w.passes(time.Minute)
			a.asks(1, 1)
			b.asks(1, 1)
		}
	}
}

// What is reclaimed goes back into a bucket that has refilled since the lease expired: together they are
// no more than the bucket holds, less what live leases may spend.
func TestReclaimedTokensDoNotOverflowABucket(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, bucket100), w.tenant(2, bucket100)
	a.c.Reclaim, a.c.TTL = ratelimit.ReclaimEager, 10*time.Second
	b.c.Reclaim, b.c.TTL = ratelimit.ReclaimEager, time.Minute
	a.gets(50, 50, 50)
	b.gets(10, 10, 10)
	w.passes(15 * time.Second) // the lease of 50 expired 5 s ago, and 5 tokens have refilled since
	b.c.Spent = 6              // a moment ago: the bucket was full until then
	g := b.asks(0, 0)
	w.expect("90", g.Available)
}
