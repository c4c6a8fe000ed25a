package rls

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// One instant names the windows of all budgets: this node's, moved into those that the ledger has charged. A budget
// whose window has no instant in common with the others is left out, and so is one of a window that is not known.
func TestInstantOfAHold(t *testing.T) {
	minute, hour := ratelimit.Limit{Unit: ratelimit.Minute}, ratelimit.Limit{Unit: ratelimit.Hour}
	bucket := ratelimit.Limit{Unit: ratelimit.Hour, Algorithm: ratelimit.TokenBucket}
	of := func(w ratelimit.Window) *ratelimit.Verdict { return &ratelimit.Verdict{Window: w} }
	in := instants{0, 1<<32 - 1}
	if got := in.nearest(77); got != 77 {
		t.Errorf("of no window: %d, must be 77", got)
	}
	for _, c := range []struct {
		limit *ratelimit.Limit
		v     *ratelimit.Verdict
		ok    bool
		in    instants
	}{
		{&hour, of(2), true, instants{3600, 7199}},
		{&minute, of(120), true, instants{7140, 7199}},
		{&minute, of(121), false, instants{7140, 7199}},
		{&bucket, of(9), true, instants{7140, 7199}},
		{&bucket, of(0), false, instants{7140, 7199}},
		{&minute, of(0), false, instants{7140, 7199}},
		{&minute, &ratelimit.Verdict{Source: ratelimit.FromFallback, Window: 120}, false, instants{7140, 7199}},
		{&minute, &ratelimit.Verdict{Source: ratelimit.FromFallback, Booked: 120}, true, instants{7140, 7199}},
	} {
		if ok := in.narrow(c.limit, c.v); ok != c.ok || in != c.in {
			t.Errorf("%v, %+v: %v, %v, must be %v, %v", c.limit, c.v, ok, in, c.ok, c.in)
		}
	}
	for at, want := range map[int64]int64{0: 7140, 7150: 7150, 7200: 7199} {
		if got := in.nearest(at); got != want {
			t.Errorf("nearest to %d is %d, must be %d", at, got, want)
		}
	}
}

var shareSeeds = flag.Uint64("share-seeds", 1, "how many demands are played for each hold")

// At twice the demand and with a heavy tail, learned estimates use nearly all of the limit. One window may be over by
// one long answer: over many, they use no more, and a higher quantile keeps each window within a hundredth. Beside
// them: what is held at most, which is never over; and a peek, which is over by all that is in flight. How far single
// windows go is printed.
func TestShareOfTheLimit(t *testing.T) {
	const limit, longest, minutes = 1_000_000, 20_000, 6
	const rules = `
domain: d
descriptors:
  - key: llm
    %s
    rate_limit: {unit: minute, requests_per_unit: 1000000}
`
	type flying struct { // a request
		ends ratelimit.Instant
		hold string
		cost int
	}
	// What is used in each whole minute but the first, of requests whose costs have a heavy tail (Pareto, 1.5, up to
	// 20,000) and whose demand is twice the limit. They take up to five seconds. What is refused does not come back.
	usedOf := func(hold string, request usage, seed uint64) (used []int) {
		if hold != "" {
			hold = "hold: " + hold
		}
		f := holdFixtureOf(t, fmt.Sprintf(rules, hold))
		r := rand.New(rand.NewPCG(seed, 12))
		cost := func() int { return min(longest, int(350/math.Pow(1-r.Float64(), 1/1.5))) }
		mean := 0
		for range 100_000 {
			mean += cost()
		}
		perSecond := 2 * limit / 60 / (float64(mean) / 100_000)
		var open []flying // the first to end first
		in := map[int64]int{}
		next := f.now
		for f.now < ratelimit.Instant(minutes*time.Minute) {
			if len(open) > 0 && open[0].ends <= next {
				x := open[0]
				open = open[1:]
				f.now = x.ends
				if x.hold != "" {
					f.ends("llm=x", x.hold, 0, usage(x.cost))
				} else {
					f.takes(descOf("llm=x", usage(x.cost)))
				}
				continue
			}
			f.now = next
			next = f.now.Add(time.Duration(r.ExpFloat64() / perSecond * float64(time.Second)))
			n := cost()
			asks := request
			if request == unsaid {
				asks = usage(n) // a client that says its cost exactly
			}
			hold, over := f.takes(descOf("llm=x", asks))
			if over {
				continue
			}
			in[f.wall().Unix()/60] += n // the window that it was charged in
			x := flying{f.now.Add(time.Duration(r.Float64() * 5 * float64(time.Second))), hold, n}
			at, _ := slices.BinarySearchFunc(open, x, func(a, b flying) int { return cmp.Compare(a.ends, b.ends) })
			open = slices.Insert(open, at, x)
		}
		first := time.Unix(1_800_000_015, 0).Unix() / 60
		for minute := first + 1; minute < first+minutes-1; minute++ {
			used = append(used, in[minute])
		}
		return used
	}
	for _, c := range []struct {
		name, hold        string
		request           usage
		least, mean, most float64 // parts of the limit that windows use: the mean is at most mean
	}{
		{"learned 0.97", "{learned: 0.97, max: 20000}", 0, 0.92, 1.01, 1.01},
		{"learned 0.9", "{learned: 0.9, max: 20000}", 0, 0.95, 1.01, 1 + 4*float64(longest)/limit},
		{"constant, the mean", "{amount: 1000}", 0, 0.95, 1.05, 1.05},
		{"the maximum", "{amount: 20000}", 0, 0.6, 1, 1},
		{"a peek, and a charge", "", 0, 1.02, 1.2, 1.2},
		{"said by the client", "{from: request, max: 20000}", unsaid, 0.95, 1, 1},
	} {
		var all []float64
		mean, beyond := 0., 0
		for seed := range *shareSeeds {
			for _, used := range usedOf(c.hold, c.request, seed) {
				share := float64(used) / limit
				all, mean = append(all, share), mean+share
				if share > 1.01 {
					beyond++
				}
			}
		}
		mean /= float64(len(all))
		least, most := slices.Min(all), slices.Max(all)
		said := fmt.Sprintf("%s, %d windows: %.2f %% of the limit in the mean, from %.2f to %.2f; %d were over by "+
			"more than 1 %%", c.name, len(all), 100*mean, 100*least, 100*most, beyond)
		if t.Log(said); least < c.least || mean > c.mean || most > c.most {
			t.Errorf("%s; must be from %.2f to %.2f, and %.2f in the mean", said, c.least, c.most, c.mean)
		}
	}
}
