package sim

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// One seed is one run: every figure and every event of it.
func TestRunsAreTheSameTwice(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		var results, traces [2]string
		for i := range results {
			var trace bytes.Buffer
			o := History(seed)
			o.Trace, o.Decisions, o.Points = &trace, true, 50
			r, err := Run(o)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			results[i], traces[i] = string(text), trace.String()
		}
		if results[0] != results[1] {
			t.Errorf("seed %d: two results:\n%s\n%s", seed, results[0], results[1])
		}
		if traces[0] != traces[1] || traces[0] == "" {
			t.Errorf("seed %d: two traces, or none", seed)
		}
	}
}

// What is counted adds up.
func TestSumsAgree(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		o := History(seed)
		o.Points = 20
		r, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		offered := ratelimit.Tokens(0)
		for _, p := range r.Timeline {
			offered += p.Offered
		}
		if late := r.Offered - offered; late < 0 || late > r.Offered/4+20 {
			t.Errorf("seed %d: %d offered, and %d in the timeline", seed, r.Offered, offered)
		}
		if o.Rule.Coordination.Mode == ratelimit.Routing {
			continue // an answer may come too late, and the node have decided without
		}
		if got := r.Admitted + r.Refused + r.Unanswered; got != r.Offered {
			t.Errorf("seed %d: %d admitted, %d refused, %d unanswered: not the %d offered", seed, r.Admitted, r.Refused, r.Unanswered, r.Offered)
		}
	}
}

// plain is a fleet on which nothing goes wrong.
func plain(mode ratelimit.Mode, limit ratelimit.Tokens, keys, nodes int, rate float64, length time.Duration) Options {
	r := &ratelimit.Rule{Domain: "d", Path: "key", Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{}}
	r.Limit = ratelimit.Limit{Unit: ratelimit.Minute, Requests: limit, Burst: limit}
	r.Coordination.Mode = mode
	return Options{
		Seed: 1, Nodes: nodes, Rule: r, Load: load.Load{Rate: rate, Keys: keys, Skew: 1.1, Length: length},
		Net: Net{Trip: Delay{Least: 500 * time.Microsecond}, Hop: Delay{Least: 200 * time.Microsecond}},
	}
}

// With a prompt store and no fault every mode admits the limit, and one node all of it. Only mode approx admits more: in
// each window a request of each node at most, and none where there is one node.
func TestPlainFleetsAreExact(t *testing.T) {
	t.Parallel()
	const windows = 3
	for mode := range ratelimit.ModeNames() {
		for _, nodes := range []int{1, 3} {
			o := plain(ratelimit.Mode(mode), 3000, 1, nodes, 1000, windows*time.Minute)
			o.Check = true
			r, err := Run(o)
			if err != nil || r.Violation != nil {
				t.Fatal(err, r.Violation)
			}
			most, least := ratelimit.Tokens(0), ratelimit.Tokens(windows*3000)
			if nodes > 1 {
				least -= 20
			}
			if o.Rule.Drifts() && nodes > 1 {
				most = ratelimit.Tokens(nodes)
			}
			if r.Over > most || r.Admitted < least {
				t.Errorf("%s, %d nodes: %d over, %d of 9000 admitted", ratelimit.Mode(mode), nodes, r.Over, r.Admitted)
			}
		}
	}
}

// BenchmarkDecisions is how many decisions the simulator plays a second, on one
// core.
func BenchmarkDecisions(b *testing.B) {
	for name, o := range map[string]Options{
		"leasing": plain(ratelimit.Leasing, 100_000, 1000, 3, 100_000, 10*time.Second),
		"approx":  plain(ratelimit.Approx, 100_000, 1000, 3, 100_000, 10*time.Second),
		"routing": plain(ratelimit.Routing, 100_000, 1000, 3, 100_000, 10*time.Second),
	} {
		b.Run(name, func(b *testing.B) {
			decisions := int64(0)
			for b.Loop() {
				r, err := Run(o)
				if err != nil {
					b.Fatal(err)
				}
				decisions += r.Requests
			}
			b.ReportMetric(float64(decisions)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	o := Options{Net: Net{Loss: 2, Skew: -1}}
	err := o.Validate()
	for _, want := range []string{"nodes is 0", "no rule", "loss is 2", "skew is -1", "the rate is 0"} {
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte(want)) {
			t.Errorf("%q is not said in: %v", want, err)
		}
	}
}
