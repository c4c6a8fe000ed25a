package ledger

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What a ledger answers, to the token and the microsecond, in the cases in which
// a small error would go unnoticed: each is settled by both ledgers, which must
// say the same.

// tenant is one holder of the twins' one key. It keeps its totals as a node
// would.
type tenant struct {
	*twins
	c ratelimit.Claim
}

func (w *twins) tenant(h ratelimit.Holder, l ratelimit.Limit) *tenant {
	return &tenant{w, ratelimit.Claim{Limit: l, Holder: h, TTL: 10 * time.Second}}
}

// says sends a claim, changed as the test wants it for once; its answer is lost.
func (h *tenant) says(change func(*ratelimit.Claim)) ratelimit.Grant {
	h.Helper()
	h.c.Seq++
	c := h.c
	if change != nil {
		change(&c)
	}
	return h.claim(c)
}

// asks sends a claim and takes in the answer.
func (h *tenant) asks(waiting, want tokens) ratelimit.Grant {
	h.Helper()
	return h.hears(h.says(func(c *ratelimit.Claim) { c.Waiting, c.Want = waiting, want }))
}

func (h *tenant) hears(g ratelimit.Grant) ratelimit.Grant {
	h.Helper()
	if g.Err != nil {
		h.Fatalf("holder %d was answered %v", h.c.Holder, g.Err)
	}
	if !g.Carried {
		h.c.Spent, h.c.Returned = 0, 0
	}
	h.c.Window, h.c.Fence, h.c.Granted = g.Window, g.Fence, g.Granted
	return g
}

// gets asks, and expects so many tokens more.
func (h *tenant) gets(waiting, want, more tokens) ratelimit.Grant {
	h.Helper()
	before := h.c.Granted
	g := h.asks(waiting, want)
	if !g.Carried { // of another window
		before = 0
	}
	if got := g.Granted - before; got != more {
		h.Fatalf("holder %d was granted %d more, and should have been %d: %+v", h.c.Holder, got, more, g)
	}
	return g
}

func (w *twins) passes(d time.Duration) { w.now = w.now.Add(d) }

// stale expects that neither ledger settles a claim.
func (w *twins) stale(c ratelimit.Claim) {
	w.Helper()
	c.Key = "k"
	for _, l := range []ratelimit.Ledger{w.memory, w.redis} {
		var g [1]ratelimit.Grant
		if l.Settle(context.Background(), []ratelimit.Claim{c}, g[:]); !errors.Is(g[0].Err, ratelimit.ErrStaleClaim) {
			w.Errorf("%T settled a claim that came too late: %+v as %+v", l, c, g[0])
		}
	}
}

// expect compares parts of an answer, which the test writes as it would print.
func (w *twins) expect(what string, got ...any) {
	w.Helper()
	if s := fmt.Sprintln(got...); s != what+"\n" {
		w.Errorf("got  %swant %s", s, what)
	}
}

// dead is in how long the account may be deleted; Redis keeps it a second more,
// and an hour when a test has the clock. A bucket may be kept for longer: what was set for a claim before stays.
func (w *twins) dead(longer time.Duration) time.Duration {
	w.Helper()
	_, c := w.memory.locked([]byte("k"))
	s := &w.memory.shards[w.memory.hash.Of([]byte("k"))>>32%uint64(len(w.memory.shards))]
	dead := c.val.dead.Sub(c.val.now)
	s.mu.Unlock()
	ttl, err := w.redis.client.PTTL(context.Background(), "t:k").Result()
	if err != nil {
		w.Fatal(err)
	}
	if want := dead + time.Second + time.Hour; ttl > want+longer || ttl < want-10*time.Second {
		w.Errorf("the memory may forget the account in %v, and Redis does in %v: it should be a second and an hour more", dead, ttl)
	}
	return dead
}

var (
	perMinute100 = ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100}
	sliding100   = ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: 100}
	bucket100    = ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 60, Burst: 100} // one a second
)

// Everything that a ledger says of itself and of the others: what is left, what
// they hold, and what of it is stranded from the instant on at which a lease
// has expired. A holder is not one of the others.
func TestLedgerTellsOfTheOthers(t *testing.T) {
	w := newTwins(t) // 15 s into a minute
	a, b, c := w.tenant(1, perMinute100), w.tenant(2, perMinute100), w.tenant(3, perMinute100)
	a.gets(20, 20, 20)
	b.c.TTL = 4 * time.Second
	b.gets(30, 30, 30)
	b.c.Spent, b.c.Returned = 5, 3
	b.gets(0, 0, 0)
	g := c.gets(1, 1, 1)
	w.expect("52 42 0 3 45s 0s", g.Available, g.Outstanding, g.Stranded, g.Holders, g.ResetAfter, g.RetryAfter)
	w.passes(4*time.Second - time.Microsecond)
	g = c.gets(0, 0, 0)
	w.expect("42 0 3", g.Outstanding, g.Stranded, g.Holders)
	w.passes(time.Microsecond)
	g = c.gets(0, 0, 0)
	w.expect("42 22 2", g.Outstanding, g.Stranded, g.Holders)
	if g = c.asks(53, 53); g.Granted != 53 { // 52 more is all there is
		t.Errorf("53 wait, and 52 were there: %+v", g)
	}
	w.expect("0 41s", g.Available, g.RetryAfter)
}

// Only what waits is granted beyond the taper; an answer that was lost is taken
// back by the next claim, and one that was heard twice is one.
func TestLedgerTapersAndTakesBack(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.gets(1, 100, 50) // half of what is there, while nobody else is
	b.gets(1, 100, 12) // a quarter of 50, of two
	b.gets(20, 100, 20)
	g := b.says(func(c *ratelimit.Claim) { c.Waiting, c.Want = 10, 10 })
	for range 2 {
		again := b.claim(ratelimit.Claim{Limit: perMinute100, Holder: 2, Seq: b.c.Seq, Waiting: 10, Want: 10})
		w.expect(fmt.Sprint(g.Granted, g.Fence, g.Available), again.Granted, again.Fence, again.Available)
	}
	w.stale(ratelimit.Claim{Limit: perMinute100, Holder: 2, Seq: b.c.Seq - 1})
	g = b.gets(0, 0, 0) // it never heard of the 10
	w.expect("18 50", g.Available, g.Outstanding)
}

// A holder that knows nothing of the window is charged what it had confirmed,
// and not the grant that never reached it: under each algorithm.
func TestHolderThatForgot(t *testing.T) {
	for _, l := range []ratelimit.Limit{perMinute100, bucket100} {
		w := newTwins(t)
		a := w.tenant(1, l)
		a.gets(20, 20, 20)
		a.c.Spent, a.c.Returned = 5, 2
		a.says(func(c *ratelimit.Claim) { c.Waiting, c.Want = 30, 30 }) // 30 more, which it never hears of
		a.c = ratelimit.Claim{Limit: l, Holder: 1, Seq: a.c.Seq, TTL: a.c.TTL}
		g := a.asks(0, 0)
		w.expect("0 82 false", g.Granted, g.Available, g.Carried)
	}
}

// What a bucket's lease still held when it expired is not poured back: refills
// were no longer held back for it since. So it is with what was granted to be
// spent at once, whether it arrived or not.
func TestBucketTakesNothingBackTwice(t *testing.T) {
	for _, c := range []struct {
		name    string
		direct  bool
		after   time.Duration
		forgets bool
		level   string
	}{
		{"a live lease is returned", false, 9 * time.Second, false, "69"},
		{"an expired one is not", false, 10 * time.Second, false, "50"},
		{"a live lease that was not heard of is taken back", false, 9 * time.Second, true, "69"},
		{"an expired one that was not heard of is not", false, 10 * time.Second, true, "50"},
		{"one to be spent at once is not", true, 9 * time.Second, true, "49"},
	} {
		w := newTwins(t)
		other := w.tenant(2, bucket100)
		other.gets(40, 40, 40)
		other.c.Spent = 40
		other.gets(0, 0, 0) // 60 are left
		a := w.tenant(1, bucket100)
		a.c.Direct = c.direct
		if c.forgets {
			a.says(func(c *ratelimit.Claim) { c.Waiting, c.Want = 20, 20 })
		} else {
			a.gets(20, 20, 20)
			a.c.Returned = 20
		}
		w.passes(c.after)
		a.c.Direct = false
		g := a.asks(0, 0)
		if got := fmt.Sprint(g.Available); got != c.level {
			t.Errorf("%s: after %v the bucket that had 60 and granted 20 has %s, and should have %s", c.name, c.after, got, c.level)
		}
	}
}

// What a lease that has expired holds no longer keeps the bucket from filling,
// from that instant on: also when nobody asks meanwhile.
func TestBucketFillsOnceALeaseHasExpired(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, bucket100), w.tenant(2, bucket100)
	a.gets(60, 60, 60)
	b.c.TTL = time.Minute
	b.gets(10, 10, 10)
	w.passes(30 * time.Second) // 30 are left; for 10 s nothing is added, then one a second
	g := b.gets(0, 0, 0)
	w.expect("50", g.Available)
	w.passes(39 * time.Second)
	g = b.gets(0, 0, 0)
	w.expect("89", g.Available)
	w.passes(10 * time.Second) // of which 9 have no room: 10 are leased
	g = b.gets(0, 0, 0)
	w.expect("90", g.Available)
}

// A bucket counts in millionths, and carries over what is less: asked seven
// times a second, and seldom, it brings the same.
func TestBucketLosesNothingToRounding(t *testing.T) {
	l := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 7, Burst: 100}
	for _, every := range []time.Duration{time.Microsecond * 142_857, 77 * time.Second} {
		w := newTwins(t)
		a := w.tenant(1, l)
		a.gets(100, 100, 100)
		a.c.Spent = 100
		a.gets(0, 0, 0)
		for at := every; at <= 77*time.Second; at += every {
			w.passes(every)
			a.gets(0, 0, 0)
		}
		w.now = ledgertest.Epoch.Add(600 * time.Second)
		g := a.gets(0, 0, 0)
		w.expect("70 4m17.142858s", g.Available, g.ResetAfter)
	}
}

// When the next tokens are there: one for a lease, all that waits for a claim
// that is for all or nothing; to the microsecond, rounded up.
func TestLedgerTellsWhenToComeBack(t *testing.T) {
	third := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 3, Burst: 10}
	w := newTwins(t)
	a := w.tenant(1, third)
	a.gets(10, 10, 10)
	a.c.Spent = 10
	g := a.asks(2, 2)
	w.expect("0 333.334ms 3.333334s", g.Available, g.RetryAfter, g.ResetAfter)
	w.passes(g.RetryAfter - time.Microsecond)
	g = a.gets(2, 2, 0)
	w.expect("1µs", g.RetryAfter)
	w.passes(g.RetryAfter)
	g = a.says(func(c *ratelimit.Claim) { c.Direct, c.Waiting, c.Want = true, 3, 3 })
	w.expect("10 1 666.666ms", g.Granted, g.Available, g.RetryAfter)
	w.passes(g.RetryAfter)
	a.c.Direct = true
	g = a.gets(3, 3, 3)
	w.expect("0 0s", g.Available, g.RetryAfter)
	g = a.says(func(c *ratelimit.Claim) { c.Spent, c.Waiting, c.Want = 13, 99, 99 }) // more than it ever has
	w.expect("3.333334s", g.RetryAfter)
}

// A sliding window counts the one before by the part that it still overlaps,
// rounded up: three quarters into a second, a quarter of 30 is 8. It says when
// that has become little enough.
func TestSlidingWindowWeighs(t *testing.T) {
	w := newTwins(t)
	sliding := ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Second, Requests: 100}
	a := w.tenant(1, sliding)
	a.gets(30, 30, 30)
	a.c.Spent = 30
	a.gets(0, 0, 0)
	w.passes(1750 * time.Millisecond)
	b := w.tenant(2, sliding)
	b.c.Direct = true
	g := b.gets(0, 0, 0)
	w.expect("92 250ms 0s", g.Available, g.ResetAfter, g.RetryAfter)
	g = b.gets(95, 95, 0)
	w.expect("92 83.334ms", g.Available, g.RetryAfter) // 5 of 30 are a sixth
	w.passes(g.RetryAfter)
	b.gets(95, 95, 95)
	g = b.gets(6, 6, 0)
	w.expect("0 166.666ms", g.Available, g.RetryAfter) // all that the other window counts is too little
	g = b.gets(3, 3, 0)
	w.expect("100ms", g.RetryAfter) // until 2 of 30 are counted
	w.passes(g.RetryAfter)
	again := b.c
	again.Waiting, again.Want = 3, 3
	g = b.claim(again) // the same claim once more: it was refused, and now would not be
	w.expect("3 0s", g.Available, g.RetryAfter)
	g = b.gets(1, 1, 1)
	w.expect("2 0s", g.Available, g.RetryAfter)
	w.passes(time.Second)
	g = b.gets(0, 0, 0)
	w.expect("93", g.Available) // a fifteenth of 96
	w.passes(2 * time.Second)
	g = b.gets(0, 0, 0)
	w.expect("100", g.Available) // the window before had none
}

// What a node spent of a sliding window's lease after its last report counts in
// the next by what it says there, and not by what it had been granted. It is
// taken at its word once.
func TestSlidingWindowIsCorrected(t *testing.T) {
	w := newTwins(t)
	sliding := ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Second, Requests: 100}
	a, b := w.tenant(1, sliding), w.tenant(2, sliding)
	a.gets(60, 60, 60)
	b.gets(40, 40, 40)
	b.c.Spent = 40
	b.gets(0, 0, 0)
	w.passes(time.Second)
	c := w.tenant(3, sliding)
	g := c.gets(0, 0, 0)
	w.expect("0", g.Available)       // all 100 may have been spent
	a.c.Spent, a.c.Returned = 10, 45 // 5 more may be by now
	g = a.gets(0, 0, 0)
	w.expect("45 0 false", g.Available, g.Granted, g.Carried)
	g = a.gets(0, 0, 0)
	w.expect("45", g.Available)
	a.gets(45, 45, 45)
	b.gets(1, 1, 0)
	w.passes(2 * time.Second) // two windows on, nothing of it matters
	b.c.Spent = 99
	g = b.gets(0, 0, 0)
	w.expect("100", g.Available)
}

// A ledger that hears of tokens which it has not granted has forgotten: for two
// seconds it grants a twentieth of the limit in all, of this window and not of
// the next.
func TestLedgerThatForgot(t *testing.T) {
	for _, l := range []ratelimit.Limit{perMinute100, sliding100, bucket100} {
		w := newTwins(t)
		a, b := w.tenant(1, l), w.tenant(2, l)
		a.gets(20, 20, 20)
		w.forget()
		a.c.Spent = 15
		g := a.gets(9, 9, 5)
		w.expect("true 2s 25 true", g.Relearning, g.RetryAfter, g.Granted, g.Carried)
		w.passes(time.Second)
		g = b.gets(1, 1, 0)
		w.expect("true 1s", g.Relearning, g.RetryAfter)
		w.passes(time.Second)
		g = b.gets(9, 9, 9)
		w.expect("false 0s", g.Relearning, g.RetryAfter)
		if g = b.asks(101, 101); g.RetryAfter <= 0 {
			t.Errorf("it has learned, and has too little for what waits: %+v", g)
		}
	}
}

// One that knows no more than it was granted is no sign of a loss; nor is a
// bucket's that has had the time to fill, and a reclaimed lease's.
func TestLedgerThatHasNotForgotten(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, bucket100), w.tenant(2, bucket100)
	a.gets(20, 20, 20)
	if g := a.gets(5, 5, 5); g.Relearning {
		t.Errorf("it knows of what it was granted: %+v", g)
	}
	w.forget()
	b.gets(40, 40, 40)
	g := a.says(func(c *ratelimit.Claim) { c.Refilled, c.Spent, c.Waiting, c.Want = true, 25, 9, 9 })
	w.expect("34 false 51", g.Granted, g.Relearning, g.Available)

	w = newTwins(t)
	e := w.tenant(1, perMinute100)
	e.c.Reclaim = ratelimit.ReclaimEager
	e.gets(20, 20, 20)
	w.passes(10 * time.Second)
	o := w.tenant(2, perMinute100)
	o.c.Reclaim = ratelimit.ReclaimEager
	o.gets(100, 100, 100)
	o.c.Spent = 100
	o.gets(0, 0, 0)
	e.c.Spent = 1
	g = e.gets(0, 0, -19)
	w.expect("true false 1", g.Void, g.Relearning, g.OverAdmitted)
}

func (w *twins) forget() {
	w.memory.Forget()
	if err := w.redis.client.FlushAll(context.Background()).Err(); err != nil {
		w.Fatal(err)
	}
}

// A holder that made room, and has forgotten what it had been granted in the window
// before, tells of that window only what it has spent since: that is added, and what
// it had spent before stays charged.
func TestForgottenWindowStaysCharged(t *testing.T) {
	w := newTwins(t)
	sliding := ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Second, Requests: 100}
	a, b := w.tenant(1, sliding), w.tenant(2, sliding)
	g := a.gets(60, 60, 60)
	a.c.Spent = 60
	a.gets(0, 0, 0)
	a.c.Fence, a.c.Granted, a.c.Spent = 0, 0, 10 // it began anew, and drifted
	w.passes(g.ResetAfter)                       // the whole of the window before counts
	a.asks(0, 0)
	if g := b.asks(0, 0); g.Available != 30 {
		t.Errorf("%d are left of 100, and 60 and 10 were spent", g.Available)
	}
}

// What holders report beyond the limit is over-admission: each report adds what
// is new. A refund makes none undone of a fixed window, for its requests were
// let through; of a sliding window they are over in time.
func TestOverAdmissionIsSummed(t *testing.T) {
	for _, c := range []struct {
		limit   ratelimit.Limit
		reclaim ratelimit.Reclaim
		after   string
	}{
		{perMinute100, ratelimit.ReclaimSafe, "2 12"},
		{sliding100, ratelimit.ReclaimSafe, "7 12"},
		{perMinute100, ratelimit.ReclaimEager, "2 12"},
		{sliding100, ratelimit.ReclaimEager, "7 12"},
	} {
		w := newTwins(t)
		a, b := w.tenant(1, c.limit), w.tenant(2, c.limit)
		a.c.Reclaim, b.c.Reclaim = c.reclaim, c.reclaim
		a.gets(90, 90, 90)
		a.c.Spent = 95 // 5 by drift, which the limit has
		g := a.gets(0, 0, 5)
		w.expect("0 0 5", g.OverAdmitted, g.Over, g.Available)
		b.gets(5, 5, 5)
		b.c.Spent = 15
		g = b.gets(0, 0, 0) // 10 beyond the limit: none of them is confirmed
		w.expect("10 10 0", g.OverAdmitted, g.Over, g.Available)
		g = b.gets(0, 0, 0)
		w.expect("0 10", g.OverAdmitted, g.Over)
		b.c.Spent = 10 // a refund
		b.gets(0, 0, 0)
		b.c.Spent = 17
		g = b.gets(0, 0, 0)
		w.expect(c.after, g.OverAdmitted, g.Over)
	}
}

// A bucket's drift is confirmed as far as the bucket has it; the rest was over,
// and is counted once.
func TestBucketConfirmsWhatItHas(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, bucket100), w.tenant(2, bucket100)
	b.gets(100, 100, 100)
	b.c.Spent = 100
	b.gets(0, 0, 0)
	w.passes(6 * time.Second)
	a.gets(0, 0, 0)
	a.c.Spent = 10
	g := a.gets(0, 0, 6)
	w.expect("4 0 0", g.OverAdmitted, g.Over, g.Available)
	w.passes(3 * time.Second)
	g = a.gets(0, 0, 3) // confirmed now, and counted then
	w.expect("0 0", g.OverAdmitted, g.Available)
	a.c.Spent = 12
	g = a.gets(0, 0, 0)
	w.expect("2", g.OverAdmitted)
}

// The last word on a window that is over adds what it says beyond what was
// known, once. It is heard for one window, and about nothing else.
func TestLastWordOnAWindow(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	for _, h := range []*tenant{a, b} {
		h.c.Tally = true
		h.gets(50, 50, 50)
		h.c.Spent = 50
		h.gets(0, 0, 0)
	}
	final := func(h *tenant, windows window) ratelimit.Grant {
		return h.says(func(c *ratelimit.Claim) { c.Final, c.Window = true, c.Window+windows })
	}
	a.c.Seq++ // not a window that goes on
	w.stale(ratelimit.Claim{Limit: perMinute100, Holder: 1, Seq: a.c.Seq, Window: a.c.Window, Final: true})
	w.passes(time.Minute)
	a.c.Spent = 57
	g := final(a, 0)
	w.expect("7 7 0 0s", g.OverAdmitted, g.Over, g.Window-a.c.Window, g.ResetAfter)
	g = final(a, 0)
	w.expect("0 7", g.OverAdmitted, g.Over)
	b.c.Spent = 53
	g = b.gets(1, 1, 1) // a claim on the new window says as much
	w.expect("3 0", g.OverAdmitted, g.Over)
	b.c.Seq++ // and has moved on
	w.stale(ratelimit.Claim{Limit: perMinute100, Holder: 2, Seq: b.c.Seq, Window: b.c.Window - 1, Spent: 60, Final: true})
	w.passes(time.Minute)
	a.c.Seq++
	w.stale(ratelimit.Claim{Limit: perMinute100, Holder: 1, Seq: a.c.Seq, Window: a.c.Window, Spent: 60, Final: true})
}

// Who claims for the next window gets a lease of that, of which nothing is
// charged yet, and which is the current one's once it has begun. A claim that
// arrives when its window is over, or is too early, gets nothing.
func TestNextWindowIsClaimedAhead(t *testing.T) {
	w := newTwins(t)
	this := w.tenant(1, perMinute100)
	this.gets(80, 80, 80)
	at := this.c.Window
	next := w.tenant(2, perMinute100)
	next.c.TTL = time.Hour
	ahead := func(waiting tokens) ratelimit.Grant {
		return next.hears(next.says(func(c *ratelimit.Claim) { c.Ahead, c.Window, c.Waiting, c.Want = true, at+1, waiting, waiting }))
	}
	g := ahead(60)
	w.expect("60 1 40 0 1 1m45s", g.Granted, g.Window-at, g.Available, g.Outstanding, g.Holders, g.ResetAfter)
	if g := this.gets(0, 0, 0); g.Available != 20 || g.Outstanding != 0 || g.Holders != 1 {
		t.Errorf("what is leased of the next window counts in this: %+v", g)
	}
	if got := w.dead(0); got != 105*time.Second {
		t.Errorf("the account may be forgotten in %v, and its next window ends in 1m45s", got)
	}
	other := w.tenant(3, perMinute100)
	other.c.Seq++
	for _, of := range []window{at + 2, at - 1} {
		w.stale(ratelimit.Claim{Limit: perMinute100, Holder: 3, Seq: other.c.Seq, Window: of, Ahead: true, Waiting: 1})
	}
	w.passes(45 * time.Second)
	g = other.gets(1, 1, 1)
	w.expect("1 39 60 2", g.Window-at, g.Available, g.Outstanding, g.Holders)
	next.c.Spent = 10
	g = ahead(0)
	w.expect("true 60", g.Carried, g.Granted)
	for _, l := range []ratelimit.Limit{sliding100, bucket100} { // which have no windows that begin anew
		w := newTwins(t)
		w.stale(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Ahead: true, Waiting: 1})
		w.stale(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Final: true})
	}
}

// An account may be forgotten once it would say the same as a new one: when its
// window is over, and of a sliding one the next; of a bucket when it is full and
// no lease is out.
func TestAccountsMayBeForgotten(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, perMinute100)
	a.gets(0, 0, 0)
	w.expect("0s", w.dead(0))
	a.gets(1, 1, 1)
	w.expect("45s", w.dead(0))
	a.says(func(c *ratelimit.Claim) { c.Reset = true }) // what is charged later must not be credited twice
	w.expect("45s", w.dead(0))

	w = newTwins(t)
	s := w.tenant(1, sliding100)
	s.gets(1, 1, 1)
	w.expect("1m45s", w.dead(0))

	w = newTwins(t)
	b := w.tenant(1, bucket100)
	b.c.TTL = 90 * time.Second
	b.gets(60, 60, 60) // full in 60 s, and the lease is out for longer
	w.expect("1m30s", w.dead(10*time.Second))
	b.c.Spent = 60
	b.gets(0, 0, 0)
	w.expect("1m0.000001s", w.dead(time.Minute))
}

// After a reset the limit is there as if nothing had been charged, also by the
// window before; leases stay what they are. A bucket is as full as leases allow.
func TestReset(t *testing.T) {
	for _, c := range []struct {
		limit ratelimit.Limit
		left  string
	}{{perMinute100, "100"}, {sliding100, "100"}, {bucket100, "90"}} {
		w := newTwins(t)
		a, b := w.tenant(1, c.limit), w.tenant(2, c.limit)
		a.gets(60, 60, 60)
		a.c.Spent = 50
		a.gets(0, 0, 0)
		b.gets(10, 10, 10)
		b.c.Spent = 10
		b.gets(0, 0, 0)
		if c.limit.Algorithm == ratelimit.SlidingWindow {
			w.passes(time.Minute)
			a.gets(20, 20, 20)
		}
		g := b.says(func(c *ratelimit.Claim) { c.Reset = true })
		w.expect(c.left, g.Available)
		g = a.says(nil)
		w.expect(c.left+" 0", g.Available, g.Granted-a.c.Granted)
	}
}

// A lease that was reclaimed can neither renew nor return: what was spent of it
// counts, and the rest is another's. Only a lease claimed as eager, and from the
// instant on at which it has expired, is reclaimed.
func TestReclaimedLeaseIsVoid(t *testing.T) {
	for _, c := range []struct {
		limit         ratelimit.Limit
		closed, later string
	}{{perMinute100, "90 0", "true 17 88"}, {bucket100, "100 0", "true 17 98"}} {
		w := newTwins(t)
		a, b := w.tenant(1, c.limit), w.tenant(2, c.limit)
		a.c.Reclaim, b.c.Reclaim = ratelimit.ReclaimEager, ratelimit.ReclaimEager
		a.gets(50, 50, 50)
		a.c.Spent, a.c.Returned = 10, 5
		a.gets(0, 0, 0)
		w.passes(10*time.Second - time.Microsecond)
		if g := b.gets(0, 0, 0); g.Outstanding != 35 {
			t.Errorf("a lease that has not expired was reclaimed: %+v", g)
		}
		w.passes(time.Microsecond)
		g := b.gets(0, 0, 0)
		w.expect(c.closed, g.Available, g.Outstanding)
		again := a.c // the same claim, which arrives once more
		again.Waiting, again.Want = 0, 0
		w.stale(again)
		a.c.Spent = 12
		g = a.says(nil)
		w.expect(c.later, g.Void, g.Granted, g.Available)
		a.hears(g)
		if g = a.gets(3, 3, 3); g.Void {
			t.Errorf("a lease with a new fence is void: %+v", g)
		}
	}
}

// A bucket to which tokens were given back is full when it has all of them,
// whatever part of the next one has come besides.
func TestBucketFilledByReturns(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 7, Burst: 100})
	a.c.Direct = true
	a.gets(10, 10, 10)
	w.passes(time.Microsecond)
	a.c.Returned = 10
	g := a.gets(0, 0, 0)
	w.expect("100 0s", g.Available, g.ResetAfter)
}

// When the ledger's clock has gone back, those who were granted something before
// call a window by its old number. Who was granted nothing yet, and has drifted,
// calls it by the number that it has now.
func TestDriftAfterTheClockWentBack(t *testing.T) {
	w := newTwins(t)
	l := ratelimit.Limit{Unit: ratelimit.Second, Requests: 10}
	a, b := w.tenant(1, l), w.tenant(2, l)
	a.gets(5, 5, 5)
	w.passes(-time.Hour)
	g := b.says(func(c *ratelimit.Claim) { c.Window, c.Spent = l.WindowAt(w.now), 3 })
	w.expect("true 3 2", g.Carried, g.Granted, g.Available)
	a.c.Spent = 5
	g = a.gets(0, 0, 0)
	w.expect("true 2", g.Carried, g.Available)
}
