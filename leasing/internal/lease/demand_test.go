package lease

import (
	"math"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

const second = instant(time.Second)

// A rate is known from the second claim on. It rises at once to what so many tokens
// prove, for a lease that is too small makes requests wait; beyond that, and where it
// falls, a second halves the difference, for a pause is no proof.
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
			t.Errorf("%d were used in a second and %d wait, and the rate is %v instead of %v", step.used, step.waiting, d.PerSec, step.want)
		}
		if d.Used != 0 || d.Refused != 0 {
			t.Errorf("%d used and %d refused are counted again", d.Used, d.Refused)
		}
	}
}

// A burst's first requests come within microseconds: they count as if they had
// taken 10 ms, or a lease would be asked for that lasts for hours.
func TestDemandOfABurst(t *testing.T) {
	var d Demand
	d.Measure(second, 0)
	d.Used = 100
	d.Measure(second.Add(time.Microsecond), 0)
	if d.PerSec != 8000 { // 100 less two deviations of 10
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

// Between two claims the rate is what a claim would measure, and refused requests count: a key
// that everyone is refused is asked for as much as before. Asking for it changes nothing.
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
			t.Errorf("%v after a claim, with %d used and %d refused, the rate of 100 is %v, and not %v to %v", c.after, c.used, c.refused, got, c.least, c.most)
		}
	}
	if got := (&Demand{}).Rate(second); got != 0 {
		t.Errorf("before the first claim it is %v", got)
	}
}

// A lease is to last two seconds, or the period if that is shorter. It is at
// least what waits and what the rule says, at most the limit and what the rule
// says; a part of a token is a token.
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
		{"no more than max", 30, 0, ratelimit.LeaseSize{Max: 20}, ratelimit.Minute, 20},
		{"what it needs, where max is more", 5, 0, ratelimit.LeaseSize{Max: 20}, ratelimit.Minute, 10},
		{"one by one, where max is 1", 30, 0, ratelimit.LeaseSize{Max: 1}, ratelimit.Minute, 1},
		{"no less than min", 30, 0, ratelimit.LeaseSize{Min: 70}, ratelimit.Minute, 70},
		{"no less than what waits, whatever max is", 30, 90, ratelimit.LeaseSize{Max: 20}, ratelimit.Minute, 90},
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

// A lease is renewed at half its time, or below half of its tokens; earlier
// when two round trips would spend more than that half. When the ledger has
// nothing left, fewer tokens are no reason to ask.
func TestLeaseIsRenewedInTime(t *testing.T) {
	minute := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 1000}
	for _, c := range []struct {
		name      string
		perSec    float64
		left      tokens
		available tokens
		below     tokens
	}{
		{"half", 10, 100, 1, 50},
		{"two trips of 100 ms at 300 a second", 300, 100, 1, 60},
		{"never more than there is", 3000, 100, 1, 100},
		{"nothing to be had", 3000, 100, 0, 0},
	} {
		g := ratelimit.Grant{TTL: 10 * time.Second, Available: c.available, Holders: 1}
		r := (&Demand{PerSec: c.perSec}).Renewal(second, second.Add(100*time.Millisecond), c.left, &minute, &g)
		if r.below != c.below || r.After != 6*second {
			t.Errorf("%s: it is renewed below %d and after %v, and not below %d and half of 10 s after it was sent", c.name, r.below, r.After.Sub(second), c.below)
		}
		if now := second; r.Due(now, c.below) || c.below > 0 && !r.Due(now, c.below-1) || r.Due(r.After-1, math.MaxInt64) || !r.Due(r.After, math.MaxInt64) {
			t.Errorf("%s: it is not due when it should be, or is when it should not: %+v", c.name, r)
		}
	}
}

// A lease of plenty is renewed for its time's sake only in its last tenth, and before the node
// stops spending it: most end with their window, and what a node does not need is recalled.
func TestPlentyIsNotRenewedForItsTime(t *testing.T) {
	minute := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 1000}
	g := ratelimit.Grant{TTL: 40 * time.Second, Available: 900, Holders: 1, Plenty: true}
	r := (&Demand{PerSec: 100}).Renewal(second, second, 50, &minute, &g)
	if r.After != 37*second || r.After >= second.Add(g.TTL-Margin(&ratelimit.Claim{}, g.TTL)) {
		t.Errorf("a lease of 40 s is renewed after %v", r.After.Sub(second))
	}
	if r.Due(36*second, 25) || !r.Due(36*second, 24) {
		t.Errorf("it is renewed below %d of 50, with a demand of 100 a second: those of a quarter of one are 25", r.below)
	}
}

// Under plenty a claim fetches much, so that a quarter of a second before the lease is used up is soon
// enough to renew it, or two round trips where those take longer.
func TestLeaseOfPlentyIsRenewedLate(t *testing.T) {
	minute := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10_000}
	for _, c := range []struct {
		perSec float64
		trip   time.Duration
		below  tokens
	}{{40, time.Millisecond, 10}, {40, 200 * time.Millisecond, 16}, {4000, time.Millisecond, 500}} {
		g := ratelimit.Grant{TTL: time.Minute, Available: 5000, Holders: 1, Plenty: true}
		if r := (&Demand{PerSec: c.perSec}).Renewal(second, second.Add(c.trip), 1000, &minute, &g); r.below != c.below {
			t.Errorf("at %v a second with trips of %v it is renewed below %d and not %d", c.perSec, c.trip, r.below, c.below)
		}
	}
}

// A bucket takes no more tokens than it has room for, and it holds room back
// for what it does not know to be spent. So a bucket that is drawn on faster
// than it fills is told before it would be full: what leases hold counts as
// time that it does not need.
func TestBucketIsToldBeforeItIsFull(t *testing.T) {
	bucket := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 10, Burst: 100}
	for _, c := range []struct {
		name        string
		perSec      float64
		holders     int
		left        tokens
		outstanding tokens
		after       time.Duration
	}{
		{"full in 4 s, of which 20 + 10 tokens are 3", 20, 1, 20, 10, time.Second},
		{"two holders draw on it", 6, 2, 20, 10, time.Second},
		{"drawn on no faster than it fills: half of the lease's time", 10, 1, 20, 10, 5 * time.Second},
		{"full already: soon, but not at once", 20, 1, 90, 10, BackOff},
	} {
		g := ratelimit.Grant{TTL: 10 * time.Second, Available: 1, Holders: c.holders, Outstanding: c.outstanding, ResetAfter: 4 * time.Second}
		r := (&Demand{PerSec: c.perSec}).Renewal(second, second, c.left, &bucket, &g)
		if got := r.After.Sub(second); got != c.after {
			t.Errorf("%s: it is told after %v and not %v", c.name, got, c.after)
		}
	}
	window := bucket
	window.Algorithm = ratelimit.SlidingWindow
	g := ratelimit.Grant{TTL: 10 * time.Second, Available: 1, Holders: 1, ResetAfter: 4 * time.Second}
	if r := (&Demand{PerSec: 20}).Renewal(second, second, 20, &window, &g); r.After != 6*second {
		t.Errorf("a window is told after %v: it has no room to lose", r.After.Sub(second))
	}
}
