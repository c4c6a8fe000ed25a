package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// HistoryOfEnvoys makes a run from a seed: a few Envoys of any kind, nodes with a ledger or alone, and faults of each.
func HistoryOfEnvoys(seed uint64) Options {
	h := &historian{rand.New(rand.NewPCG(seed, 0x72)), Options{Seed: seed, Check: true}}
	limit := ratelimit.Tokens(20 + h.IntN(400))
	e := &Envoys{Count: 1 + h.IntN(6), Skewed: h.chance(0.5), Bursts: h.chance(0.4), Quirks: h.quirks()}
	h.o.Envoys, h.o.Nodes = e, h.IntN(4)
	if h.o.Nodes == 0 {
		h.o.Nodes, h.o.Storeless = 1, true
	}
	h.o.Rule = &ratelimit.Rule{
		Limit: ratelimit.Limit{Unit: ratelimit.Minute, Requests: limit}, Coordination: ratelimit.DefaultCoordination(),
	}
	switch l := &h.o.Rule.Limit; h.IntN(3) {
	case 0:
		l.Algorithm = ratelimit.SlidingWindow
	case 1: // of a minute's tokens at least, and of four minutes' at most
		l.Algorithm, l.Burst = ratelimit.TokenBucket, limit+ratelimit.Tokens(h.IntN(int(3*limit)))
	}
	if h.chance(0.2) {
		h.o.Rule.Coordination.Lease.Fixed = 1 + ratelimit.Tokens(h.IntN(int(limit)))
	}
	if h.chance(0.3) {
		e.Direct = 0.5 * h.Float64()
	}
	h.o.Start = time.Duration(h.Int64N(int64(time.Minute)))
	h.o.Load = load.Load{
		Rate: float64(limit) / 60 * (0.3 + 3*h.Float64()), Keys: 1 + h.IntN(3),
		Shape:  pick(h, load.Steady, load.Steady, load.Burst, load.Ramp),
		Length: time.Minute + time.Duration(h.Int64N(int64(2*time.Minute))),
	}
	if e.Bursts {
		h.o.Load.Rate *= 4
	}
	trip := time.Duration(h.Int64N(int64(40 * time.Millisecond)))
	h.o.Net.Hop = Delay{Least: trip, Tail: trip}
	if h.chance(0.85) {
		h.strikeEnvoys()
	}
	slices.SortStableFunc(h.o.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return h.o
}

// quirks are stock Envoy's, or those of one that has mended some.
func (h *historian) quirks() envoy.Quirks {
	q := envoy.Stock()
	if h.chance(0.5) {
		return q
	}
	q.ScalesChanged = h.chance(0.5)
	q.ComparesLittle = h.chance(0.5)
	q.LosesReports = h.chance(0.5)
	q.WholeSecondElapsed, q.WholeSecondTTL = h.chance(0.5), h.chance(0.5)
	return q
}

// envoyFaults are the faults of histories of Envoys.
var envoyFaults = []FaultKind{Break, Freeze, Stall, Lag, Crash, Hang, Amnesia, Enter}

func (h *historian) strikeEnvoys() {
	for range 1 + h.IntN(6) {
		f := Fault{
			At: time.Duration(h.Int64N(int64(h.o.Load.Length))), Kind: pick(h, envoyFaults...), Node: h.IntN(8),
			For: time.Duration(h.Int64N(int64(pick(h, time.Second, 8*time.Second, 70*time.Second)))),
		}
		if h.chance(0.5) { // around the turn of a window
			turn := time.Minute*time.Duration(1+h.IntN(2)) - h.o.Start
			f.At = min(max(0, turn-time.Duration(h.Int64N(int64(8*time.Second)))), h.o.Load.Length)
		}
		if f.Kind == Crash {
			f.Node %= h.o.Nodes
			h.o.Faults = append(h.o.Faults, Fault{At: f.At + f.For, Kind: Restart, Node: f.Node})
		}
		h.o.Faults = append(h.o.Faults, f)
	}
}
