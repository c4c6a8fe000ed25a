package local

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A key that shared a budget does not get its limit again once there is room for it.
func TestOverflowThenTracked(t *testing.T) {
	l := New(64, 1, testWall)
	sec := testRule(ratelimit.Limit{Unit: ratelimit.Second, Requests: 100})
	hour := testRule(ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10})
	for k := range uint64(64) {
		decideOne(l, 1, ask{Rule: sec, Key: keyOf(100 + k), Cost: 1})
	}
	n := admit(l, 1, hour, 20) // shares a budget
	n += admit(l, instant(2*time.Second), hour, 20)
	if n > 10 {
		t.Errorf("%d admitted in an hour under a limit of 10", n)
	}
}

// A key without room is refused at a peek once the budget that it shares is in debt, until tokens are given back.
func TestSharedBudgetRefusesPeeks(t *testing.T) {
	l := New(64, 1, testWall)
	r := testRule(ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10})
	for k := range uint64(64) {
		decideOne(l, 1, ask{Rule: r, Key: keyOf(100 + k), Cost: 1})
	}
	decideOne(l, 1, ask{Rule: r, Key: keyOf(1), Cost: 15, Kind: ratelimit.Charge})
	if v := decideOne(l, 1, ask{Rule: r, Key: keyOf(1), Kind: ratelimit.Peek}); !v.OverLimit {
		t.Errorf("15 of 10 are used: %+v", v)
	}
	shared := &ask{Rule: r, Key: keyOf(1)}
	if v := l.Look(t.Context(), 1, shared).Ledger; v == nil || v.Free != -5 || l.Reset(t.Context(), 1, shared) == nil {
		t.Errorf("%+v is shown, or others' usage reset", v)
	}
	for _, kind := range []ratelimit.Kind{ratelimit.Refund, ratelimit.Release} {
		decideOne(l, 1, ask{Rule: r, Key: keyOf(1), Cost: 5, Kind: kind})
	}
	if v := decideOne(l, 1, ask{Rule: r, Key: keyOf(1), Cost: 5}); v.OverLimit {
		t.Errorf("10 of 15 were given back: %+v", v)
	}
}

// A key that was dropped when its window was over has no window given twice, also when the clock goes back.
func TestDropThenClockBack(t *testing.T) {
	l := New(64, 1, testWall)
	r := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
	n := admit(l, 1, r, 20) // at :15
	next := instant(46 * time.Second)
	for k := range uint64(64) {
		decideOne(l, next, ask{Rule: r, Key: keyOf(100 + k), Cost: 1})
	}
	l.SyncClock(next, testWall.Add(44*time.Second)) // two seconds back
	n += admit(l, next, r, 20)
	// It counts in the window that had begun already, which is not given again.
	if n += admit(l, next.Add(10*time.Second), r, 20); n > 20 {
		t.Errorf("%d admitted in two windows under a limit of 10", n)
	}
}

// A bucket that was idle here for long does not fill the one that comes.
func TestMergeIdleBucket(t *testing.T) {
	a, b := New(10, 1, testWall), New(10, 1, testWall)
	r := ownedRule(ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 10, Burst: 10})
	admit(b, 1, r, 1)
	now := instant(10 * time.Minute)
	if n := admit(a, now, r, 20); n != 10 {
		t.Fatal(n)
	}
	handOver(t, now, a, b, everything)
	if n := admit(b, now, r, 20); n != 0 {
		t.Errorf("10 were just spent of a bucket of 10, and %d more are admitted after the hand-over", n)
	}
}

// What was spent of a fixed window before is no debt of this one.
func TestWindowBeforeIsNoDebt(t *testing.T) {
	l := New(10, 1, testWall)
	r := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
	key := keyOf(1)
	admit(l, 1, r, 5)
	now := instant(50 * time.Second) // the next window
	admit(l, now, r, 10)
	if v := decideOne(l, now, ask{Rule: r, Key: key, Kind: ratelimit.Peek}); v.OverLimit {
		t.Errorf("%+v: nothing was refused", v)
	}
	if x := l.Look(t.Context(), now, &ask{Rule: r, Key: key}).Ledger; len(x.Holders) != 1 || x.Holders[0].Granted != 10 {
		t.Errorf("10 are charged, all at this node: %+v", x)
	}
	if v := decideOne(l, now, ask{Rule: r, Key: key, Cost: 4, Kind: ratelimit.Refund}); v.Remaining != 4 {
		t.Errorf("%+v, want 4", v)
	}
}

// A limit that was lowered below what is spent, and the largest cost, do not overflow.
func TestLowLimitHugeCost(t *testing.T) {
	r := testRule(ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: 20})
	c, now := counter{}, ledgerTime(1_800_000_000_000_000)
	c.ask(now-1, r, ratelimit.Spend, 1)
	c.ask(now, r, ratelimit.Spend, 15)
	low := testRule(ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: 5})
	if v := c.ask(now+1, low, ratelimit.Spend, ratelimit.MaxTokens); v.ResetAfter < time.Second {
		t.Errorf("%+v", v)
	}
}
