package lease

import (
	"math/rand/v2"
	"testing"
	"time"
)

// However long the trips and however the clocks drift, within MaxSkew, the truth stays within the bounds, and they are
// soon narrower than a trip.
func TestLedgerClockBoundsTheTruth(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		between := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(rnd.Int64N(int64(hi-lo)+1)) }
		epoch := 1_800_000_000 * time.Second
		rate := 1 + (2*rnd.Float64()-1)/MaxSkew
		there := func(x instant) time.Duration { return epoch + time.Duration(rate*float64(x)) }
		var c LedgerClock
		at := instant(0)
		for range 200 {
			at = at.Add(between(0, 2*time.Second))
			out, back := between(50*time.Microsecond, 50*time.Millisecond), between(50*time.Microsecond, 50*time.Millisecond)
			handled := ledgerTime(there(at.Add(out)) / time.Microsecond)
			c.Observe(at, at.Add(out+back), handled, handled)
			at = at.Add(out + back)
			// An event of the ledger, up to ten seconds from now.
			event := ledgerTime((there(at) + between(0, 10*time.Second)) / time.Microsecond)
			if x := c.NotBefore(at, event); there(x) > nanos(event) {
				t.Fatalf("seed %d: it is said to be before %v, and it is %v after", seed, event, there(x)-nanos(event))
			}
			if early, late := c.Between(at); nanos(early) > there(at) || nanos(late+1) < there(at) {
				t.Fatalf("seed %d: it is said to be from %v to %v, and it is %v", seed, early, late, there(at))
			}
		}
		if gap := c.Hi - c.Lo; gap > 30*time.Millisecond {
			t.Errorf("seed %d: known to %v only, with trips of up to 100 ms", seed, gap)
		}
	}
}

// The clocks of several servers are all within the bounds, also that of a new one, and of one that is left. When the
// ledger's clock is set, what was known is no hindrance.
func TestLedgerClockIsSet(t *testing.T) {
	const begins = ledgerTime(5_000_000)
	var c LedgerClock
	for i, s := range []struct{ from, to, early, late ledgerTime }{
		{begins, begins, 0, 10},
		{begins, begins + 50_000, 0, 50_000},
		{begins, begins, -10, 10},
		{1_000_000, 1_000_000, 1_000_000 - begins, 1_000_010 - begins},
	} {
		at := instant(2000*i + 1000)
		c.Observe(at, at+1000, s.from, s.to)
		early, late := c.Between(at + 1000)
		if early > s.from+2 || late < s.to || early < begins+s.early-10 || late > begins+s.late+10 {
			t.Errorf("observation %d: it is from %d to %d, and must be from %d to %d", i, early, late, s.from, s.to)
		}
	}
}
