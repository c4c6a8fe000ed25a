package local

import (
	"context"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

// A cold key's place is one cache line.
func TestCounterCellIsOneCacheLine(t *testing.T) {
	if n := unsafe.Sizeof(counterCell{}); n != 64 {
		t.Errorf("a key takes %d bytes", n)
	}
}

func drawLimit(t *rapid.T) ratelimit.Limit {
	l := ratelimit.Limit{
		Algorithm: rapid.SampledFrom([]ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.TokenBucket}).Draw(t, "algorithm"),
		Unit:      ratelimit.Unit(rapid.IntRange(1, int(ratelimit.BillingMonth)).Draw(t, "unit")),
		Requests:  tokens(rapid.SampledFrom([]int64{1, 2, 7, 100, 1 << 32, 30_000_000_000}).Draw(t, "limit")),
	}
	if l.Unit.OfCalendar() {
		l.Algorithm = ratelimit.FixedWindow
	}
	if l.Unit == ratelimit.BillingMonth {
		zones := []string{"UTC", "America/New_York", "Pacific/Kiritimati", "Etc/GMT+12", "America/Asuncion", "Africa/Cairo"}
		c, err := zone.Calendar(rapid.IntRange(1, 31).Draw(t, "day"), rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		l = l.Billed(c)
	}
	if l.Algorithm == ratelimit.TokenBucket {
		l.Burst = tokens(rapid.SampledFrom([]int64{1, 2, 7, 100, 1 << 32, 30_000_000_000}).Draw(t, "burst"))
	}
	return l
}

func (c *counter) ask(now ledgerTime, r *ratelimit.Rule, kind ratelimit.Kind, cost tokens) verdict {
	v := verdict{}
	c.decide(now, &ask{Rule: r, Cost: cost, Kind: kind}, &v)
	return v
}

// A refusal has the time at which the same cost passes, without further usage: it does not pass a microsecond
// earlier, and it passes then. A cost above the limit never does.
func TestRefusedCostPassesWhenItSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := testRule(drawLimit(t))
		r.Coordination.OnDeny = ratelimit.OnDeny(rapid.IntRange(0, 1).Draw(t, "on_deny"))
		now := ledgerTime(1_800_000_000_000_000 + rapid.Int64Range(0, 1e14).Draw(t, "begin"))
		period := int64(r.Limit.Period() / time.Microsecond)
		c, capacity := counter{}, int64(r.Limit.Capacity())
		for range rapid.IntRange(1, 20).Draw(t, "asks") {
			now += ledgerTime(rapid.Int64Range(0, period/3).Draw(t, "wait"))
			cost := tokens(rapid.Int64Range(1, capacity+1).Draw(t, "cost"))
			v := c.ask(now, r, ratelimit.Spend, cost)
			if !v.OverLimit || cost > r.Limit.Capacity() || v.ResetAfter > 100*365*24*time.Hour {
				continue // it never passes, or beyond what a duration can say
			}
			if v.ResetAfter <= 0 {
				t.Fatalf("%+v", v)
			}
			at := now + ledgerTime(v.ResetAfter/time.Microsecond)
			early, late := c, c
			if over := early.ask(at-1, r, ratelimit.Spend, cost).OverLimit; !over {
				t.Fatalf("%d of %v at %d passes earlier than after %v", cost, r.Limit, now, v.ResetAfter)
			}
			if over := late.ask(at, r, ratelimit.Spend, cost).OverLimit; over {
				t.Fatalf("%d of %v at %d does not pass after %v", cost, r.Limit, now, v.ResetAfter)
			}
		}
	})
}

// A counter that is dead answers as a new one does, to everything.
func TestDeadCounterIsNew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := testRule(drawLimit(t))
		r.Coordination.OnDeny = ratelimit.OnDeny(rapid.IntRange(0, 1).Draw(t, "on_deny"))
		now := ledgerTime(1_800_000_000_000_000)
		period := int64(r.Limit.Period() / time.Microsecond)
		c := counter{}
		kind := func() ratelimit.Kind {
			return rapid.SampledFrom([]ratelimit.Kind{ratelimit.Spend, ratelimit.Spend, ratelimit.Peek, ratelimit.Refund}).Draw(t, "kind")
		}
		for range rapid.IntRange(1, 20).Draw(t, "asks") {
			now += ledgerTime(rapid.Int64Range(0, period).Draw(t, "wait"))
			c.ask(now, r, kind(), tokens(rapid.Int64Range(1, int64(r.Limit.Capacity())+1).Draw(t, "cost")))
			dead := max(now, c.dead(r.Limit.Algorithm))
			if dead > now+100*ledgerTime(period) { // a bucket that takes years
				continue
			}
			old, fresh := c, counter{}
			at := dead + ledgerTime(rapid.Int64Range(0, 3*period).Draw(t, "later"))
			for range 3 {
				k, cost := kind(), tokens(rapid.Int64Range(1, int64(r.Limit.Capacity())+1).Draw(t, "cost"))
				if k == ratelimit.Refund && r.Limit.Algorithm == ratelimit.TokenBucket {
					continue // a full bucket may be refunded what it has spent: it stays full
				}
				if got, want := old.ask(at, r, k, cost), fresh.ask(at, r, k, cost); got != want {
					t.Fatalf("%v of %d under %v: %+v, a new one says %+v", k, cost, r.Limit, got, want)
				}
			}
		}
	})
}

// However the clock is set, in each window at most the limit is spent: a window that
// the clock has come back to is not given again.
func TestClockOfACounter(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		r := testRule(ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Minute, Requests: 10, Burst: 10})
		const start = ledgerTime(1_800_000_030_000_000)
		for _, back := range []time.Duration{0, time.Millisecond, 500 * time.Millisecond, 45 * time.Second, time.Minute, time.Hour} {
			c := counter{}
			c.ask(start, r, ratelimit.Spend, 10)
			set := start.Add(-back)
			if v := c.ask(set, r, ratelimit.Spend, 1); !v.OverLimit {
				t.Errorf("%v: set back by %v, and 11 were admitted: %+v", r.Limit, back, v)
			}
			if v := c.ask(set.Add(2*time.Minute), r, ratelimit.Spend, 1); back > time.Minute && v.OverLimit {
				t.Errorf("%v: set back by %v, and two minutes later: %+v", r.Limit, back, v)
			}
		}
	}
}

// A bucket that does not refill is never dropped.
func TestBucketThatDoesNotRefill(t *testing.T) {
	r := testRule(ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Burst: 3})
	l := New(64, 1, testWall)
	for i := range 3 {
		if v := decideOne(l, 1, ask{Rule: r, Key: keyOf(1), Cost: 1}); v.OverLimit {
			t.Fatalf("%d: %+v", i, v)
		}
	}
	for key := range uint64(1000) {
		decideOne(l, instant(time.Hour), ask{Rule: r, Key: keyOf(2 + key), Cost: 1})
	}
	if v := decideOne(l, instant(time.Hour), ask{Rule: r, Key: keyOf(1), Cost: 1}); !v.OverLimit {
		t.Errorf("it was filled again: %+v", v)
	}
}

// Limits are remembered by number, and only so many.
func TestLimitNotes(t *testing.T) {
	var n limitNotes
	for limit := tokens(1); limit < 3*mostNotes; limit++ {
		number := n.note(limit)
		if got := n.limit(number); got != limit && (got != 0 || limit < mostNotes) {
			t.Fatalf("limit %d has number %d, which is %d", limit, number, got)
		}
		if again := n.note(limit); again != number {
			t.Fatalf("limit %d has numbers %d and %d", limit, number, again)
		}
	}
	if len(n.limits) > mostNotes {
		t.Errorf("%d limits", len(n.limits))
	}
}

func ExampleLocal() {
	wall := time.Date(2027, 1, 1, 12, 0, 0, 0, time.UTC)
	limiter := New(1_000_000, 1, wall)
	rule := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 2})
	key := ratelimit.AppendEntry(ratelimit.AppendPrefix(nil, "shop", rule.Limit), "user", "ada", ratelimit.OfRequest)
	for range 3 {
		v := make([]ratelimit.Verdict, 1)
		limiter.Decide(context.Background(), 1, []ratelimit.Ask{{Rule: rule, Key: key, Cost: 1}}, v)
		fmt.Println(v[0].OverLimit, v[0].Remaining)
	}
	// Output:
	// false 1
	// false 0
	// true 0
}
