package sim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What a rule declares is held here against what a fleet does in virtual time, a test a
// column of `sluice check` (docs/reference/bounds.md).

// coordinations are ways to share a limit, as rule files say them.
var coordinations = []map[string]string{
	{"mode": "leasing"},
	{"mode": "leasing", "lease.size": "1"},
	{"mode": "leasing", "lease.size": "10"},
	{"mode": "leasing", "reclaim": "eager"},
	{"mode": "routing"},
	{"mode": "approx", "drift_budget": "5%", "max_nodes": "4"},
	{"mode": "approx", "drift_budget": "5%", "max_nodes": "4", "reclaim": "eager"},
}

// declaring is a rule with a coordination, whose fields are set to what is said.
func declaring(t *testing.T, l ratelimit.Limit, fields ...map[string]string) *ratelimit.Rule {
	t.Helper()
	r := &ratelimit.Rule{Domain: "d", Path: "k", Limit: l, Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{}}
	for _, some := range fields {
		for _, field := range ratelimit.CoordinationFields { // in an order
			if text, ok := some[field]; ok {
				if err := r.Coordination.Set(field, text); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return r
}

// near is a store and peers that answer promptly.
var near = Net{Trip: Delay{Least: 500 * time.Microsecond, Tail: 500 * time.Microsecond}, Hop: Delay{Least: 300 * time.Microsecond}}

// One node makes at most the declared number of claims of a key: while there is plenty, while requests are
// refused, and with recalls. This includes a crash or a stop of a node, perhaps the key's owner.
//
//	go test -count=1 -v -run DeclaredStoreOps ./bench/sim
func TestDeclaredStoreOps(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		for _, requests := range []ratelimit.Tokens{30, 600, 3000} {
			for _, fields := range coordinations {
				l := ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Minute, Multiplier: 1, Requests: requests, Burst: requests}
				t.Run(fmt.Sprint(l, " ", fields), func(t *testing.T) {
					t.Parallel()
					declaredStoreOps(t, l, fields)
				})
			}
		}
	}
	// Where no request waits, each request without a lease drifts at once, and a claim reports it. Near
	// the end of a large limit that is one claim for each few tokens.
	t.Run("without waiting", func(t *testing.T) {
		l := ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: 60_000}
		declaredStoreOps(t, l, map[string]string{"mode": "approx", "drift_budget": "5%", "max_nodes": "3", "check_timeout": "0s"})
	})
}

func declaredStoreOps(t *testing.T, l ratelimit.Limit, fields map[string]string) {
	const length, keys = 62 * time.Second, 2
	worst := &Result{}
	for _, run := range []struct {
		demand float64 // of the limit, for each key
		fault  []Fault
	}{
		{demand: 0.3},
		{demand: 1.5},
		{demand: 6},
		{1.5, []Fault{{At: 20 * time.Second, Kind: Crash, Node: 1}}},
		{1.5, []Fault{{At: 20 * time.Second, Kind: Pause, Node: 1, For: 10 * time.Second}}},
	} {
		rate := min(1500, keys*run.demand*float64(l.Requests)/l.Period().Seconds())
		result := played(t, Options{
			Seed: 1, Nodes: 3, Rule: declaring(t, l, fields), CountOps: true, Net: near, Faults: run.fault,
			Load: load.Load{Rate: rate, Keys: keys, Length: length},
		})
		if result.OpsUsed > worst.OpsUsed {
			worst = result
		}
		if result.OpsUsed > 1 {
			t.Errorf("%v times the limit, %v: %d claims of a key by a node for %+v: %.2f of what is declared", run.demand, run.fault, result.Ops, result.OpsDemand, result.OpsUsed)
		}
		if result.Recalls > result.Claims {
			t.Errorf("%v times the limit, %v: %d recalls, and %d claims", run.demand, run.fault, result.Recalls, result.Claims)
		}
	}
	t.Logf("%.2f of what is declared: %d claims for %+v", worst.OpsUsed, worst.Ops, worst.OpsDemand)
	if worst.Ops == 0 {
		t.Error("no claim was counted")
	}
}

// No key exceeds its limit by more than declared, with demand for over three times the limit, a store that
// takes 50 ms, and nodes that crash with unreported usage. Without a crash the excess is at most
// the drift budget.
func TestDeclaredOver(t *testing.T) {
	over := map[string]ratelimit.Tokens{}
	for algorithm := range ratelimit.RateAlgorithms() {
		for _, fields := range coordinations {
			for name, faults := range map[string][]Fault{
				"slow":   {{At: 2 * time.Second, Kind: Slow, For: 50 * time.Millisecond}},
				"silent": {{At: 3300 * time.Millisecond, Kind: Crash, Node: 0}, {At: 3700 * time.Millisecond, Kind: Crash, Node: 2}},
			} {
				l := ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Minute, Multiplier: 1, Requests: 600, Burst: 600}
				r := declaring(t, l, fields, map[string]string{"on_store_failure": "closed"})
				result := played(t, Options{
					Seed: 1, Nodes: 4, Rule: r, Net: near, Load: load.Load{Rate: 72, Keys: 2, Length: 30 * time.Second}, Faults: faults,
				})
				declared := r.Declare(4, ratelimit.SharedStore).Over
				most := declared.Drift
				if name == "silent" {
					most += 2 * declared.EachSilent
				}
				if result.Over > most || most > declared.Tokens {
					t.Errorf("%v %v, %s: %d over, at most %d of %+v", l, fields, name, result.Over, most, declared)
				}
				over[name] += result.Over
			}
		}
	}
	t.Log("over, of all rules together: ", over)
	if over["slow"] == 0 || over["silent"] == 0 {
		t.Error("nothing was over: what was measured?")
	}
}

// The nodes' count of over-admission is at least the excess that clients got. It is larger by at most the drift budget:
// the account does not show which of its tokens refusals were charged.
func TestOverAdmissionIsCounted(t *testing.T) {
	const limit = 10_000
	total := ratelimit.Tokens(0)
	for seed := range uint64(20) {
		r := declaring(t, ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: limit},
			map[string]string{"mode": "approx", "drift_budget": "5%", "max_nodes": "3", "on_store_failure": "closed", "on_deny": []string{"charge", "refund"}[seed%2]})
		result := played(t, Options{
			Seed: seed, Nodes: 3, Rule: r, Net: Net{Trip: Delay{Least: 50 * time.Millisecond}}, Load: load.Load{Rate: limit / 10, Keys: 1, Length: 30 * time.Second},
		})
		counted := ratelimit.Tokens(r.Counters.OverAdmitted.Load())
		if counted < result.Over || counted > result.Over+r.Coordination.DriftBudget.Of(limit) {
			t.Errorf("seed %d: %d over, and the nodes count %d", seed, result.Over, counted)
		}
		total += result.Over
	}
	if t.Logf("%d over in all", total); total == 0 {
		t.Error("nothing was over: was it tried?")
	}
}

// In a window without a store, nodes admit what is declared, and no more; what is over in
// the window in which it went is no more either. Demand is six times the limit.
func TestDeclaredOutage(t *testing.T) {
	const nodes, rate = 3, 60.0
	l := ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: 600}
	for _, fields := range []map[string]string{
		{"on_store_failure": "local"},
		{"on_store_failure": "open"},
		{"on_store_failure": "closed"},
	} {
		for _, mode := range []string{"leasing", "routing", "approx"} {
			r := declaring(t, l, fields, map[string]string{"mode": mode})
			result := played(t, Options{
				Seed: 1, Nodes: nodes, Rule: r, Net: near, Load: load.Load{Rate: rate, Keys: 1, Length: 120 * time.Second}, Points: 120,
				Faults: []Fault{{At: 30 * time.Second, Kind: Down, For: 100 * time.Second}},
			})
			admitted, offered := ratelimit.Tokens(0), ratelimit.Tokens(0)
			for _, p := range result.Timeline[60:] {
				admitted, offered = admitted+p.Admitted, offered+p.Offered
			}
			declared := r.Declare(nodes, ratelimit.SharedStore).OnOutage
			most := declared.Fleet().At(rate)
			t.Logf("%v %s: %d over in the first window, %d admitted in the second, declared: %v", fields, mode, result.Over, admitted, declared)
			switch {
			case !declared.Node.Bounded():
				// One that probes whether the store is back waits for store_deadline, beyond the end.
				underWay := ratelimit.Tokens(math.Ceil(rate * ratelimit.StoreDeadline.Seconds()))
				if admitted > offered || admitted < offered-underWay {
					t.Errorf("%v %s: %d admitted of %d", fields, mode, admitted, offered)
				}
			case admitted > most || result.Over > most:
				t.Errorf("%v %s: %d over, %d admitted; at most %d", fields, mode, result.Over, admitted, most)
			case declared.Policy == ratelimit.FailLocal && admitted == 0:
				t.Errorf("%v %s: nothing was admitted: what was measured?", fields, mode)
			}
		}
	}
}

// A store that loses its data costs what is declared: keys are used up when it does, and
// demand goes on.
func TestDeclaredLoss(t *testing.T) {
	over := ratelimit.Tokens(0)
	for algorithm := range ratelimit.RateAlgorithms() {
		for _, fields := range coordinations {
			l := ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Minute, Multiplier: 1, Requests: 600, Burst: 600}
			r := declaring(t, l, fields, map[string]string{"on_store_failure": "closed"})
			result := played(t, Options{
				Seed: 1, Nodes: 3, Rule: r, Net: near, Load: load.Load{Rate: 120, Keys: 2, Length: 40 * time.Second},
				Faults: []Fault{{At: 20 * time.Second, Kind: Amnesia}},
			})
			declared := r.Declare(3, ratelimit.SharedStore)
			most := declared.Over.Drift + declared.OnLoss
			if result.Over > most {
				t.Errorf("%v %v: %d over, at most %d", l, fields, result.Over, most)
			}
			over += result.Over
		}
	}
	t.Log("over, of all rules together: ", over)
	if over == 0 {
		t.Error("nothing was over: what was measured?")
	}
}

// No decision waits for longer than is declared: of a store that takes 100 ms, or does not
// answer, and of peers as slow.
//
// The first requests of all find a node that has no seat yet, and so no share: one in a hundred may wait for longer than
// a share lets it.
func TestDeclaredWait(t *testing.T) {
	longest := time.Duration(0)
	l := ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: 1, Requests: 600}
	for _, fields := range coordinations {
		for _, deadline := range []string{"15ms", "40ms"} {
			for name, faults := range map[string][]Fault{
				"slow": {{At: time.Second, Kind: Slow, For: 100 * time.Millisecond}},
				"hung": {{At: time.Second, Kind: Hang, For: 5 * time.Second}},
			} {
				for _, hop := range []time.Duration{300 * time.Microsecond, 100 * time.Millisecond} {
					r := declaring(t, l, fields, map[string]string{"store_deadline": deadline})
					net := near
					net.Hop.Least = hop
					result := played(t, Options{
						// A node's share of a key is seven tokens. It gets one request in two
						// seconds, so that the share lasts while the store hangs.
						Seed: 1, Nodes: 3, Rule: r, Net: net, Load: load.Load{Rate: 60, Keys: 40, Length: 10 * time.Second}, Faults: faults,
					})
					declared := r.Declare(3, ratelimit.SharedStore).Wait
					if result.Longest > inBuckets(declared.Longest) || declared.Drifts && result.P99 > inBuckets(declared.WithShare) {
						t.Errorf("%v %s, %v hops: a decision waited for %v, 99 of 100 for %v; declared: %v", fields, name, hop, result.Longest, result.P99, declared)
					}
					longest = max(longest, result.Longest)
				}
			}
		}
	}
	if longest < 40*time.Millisecond {
		t.Errorf("nothing waited for longer than %v: what was measured?", longest)
	}
}

// inBuckets is what the simulator's histogram may make of a time: three digits are right.
func inBuckets(d time.Duration) time.Duration { return d + d/500 }

// played is what a run came to; it fails the test if it did not.
func played(t *testing.T, o Options) *Result {
	t.Helper()
	result, err := Run(o)
	if err != nil || result.Violation != nil {
		t.Fatal(o.Rule.Limit, o.Rule.Coordination, o.Faults, err, result.Violation)
	}
	return result
}
