package quota

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// perMinute is a rule of so many requests a minute.
func perMinute(n ratelimit.Tokens) *ratelimit.Rule {
	return &ratelimit.Rule{
		Limit:        ratelimit.Limit{Unit: ratelimit.Minute, Requests: n},
		Coordination: ratelimit.DefaultCoordination(),
	}
}

// usual is a run in which nothing goes wrong, with twice the limit's requests.
func usual(limit ratelimit.Tokens, envoys, nodes int, skewed bool) Options {
	return Options{
		Seed: *firstSeed, Envoys: envoys, Nodes: nodes, Keys: 1, Rule: perMinute(limit), Rate: float64(limit) / 30, Skewed: skewed,
		Length: 5*time.Minute + 10*time.Second, Trip: time.Millisecond, Quirks: envoy.Stock(),
	}
}

// Demand is twice the limit, from 1, 3 and 50 Envoys: admissions stay within it, and little is left over.
func TestAccuracy(t *testing.T) {
	accuracy(t, func(r *ratelimit.Rule, envoys int) (most float64) {
		if envoys == 50 {
			return 0.08
		}
		return 0.03
	})
}

// The same of token buckets: nothing is let pass beyond burst + rate x t, and of what refills
// little is left over after the first minute. A tenth, for what an Envoy has not spent is not
// credited.
func TestBucketAccuracy(t *testing.T) {
	accuracy(t, func(r *ratelimit.Rule, envoys int) (most float64) {
		if r.Limit.Requests/ratelimit.Tokens(envoys) < 2*sublease.LeastShare {
			return 0 // it is refused: less than LeastShare is left for each
		}
		r.Limit.Algorithm, r.Limit.Burst = ratelimit.TokenBucket, r.Limit.Requests
		return 0.1
	})
}

// accuracy plays each fleet with a rule that prepare makes; it says which part may be left over, at most, and 0 for a
// fleet that is not played.
func accuracy(t *testing.T, prepare func(r *ratelimit.Rule, envoys int) (most float64)) {
	t.Parallel()
	for i := range 24 {
		limit, envoys := []ratelimit.Tokens{600, 60_000}[i/12], []int{1, 3, 50}[i/4%3]
		skewed, nodes := i/2%2 == 1, 3*(i%2)
		o := usual(limit, envoys, nodes, skewed)
		most := prepare(o.Rule, envoys)
		if most == 0 {
			continue
		}
		o.Check = envoys <= 3 && limit <= 600
		leaves(t, fmt.Sprintf("%d Envoys, %d a minute, skewed %t, %d nodes", envoys, limit, skewed, nodes), o, most)
	}
}

// leaves plays a run in which nothing goes wrong: nothing is let pass beyond the limit, and of the worst window at most
// this part is left over.
func leaves(t *testing.T, name string, o Options, most float64) {
	t.Run(name, func(t *testing.T) {
		if o.Rule.Limit.Requests > 600 {
			if testing.Short() {
				t.Skip("takes seconds")
			}
			o.Length = 3*time.Minute + 10*time.Second
		}
		r, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%.2f %% under, %d over; %.3f calls, %.2f messages for 1000 requests", 100*r.Under, r.Over,
			1000*float64(r.Streams)/float64(r.Requests), 1000*float64(r.Reports+r.Answers)/float64(r.Requests))
		if r.Violation != "" || r.Over != 0 || r.Under > most || r.Streams != int64(o.Envoys) {
			t.Errorf("%+v; at most %.1f %% may be left over, and each Envoy opens one stream", *r, 100*most)
		}
	})
}

// With a demand below the limit, or hardly above it, few requests are refused. A lease ends up to a second and
// a half before its window, which is 2.5 % of it. An Envoy whose first report of a window also includes the
// previous one is charged for both, which is up to 8 % when the limit is just used up. An Envoy with a request
// each 10 s may have two of them before its next report.
func TestPlenty(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit  ratelimit.Tokens
		envoys int
		demand float64 // times the limit
		most   float64
	}{
		{60_000, 3, 0.5, 0.025},
		{60_000, 50, 0.5, 0.025},
		{60_000, 50, 0.95, 0.09},
		{60_000, 50, 1.1, 0.06},
		{600, 50, 0.3, 0.15},
		{600, 50, 0.5, 0.13},
	} {
		for _, skewed := range []bool{false, true} {
			for _, nodes := range []int{0, 3} {
				o := usual(c.limit, c.envoys, nodes, skewed)
				o.Rate = c.demand * float64(c.limit) / 60
				leaves(t, fmt.Sprintf("%.2f times %d a minute, %d Envoys, skewed %t, %d nodes", c.demand, c.limit, c.envoys, skewed, nodes), o, c.most)
			}
		}
	}
}

// Fifty Envoys with few requests call once each, and never again: in time that is less than once
// for a thousand requests.
func TestCalls(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes seconds")
	}
	o := usual(600, 50, 3, true)
	o.Length = 45 * time.Minute
	r, err := Run(o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Streams != 50 || r.Streams*1000 > r.Requests || r.Violation != "" {
		t.Errorf("%d streams for %d requests; %+v", r.Streams, r.Requests, *r)
	}
}

// A thousand streams over three nodes share 60,000 a minute. Streams break, Envoys stand still, answers come
// late, a node is killed, and the store hangs and loses data: admissions stay within the declared bound.
func TestThousandStreams(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes half a minute of processor time")
	}
	o := usual(60_000, 1000, 3, true)
	o.Length = 2*time.Minute + 10*time.Second
	for i := range 120 {
		at := time.Duration(i) * time.Second
		o.Faults = append(o.Faults, Fault{At: at, Kind: []FaultKind{Cut, Freeze, Late, Stall}[i%4], Who: i * 8, For: 7 * time.Second})
	}
	o.Faults = append(
		o.Faults, Fault{At: 119 * time.Second, Kind: Freeze, Who: 1, For: 4 * time.Second},
		Fault{At: 121 * time.Second, Kind: Kill, Who: 1, For: time.Second},
		Fault{At: 122 * time.Second, Kind: Hang, For: 2 * time.Second}, Fault{At: 125 * time.Second, Kind: Forget},
	)
	r, err := Run(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests, %d let pass; %d over, and %d declared; %d streams, %d messages", r.Requests, r.Admitted, r.Over,
		r.Declared, r.Streams, r.Reports+r.Answers)
	if r.Violation != "" || r.Admitted < 60_000 {
		t.Errorf("%+v", *r)
	}
}

// An Envoy that stands still adds a lease to what is declared only if it had one, or an answer, over
// the end of a window.
func TestWhatStandingStillDeclares(t *testing.T) {
	t.Parallel()
	one := sublease.DeclareEach(perMinute(600)).SilentEach
	for _, c := range []struct {
		name     string
		at, long time.Duration
		want     ratelimit.Tokens
	}{
		{"within a window", 70 * time.Second, 20 * time.Second, 0},
		{"over its end", 110 * time.Second, 20 * time.Second, one},
	} {
		o := usual(600, 3, 0, false)
		o.Check = true
		o.Faults = []Fault{{At: c.at, Kind: Freeze, Who: 1, For: c.long}}
		r, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Declared != c.want || r.Violation != "" {
			t.Errorf("%s: %d are declared, want %d; %+v", c.name, r.Declared, c.want, *r)
		}
	}
}
