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
// for hours.
func TestDemandRisesAtOnceAndFallsSlowly(t *testing.T) {
	var d Demand
	d.Used = 1000
	d.Measure(second, 0)
	if d.PerSec != 0 {
		t.Errorf("%v a second after the first claim: nobody knows since when", d.PerSec)
	}
	at := second
	for _, step := range []struct {
		used, waiting tokens
		want          float64
	}{
		{100, 0, 80}, {100, 0, 90}, {30, 60, 90}, {400, 0, 360}, {160, 0, 260}, {0, 0, 130}, {4, 0, 67},
	} {
		at += second
		d.Used, d.Refused = step.used, 7
		d.Measure(at, step.waiting)
		if d.PerSec != step.want {
			t.Errorf("%d were used in a second and %d wait, and the rate is %v instead of %v",
				step.used, step.waiting, d.PerSec, step.want)
		}
		if d.Used != 0 || d.Refused != 0 {
			t.Errorf("%d used and %d refused are counted again", d.Used, d.Refused)
		}
	}
	d = Demand{Since: second, Used: 100}
	if d.Measure(second.Add(time.Microsecond), 0); d.PerSec != 8000 { // 100 less two deviations of 10
		t.Errorf("100 requests in a microsecond make %v a second", d.PerSec)
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

// Between two claims the rate is the one that a claim would measure, and refused requests count: the demand for a
// refused key stays the same. Reading it changes nothing.
func TestDemandBetweenClaims(t *testing.T) {
	d := Demand{PerSec: 100, Since: second}
	for _, c := range []struct {
		after         time.Duration
		used, refused tokens
		least, most   float64
	}{
		{time.Millisecond, 1, 0, 95, 105}, // a moment says nothing
		{time.Second, 50, 50, 100, 100},
		{time.Second, 0, 0, 50, 50}, // it rests
		{9 * time.Second, 0, 0, 10, 10},
		{time.Second, 0, 400, 360, 360}, // 400 less two deviations of 20 are proven
	} {
		d.Used, d.Refused = c.used, c.refused
		now := second.Add(c.after)
		if got := d.Rate(now); got < c.least || got > c.most || got != d.Rate(now) {
			t.Errorf("%v after a claim, with %d used and %d refused, the rate of 100 is %v, and not %v to %v",
				c.after, c.used, c.refused, got, c.least, c.most)
		}
	}
	if got := (&Demand{}).Rate(second); got != 0 {
		t.Errorf("before the first claim it is %v", got)
	}
}

// A lease is to last two seconds, or the period if that is shorter. It is at
// least what waits and the rule's size, at most the limit; a part of a token is
// a token.
func TestDemandWants(t *testing.T) {
	for _, c := range []struct {
		name    string
		perSec  float64
		waiting tokens
		size    ratelimit.LeaseSize
		unit    ratelimit.Unit
		want    tokens
	}{
		{"two seconds' worth", 30, 0, ratelimit.LeaseSize{}, ratelimit.Minute, 60},
		{"a period's worth, where that is shorter", 30, 0, ratelimit.LeaseSize{}, ratelimit.Second, 30},
		{"a part is a whole token", 0.2, 0, ratelimit.LeaseSize{}, ratelimit.Minute, 1},
		{"no more than the limit", 1e6, 0, ratelimit.LeaseSize{}, ratelimit.Minute, 1000},
		{"nothing is known", 0, 3, ratelimit.LeaseSize{}, ratelimit.Minute, 3},
		{"a fixed size", 30, 3, ratelimit.LeaseSize{Fixed: 10}, ratelimit.Minute, 10},
		{"a fixed size, and more waits", 30, 13, ratelimit.LeaseSize{Fixed: 10}, ratelimit.Minute, 13},
	} {
		rule := testRule(ratelimit.Limit{Unit: c.unit, Requests: 1000})
		rule.Coordination.Lease = c.size
		if got := (&Demand{PerSec: c.perSec}).Want(rule, c.waiting); got != c.want {
			t.Errorf("%s: %v a second, %d wait: it wants %d and not %d", c.name, c.perSec, c.waiting, got, c.want)
		}
	}
}
