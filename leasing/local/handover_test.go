package local

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// ownedRule is of keys that move with a ring.
func ownedRule(l ratelimit.Limit) *ratelimit.Rule {
	r := testRule(l)
	r.Coordination.Mode = ratelimit.Routing
	return r
}

// handOver moves the keys that match accepts.
func handOver(t *testing.T, now instant, from, to *Limiter, match func(key []byte) bool) (handed int) {
	t.Helper()
	var keys [][]byte
	for v := (Visit{}); !from.Visit(&v, func(key []byte) {
		if match(key) {
			keys = append(keys, append([]byte(nil), key...))
		}
	}); {
	}
	for _, key := range keys {
		if a, ok := from.TakeOut(now, key); ok {
			handed++
			if !to.Adopt(now, key, a, from.LedgerNow(now)) {
				t.Fatal("no room")
			}
		}
	}
	return handed
}

// Keys that wander between processes admit what one process would have
// admitted, to the token.
func TestHandOver(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		t.Run(ratelimit.Algorithms[algorithm], func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, uint64(algorithm)))
			wall := time.Unix(1_800_000_000, 0)
			one := New(1000, 1, wall)
			several := []*Limiter{New(1000, 1, wall), New(1000, 1, wall), New(1000, 1, wall)}
			owner := make([]int, 50)
			now := instant(1)
			for step := range 20_000 {
				now = now.Add(time.Duration(rnd.Int64N(int64(2 * time.Millisecond))))
				k := rnd.IntN(len(owner))
				r := ownedRule(ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Second, Multiplier: 3, Requests: tokens(1 + k%7*5), Burst: tokens(1 + k%7*5)})
				a := ask{Rule: r, Key: keyOf(uint64(k)), Cost: 1 + tokens(rnd.IntN(2))}
				want, got := decideOne(one, now, a), decideOne(several[owner[k]], now, a)
				want.Source, got.Source = 0, 0
				if want.OverLimit != got.OverLimit || want.Remaining != got.Remaining {
					t.Fatalf("step %d, %v: %+v, one process says %+v", step, r.Limit, got, want)
				}
				if rnd.IntN(20) == 0 { // all keys of a kind go elsewhere
					kind, to := rnd.IntN(5), rnd.IntN(3)
					for from := range several {
						if from != to {
							handOver(t, now, several[from], several[to], func(key []byte) bool { return int(key[4])%5 == kind })
						}
					}
					for k := range owner {
						if k%5 == kind {
							owner[k] = to
						}
					}
				}
			}
			for _, l := range several {
				for _, seen := range l.Hottest(now, len(owner)) {
					if seen.Limit == 0 || seen.Spent < 0 {
						t.Errorf("%+v", seen)
					}
				}
			}
		})
	}
}

// An account that arrives where the key is known already is charged there too.
func TestAdoptMerges(t *testing.T) {
	wall := time.Unix(1_800_000_000, 0)
	a, b := New(10, 1, wall), New(10, 1, wall)
	r := ownedRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
	admit(a, 2, r, 4)
	admit(b, 2, r, 4)
	handed := handOver(t, 3, a, b, func([]byte) bool { return true })
	v := decideOne(b, 4, ask{Rule: r, Key: keyOf(1), Cost: 2})
	if next := decideOne(b, 4, ask{Rule: r, Key: keyOf(1), Cost: 1}); handed != 1 || v.OverLimit || !next.OverLimit {
		t.Error(handed, v, next)
	}
}

// admit sends that many requests for single tokens, and returns the number of admitted ones.
func admit(l *Limiter, now instant, r *ratelimit.Rule, n int) (admitted int) {
	for range n {
		if !decideOne(l, now, ask{Rule: r, Key: keyOf(1), Cost: 1}).OverLimit {
			admitted++
		}
	}
	return admitted
}

func everything([]byte) bool { return true }

// An account of a newer window that arrives over one of an older counts in the
// newer, and the older as the window before. So it does the other way round.
func TestAdoptOverAnotherWindow(t *testing.T) {
	wall := time.Unix(1_800_000_000, 0)
	minute := instant(1).Add(time.Minute)
	for _, x := range []struct {
		algorithm ratelimit.Algorithm
		had, want int
	}{{ratelimit.FixedWindow, 12, 4}, {ratelimit.SlidingWindow, 3, 1}} {
		for _, newerArrives := range []bool{true, false} {
			r := ownedRule(ratelimit.Limit{Algorithm: x.algorithm, Unit: ratelimit.Minute, Requests: 10})
			older, newer := New(10, 1, wall), New(10, 1, wall)
			admit(older, 1, r, x.had)
			admit(newer, minute, r, 6)
			here, from := older, newer
			if !newerArrives {
				here, from = newer, older
			}
			handOver(t, minute, from, here, everything)
			if got := admit(here, minute, r, 20); got != x.want {
				t.Errorf("%+v, the newer arrives %v: %d more were admitted", x, newerArrives, got)
			}
		}
	}
}

// Owners' clocks differ: a window gets longer by the difference, at most once,
// and is never granted twice.
func TestHandOverBetweenClocks(t *testing.T) {
	r := ownedRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
	wall := time.Unix(1_800_000_000, 0)
	start := instant(time.Second)
	for _, skew := range []time.Duration{300 * time.Millisecond, -300 * time.Millisecond, 10 * time.Minute, -10 * time.Minute} {
		a, b := New(10, start, wall), New(10, start, wall.Add(skew))
		// There, and back again across the boundary of a's window.
		now := start.Add(time.Minute - 200*time.Millisecond)
		if got := admit(a, now, r, 20); got != 10 {
			t.Fatal(got)
		}
		handOver(t, now, a, b, everything)
		total := admit(b, now, r, 20)
		now = now.Add(100 * time.Millisecond)
		total += admit(b, now, r, 20)
		handOver(t, now, b, a, everything)
		total += admit(a, now, r, 20)
		if total != 0 {
			t.Errorf("skew %v: %d more were admitted in one window", skew, total)
		}
		// The window's end comes, late by the difference where that is less than a period.
		now = start.Add(time.Minute + min(max(skew, -skew), time.Minute) + 200*time.Millisecond)
		if got := admit(a, now, r, 20); got != 10 {
			t.Errorf("skew %v: %d of 10 were admitted in the next window", skew, got)
		}
	}
}

// A key goes to a node whose clock is behind, and comes back; then its node's clock is set back. The
// difference and the step are less than a period each, and together they are one: the window is not
// granted once more when that clock shows it again.
func TestClockThatIsSetBackAfterAMove(t *testing.T) {
	wall := time.Unix(1_800_000_000, 0)
	for algorithm := range ratelimit.TokenBucket { // a bucket has no windows
		r := ownedRule(ratelimit.Limit{Algorithm: algorithm, Unit: ratelimit.Minute, Requests: 10})
		r.Coordination.OnDeny = ratelimit.DenyRefunds
		const ahead, behind = 29 * time.Second, -29 * time.Second
		start := instant(time.Second)
		a, b := New(10, start, wall.Add(ahead)), New(10, start, wall.Add(behind))
		// When a's clock has just begun a window, the key is used up there.
		now := start.Add(time.Minute - ahead)
		if got := admit(a, now, r, 20); got != 10 {
			t.Fatal(got)
		}
		handOver(t, now, a, b, everything)
		handOver(t, now, b, a, everything)
		a.SyncClock(start, wall.Add(behind))
		total := 0
		for range 58 { // until that clock shows what it showed when all were spent
			total += admit(a, now, r, 1)
			now = now.Add(time.Second)
		}
		if total += admit(a, now, r, 20); total != 0 {
			t.Errorf("%s: %d more were admitted in one window", ratelimit.Algorithms[algorithm], total)
		}
		now = now.Add(90 * time.Second) // a sliding window has let go of half of it
		if got := admit(a, now, r, 20); got == 0 {
			t.Errorf("%s: nothing was admitted in the next window", ratelimit.Algorithms[algorithm])
		}
	}
}

// A used-up key moves to a node whose clock is 10 s behind. When its window has ended by the sender's clock alone, the
// receiver's full table does not drop it: its window is not granted once more.
func TestKeyIsKeptUntilItsWindowHasEndedHere(t *testing.T) {
	wall := time.Unix(1_800_000_000, 0) // a minute begins
	a, b := New(10, 1, wall.Add(55*time.Second)), New(10, 1, wall.Add(45*time.Second))
	r := ownedRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
	if got := admit(a, 1, r, 20); got != 10 {
		t.Fatal(got)
	}
	handOver(t, 1, a, b, everything)
	over := instant(8 * time.Second)
	for k := range uint64(30) {
		decideOne(b, over, ask{Rule: r, Key: keyOf(2 + k), Cost: 1})
	}
	if got := admit(b, over, r, 20); got != 0 || !b.Has(keyOf(1)) {
		t.Errorf("%d more were admitted in one window", got)
	}
	if got := admit(b, instant(16*time.Second), r, 20); got != 10 {
		t.Errorf("%d of 10 were admitted in the next window", got)
	}
}

// A key is used up, and not charged in the next window. Then the clock is set back into the first. The key is not
// dropped there, and moves with the number of the later window.
func TestKeyIsNotForgottenAheadOfItsClock(t *testing.T) {
	for algorithm := range ratelimit.TokenBucket { // a bucket has no windows
		wall := time.Unix(1_800_000_000, 0)
		a, b := New(10, 1, wall), New(10, 1, wall)
		r := ownedRule(ratelimit.Limit{Algorithm: algorithm, Unit: ratelimit.Minute, Requests: 10})
		r.Coordination.OnDeny = ratelimit.DenyRefunds
		if got := admit(a, 1, r, 20); got != 10 {
			t.Fatal(got)
		}
		next := instant(1).Add(time.Minute + 30*time.Second)
		one := ask{Rule: r, Key: keyOf(1), Cost: 1}
		v := decideOne(a, next, one)
		if v.OverLimit {
			t.Fatalf("%+v", v)
		}
		a.Undo(next, []ask{one}, []verdict{v})
		a.SyncClock(next, wall.Add(45*time.Second))
		b.SyncClock(next, wall.Add(45*time.Second))
		handOver(t, next, a, b, everything)
		if got := decideOne(b, next, one); got.Window != v.Window {
			t.Errorf("%s: a request is charged to window %d once more: %+v", ratelimit.Algorithms[algorithm], got.Window, got)
		}
	}
}

// Only keys of a mode with owners are shown, as the rule of their last request says.
func TestVisitShowsOwnedKeysOnly(t *testing.T) {
	l := New(100, 1, time.Unix(1_800_000_000, 0))
	for i, mode := range []ratelimit.Mode{ratelimit.Leasing, ratelimit.Routing, ratelimit.Approx, ratelimit.Routing} {
		r, shown := testRule(ratelimit.Limit{Algorithm: ratelimit.Algorithm(i % 2 * 2), Unit: ratelimit.Hour, Requests: 10, Burst: 10}), 0
		r.Coordination.Mode = mode
		decideOne(l, 2, ask{Rule: r, Key: keyOf(1), Cost: 1})
		for v := (Visit{}); !l.Visit(&v, func([]byte) { shown++ }); {
		}
		if want := i % 2; shown != want {
			t.Errorf("after a request of mode %v, %d keys are shown, want %d", mode, shown, want)
		}
	}
}

// A visit shows every key that is there all the time, however many come and go.
func TestVisitShowsAll(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	l := New(4000, 1, time.Unix(1_800_000_000, 0))
	r := ownedRule(ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10})
	put := func(k uint64) { decideOne(l, 2, ask{Rule: r, Key: keyOf(k), Cost: 1}) }
	for k := range uint64(1000) {
		put(k)
	}
	seen := map[string]bool{}
	for v := (Visit{}); !l.Visit(&v, func(key []byte) { seen[string(key)] = true }); {
		for range 20 {
			if k := 1000 + rnd.Uint64N(2000); rnd.IntN(2) == 0 {
				put(k)
			} else {
				l.TakeOut(2, keyOf(k))
			}
		}
	}
	for k := range uint64(1000) {
		if !seen[string(keyOf(k))] {
			t.Fatalf("key %d was not shown", k)
		}
	}
}
