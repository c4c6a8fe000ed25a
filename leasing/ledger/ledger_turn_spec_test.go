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
	b.c.TTL = 2 * time.Minute
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
