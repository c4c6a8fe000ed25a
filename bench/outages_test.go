package bench

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

var outages = flag.Int("outages", 1, "number of times that TestOutagesOfRedis kills its Redis")

const (
	outageNodes  = 3
	outageWindow = 2 * time.Second
	// outageEarly is the time before a window at which nodes claim tokens of it.
	outageEarly = 150 * time.Millisecond
)

// struck is one outage: when Redis was killed, and when it was there again, both from before to after.
type struck struct{ killing, killed, starting, started time.Time }

// outageRun counts the admissions of each rule in each window, as its clients see them.
type outageRun struct {
	*testing.T
	rules    []*ratelimit.Rule
	nodes    [outageNodes]caller.Pool
	mu       sync.Mutex
	admitted []map[int64]ratelimit.Tokens // guarded by mu; by rule and window
	demand   float64                      // guarded by mu; in parts of the limit
}

// Real nodes, and a real Redis that is killed at random instants and comes back empty: in each window, each mode with
// each policy admits at most what it declares. TestOutages of bench/sim plays thousands of such outages.
func TestOutagesOfRedis(t *testing.T) {
	t.Parallel()
	text := outageRules()
	rules, _, problems := config.Parse([]config.Text{{Name: "rules", Data: []byte(text)}}, config.Options{Coordination: ratelimit.DefaultCoordination()})
	if problems != nil {
		t.Fatal(problems)
	}
	f := fleet(t, true, text, outageNodes)
	run := &outageRun{T: t, rules: rules.All(), demand: 1}
	for i, n := range f.Running() {
		if err := run.nodes[i].Add(n.Address); err != nil {
			t.Fatal(err)
		}
		defer run.nodes[i].Close()
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for i := range run.rules {
		run.admitted = append(run.admitted, map[int64]ratelimit.Tokens{})
		asking.Go(func() { run.ask(ctx, i, rand.New(rand.NewPCG(seed, uint64(i)))) }) //nolint:gosec // no secret
	}
	all := run.strike(f, rand.New(rand.NewPCG(seed, 99))) //nolint:gosec // no secret
	stop()
	asking.Wait()
	run.judge(all)
}

// outageRules has a rule for each mode and policy.
func outageRules() string {
	var b strings.Builder
	b.WriteString("domain: outage\ncoordination: {max_nodes: 3, drift_budget: 10%, store_deadline: 200ms}\ndescriptors:\n")
	for _, mode := range ratelimit.ModeNames() {
		for _, policy := range ratelimit.FailurePolicies {
			fmt.Fprintf(&b, "- key: %s-%s\n  coordination: {mode: %s, on_store_failure: %s}\n"+
				"  rate_limit: {unit: second, unit_multiplier: 2, requests_per_unit: 60}\n", mode, policy, mode, policy)
		}
	}
	return b.String()
}

// strike kills Redis again and again, at random instants for random times.
func (run *outageRun) strike(f *process.Fleet, h *rand.Rand) (all []struck) {
	time.Sleep(3 * time.Second) // nodes count each other
	for range *outages {
		run.mu.Lock()
		run.demand = 0.5 + 2.5*h.Float64()
		run.mu.Unlock()
		time.Sleep(outageWindow + time.Duration(h.Int64N(int64(outageWindow))))
		var s struck
		s.killing = time.Now()
		if err := f.Redis.Kill(); err != nil {
			run.Fatal(err)
		}
		s.killed = time.Now()
		time.Sleep(time.Duration(h.Int64N(int64(3 * outageWindow))))
		s.starting = time.Now()
		if err := f.Redis.Start(); err != nil {
			run.Fatal(err)
		}
		s.started = time.Now()
		all = append(all, s)
		time.Sleep(young + outageWindow)
	}
	return all
}

// ask requests single tokens of a rule: of all nodes, or for a while of one.
func (run *outageRun) ask(ctx context.Context, rule int, h *rand.Rand) {
	var calls sync.WaitGroup
	defer calls.Wait()
	request := caller.Request("outage", run.rules[rule].Path, "k")
	only, until := 0, time.Time{}
	for ctx.Err() == nil {
		run.mu.Lock()
		rate := run.demand * float64(run.rules[rule].Limit.Requests) / outageWindow.Seconds()
		run.mu.Unlock()
		time.Sleep(time.Duration(h.ExpFloat64() / rate * 1e9))
		if time.Now().After(until) {
			only, until = h.IntN(2*outageNodes), time.Now().Add(time.Duration(h.Int64N(int64(outageWindow))))
		}
		node := only
		if only >= outageNodes {
			node = h.IntN(outageNodes)
		}
		calls.Go(func() {
			sent := time.Now()
			limited, cancel := context.WithTimeout(context.Background(), caller.Timeout)
			defer cancel()
			answer, err := rls.NewRateLimitServiceClient(run.nodes[node].Next()).ShouldRateLimit(limited, request)
			// A decision is of the window in which it began, or in which it ended: it counts where these are one.
			if w := windowOf(sent); err == nil && answer.GetOverallCode() == rls.RateLimitResponse_OK && windowOf(time.Now()) == w {
				run.mu.Lock()
				run.admitted[rule][w]++
				run.mu.Unlock()
			}
		})
	}
}

func windowOf(t time.Time) int64 { return t.UnixNano() / int64(outageWindow) }

// judge compares all windows with the declared numbers.
func (run *outageRun) judge(all []struck) {
	for i, r := range run.rules {
		declared := declare.Of(r, outageNodes, declare.SharedStore)
		limit, out := r.Limit.Capacity(), declared.OnOutage
		kinds := map[string]float64{}
		for w, n := range run.admitted[i] {
			kind, most := "normal", declare.Amount{Tokens: limit + declared.Over.Tokens}
			begins := time.Unix(0, w*int64(outageWindow))
			for _, s := range all {
				ends := begins.Add(outageWindow)
				switch {
				case !ends.After(s.killing), begins.After(s.started.Add(young + time.Second)):
				case begins.Add(-outageEarly).After(s.killed) && ends.Before(s.starting):
					kind, most = "between", out.Fleet()
					most.Tokens += declared.Over.Drift
				default: // Redis comes back empty
					kind, most = "first or last", out.Edges
					most.Tokens += declared.OnLoss
				}
			}
			if !most.Bounded() {
				continue
			}
			if n > most.Tokens {
				run.Errorf("%s: a window, %s, admitted %d, and %d are declared", r.Path, kind, n, most.Tokens)
			}
			kinds[kind] = max(kinds[kind], float64(n)/float64(max(1, most.Tokens)))
		}
		run.Logf("%-15s %d windows, %d outages; largest part of the declared number: normal %.0f%%, first or last %.0f%%, between %.0f%%",
			r.Path, len(run.admitted[i]), len(all), 100*kinds["normal"], 100*kinds["first or last"], 100*kinds["between"])
	}
}
