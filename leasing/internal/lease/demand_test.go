package lease

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

const second = instant(time.Second)

func testRule(l ratelimit.Limit) *ratelimit.Rule {
	return &ratelimit.Rule{Domain: "d", Path: "p", Limit: l, Coordination: ratelimit.DefaultCoordination()}
}

// A rate exists from the second claim on. It rises at once to the rate that the tokens prove, because a lease that is
// too small makes requests wait. Beyond that, and where it falls, a second halves the difference, because a pause is
// no proof. A burst's first requests come within microseconds, and count as if they took 10 ms: the lease would last
// for hours. Between claims refused requests count, so that the demand for a refused key stays the same.
func TestDemandRisesAtOnceAndFallsSlowly(t *testing.T) {
	for _, c := range []struct {
		perSec                 float64
		after                  time.Duration // 0: after the first claim
		used, refused, waiting tokens
		least, most            float64
	}{
		{0, 0, 1000, 0, 0, 0, 0}, // since when is unknown
		{0, time.Second, 100, 0, 0, 80, 80},
		{80, time.Second, 100, 0, 0, 90, 90},
		{90, time.Second, 30, 0, 60, 90, 90},
		{90, time.Second, 400, 0, 0, 360, 360}, // 400 less two deviations of 20 are proven
		{360, time.Second, 160, 0, 0, 260, 260},
		{260, time.Second, 0, 0, 0, 130, 130}, // it rests
		{130, time.Second, 4, 0, 0, 67, 67},
		{100, 9 * time.Second, 0, 0, 0, 10, 10},
		{100, time.Millisecond, 1, 0, 0, 95, 105}, // a moment says nothing
		{0, time.Microsecond, 100, 0, 0, 8000, 8000},
		{100, time.Second, 50, 50, 0, 100, 100},
		{100, time.Second, 0, 400, 0, 360, 360},
	} {
		d, now := Demand{PerSec: c.perSec, Used: c.used, Refused: c.refused}, second.Add(c.after)
		if c.after > 0 {
			d.Since = second
		}
		got := d.Rate(now)
		again := d.Rate(now) // reading changes nothing
		if c.refused == 0 {
			d.Measure(now, c.waiting)
			if got = d.PerSec; c.waiting == 0 && got != again || d.Used != 0 {
				t.Errorf("%+v: between claims the rate is %v, and then %v; %d are counted again", c, again, got, d.Used)
			}
		}
		if got < c.least || got > c.most {
			t.Errorf("%+v: the rate is %v", c, got)
		}
	}
}

// One request a few milliseconds after a claim is what chance brings. On each of a hundred
// nodes that are asked seven times a second it happens all the time, and is no hundred a second.
func TestDemandOfChance(t *testing.T) {
	var d Demand
	d.Measure(second, 0)
	at := second
	for range 20 { // 7 a second, by pairs: one waits, and one comes 10 ms after its claim
		for _, later := range []time.Duration{276 * time.Millisecond, 10 * time.Millisecond} {
			at = at.Add(later)
			d.Measure(at, 1)
			if d.PerSec > 10 {
				t.Fatalf("%v a second where 7 come", d.PerSec)
			}
		}
	}
	if d.PerSec < 5 {
		t.Errorf("%v a second where 7 come", d.PerSec)
	}
}

// A lease is to last two seconds, or the period if that is shorter. It is at least what waits and the rule's size, at
// most the limit; a part of a token is a token.
func TestDemandWants(t *testing.T) {
	for _, c := range []struct {
		perSec               float64
		waiting, fixed, want tokens
		unit                 ratelimit.Unit
	}{
		{30, 0, 0, 60, ratelimit.Minute},
		{30, 0, 0, 30, ratelimit.Second},
		{0.2, 0, 0, 1, ratelimit.Minute},
		{1e6, 0, 0, 1000, ratelimit.Minute},
		{0, 3, 0, 3, ratelimit.Minute},
		{30, 3, 10, 10, ratelimit.Minute},
		{30, 13, 10, 13, ratelimit.Minute},
	} {
		rule := testRule(ratelimit.Limit{Unit: c.unit, Requests: 1000})
		rule.Coordination.Lease.Fixed = c.fixed
		if got := (&Demand{PerSec: c.perSec}).Want(rule, c.waiting); got != c.want {
			t.Errorf("%+v: it wants %d", c, got)
		}
	}
}
