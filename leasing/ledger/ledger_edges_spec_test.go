package ledger

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// What a ledger does at the very instant at which a lease ends, and with the very last
// token: both ledgers must do the same.

// A node that gave some of its lease back does not have that any more: what it spends
// beyond the rest is drift, which is confirmed with tokens and not as a part of the lease.
func TestDriftBeyondWhatWasGivenBack(t *testing.T) {
	for _, c := range []struct {
		limit ratelimit.Limit
		left  string
	}{{perMinute100, "82"}, {sliding100, "82"}, {bucket100, "82"}} {
		w := newTwins(t)
		a := w.tenant(1, c.limit)
		a.gets(20, 20, 20)
		a.c.Returned = 5
		a.gets(0, 0, 0)
		a.c.Spent = 18 // of 15 that it had
		g := a.gets(0, 0, 3)
		w.expect(c.left, g.Available)
	}
}

// A node keeps a live lease of more than half a bucket when it claims: only a lease that
// has expired can hold tokens that the bucket has refilled since.
func TestLargeLeaseOfABucketIsKept(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, bucket100)
	a.gets(60, 60, 60)
	w.passes(10*time.Second - time.Microsecond)
	g := a.gets(0, 0, 0)
	w.expect("false 60", g.Void, g.Granted)
}

// A lease that ended at the instant of a reset is void once others have what the reset
// put into the bucket: else both would spend it.
func TestBucketIsResetWhenALeaseEnds(t *testing.T) {
	w := newTwins(t)
	late, other := w.tenant(2, bucket100), w.tenant(4, bucket100)
	late.gets(60, 60, 60)
	w.passes(10 * time.Second)
	other.says(func(c *ratelimit.Claim) { c.Reset = true })
	other.gets(100, 100, 100)
	g := late.says(nil)
	w.expect("true 0", g.Void, g.Granted)
}

// The window before still weighs in a sliding window of which nothing was spent: to look
// at it does not let the account be forgotten.
func TestWeightIsNotForgottenByALook(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, sliding100)
	a.gets(60, 60, 60)
	a.c.Spent = 60
	a.gets(0, 0, 0)
	w.passes(45 * time.Second) // the next window has just begun
	g := w.tenant(2, sliding100).gets(0, 0, 0)
	w.expect("40 2m0s", g.Available, w.dead(0))
}

// What others could give back makes a limit plenty, until their leases expire: from that
// instant on they are not asked. What a node has itself it cannot be asked for.
func TestWhatCannotBeGivenBackMakesNoPlenty(t *testing.T) {
	for _, c := range []struct {
		what   string
		node   ratelimit.Holder
		after  time.Duration
		plenty bool
	}{
		{"another's lease that is live", 2, 10*time.Second - time.Microsecond, true},
		{"another's lease that has expired", 2, 10 * time.Second, false},
		{"the node's own lease", 1, time.Second, false},
	} {
		w := newTwins(t)
		limit := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 1000}
		nodes := map[ratelimit.Holder]*tenant{1: w.tenant(1, limit), 2: w.tenant(2, limit)}
		nodes[1].gets(600, 600, 600)
		w.passes(c.after)
		nodes[c.node].c.Stretch = true
		if g := nodes[c.node].asks(1, 1); g.Plenty != c.plenty {
			t.Errorf("400 of 1000 are left, and 600 are %s: plenty %v", c.what, g.Plenty)
		}
	}
}

// Nobody is asked to give back for a claim that was granted all that waits, to the token.
func TestNobodyIsRecalledForAClaimThatIsServed(t *testing.T) {
	w := newTwins(t)
	w.tenant(1, perMinute100).gets(60, 60, 60)
	b := w.tenant(2, perMinute100)
	b.c.Recall = true
	g := b.gets(40, 40, 40)
	w.expect("0 false", g.Recalled, g.Recalling)
	g = b.gets(1, 1, 0)
	w.expect("1 true", g.Recalled, g.Recalling)
}

// A clock that goes back by a whole period is not waited for: the key is granted tokens
// again when the window ends that the clock shows now, and a bucket refills from now on.
func TestClockThatGoesBackByAWholePeriod(t *testing.T) {
	for _, c := range []struct {
		limit      ratelimit.Limit
		back, next time.Duration
	}{{perMinute100, time.Minute, 45 * time.Second}, {bucket100, BucketWaits, time.Second}} {
		w := newTwins(t)
		a := w.tenant(1, c.limit)
		a.gets(100, 100, 100)
		a.c.Spent = 100
		a.gets(0, 0, 0)
		w.passes(-c.back)
		a.gets(1, 1, 0)
		w.passes(c.next)
		a.gets(1, 1, 1)
	}
}

// A claim that is for all or nothing is told when all that waits is there: what the
// ledger confirms of the node's drift serves no request.
func TestAllOrNothingWaitsForAll(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, bucket100), w.tenant(2, bucket100)
	b.gets(95, 95, 95)
	b.c.Spent = 95
	b.gets(0, 0, 0)
	a.gets(0, 0, 0)
	a.c.Direct, a.c.Spent = true, 2
	g := a.gets(5, 5, 2)
	w.expect("3 2s", g.Available, g.RetryAfter)
	w.passes(g.RetryAfter)
	a.gets(5, 5, 5)
}

// A node that spent nothing of a sliding window's lease, and has given it all back, weighs
// nothing in the next window.
func TestWhatWasGivenBackWeighsNothing(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, sliding100)
	a.gets(60, 60, 60)
	w.passes(45 * time.Second) // all of the window before counts
	a.c.Returned = 60
	g := a.gets(0, 0, 0)
	w.expect("100", g.Available)
}

// No fence is issued twice, though the ledger has lost its data and its clock went back:
// a node's next fence is above the one that it has.
func TestFencesRiseAfterALoss(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, perMinute100)
	before := a.gets(1, 1, 1).Fence
	w.forget()
	w.passes(-time.Hour)
	if g := a.asks(0, 0); g.Fence <= before {
		t.Errorf("the node had the fence %d, and is given %d", before, g.Fence)
	}
}

// A lease of one token that has expired is void like any other when others have all that
// the bucket holds: else it would give one more than that.
func TestLastTokenOfALateLease(t *testing.T) {
	w := newTwins(t)
	late, other := w.tenant(2, bucket100), w.tenant(4, bucket100)
	late.gets(1, 1, 1)
	w.passes(11 * time.Second) // and it is refilled
	other.gets(100, 100, 100)
	g := late.says(nil)
	w.expect("true 0", g.Void, g.Granted)
}

// When a window is over, the records of those who had leases of it go, whoever claims
// first: an account does not keep holders that are silent.
func TestRecordsGoWithTheirWindow(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.gets(1, 1, 1)
	b.gets(1, 1, 1)
	w.records(2)
	w.passes(time.Minute)
	a.gets(1, 1, 1)
	w.records(1)
	if fields, err := w.redis.client.HLen(t.Context(), "t:k").Result(); err != nil || fields != 2 {
		t.Errorf("%d fields of the account and of one holder, %v", fields, err)
	}
}

// A lease that was used up holds nothing that could be void, however late its node claims,
// and though the bucket was made smaller than what others have.
func TestUsedUpLeaseIsNotVoid(t *testing.T) {
	w := newTwins(t)
	late, other := w.tenant(2, bucket100), w.tenant(4, bucket100)
	other.c.TTL = time.Minute
	late.gets(10, 10, 10)
	other.gets(50, 50, 50)
	w.passes(11 * time.Second)
	late.c.Spent, late.c.Limit.Burst = 10, 20
	g := late.asks(0, 0)
	w.expect("false 10", g.Void, g.Granted)
}

// What an operator gives back in a sliding window counts in the next one by its weight, until a holder
// speaks of that window; also for who claims a second time.
func TestResetOfASlidingWindowWeighsInTheNext(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, sliding100), w.tenant(2, sliding100)
	a.gets(60, 60, 60)
	a.c.Spent = 60
	b.gets(0, 0, 0)
	b.says(func(c *ratelimit.Claim) { c.Reset = true })
	a.c.Returned, a.c.Spent = 40, 20 // of what the reset gave back already
	a.gets(0, 0, 0)
	w.passes(time.Minute)
	c := w.tenant(3, sliding100)
	c.gets(10, 10, 10)
	c.c.Spent = 10
	g := c.asks(0, 0)
	w.expect("100", g.Available) // 90, and what the window before is below 0
}

// An account outlives the window that was claimed ahead, also where nothing was charged before and others
// claim after that.
func TestAccountOutlivesWhatWasClaimedAhead(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.gets(0, 0, 0)
	g := b.says(func(c *ratelimit.Claim) {
		c.Ahead, c.Window, c.Waiting, c.Want = true, perMinute100.WindowAt(w.now)+1, 5, 5
	})
	w.expect("5", g.Granted)
	w.expect("1m45s", w.dead(0))
	a.gets(0, 0, 0)
	w.expect("1m45s", w.dead(0))
}

// A ledger that learns grants a token at least, also of a limit of less than twenty; and no
// second one.
func TestLedgerThatLearnsGrantsOneOfAFew(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
	a.c.Learning = w.now.Add(RelearnTime)
	a.gets(1, 1, 1)
	a.gets(1, 1, 0)
}

// What was over in a window that the ledger knows nothing of counts from the first token on.
func TestFirstWordOnAWindowThatWasLost(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, perMinute100)
	a.c.Tally, a.c.Window, a.c.Granted, a.c.Spent = true, perMinute100.WindowAt(w.now)-1, 100, 103
	g := a.asks(0, 0)
	w.expect("3", g.OverAdmitted)
}

// A holder that has said it ends, and whose record was folded, goes on where it was if it is
// still there: it is charged once for what it has. What it gives back only then stays charged,
// for the ledger does not know any more what it was.
func TestFoldedHolderGoesOn(t *testing.T) {
	for _, limit := range []ratelimit.Limit{perMinute100, sliding100} {
		w := newTwins(t)
		a, b := w.tenant(1, limit), w.tenant(2, limit)
		a.gets(20, 20, 20)
		a.c.Spent = 12
		a.hears(a.says(func(c *ratelimit.Claim) { c.Last = true }))
		w.passes(20 * time.Second)
		b.gets(0, 0, 0)
		w.records(1)
		a.c.Returned = 3
		g := a.gets(0, 0, 0)
		w.expect("false false 20 80", g.Void, g.Missing, g.Granted, g.Available)
		w.records(2)
	}
}

// What a bucket refills, and how long it takes to fill, are exact where microseconds times
// requests are more than 64 bits hold, to the one that is carried over.
func TestBucketCountsBeyond64Bits(t *testing.T) {
	l := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 1<<32 - 1}
	// In so many microseconds it refills 2^64-1, in micro-tokens x seconds, and 1 is carried over.
	level, carry := Refilled(0, 1, 1<<32+1, 1e18, &l)
	if level != 307445734561825860 || carry != 16 { // of 60 seconds
		t.Errorf("%d micro-tokens, and %d are carried over", level, carry)
	}
	l.Requests = 1 << 40
	// 15 x 2^64 are missing, less the 1 that is carried over.
	if got, want := TimeToLevel(1<<62, 0, 1, &l), 15<<24*time.Microsecond; got != want {
		t.Errorf("it takes %v, want %v", got, want)
	}
}
