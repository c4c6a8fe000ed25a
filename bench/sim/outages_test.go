package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

var outages = flag.Int("outages", 90, "how many outages TestOutages plays")

// outageRow is the result of random outages under one mode and policy. Parts are of the declared numbers, at most 1; of
// all demand, they are 0. A window belongs to one of three columns, by where the outage lies: before or after it
// (normal), across its edge (edges), or around all of it (between).
type outageRow struct {
	outages, windows       int
	normal, edges, between float64   // the largest part in such a window
	admitted               []float64 // in windows with an edge and enough demand, in parts of the limit
}

// In random outages of the store, each mode with each policy admits at most the declared number of a window. It is another
// one where an outage begins or ends, between, and without one.
//
//	go test -count=1 -v -run '^TestOutages$' ./bench/sim -outages 1000
func TestOutages(t *testing.T) {
	t.Parallel()
	modes, policies := ratelimit.ModeNames(), ratelimit.FailurePolicies
	rows := len(modes) * len(policies)
	for i := range rows {
		mode, policy := modes[i/len(policies)], policies[i%len(policies)]
		var r outageRow
		for seed := 99 + i; seed < 99+*outages; seed += rows {
			if err := r.judge(drawOutage(uint64(seed), mode, policy)); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		slices.Sort(r.admitted)
		median := 0.0
		if n := len(r.admitted); n > 0 {
			median = r.admitted[n/2]
		}
		t.Logf("%s, %s: %d windows of %d outages; the largest part of the declared number: normal %.0f%%, first and last %.0f%%, between %.0f%%; half of the first and last admit %.0f%% of the limit",
			mode, policy, r.windows, r.outages, 100*r.normal, 100*r.edges, 100*r.between, 100*median)
		local := policy == ratelimit.FailLocal.String()
		if r.outages < 10 || r.windows < 50 || r.normal < 0.9 || local && (r.edges < 0.4 || r.between < 0.4 || median == 0) {
			t.Errorf("%s, %s: was it tried? %+v", mode, policy, r)
		}
	}
}

// Windows with an outage that is not known are judged as those without one, and exceed their number.
func TestOutageThatIsNotDeclared(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"local", "open"} {
		found := false
		for seed := uint64(0); seed < 40 && !found; seed++ {
			o := drawOutage(seed, ratelimit.Leasing.String(), policy)
			o.from, o.to = time.Hour, 2*time.Hour
			found = new(outageRow).judge(o) != nil
		}
		if !found {
			t.Errorf("%s: nothing is beyond its number: what is judged?", policy)
		}
	}
}

// outage is a run with one outage of the store.
type outage struct {
	Options
	from, to time.Duration
	starts   int // of nodes, in the outage
}

// drawOutage makes an outage from its seed. One key is enough, because each key has its own bound. Windows begin with
// the run (Start is 0), so each point of the timeline is one window.
func drawOutage(seed uint64, mode, policy string) outage {
	h := rand.New(rand.NewPCG(seed, 0x0a7a9e)) //nolint:gosec // the same outage each time
	pick := func(of ...string) string { return of[h.IntN(len(of))] }
	limit := []ratelimit.Tokens{1, 2, 10, 60, 600, 3000}[h.IntN(6)]
	period := []uint32{1, 2, 5, 10, 30, 60}[h.IntN(6)]
	nodes := 1 + h.IntN(5)
	r := &ratelimit.Rule{
		Domain: "outage", Path: "key", Limit: ratelimit.Limit{Unit: ratelimit.Second, Multiplier: period, Requests: limit},
		Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{},
	}
	fields := map[string]string{
		"mode": mode, "on_store_failure": policy, "max_nodes": pick(fmt.Sprint(nodes), "10"), "lease.size": pick("auto", "auto", "1", "10"),
		"reclaim": pick("safe", "safe", "eager"), "on_deny": pick("charge", "refund"), "drift_budget": pick("1%", "10%"),
	}
	if err := setFields(&r.Coordination, fields); err != nil {
		panic(err) // the fields above are wrong
	}
	const windows = 5
	one := r.Limit.Period()
	o := outage{Options: Options{
		Seed: seed, Nodes: nodes, Rule: r, Points: windows, Refuses: h.IntN(2) == 0,
		Net: Net{
			Trip: Delay{Least: time.Duration(200+h.IntN(1500)) * time.Microsecond}, Hop: Delay{Least: 300 * time.Microsecond},
		},
	}}
	o.from = time.Duration(h.Int64N(int64(2 * one)))
	o.to = o.from + time.Duration(h.Int64N(int64(2*one))) + 10*time.Millisecond
	o.Faults = []Fault{{At: o.from, Kind: []FaultKind{Down, Down, Hang}[h.IntN(3)], For: o.to - o.from}}
	// In one of three outages, one node or two start anew.
	for range h.IntN(3) / 2 * (1 + h.IntN(2)) {
		o.starts++
		at, node := o.from+time.Duration(h.Int64N(int64(o.to-o.from))), h.IntN(nodes)
		o.Faults = append(o.Faults, Fault{At: at, Kind: Crash, Node: node}, Fault{At: at, Kind: Restart, Node: node})
	}
	slices.SortStableFunc(o.Faults, func(a, b Fault) int { return int(a.At - b.At) })
	// Demand is 0.3 to 5.3 times the limit, and mostly near it: the product of two uniform numbers is small.
	o.Recorded = unevenly(h, nodes, one*windows, float64(limit)*(0.3+5*h.Float64()*h.Float64())/one.Seconds())
	o.Load = load.Load{Rate: 1, Keys: 1, Length: one * windows}
	return o
}

// unevenly is demand for one key whose nodes change: all of them, or one. So nodes have read the usage at different
// times. At the beginning of an outage, a node that has read a high usage admits less than one that has read none: the
// declared number must hold for both.
func unevenly(h *rand.Rand, nodes int, length time.Duration, rate float64) *load.Recorded {
	r := &load.Recorded{Keys: []string{"k"}}
	// In two of three outages, requests cost one token, and in the third up to five.
	only, until, cost := -1, 0.0, 1+int64(h.IntN(3)/2*h.IntN(5))
	for at := 0.0; ; {
		// The mean cost is (1+cost)/2, so rate is in tokens and not in requests.
		at += h.ExpFloat64() / rate * float64(1+cost) / 2
		if at >= length.Seconds() {
			return r
		}
		if at > until {
			only, until = h.IntN(2*nodes), at+h.Float64()*length.Seconds()/5
		}
		node := only
		if only >= nodes {
			node = h.IntN(nodes)
		}
		r.Requests = append(r.Requests, load.Request{At: time.Duration(at * 1e9), Cost: 1 + h.Int64N(cost), Node: node})
	}
}

const (
	// ahead is the time before a window at which nodes claim tokens of it.
	ahead = 150 * time.Millisecond
	// probes is the time after an outage until all nodes have an answer.
	probes = 2 * time.Second
)

// judge plays an outage, and compares each window with its declared number. A window is normal only if the outage ended
// well before it (probes), and between only if no node can have claimed its tokens before (ahead). All others are
// edges.
func (row *outageRow) judge(o outage) error {
	result, err := Run(o.Options)
	if err != nil {
		return err
	}
	if result.Violation != nil {
		return result.Violation
	}
	row.outages++
	limit, one := o.Rule.Limit.Capacity(), o.Rule.Limit.Period()
	declared := declare.Of(o.Rule, o.Nodes, declare.SharedStore)
	out := declared.OnOutage
	// A restarted node has a budget of its own once more.
	starts := out.Node.Times(o.starts)
	for i, p := range result.Timeline {
		begins, ends := time.Duration(i)*one, time.Duration(i+1)*one
		of, most, what := &row.edges, out.Edges, "in which an outage begins or ends"
		switch {
		case ends <= o.from, begins >= o.to+probes:
			of = &row.normal
			most = declare.Amount{Tokens: limit + declared.Over.Tokens}
			what = "without an outage"
		case begins-ahead >= o.from && ends <= o.to:
			of = &row.between
			most = out.Fleet()
			what = "without any answer"
			most.Tokens += starts.Tokens + declared.Over.Drift
		default:
			most.Tokens += starts.Tokens
			if p.Offered >= limit {
				row.admitted = append(row.admitted, float64(p.Admitted)/float64(limit))
			}
		}
		row.windows++
		// With on_store_failure open, all demand passes, and there is no number to compare with.
		if !most.Bounded() {
			continue
		}
		if p.Admitted > most.Tokens {
			return fmt.Errorf("%v, %+v, %d nodes, %d of them new, outage from %v to %v: window %d, %s, admitted %d, and %d are declared",
				o.Rule.Limit, o.Rule.Coordination, o.Nodes, o.starts, o.from, o.to, i, what, p.Admitted, most.Tokens)
		}
		*of = max(*of, float64(p.Admitted)/float64(max(1, most.Tokens)))
	}
	return nil
}
