package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// usual is a run of Envoys in which nothing goes wrong, with twice the limit's requests. Without nodes, it is one node
// whose ledger is its own memory.
func usual(t *testing.T, limit ratelimit.Tokens, envoys, nodes int, skewed bool) Options {
	t.Helper()
	return Options{
		Seed: *firstSeed, Nodes: max(1, nodes), Storeless: nodes == 0, Points: 5,
		Rule:   declaring(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: limit}),
		Envoys: &Envoys{Count: envoys, Skewed: skewed, Quirks: envoy.Stock()},
		Load:   load.Load{Rate: float64(limit) / 30, Keys: 1, Length: 5 * time.Minute},
		Net:    Net{Hop: Delay{Least: time.Millisecond, Tail: time.Millisecond}},
	}
}

// leaves plays such a run: nothing is let pass beyond the limit, and of the worst window after the first, at most this
// part is left over. A bucket has no windows: what one minute misses, the next may have.
func leaves(t *testing.T, o Options, most float64) {
	t.Helper()
	if o.Rule.Limit.Requests > 600 {
		if testing.Short() {
			return
		}
		o.Load.Length, o.Points = 3*time.Minute, 3
	}
	name := fmt.Sprintf("%v, %.0f a second, %+v, %d nodes", o.Rule.Limit, o.Load.Rate, *o.Envoys, o.Nodes)
	r := played(t, o)
	exact, got, under := ratelimit.Tokens(0), ratelimit.Tokens(0), 0.0
	for i, p := range r.Timeline[1:] {
		if o.Rule.Limit.Algorithm != ratelimit.TokenBucket {
			exact, got, under = 0, 0, max(under, float64(exact-got)/float64(max(1, exact)))
		}
		exact, got = exact+min(p.Offered, o.Rule.Limit.Requests), got+p.Admitted
		if i == len(r.Timeline)-2 {
			under = max(under, float64(exact-got)/float64(exact))
		}
	}
	t.Logf("%s: %.2f %% under; %d streams for %d requests", name, 100*under, r.Streams, r.Requests)
	if r.Over != 0 || under > most || r.Streams != int64(o.Envoys.Count) {
		t.Errorf("%s: %d over, %.2f %% under, at most %.1f %%; %d streams, one is enough for each", name, r.Over, 100*under, 100*most, r.Streams)
	}
}

// Demand is twice the limit, from 1, 3 and 50 Envoys: admissions stay within it, and little is left over. Of a bucket
// it is a tenth, because tokens that an Envoy has not spent are not credited.
func TestAccuracy(t *testing.T) {
	t.Parallel()
	for i := range 48 {
		limit, envoys := []ratelimit.Tokens{600, 6000}[i/12%2], []int{1, 3, 50}[i/4%3]
		o := usual(t, limit, envoys, 3*(i%2), i/2%2 == 1)
		o.Check = envoys <= 3 && limit <= 600
		most := 0.03
		if envoys == 50 {
			most = 0.08
		}
		if i >= 24 {
			if limit/ratelimit.Tokens(envoys) < 2*sublease.LeastShare {
				continue // it is refused: less than LeastShare is left for each
			}
			most, o.Rule.Limit.Algorithm, o.Rule.Limit.Burst = 0.1, ratelimit.TokenBucket, limit
		}
		leaves(t, o, most)
	}
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
		{6000, 3, 0.5, 0.025},
		{60_000, 50, 0.5, 0.025},
		{6000, 50, 0.95, 0.09},
		{6000, 50, 1.1, 0.06},
		{600, 50, 0.3, 0.15},
		{600, 50, 0.5, 0.13},
	} {
		for i := range 4 {
			o := usual(t, c.limit, c.envoys, 3*(i%2), i/2 == 1)
			o.Load.Rate = c.demand * float64(c.limit) / 60
			leaves(t, o, c.most)
		}
	}
}

// A thousand streams over three nodes share 60,000 a minute. Streams break, Envoys stand still, answers come
// late, a node is killed, and the store hangs and loses data: admissions stay within the declared bound.
func TestThousandStreams(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes half a minute of processor time")
	}
	o := usual(t, 60_000, 1000, 3, true)
	o.Load.Length = 130 * time.Second
	for i := range 120 {
		kind := []FaultKind{Break, Freeze, Lag, Stall}[i%4]
		o.Faults = append(o.Faults, Fault{At: time.Duration(i) * time.Second, Kind: kind, Node: i * 8, For: 7 * time.Second})
	}
	o.Faults = append(
		o.Faults, Fault{At: 119 * time.Second, Kind: Freeze, Node: 1, For: 4 * time.Second},
		Fault{At: 121 * time.Second, Kind: Crash, Node: 1}, Fault{At: 122 * time.Second, Kind: Restart, Node: 1},
		Fault{At: 122 * time.Second, Kind: Hang, For: 2 * time.Second}, Fault{At: 125 * time.Second, Kind: Amnesia},
	)
	r := played(t, o)
	t.Logf("%d of %d requests admitted; %d over, %d declared at the end; %d streams", r.Admitted, r.Requests, r.Over, r.Declared, r.Streams)
	if r.Admitted < 60_000 {
		t.Errorf("only %d were admitted", r.Admitted)
	}
}

// An Envoy that stands still adds a lease to what is declared only if it had one, or an answer, over
// the end of a window.
func TestWhatStandingStillDeclares(t *testing.T) {
	t.Parallel()
	o := usual(t, 600, 3, 0, false)
	o.Check = true
	one := sublease.DeclareEach(o.Rule).SilentEach
	for at, want := range map[time.Duration]ratelimit.Tokens{70 * time.Second: 0, 110 * time.Second: one} {
		o.Faults = []Fault{{At: at, Kind: Freeze, Node: 1, For: 20 * time.Second}}
		o.Load.Length = at + 30*time.Second
		if r := played(t, o); r.Declared != want {
			t.Errorf("an Envoy that freezes for 20 s at %v: %d are declared, want %d", at, r.Declared, want)
		}
	}
}
