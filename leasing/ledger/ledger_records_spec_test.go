package ledger

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Which of a ledger's records count, and for how long: those of other windows, of
// holders that have ended, and of leases that were reclaimed. Both ledgers must say
// the same.

// A holder whose lease was reclaimed in the window before tells of tokens of this
// one which no record knows: then data was lost, whatever happened before.
func TestReclaimedBeforeTheLoss(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.c.Reclaim, b.c.Reclaim = ratelimit.ReclaimEager, ratelimit.ReclaimEager
	a.gets(20, 20, 20)
	w.passes(11 * time.Second)
	b.gets(1, 1, 1) // which has what is unspent of it reclaimed
	w.passes(40 * time.Second)
	a.c.Window, a.c.Granted, a.c.Spent, a.c.Fence = a.c.Window+1, 7, 7, a.c.Fence+1
	g := a.asks(0, 0)
	w.expect("true true false", g.Missing, g.Relearning, g.Void)
}

// A holder that has ended, and whose record was folded, may still say what it spent
// in the window that is over: the next one is not charged for that.
func TestFoldedHolderOfTheWindowBefore(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.gets(50, 50, 50)
	a.c.Spent = 50
	a.hears(a.says(func(c *ratelimit.Claim) { c.Last = true }))
	w.passes(20 * time.Second)
	b.gets(1, 1, 1) // which folds the other
	w.passes(30 * time.Second)
	a.c.Spent = 57
	g := a.asks(0, 0)
	w.expect("false 0 100", g.Carried, g.Granted, g.Available)
}

// A bucket's record is kept for as long as the bucket may take to fill: until then
// its holder goes on where it was, and the ledger has lost nothing.
func TestBucketRemembersUntilItIsFull(t *testing.T) {
	for _, tenMinutes := range []ratelimit.Limit{
		{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 60, Burst: 600},
		{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 1, Burst: 10},
	} {
		w := newTwins(t)
		a, b := w.tenant(1, tenMinutes), w.tenant(2, tenMinutes)
		a.gets(tenMinutes.Burst, tenMinutes.Burst, tenMinutes.Burst)
		a.c.Spent = tenMinutes.Burst
		a.gets(0, 0, 0)
		w.passes(8 * time.Minute)
		b.gets(1, 1, 1)
		g := a.gets(1, 1, 1)
		w.expect("false false", g.Missing, g.Relearning)
		w.passes(12*time.Minute + 10*time.Second - time.Microsecond)
		w.tenant(3, tenMinutes).gets(1, 1, 1)
		w.records(3)
		w.passes(time.Microsecond)
		w.tenant(4, tenMinutes).gets(1, 1, 1)
		w.records(2) // of the last two
	}
}

// records expects the memory to have records of so many holders.
func (w *twins) records(n int) {
	w.Helper()
	s, c := w.memory.locked([]byte("k"))
	defer s.mu.Unlock()
	if got := c.val.records(); got != n {
		w.Errorf("there are records of %d holders, want %d", got, n)
	}
	if fields := w.redis.client.HLen(w.Context(), "t:k").Val(); fields != int64(n)+1 { // and the account's own
		w.Errorf("in Redis there are records of %d holders, want %d", fields-1, n)
	}
}

// What was leased two sliding windows ago counts no more: to have it given back
// would help nobody. That of the window before counts, and is recalled.
func TestRecallOfSlidingWindowsBefore(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, sliding100), w.tenant(2, sliding100)
	a.gets(60, 60, 60)
	late := a.c
	late.Seq = 0
	w.passes(time.Minute)
	g := b.hears(b.says(func(c *ratelimit.Claim) { c.Waiting, c.Want, c.Recall = 80, 80, true }))
	w.expect("1 true", g.Recalled, g.Recalling)
	w.passes(time.Minute)
	w.stale(late) // a claim from then, which has the window turn
	g = b.hears(b.says(func(c *ratelimit.Claim) { c.Waiting, c.Want, c.Recall = 101, 101, true }))
	w.expect("0 false", g.Recalled, g.Recalling)
}

// A ledger that learns until an instant goes on until then, whatever shorter time
// another claim has heard of; and its twentieth is there anew when data is lost
// once more.
func TestLedgerLearnsTwice(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, perMinute100)
	until := func(d time.Duration) { a.c.Learning = w.now.Add(d) }
	until(2 * time.Second)
	a.gets(9, 9, 5)
	until(time.Second)
	a.gets(9, 9, 0)
	w.passes(1999999 * time.Microsecond)
	a.c.Learning = 0
	g := a.gets(9, 9, 0)
	w.expect("true 1µs", g.Relearning, g.RetryAfter)
	w.passes(time.Microsecond)
	g = a.gets(9, 9, 9)
	w.expect("false", g.Relearning)
	until(2 * time.Second)
	a.gets(9, 9, 5)
}

// When the ledger's clock goes back while it learns, it learns for as long as it
// would have.
func TestLedgerThatLearnsIsSetBack(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, perMinute100)
	a.c.Learning = w.now.Add(2 * time.Second)
	a.gets(1, 1, 1)
	a.c.Learning = 0
	w.passes(-time.Hour)
	g := a.gets(0, 0, 0)
	w.expect("true", g.Relearning)
	w.passes(2 * time.Second)
	g = a.gets(0, 0, 0)
	w.expect("false", g.Relearning)
}

// A claim that was written before the clock went back says that the ledger learns for as
// long as the step was. It learns for as long as a ledger ever does. Before this was so,
// nobody was granted more than a twentieth for the step's length, and nodes that had not
// heard of it rejected the grants, whose retry after made no sense to them.
func TestLedgerLearnsNoLongerForAStep(t *testing.T) {
	for _, limit := range []ratelimit.Limit{perMinute100, bucket100} {
		w := newTwins(t)
		a := w.tenant(1, limit)
		a.c.Learning = w.now.Add(30 * time.Minute)
		g := a.gets(9, 9, 5)
		w.expect("true 2s", g.Relearning, g.RetryAfter)
		a.c.Learning = 0
		w.passes(2 * time.Second)
		g = a.gets(9, 9, 9)
		w.expect("false", g.Relearning)
	}
}

// From the instant on at which the ledger has learned, leases are recalled again.
func TestRecallAfterLearning(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.gets(60, 60, 60)
	waits := func() ratelimit.Grant {
		return b.says(func(c *ratelimit.Claim) { c.Waiting, c.Want, c.Recall = 50, 50, true })
	}
	b.c.Learning = w.now.Add(2 * time.Second)
	g := waits()
	w.expect("0 false", g.Recalled, g.Recalling)
	w.passes(2 * time.Second)
	b.c.Learning = 0
	g = waits()
	w.expect("1 true", g.Recalled, g.Recalling)
}

// What a holder was charged in a sliding window before this one counts as it says,
// when the ledger lost what it knew of this one: also of a holder that has been
// granted nothing in it, and only while the ledger learns.
func TestSlidingWindowBeforeTheLoss(t *testing.T) {
	for _, c := range []struct {
		what     string
		granted  tokens
		fence    ratelimit.Fence
		learning time.Duration
		left     string
	}{
		{"granted before the loss", 5, 7, 0, "85"},
		{"refused before the loss", 0, 7, 0, "88"},
		{"drifted, while it learns", 0, 0, time.Second, "58"},
		{"drifted, when it has learned", 0, 0, 0, "68"},
	} {
		w := newTwins(t)
		a := w.tenant(1, sliding100)
		a.gets(30, 30, 30)
		a.c.Spent = 30
		a.gets(0, 0, 0)
		w.passes(45 * time.Second) // the next has just begun: all of the one before counts
		h := a
		if c.fence == 0 {
			h = w.tenant(2, sliding100)
		}
		h.c.Window, h.c.Granted, h.c.Spent, h.c.Returned, h.c.Fence, h.c.Before = a.c.Window+1, c.granted, 2, 0, c.fence, 10
		if c.fence == 0 {
			w.passes(-time.Microsecond)
			w.tenant(3, sliding100).says(func(x *ratelimit.Claim) { x.Learning = w.now.Add(c.learning + time.Microsecond) })
			w.passes(time.Microsecond)
		}
		g := h.says(nil)
		w.expect(c.left, g.Available)
	}
}

// A bucket that had the time to fill while nothing was heard of a holder: what the
// holder did not spend was not over, and is not poured in either, but where its
// lease is known and still holds the place.
func TestRefilledBucket(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, bucket100)
	a.gets(20, 20, 20)
	w.forget()
	a.c.Spent, a.c.Refilled = 5, true
	g := a.gets(0, 0, 0)
	w.expect("0 false", g.OverAdmitted, g.Missing)

	w = newTwins(t)
	a = w.tenant(1, bucket100)
	a.c.TTL = 5 * time.Minute
	a.gets(20, 20, 20)
	w.passes(2 * time.Minute)
	a.c.Returned, a.c.Refilled = 20, true
	g = a.gets(0, 0, 0)
	w.expect("100", g.Available)
}

// A bucket whose size was lowered has no more than that from the same instant on,
// less what is leased of it; also where a claim that was settled before is repeated.
func TestSmallerBucket(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, bucket100)
	a.gets(1, 1, 1)
	again := a.c
	again.Limit.Burst = 10
	g := w.claim(again)
	w.expect("10", g.Available)
	a.c.Limit.Burst = 10
	g = a.gets(0, 0, 0)
	w.expect("9", g.Available)
}

// A lease of which nothing was heard before it was reclaimed is gone as a whole, and
// what was spent of it is charged when the holder tells.
func TestUnconfirmedLeaseIsReclaimed(t *testing.T) {
	for _, c := range []struct {
		limit ratelimit.Limit
		later string
	}{{perMinute100, "true 12 88"}, {bucket100, "true 12 88"}} {
		w := newTwins(t)
		a, b := w.tenant(1, c.limit), w.tenant(2, c.limit)
		a.c.Reclaim, b.c.Reclaim = ratelimit.ReclaimEager, ratelimit.ReclaimEager
		a.gets(50, 50, 50)
		w.passes(10 * time.Second)
		g := b.gets(0, 0, 0)
		w.expect("100 0", g.Available, g.Outstanding)
		a.c.Spent = 12
		g = a.says(nil)
		w.expect(c.later, g.Void, g.Granted, g.Available)
	}
}

// What a sliding window lacks comes in a microsecond at the earliest: the weight of
// the window before is measured in ticks of 57 µs, and the ticks' rounding does not
// make it come in the past.
func TestSlidingWindowComesLater(t *testing.T) {
	w := newTwins(t)
	l := ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: 1_000_000_000}
	a := w.tenant(1, l)
	a.gets(l.Requests, l.Requests, l.Requests)
	a.c.Spent = l.Requests
	a.gets(0, 0, 0)
	w.passes(105*time.Second - (57*500_000+1)*time.Microsecond)
	b := w.tenant(2, l)
	g := b.gets(0, 0, 0)
	b.gets(g.Available, g.Available, g.Available)
	g = b.gets(1, 1, 0)
	w.expect("0 1µs", g.Available, g.RetryAfter)
}

// A stretched lease is filled up to a node's share: what it has given back it does
// not have any more.
func TestStretchedLeaseIsFilledUp(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 1000})
	a.c.Stretch = true
	a.gets(1, 1, 50)
	a.c.Spent, a.c.Returned = 20, 25
	a.gets(0, 0, 45)
}

// Beyond as many records as an account keeps, those of leases that have expired are
// folded, and of these the holders that have been silent for the longest.
func TestSilentHoldersAreFoldedFirst(t *testing.T) {
	w := newTwins(t)
	limit := ratelimit.Limit{Unit: ratelimit.Year, Requests: 1 << 30}
	const n = MostRecords + 44
	holders := make([]*tenant, n)
	for i := range holders {
		holders[i] = w.tenant(ratelimit.Holder(10+i), limit)
		holders[i].c.TTL = time.Hour
		w.passes(time.Millisecond)
		holders[i].gets(1, 1, 1)
	}
	w.records(n) // they are all live
	for i := range holders {
		h := holders[n-1-i]
		h.c.Spent, h.c.TTL = 1, time.Second
		w.passes(time.Millisecond)
		h.gets(0, 0, 0)
	}
	w.passes(time.Second)
	w.tenant(1, limit).gets(1, 1, 1)
	w.records(keptRecords + 1)
	holders[0].gets(0, 0, 0) // which spoke last
	w.records(keptRecords + 1)
}

// A holder that is known claims where there are more records than an account keeps, and all others have expired: it
// makes no room. The next new one does, whichever way its claim is settled.
func TestNextNewHolderMakesRoom(t *testing.T) {
	w := newTwins(t)
	limit := ratelimit.Limit{Unit: ratelimit.Year, Requests: 1 << 30}
	holders := make([]*tenant, MostRecords+1)
	for i := range holders {
		holders[i] = w.tenant(ratelimit.Holder(10+i), limit)
		holders[i].gets(1, 1, 1)
	}
	w.passes(10 * time.Second)
	holders[0].gets(0, 0, 0)
	w.records(MostRecords + 1)
	w.tenant(1, limit).gets(1, 1, 1)
	w.records(keptRecords + 1)
}

// A holder of an account whose ledger had others before it, with fences that were
// ahead of its clock: when it is folded and comes back, it is charged once.
func TestFoldedHolderOfAReusedPlace(t *testing.T) {
	now := ledgerTime(1_800_000_015_000_000)
	m := NewMemory(1, func() ledgerTime { return now })
	settle := func(c ratelimit.Claim) ratelimit.Grant {
		t.Helper()
		c.Limit, c.TTL, c.Want = perMinute100, time.Second, c.Waiting
		var g [1]ratelimit.Grant
		if m.Settle(t.Context(), []ratelimit.Claim{c}, g[:]); g[0].Err != nil {
			t.Fatal(g[0].Err)
		}
		return g[0]
	}
	settle(ratelimit.Claim{Key: "before", Holder: 1, Seq: 1, Fence: ratelimit.Fence(now) + 3_600_000_000})
	g := settle(ratelimit.Claim{Key: "k", Holder: 1, Seq: 1, Waiting: 10})
	if g.Fence <= ratelimit.Fence(now) {
		t.Fatalf("the fence is %d, and was higher before", g.Fence)
	}
	c := ratelimit.Claim{Key: "k", Holder: 1, Seq: 2, Window: g.Window, Fence: g.Fence, Granted: 10, Spent: 10}
	now = now.Add(2 * time.Second)
	for i := range ratelimit.Holder(MostRecords + 1) { // all are silent after that
		settle(ratelimit.Claim{Key: "k", Holder: 10 + i, Seq: 1})
	}
	now = now.Add(2 * time.Second)
	settle(ratelimit.Claim{Key: "k", Holder: 5, Seq: 1})
	if g = settle(c); g.Available != 90 || g.Missing {
		t.Errorf("10 of 100 are spent: %+v", g)
	}
}

// Who was asked to give back and has answered needs what it kept, and is not told
// again when others are.
func TestWhoHasAnsweredIsNotAskedAgain(t *testing.T) {
	w := newTwins(t)
	var asked []ratelimit.Holder
	w.memory.OnRecall = func(_ string, holders []ratelimit.Holder) { asked = append(asked, holders...) }
	a, b, d := w.tenant(1, perMinute100), w.tenant(2, perMinute100), w.tenant(3, perMinute100)
	waits := func(n tokens) ratelimit.Grant {
		return b.hears(b.says(func(c *ratelimit.Claim) { c.Waiting, c.Want, c.Recall = n, n, true }))
	}
	a.gets(40, 40, 40)
	waits(70)
	a.c.Returned = 10
	a.gets(0, 0, 0)
	d.gets(10, 10, 10)
	g := waits(50)
	w.expect("1 true [1 3]", g.Recalled, g.Recalling, asked)
}

// Who was granted something since needs to be asked again: one token is something.
func TestWhoWasGrantedMoreIsAskedAgain(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	waits := func() ratelimit.Grant {
		return b.hears(b.says(func(c *ratelimit.Claim) { c.Waiting, c.Want, c.Recall = 101, 101, true }))
	}
	a.gets(40, 40, 40)
	waits()
	a.c.Returned = 10
	a.gets(0, 0, 0)
	g := waits()
	w.expect("0 false", g.Recalled, g.Recalling)
	b.c.Returned = 1
	b.gets(0, 0, 0)
	a.gets(1, 1, 1)
	g = waits()
	w.expect("1 true", g.Recalled, g.Recalling)
}

// When the ledger's clock goes back, a recall is as long ago as it was.
func TestRecallBeforeTheClockWentBack(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	waits := func() ratelimit.Grant {
		return b.hears(b.says(func(c *ratelimit.Claim) { c.Waiting, c.Want, c.Recall = 101, 101, true }))
	}
	a.gets(40, 40, 40)
	g := waits()
	w.expect("1 true", g.Recalled, g.Recalling)
	w.passes(-time.Hour)
	g = waits()
	w.expect("0 true", g.Recalled, g.Recalling)
	w.passes(time.Second)
	g = waits()
	w.expect("1 true", g.Recalled, g.Recalling)
}

// What was charged to holders that have ended stays charged when the ledger's clock
// goes back.
func TestFoldedBeforeTheClockWentBack(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.gets(30, 30, 30)
	a.c.Spent = 30
	a.hears(a.says(func(c *ratelimit.Claim) { c.Last = true }))
	w.passes(20 * time.Second)
	b.gets(0, 0, 0)
	w.records(1)
	w.passes(-time.Hour)
	g := w.tenant(3, perMinute100).gets(0, 0, 0)
	w.expect("70", g.Available)
}

// A holder from before a loss of data is charged all that it tells, though others
// were folded since.
func TestFoldedSinceTheLoss(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.gets(20, 20, 20)
	w.passes(time.Second)
	w.forget()
	b.gets(5, 5, 5)
	b.c.Spent = 5
	b.hears(b.says(func(c *ratelimit.Claim) { c.Last = true }))
	w.passes(20 * time.Second)
	w.tenant(3, perMinute100).gets(0, 0, 0)
	w.records(1)
	g := a.gets(0, 0, 0)
	w.expect("true 75", g.Missing, g.Available)
}

// What a bucket's holder spent unasked, and the bucket had not, was over once: not
// again when its lease has been reclaimed.
func TestReclaimedDriftIsOverOnce(t *testing.T) {
	slow := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Day, Requests: 1, Burst: 100}
	w := newTwins(t)
	a, b := w.tenant(1, slow), w.tenant(2, slow)
	a.c.Reclaim, b.c.Reclaim = ratelimit.ReclaimEager, ratelimit.ReclaimEager
	a.gets(10, 10, 10)
	b.gets(90, 90, 90)
	b.c.Spent = 90
	b.gets(0, 0, 0)
	a.c.Spent = 15
	g := a.gets(0, 0, 0)
	w.expect("5", g.OverAdmitted)
	w.passes(11 * time.Second)
	b.gets(0, 0, 0)
	g = a.says(nil)
	w.expect("0", g.OverAdmitted)
}

// A stretched lease lasts as long as others do, at least: also into the next window.
func TestStretchedLeaseLastsAtLeastItsTime(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, perMinute100)
	a.c.Stretch = true
	w.passes(40 * time.Second)
	g := a.gets(1, 1, 5)
	w.expect("10s true", g.TTL, g.Plenty)
}

// What a holder gave back with its last word on a window is not out any more, when
// another says its own.
func TestLastWordGivesBack(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	for _, h := range []*tenant{a, b} {
		h.c.Tally = true
		h.gets(50, 50, 50)
	}
	w.passes(time.Minute)
	final := func(c *ratelimit.Claim) { c.Final = true }
	a.c.Spent, a.c.Returned = 30, 20
	g := a.says(final)
	w.expect("50", g.Outstanding)
	b.c.Spent = 50
	g = b.says(final)
	w.expect("0", g.Outstanding)
}

// A bucket whose ledger lost it goes on with what its holders tell: it has one life
// for them, though the ledger calls it by another name now.
func TestBucketGoesOnAfterALoss(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, bucket100)
	a.gets(20, 20, 20)
	w.passes(time.Second)
	w.forget()
	a.c.Spent = 15
	g := a.gets(0, 0, 0)
	w.expect("true true 80", g.Missing, g.Carried, g.Available)
}

// A holder that did not hear of its last lease does not know the fence that was
// reclaimed: its claim is not void, and is charged as it says.
func TestReclaimedLeaseThatWasNotHeardOf(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.c.Reclaim, b.c.Reclaim = ratelimit.ReclaimEager, ratelimit.ReclaimEager
	a.gets(20, 20, 20)
	a.c.Spent = 12
	a.says(func(c *ratelimit.Claim) { c.Waiting, c.Want = 10, 10 })
	w.passes(10 * time.Second)
	g := b.gets(0, 0, 0)
	w.expect("88 0", g.Available, g.Outstanding)
	a.c.Returned = 8
	g = a.gets(0, 0, 0)
	w.expect("false 88", g.Void, g.Available)
}

// Most keys have one holder, for which an account needs no more room.
func TestAccountOfOneHolderAllocatesNothing(t *testing.T) {
	c := ratelimit.Claim{Limit: perMinute100, Holder: 1, Seq: 1, Waiting: 1, Want: 1, TTL: time.Second}
	allocated := testing.AllocsPerRun(100, func() {
		var a Account
		if g := a.Settle(ledgerTime(1_800_000_015_000_000), &c); g.Err != nil || g.Granted != 1 {
			t.Errorf("%+v", g)
		}
	})
	if allocated != 0 {
		t.Errorf("%v allocations for the first holder", allocated)
	}
}

// A holder that had to forget its lease, and has spent some of its share in the same
// window since, is charged for both: what it had confirmed, and what it spent now.
func TestHolderThatForgotAndDrifts(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, perMinute100)
	g := a.gets(20, 20, 20)
	a.c.Spent, a.c.Returned = 5, 2
	a.gets(0, 0, 0)
	a.c = ratelimit.Claim{Limit: perMinute100, Holder: 1, Seq: a.c.Seq, TTL: a.c.TTL, Window: g.Window, Spent: 3}
	g = a.says(nil)
	w.expect("79 3 true", g.Available, g.Granted, g.Carried)
}

// A claim that calls its window by a later number, and is not for the next, is booked
// in the current one.
func TestClaimOfALaterWindow(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, perMinute100)
	at := a.gets(1, 1, 1).Window
	b := w.tenant(2, perMinute100)
	b.c.Window = at + 1
	g := b.says(func(c *ratelimit.Claim) { c.Waiting, c.Want = 5, 5 })
	w.expect("0 false 5 94", g.Window-at, g.Carried, g.Granted, g.Available)
}

// A claim that was sent while its lease lasted and comes when it is over keeps what it
// has, unless the bucket was refilled meanwhile and others have that: a bucket never
// gives more at once than it holds.
func TestLateClaimOnARefilledBucket(t *testing.T) {
	limit := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 10, Burst: 100}
	for _, c := range []struct {
		name   string
		others tokens // leased to another before the late claim comes
		spent  tokens // of the lease, and as many were given back
		kept   tokens
		void   bool
	}{
		{"nobody else has any", 0, 0, 100, false},
		{"others have what was refilled", 2, 0, 0, true},
		{"others have less than is gone of it", 2, 40, 100, false},
	} {
		w := newTwins(t)
		late, other := w.tenant(2, limit), w.tenant(4, limit)
		late.gets(100, 100, 100)
		w.passes(10*time.Second + 200*time.Millisecond) // and two tokens are refilled
		if c.others > 0 {
			other.gets(c.others, c.others, c.others)
		}
		late.c.Spent, late.c.Returned = c.spent, c.spent
		g := late.asks(0, 0)
		if g.Void != c.void || g.Granted != c.kept {
			t.Errorf("%s: %+v", c.name, g)
		}
		if g = other.asks(100, 100); other.c.Granted+late.c.Granted > 100+2 {
			t.Errorf("%s: %d and %d are leased of a bucket of 100: %+v", c.name, other.c.Granted, late.c.Granted, g)
		}
	}
}
