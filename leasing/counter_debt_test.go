package leasing

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A node alone counts like the ledger: each window begins with the debt of the previous one, also after windows
// without requests, and months have their real length. A key in debt is not dropped.
func TestCounterCarriesDebt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLimit(t)
		l.Algorithm, l.Burst, l.Carries = ratelimit.FixedWindow, 0, true
		r, c := testRule(l), counter{}
		now := ledgerTime(1_800_000_000_000_000 + rapid.Int64Range(0, 1e14).Draw(t, "begin"))
		sum, in := tokens(0), l.WindowAt(now)
		for range 30 {
			now += ledgerTime(rapid.Int64Range(0, 3*int64(l.Period()/time.Microsecond)).Draw(t, "wait"))
			for ; in < l.WindowAt(now); in++ {
				sum = max(0, sum-l.Requests)
			}
			// What is dropped means the same as a new one.
			if now >= c.dead(l.Algorithm) {
				c = counter{}
			}
			n := tokens(rapid.Int64Range(1, 8*int64(l.Requests)).Draw(t, "cost"))
			switch kind := ratelimit.Kind(rapid.IntRange(0, 2).Draw(t, "kind")); kind {
			case ratelimit.Spend:
				if v := c.ask(now, r, kind, n); v.OverLimit != (sum+n > l.Requests) || v.Charged+v.Debt != n {
					t.Fatalf("%d of %d, %d are used: %+v", n, l.Requests, sum, v)
				}
				sum += n
			case ratelimit.Refund:
				c.ask(now, r, kind, n)
				sum = max(0, sum-n)
			default:
			}
			if v := c.ask(now, r, ratelimit.Peek, 0); v.OverLimit != (sum > l.Requests) || v.Remaining != max(0, l.Requests-sum) {
				t.Fatalf("%d of %d are used: %+v", sum, l.Requests, v)
			}
		}
	})
}

// Debt of 35 of a limit of 10 lasts three windows without requests, in a table in which others need room, and through
// a handover to another owner.
func TestDebtOutlastsItsWindow(t *testing.T) {
	r := ownedRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10, Carries: true})
	key, others := keyOf(1), testRule(ratelimit.Limit{Unit: ratelimit.Second, Requests: 1})
	a, b := NewLocal(10, 1, testWall), NewLocal(10, 1, testWall)
	now := instant(1)
	if v := decideOne(a, now, ask{Rule: r, Key: key, Cost: 45}); !v.OverLimit || v.Debt != 35 {
		t.Fatalf("%+v", v)
	}
	for i := range uint64(1000) {
		now = now.Add(180 * time.Millisecond) // three minutes in all
		decideOne(a, now, ask{Rule: others, Key: keyOf(2 + i), Cost: 1})
	}
	if v := decideOne(a, now, ask{Rule: r, Key: key, Kind: ratelimit.Peek}); !v.OverLimit {
		t.Errorf("%+v", v)
	}
	handOver(t, now, a, b, everything)
	if v := decideOne(b, now, ask{Rule: r, Key: key, Kind: ratelimit.Peek}); !v.OverLimit {
		t.Errorf("after it moved: %+v", v)
	}
	now = now.Add(time.Minute)
	if n := admit(b, now, r, 20); n != 5 {
		t.Errorf("%d are admitted, and 5 are left", n)
	}
	// A counter that owes means something for as long as it does, and no longer.
	c := counter{}
	c.ask(1_800_000_000_000_000, r, ratelimit.Spend, 45)
	if left := c.dead(ratelimit.FixedWindow) - c.ends; left != ledgerTime(4*time.Minute/time.Microsecond) {
		t.Errorf("it is kept for %v after its window", left)
	}
	// Nor does a debt that is never paid fill a table for ever.
	never := testRule(ratelimit.Limit{Unit: ratelimit.Year, Carries: true})
	c = counter{}
	if c.ask(1_800_000_000_000_000, never, ratelimit.Spend, 1); c.extra <= 0 || c.extra > longestOwed {
		t.Errorf("it is kept for %d us", c.extra)
	}
}
