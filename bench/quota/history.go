package quota

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/ratelimit"
)

// History is a random run, the same for the same seed: a few Envoys and nodes, any kind of
// Envoy that package envoy has, and faults of every kind.
func History(seed uint64) Options {
	h := historian{rand.New(rand.NewPCG(seed, 0x72))}
	limit := ratelimit.Tokens(20 + h.IntN(400))
	o := Options{
		Seed: seed, Envoys: 1 + h.IntN(6), Nodes: h.IntN(4), Keys: 1 + h.IntN(3), Check: true,
		Rule: &ratelimit.Rule{
			Limit:        ratelimit.Limit{Unit: ratelimit.Minute, Requests: limit},
			Coordination: ratelimit.DefaultCoordination(),
		},
		Skewed: h.chance(0.5), Start: time.Duration(h.Int64N(int64(time.Minute))),
		Length: time.Minute + time.Duration(h.Int64N(int64(2*time.Minute))),
		Trip:   time.Duration(h.Int64N(int64(40 * time.Millisecond))), Quirks: h.quirks(),
	}
	o.Rate = float64(limit) / 60 * (0.3 + 3*h.Float64())
	switch l := &o.Rule.Limit; h.IntN(3) {
	case 0:
		l.Algorithm = ratelimit.SlidingWindow
	case 1: // of a minute's tokens at least, and of four minutes' at most
		l.Algorithm, l.Burst = ratelimit.TokenBucket, limit+ratelimit.Tokens(h.IntN(int(3*limit)))
	}
	if h.chance(0.2) {
		o.Rule.Coordination.Lease.Fixed = 1 + ratelimit.Tokens(h.IntN(int(limit)))
	}
	o.Bursts = h.chance(0.4)
	if h.chance(0.3) {
		o.Direct = o.Rate * h.Float64()
	}
	if h.chance(0.85) {
		h.faults(&o)
	}
	return o
}

type historian struct{ *rand.Rand }

func (h *historian) chance(p float64) bool { return h.Float64() < p }

// quirks are stock Envoy's, or those of one that has mended some.
func (h *historian) quirks() envoy.Quirks {
	q := envoy.Stock()
	if h.chance(0.5) {
		return q
	}
	q.ScalesChanged, q.ComparesLittle, q.LosesReports = h.chance(0.5), h.chance(0.5), h.chance(0.5)
	q.WholeSecondElapsed, q.WholeSecondTTL = h.chance(0.5), h.chance(0.5)
	return q
}

func (h *historian) faults(o *Options) {
	for range 1 + h.IntN(6) {
		f := Fault{
			At: time.Duration(h.Int64N(int64(o.Length))), Kind: FaultKind(h.IntN(len(FaultKinds))), Who: h.IntN(8),
			For: time.Duration(h.Int64N(int64([]time.Duration{time.Second, 8 * time.Second, 70 * time.Second}[h.IntN(3)]))),
		}
		if h.chance(0.5) { // around the turn of a window
			turn := time.Minute*time.Duration(1+h.IntN(2)) - o.Start
			f.At = min(max(0, turn-time.Duration(h.Int64N(int64(8*time.Second)))), o.Length)
		}
		o.Faults = append(o.Faults, f)
	}
	slices.SortStableFunc(o.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
}

// Describe describes a run.
func (o *Options) Describe() string {
	return fmt.Sprintf("seed %d: %v, %d Envoys (skewed %t, bursts %t), %d nodes, %d keys, %.1f requests a second and %.1f over RLS, "+
		"from %v for %v, trip %v; faults %v; quirks %+v", o.Seed, o.Rule.Limit, o.Envoys, o.Skewed, o.Bursts, o.Nodes, o.Keys, o.Rate, o.Direct, o.Start, o.Length, o.Trip,
		o.Faults, o.Quirks)
}
