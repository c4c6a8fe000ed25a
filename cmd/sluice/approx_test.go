package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

const approxRules = `domain: d
coordination: {mode: approx, on_store_failure: closed, max_nodes: 3}
descriptors:
  - {key: half, coordination: {drift_budget: 0.5%}, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: one, coordination: {drift_budget: 1%}, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: five, coordination: {drift_budget: 5%}, rate_limit: {unit: year, requests_per_unit: 10000}}
  - {key: large, coordination: {drift_budget: 1%}, rate_limit: {unit: year, requests_per_unit: 100000}}
`

// slowStore is a Redis behind a proxy.
type slowStore struct {
	*redistest.Server
	proxy *redistest.Proxy
}

func (s slowStore) URL() string { return "redis://" + s.proxy.Addr }

// approxFleet is nodes with drift shares, behind a proxy that delays replies.
func approxFleet(t *testing.T, nodes int, delay time.Duration) *fleet {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	f := newFleet(t, nodes, setup{rules: approxRules, store: slowStore{server, proxy}})
	f.nodes[0].eventually("there are three drift seats", func() bool {
		seated := 0
		for _, n := range f.nodes {
			seated += metrics.Flag(n.metric("sluice_drift_seat") >= 0)
		}
		return seated == min(nodes, 3)
	})
	proxy.Delay(delay)
	return f
}

func (f *fleet) drift(key, name string) int64 { return f.ofRule(key, "approx", name) }

// ofRule is the sum of a metric of a rule over the nodes that run.
func (f *fleet) ofRule(key, mode, name string) (total int64) {
	for _, n := range f.nodes {
		if n.cmd.ProcessState == nil {
			total += int64(n.metric(fmt.Sprintf("sluice_%s{domain=%q,rule=%q,mode=%q}", name, "d", key, mode)))
		}
	}
	return total
}

// However late Redis is, and however many nodes there are, each rule goes over
// by its drift budget at most; what was over is what the nodes' metrics say.
func TestApproxStaysWithinItsBudget(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		nodes int
		delay time.Duration
	}{{1, 0}, {3, 0}, {3, 50 * time.Millisecond}, {10, 50 * time.Millisecond}} {
		t.Run(fmt.Sprintf("%d nodes, %v", c.nodes, c.delay), func(t *testing.T) {
			t.Parallel()
			f := approxFleet(t, c.nodes, c.delay)
			all := make([]int, c.nodes)
			for i := range all {
				all[i] = i
			}
			for _, r := range []struct {
				key           string
				limit, budget int64
				hits          uint64
			}{{"half", 1000, 5, 1}, {"one", 10_000, 100, 1}, {"five", 10_000, 500, 4}, {"large", 100_000, 1000, 40}} {
				key, limit, budget := r.key, r.limit, r.budget
				f.admitted.Store(0)
				f.hits = r.hits
				f.load(key, 20, int(limit)/int(f.hits)*3/2/20, all...).Wait() // all cold at once
				// A denial of several hits drains what is left: tokens spent and not admitted.
				drained := (int64(f.hits) - 1) * int64(c.nodes)
				// What refusals were charged, before others had given back what they had, is gone: more on a busy machine.
				early := limit / 10
				f.untilAdmitted(key, limit-drained-early, all...)
				f.load(key, 20, 30, all...).Wait() // more than there is
				got := f.admitted.Load()
				t.Logf("%d nodes, %v: admitted %d of %d, %.2f%% over; declared: %.1f%%", c.nodes, c.delay, got, limit, 100*float64(max(0, got-limit))/float64(limit), 100*float64(budget)/float64(limit))
				if got > limit+budget || got < limit-drained-early {
					t.Errorf("%s: admitted %d of %d, with a budget of %d", key, got, limit, budget)
				}
				// Exact, but where this machine kept an answer for longer than check_timeout.
				late := int64(f.hits) * int64(f.nodes[0].metric(`sluice_decision_sources_total{source="drift"}`))
				if c.delay == 0 && c.nodes == 1 && got > limit+late {
					t.Errorf("%s: one node with a prompt store admitted %d of %d", key, got, limit)
				}
				over := max(0, got-limit)
				// An answer that a busy machine has lost is not counted.
				lost := 0
				for _, n := range f.nodes {
					lost += n.metric(`sluice_store_operations_total{result="failed"}`)
				}
				f.nodes[0].eventually("metrics say what was over", func() bool {
					counted := f.drift(key, "over_admitted_tokens_total")
					// Drift that found no room is counted, also where refusals were charged what others gave back.
					return (counted >= over || lost > 0) && counted <= budget
				})
				counted := f.drift(key, "over_admitted_tokens_total")
				if beyond := f.drift(key, "windows_beyond_bound_total"); beyond != int64(metrics.Flag(counted > budget)) {
					t.Errorf("%s: %d over of %d, and %d windows beyond their bound", key, counted, budget, beyond)
				}
			}
			seats := map[int]int{}
			for _, n := range f.nodes {
				seat := n.metric("sluice_drift_seat")
				seats[seat]++
				_, health := n.get(n.http + "/healthcheck")
				if said := strings.Contains(health, "no drift seat"); said != (seat < 0) {
					t.Errorf("seat %d, and the health check says %q", seat, health)
				}
			}
			for seat, n := range seats {
				if seat >= 0 && n > 1 {
					t.Errorf("%d nodes have seat %d", n, seat)
				}
			}
		})
	}
}
