package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// tell sends a holder's totals, and applies the owner's answer.
func tell(l *Local, now instant, r *ratelimit.Rule, holder ratelimit.Holder, h *Held, seq uint64, want tokens) Lease {
	a := ask{Rule: r, Key: keyOf(1), Kind: ratelimit.Peek}
	m := h.Report(now, seq, want)
	x := l.DecideFor(now, holder, m, &a, new(verdict))
	h.Apply(m.Seq, x)
	return x
}

// A refund that a bucket's holder reports after the end of its lease is credited, without its tokens in hand. So is one
// whose first report was lost.
func TestLateRefundsOfABucket(t *testing.T) {
	r := ownedRule(ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Year, Requests: 1, Burst: 100})
	for _, leases := range []bool{true, false} {
		l, h, want := NewLocal(10, 1, testWall), Held{}, tokens(64)
		if admit(l, 1, r, 40); leases {
			tell(l, 1, r, 77, &h, 1, 20)
			h.Take(1, 10)
			tell(l, 1, r, 77, &h, 2, 0)
			want = 44
		}
		if h.Credit(bucketWindow, 4); !leases {
			h.Lost(h.Report(1, 2, 0).Seq, true)
		}
		for seq := range uint64(3) { // it counts once
			tell(l, instant(2+2*seq)*instant(time.Second), r, 77, &h, 3+seq, 0)
		}
		if v := decideOne(l, instant(time.Minute), ask{Rule: r, Key: keyOf(1), Kind: ratelimit.Peek}); v.Remaining != want {
			t.Errorf("leases %v: %+v, want %d", leases, v, want)
		}
	}
}

// A bucket that another holder leases first is not full again when it has no leases, nor where it moves.
func TestBucketThatOthersLeaseFirst(t *testing.T) {
	for _, moves := range []bool{false, true} {
		l, to := NewLocal(10, 1, testWall), NewLocal(10, 1, testWall)
		r := ownedRule(ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Day, Requests: 20, Burst: 20})
		var h Held
		if x := tell(l, 1, r, 8, &h, 1, 20); x.Granted != 10 {
			t.Fatalf("%+v", x)
		}
		if _, ok := h.Take(1, 10); !ok {
			t.Fatal("what was granted cannot be spent")
		}
		tell(l, 1, r, 8, &h, 2, 0)
		if n := admit(l, 1, r, 40); n != 10 {
			t.Fatal(n)
		}
		if moves {
			handOver(t, 1, l, to, everything)
			l = to
		}
		if x := l.Look(t.Context(), 1, &ask{Rule: r, Key: keyOf(1)}).Ledger; x.Holders[1].Granted != x.Charged {
			t.Errorf("no token is in hand: %+v", x)
		}
		if n := admit(l, instant(time.Minute), r, 40); n != 0 {
			t.Errorf("20 were spent of a bucket of 20 a minute ago, and %d more are admitted", n)
		}
	}
}

// A message that was under way when its lease of a bucket was over keeps nothing: the bucket has filled in its place.
func TestLeaseThatIsOverIsVoid(t *testing.T) {
	l := NewLocal(10, 1, testWall)
	r := testRule(ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 60_000, Burst: 100})
	var h Held
	if x := tell(l, 1, r, 8, &h, 1, 100); x.Granted != 50 || x.For != time.Second {
		t.Fatalf("%+v", x)
	}
	m := h.Report(instant(900*time.Millisecond), 2, 0)
	late := instant(1500 * time.Millisecond)
	a := ask{Rule: r, Key: keyOf(1), Kind: ratelimit.Peek}
	x := l.DecideFor(late, 8, m, &a, new(verdict))
	if h.Apply(m.Seq, x); !x.Void || h.InHand(late) != 0 {
		t.Errorf("%+v: %d are in hand", x, h.InHand(late))
	}
	if n := admit(l, late, r, 200); n != 100 {
		t.Errorf("%d are admitted of a bucket that has filled", n)
	}
}

// A key that shared a budget does not get its limit again once there is room for it.
func TestOverflowThenTracked(t *testing.T) {
	l := NewLocal(64, 1, testWall)
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
	l := NewLocal(64, 1, testWall)
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

// A credit while the first message about a key is under way counts in its own window, and not in that of the answer.
func TestCreditIsOfItsWindow(t *testing.T) {
	l := NewLocal(10, 1, testWall)
	r := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
	r.Coordination.OnDeny = ratelimit.DenyRefunds
	charged := decideOne(l, 1, ask{Rule: r, Key: keyOf(1), Cost: 4})
	var h Held
	m := h.Report(1, 1, 0)
	h.Credit(charged.Window, 4)
	now := instant(50 * time.Second) // the next window
	n := admit(l, now, r, 20)
	h.Apply(m.Seq, l.DecideFor(now, 8, m, &ask{Rule: r, Key: keyOf(1), Kind: ratelimit.Peek}, new(verdict)))
	tell(l, now, r, 8, &h, 2, 0)
	if n += admit(l, now, r, 20); n != 10 {
		t.Errorf("%d are admitted of 10", n)
	}
}

// A key that was dropped when its window was over has no window given twice, also when the clock goes back.
func TestDropThenClockBack(t *testing.T) {
	l := NewLocal(64, 1, testWall)
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
	a, b := NewLocal(10, 1, testWall), NewLocal(10, 1, testWall)
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
	l := NewLocal(10, 1, testWall)
	r := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
	key := keyOf(1)
	var h Held
	if x := tell(l, 1, r, 8, &h, 1, 5); x.Granted != 5 {
		t.Fatal(x)
	}
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

// Refunds that an owner has booked before its crash are of charges that are lost with it: the next owner credits none.
// It credits one that is new to all.
func TestNextOwnerCreditsNoOldRefunds(t *testing.T) {
	r := ownedRule(ratelimit.Limit{Unit: ratelimit.Hour, Requests: 20})
	r.Coordination.OnDeny = ratelimit.DenyRefunds
	first, next := NewLocal(10, 1, testWall), NewLocal(10, 1, testWall)
	admit(first, 1, r, 15)
	var h Held
	tell(first, 1, r, 8, &h, 1, 0)
	h.Credit(0, 5)
	if tell(first, 1, r, 8, &h, 2, 0); admit(first, 1, r, 20) != 10 {
		t.Fatal("5 of 15 are not given back at the owner")
	}
	h.Credit(0, 2)
	admit(next, 2, r, 10)
	tell(next, 2, r, 8, &h, 3, 0)
	if n := admit(next, 2, r, 20); n != 12 {
		t.Errorf("%d of 20 are admitted after 10 and a refund of 2, by an owner that lacks the charges of 5 refunds", n)
	}
}
