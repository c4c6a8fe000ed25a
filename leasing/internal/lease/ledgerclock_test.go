package lease

import (
	"math/rand/v2"
	"testing"
	"time"
)

// However long the trips and however the clocks drift, within MaxSkew, the
// truth stays within what is said, and what is said is soon narrower than a
// trip.
func TestLedgerClockBoundsTheTruth(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		between := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(rnd.Int64N(int64(hi-lo)+1)) }
		epoch := 1_800_000_000 * time.Second
		rate := 1 + (2*rnd.Float64()-1)/MaxSkew
		there := func(x instant) time.Duration { return epoch + time.Duration(rate*float64(x)) }
		var c LedgerClock
		at := instant(0)
		shortest := time.Hour
		for range 200 {
			at = at.Add(between(0, 2*time.Second))
			out, back := between(50*time.Microsecond, 50*time.Millisecond), between(50*time.Microsecond, 50*time.Millisecond)
			sent, handled, answered := at, at.Add(out), at.Add(out+back)
			shortest = min(shortest, out+back)
			c.Observe(sent, answered, ledgerTime(there(handled)/time.Microsecond), ledgerTime(there(handled)/time.Microsecond))
			at = answered
			// An event of the ledger, up to ten seconds from now.
			event := ledgerTime((there(at) + between(0, 10*time.Second)) / time.Microsecond)
			if x := c.NotBefore(at, event); there(x) > nanos(event) {
				t.Fatalf("seed %d: it was said to be before %v, and it was %v after", seed, event, there(x)-nanos(event))
			}
			if early, late := c.Between(at); nanos(early) > there(at) || nanos(late+1) < there(at) {
				t.Fatalf("seed %d: it was said to be from %v to %v, and it was %v", seed, early, late, there(at))
			}
		}
		if gap := c.Hi - c.Lo; gap > 30*time.Millisecond {
			t.Errorf("seed %d: known to %v only, with trips of up to 100 ms and one of %v", seed, gap, shortest)
		}
	}
}

// The clocks of several servers are all within the bounds, also that of a new one.
func TestLedgerClockOfSeveralServers(t *testing.T) {
	var c LedgerClock
	c.Observe(1000, 2000, 5_000_000, 5_000_000)
	c.Observe(3000, 4000, 5_000_000, 5_050_000)
	if early, late := c.Between(4000); early > 5_000_000 || late < 5_050_000 {
		t.Errorf("it is from %d to %d", early, late)
	}
	c.Observe(5000, 6000, 5_000_000, 5_000_000)
	if early, late := c.Between(6000); early < 4_999_990 || late > 5_000_010 {
		t.Errorf("it is from %d to %d, of one that is left", early, late)
	}
}

// When the ledger's clock is set, what was known is no hindrance.
func TestLedgerClockIsSet(t *testing.T) {
	var c LedgerClock
	c.Observe(1000, 2000, 5_000_000, 5_000_000)
	c.Observe(3000, 4000, 1_000_000, 1_000_000)
	if early, late := c.Between(4000); early > 1_000_001 || late < 1_000_000 || late > 1_000_010 {
		t.Errorf("it is from %d to %d", early, late)
	}
}
