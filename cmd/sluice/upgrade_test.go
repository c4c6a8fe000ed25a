package main

import (
	goflag "flag" // flag is a function here
	"syscall"
	"testing"
)

var oldBinary = goflag.String("old-binary", "", "nodes of the release before, in TestRollingUpgrade; none: of this one (make upgrade FROM=commit)")

const upgradeRules = `domain: d
descriptors:
  - {key: fixed, coordination: {on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 6000}}
  - {key: sliding, algorithm: sliding_window, coordination: {on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 3000}}
  - {key: bucket, algorithm: token_bucket, coordination: {on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 3000}}
  - {key: eager, coordination: {on_store_failure: closed, reclaim: eager}, rate_limit: {unit: year, requests_per_unit: 3000}}
  - {key: drift, coordination: {mode: approx, drift_budget: 1%, max_nodes: 4, on_store_failure: closed}, rate_limit: {unit: year, requests_per_unit: 3000}}
`

// Nodes of two releases share one Redis while a fleet is upgraded node by node, and while it is rolled back.
// Each continues from the records of the other, and together they admit the limits, under each algorithm.
func TestRollingUpgrade(t *testing.T) {
	f := newFleet(t, 0, setup{rules: upgradeRules, store: aRedis(t)})
	joined := func(old bool) {
		if f.program = ""; old {
			f.program = *oldBinary
		}
		f.join().untilHealthy()
	}
	left := func(node int) { f.nodes[node].ends(syscall.SIGTERM) }
	limits := map[string]int64{"fixed": 6000, "sliding": 3000, "bucket": 3000, "eager": 3000, "drift": 3000}
	budgets := map[string]int64{"drift": 30}
	admitted := map[string]int64{}
	const callers = 8
	stage := func(part int64, nodes ...int) {
		t.Helper()
		for key, limit := range limits {
			f.admitted.Store(0)
			f.load(key, callers, int(limit/part/callers), nodes...).Wait()
			if admitted[key] += f.admitted.Load(); admitted[key] > limit+budgets[key] {
				t.Errorf("with nodes %v, %s: %d admitted, of %d and %d beyond", nodes, key, admitted[key], limit, budgets[key])
			}
		}
	}
	const old, new = true, false
	joined(old)
	joined(old)
	stage(5, 0, 1)
	joined(new)
	stage(5, 0, 1, 2)
	left(0)
	joined(new)
	stage(5, 1, 2, 3)
	left(1)
	stage(5, 2, 3)
	joined(old) // rolled back
	stage(5, 2, 3, 4)
	left(2)
	stage(2, 3, 4)
	for key, limit := range limits {
		lost := limit / 100
		if key == "bucket" { // on a busy machine its lease ends before a node that leaves has given it back: a share of it each time
			lost = limit / 20
		}
		if admitted[key] < limit-lost {
			t.Errorf("%s: %d of %d were admitted: the others are lost", key, admitted[key], limit)
		}
	}
	if n := f.failed.Load(); n > 0 {
		t.Errorf("%d calls failed", n)
	}
}
