package local

import (
	"context"
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
)

var testWall = time.Unix(1_800_000_015, 0)

func testRule(l ratelimit.Limit) *ratelimit.Rule {
	return &ratelimit.Rule{Domain: "d", Path: "p", Limit: l, Coordination: ratelimit.DefaultCoordination()}
}

func keyOf(n uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{1, 0, 1, 'd'}, n)
}

func decideOne(l *Limiter, now instant, a ask) verdict {
	v := make([]verdict, 1)
	l.Decide(context.Background(), now, []ask{a}, v)
	return v[0]
}

func TestCountdownIsExact(t *testing.T) {
	l := New(100, 1, testWall)
	rule := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 20})
	for want := tokens(19); want >= 0; want-- {
		v := decideOne(l, 1, ask{Rule: rule, Key: keyOf(1), Cost: 1})
		if v.OverLimit || v.Remaining != want || v.ResetAfter != 45*time.Second {
			t.Fatalf("%+v, want %d remaining and 45s", v, want)
		}
	}
	for range 3 {
		if v := decideOne(l, 1, ask{Rule: rule, Key: keyOf(1), Cost: 1}); !v.OverLimit || v.Remaining != 0 {
			t.Fatalf("%+v, want over limit", v)
		}
	}
}

// paper is a budget as a person would write it down: what each algorithm
// means, on one node, with no leases.
type paper struct {
	limit  ratelimit.Limit
	onDeny ratelimit.OnDeny
	window int64
	used   tokens // in the window, and before
	prev   tokens
	at     time.Duration
	level  float64
}

// roll brings it to an instant.
func (c *paper) roll(at time.Duration) {
	c.level = min(float64(c.limit.Burst), c.level+float64(at-c.at)*float64(c.limit.Requests)/float64(c.limit.Period()))
	c.at = at
	if w := int64(at / c.limit.Period()); w != c.window {
		c.prev = 0
		if w == c.window+1 && c.limit.Algorithm == ratelimit.SlidingWindow {
			c.prev = c.used
		}
		c.window, c.used = w, 0
	}
}

// left is what may be spent; below nothing by what is owed.
func (c *paper) left() tokens {
	if c.limit.Algorithm == ratelimit.TokenBucket {
		return tokens(math.Floor(c.level + 1e-6))
	}
	left := c.limit.Period() - c.at%c.limit.Period()
	weighted := (int64(c.prev)*int64(left) + int64(c.limit.Period()) - 1) / int64(c.limit.Period())
	return c.limit.Requests - c.used - tokens(weighted)
}

// book books n tokens, or credits them.
func (c *paper) book(n tokens) {
	c.level = min(float64(c.limit.Burst), c.level-float64(n))
	c.used = max(0, c.used+n)
}

// ask answers, and says what was booked.
func (c *paper) ask(at time.Duration, kind ratelimit.Kind, cost tokens) (over bool, remaining, booked tokens) {
	c.roll(at)
	switch {
	case kind == ratelimit.Refund:
		c.book(-cost)
	case kind == ratelimit.Peek:
		over = c.left() < 0
	case cost > c.left():
		if over = true; c.onDeny == ratelimit.DenyCharges {
			booked = cost
		}
	default:
		booked = cost
	}
	if booked > 0 {
		c.book(booked)
	}
	return over, max(0, c.left()), booked
}

// Random requests at random instants, against the budget above: on one node
// every answer is exact, a denial is booked whole, and undone so.
func TestLocalIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// A second is 2^20 ticks of a sliding window at most: whole
		// milliseconds are exact in both.
		limit := ratelimit.Limit{
			Algorithm: rapid.SampledFrom([]ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.TokenBucket}).Draw(t, "algorithm"),
			Unit:      ratelimit.Second,
			Requests:  tokens(rapid.IntRange(1, 50).Draw(t, "limit")),
		}
		if limit.Algorithm == ratelimit.TokenBucket {
			limit.Burst = tokens(rapid.IntRange(1, 50).Draw(t, "burst"))
		}
		rule := testRule(limit)
		rule.Coordination.OnDeny = ratelimit.OnDeny(rapid.IntRange(0, 1).Draw(t, "on_deny"))
		rule.Coordination.Lease.Fixed = tokens(rapid.IntRange(0, 5).Draw(t, "lease.size"))
		model := paper{limit: limit, onDeny: rule.Coordination.OnDeny, level: float64(limit.Burst)}
		at := time.Duration(0)
		l := New(10, 1, time.Unix(1_800_000_000, 0))
		for range rapid.IntRange(1, 80).Draw(t, "requests") {
			at += time.Duration(rapid.IntRange(0, 400).Draw(t, "wait")) * time.Millisecond
			kind := rapid.SampledFrom([]ratelimit.Kind{ratelimit.Spend, ratelimit.Spend, ratelimit.Spend, ratelimit.Peek, ratelimit.Refund}).Draw(t, "kind")
			cost := tokens(rapid.IntRange(1, 12).Draw(t, "cost"))
			if kind == ratelimit.Peek {
				cost = 0
			}
			over, remaining, booked := model.ask(at, kind, cost)
			a := ask{Rule: rule, Key: keyOf(1), Cost: cost, Kind: kind}
			v := decideOne(l, instant(at)+1, a)
			if v.OverLimit != over || v.Remaining != remaining {
				t.Fatalf("at %v, %v of %d under %v: over %v, remaining %d; want %v, %d", at, kind, cost, limit, v.OverLimit, v.Remaining, over, remaining)
			}
			if rapid.IntRange(0, 5).Draw(t, "undo") == 0 && booked > 0 {
				model.book(-booked)
				l.Undo(instant(at)+1, []ask{a}, []verdict{v})
			}
		}
	})
}

// A limit that changes on a reload goes on from what was used.
func TestChangedLimitGoesOn(t *testing.T) {
	l := New(10, 1, testWall)
	key := keyOf(1)
	for _, c := range []struct{ limit, remaining tokens }{{20, 10}, {15, 4}, {30, 18}} {
		rule := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: c.limit})
		cost := tokens(1)
		if c.limit == 20 {
			cost = 10
		}
		if v := decideOne(l, 1, ask{Rule: rule, Key: key, Cost: cost}); v.OverLimit || v.Remaining != c.remaining {
			t.Fatalf("limit %d: %+v, want %d remaining", c.limit, v, c.remaining)
		}
	}
	rule := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 5})
	if v := decideOne(l, 1, ask{Rule: rule, Key: key, Cost: 1}); !v.OverLimit {
		t.Fatalf("limit 5 with 12 used: %+v", v)
	}
}

// The wall clock may be corrected: no window is given twice, and none lasts for
// as long as the clock went back.
func TestWallClockStepsBack(t *testing.T) {
	l := New(10, 1, testWall)
	rule := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 3})
	a := ask{Rule: rule, Key: keyOf(1), Cost: 3}
	decideOne(l, 1, a)
	l.SyncClock(1, testWall.Add(-time.Hour))
	for _, now := range []instant{1, instant(40 * time.Second)} {
		if v := decideOne(l, now, a); !v.OverLimit {
			t.Fatalf("at %d the budget was given again: %+v", now, v)
		}
	}
	if v := decideOne(l, instant(50*time.Second), a); v.OverLimit {
		t.Fatalf("the clock shows the next minute, and it did not begin: %+v", v)
	}
	l.SyncClock(instant(50*time.Second), testWall.Add(50*time.Second))
	if v := decideOne(l, instant(100*time.Second), a); v.OverLimit {
		t.Fatalf("the next window did not begin: %+v", v)
	}
}

// However many keys there are, none gets more than its limit, a key that was
// limited stays limited, and memory stays where it is.
func TestMoreKeysThanItMayTrack(t *testing.T) {
	const maxKeys = 2048
	l := New(maxKeys, 1, testWall)
	rule := testRule(ratelimit.Limit{Unit: ratelimit.Hour, Requests: 5})
	spend := func(key uint64) verdict { return decideOne(l, 1, ask{Rule: rule, Key: keyOf(key), Cost: 1}) }
	for range 5 {
		spend(0)
	}
	admitted := map[uint64]int{}
	for round := range 8 {
		for key := uint64(1); key <= 5*maxKeys; key++ {
			if !spend(key).OverLimit {
				admitted[key]++
			}
		}
		if !spend(0).OverLimit {
			t.Fatalf("round %d: the limited key was forgotten", round)
		}
	}
	for key, n := range admitted {
		if n > 5 {
			t.Fatalf("key %d was admitted %d times under a limit of 5", key, n)
		}
	}
	s := l.Stats()
	if s.Overflow == 0 || s.Accounts > maxKeys+maxKeys/8 {
		t.Fatalf("%+v", s)
	}
	// When the window is over, there is room again, for others too.
	next := instant(2 * time.Hour)
	for key := uint64(100_000); key < 100_000+maxKeys/2; key++ {
		if v := decideOne(l, next, ask{Rule: rule, Key: keyOf(key), Cost: 1}); v.Source == ratelimit.FromOverflow {
			t.Fatalf("key %d found no room in a ledger of dead accounts", key)
		}
	}
}

func TestDecideAllocatesNothing(t *testing.T) {
	l := New(1000, 1, testWall)
	for algorithm := range ratelimit.RateAlgorithms() {
		limit := ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Hour, Requests: 1 << 30, Burst: 1 << 30}
		asks := []ask{{Rule: testRule(limit), Key: keyOf(uint64(algorithm)), Cost: 1}}
		verdicts := make([]verdict, 1)
		if n := testing.AllocsPerRun(1000, func() { l.Decide(context.Background(), 1, asks, verdicts) }); n != 0 {
			t.Errorf("%v: %v allocations", limit, n)
		}
	}
}

// From many goroutines at once, a limit admits exactly as many as it says.
func TestConcurrentSpendsAreExact(t *testing.T) {
	const limit, callers, calls = 1000, 8, 500
	for algorithm := range ratelimit.RateAlgorithms() {
		l := New(100, 1, testWall)
		rule := testRule(ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Hour, Requests: limit, Burst: limit})
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range calls {
					if !decideOne(l, 1, ask{Rule: rule, Key: keyOf(1), Cost: 1}).OverLimit {
						admitted.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if n := admitted.Load(); n != limit {
			t.Errorf("%v: admitted %d", rule.Limit, n)
		}
	}
}
