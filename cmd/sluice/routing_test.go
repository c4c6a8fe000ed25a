package main

import (
	"testing"
)

const routingRules = `domain: d
coordination: {mode: routing, on_store_failure: closed}
descriptors:
  - {key: one, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: ten, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: thousand, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: million, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - {key: bucket, algorithm: token_bucket, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: sliding, algorithm: sliding_window, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: owes, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: owes, value: leasing, coordination: {mode: leasing}, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: owes, value: approx, coordination: {mode: approx, drift_budget: 30}, rate_limit: {unit: year, requests_per_unit: 100}}
`

// withAndWithout runs a test in memory, and with a Redis behind.
func withAndWithout(t *testing.T, test func(*testing.T, storeServer)) {
	t.Run("memory", func(t *testing.T) { test(t, nil) })
	t.Run("redis", func(t *testing.T) { test(t, aRedis(t)) })
}

// late is how many requests their owners did not answer in time so far.
func (f *fleet) late() int64 {
	total := f.fallbacks()
	for _, n := range f.nodes {
		total += int64(n.metric(`sluice_peer_asks_total{kind="leased_instead"}`))
	}
	return total
}

// Exact from any entry node, for limits from 1 to 1,000,000: never more, and less only by admissions of owners
// whose answers this machine has delayed for 15 ms. The owner takes such a request back, but refused ones after
// it are charged before. Of a hot key, two nodes may also have a rest that is less than a request.
func TestRoutingIsExact(t *testing.T) {
	withAndWithout(t, func(t *testing.T, store storeServer) {
		r := newFleet(t, 3, setup{rules: routingRules, store: store, ring: 3})
		for _, c := range []struct {
			key   string
			limit int64
		}{{"one", 1}, {"ten", 10}, {"thousand", 1000}, {"million", 1_000_000}, {"bucket", 100}, {"sliding", 100}} {
			r.admitted.Store(0)
			r.hits = uint64(max(1, c.limit/10_000))
			before := r.late()
			r.load(c.key, 12, int(c.limit)/int(r.hits)*3/2/12+20, 0, 1, 2).Wait()
			late := (r.late() - before) * int64(r.hits)
			// The rest in hand of each node can be less than a request, and a refusal's charge uses it up.
			least := c.limit - late - int64(len(r.nodes))*int64(r.hits-1)
			r.untilAdmitted(c.key, least, 0, 1, 2)
			got := r.admitted.Load()
			if got > c.limit || got < least {
				t.Errorf("%s: admitted %d of %d, and %d were answered late", c.key, got, c.limit, late)
			}
			t.Logf("%s: admitted %d of %d, and %d were answered late", c.key, got, c.limit, late)
		}
		if n := r.failed.Load(); n > 0 {
			t.Errorf("%d calls failed", n)
		}
	})
}
