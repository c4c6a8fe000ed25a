package main

import (
	"encoding/json"
	"sync"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// charge is whether a node refuses a charge of so many tokens; 0 peeks, and fewer than none refunds.
func (f *fleet) charge(node int, key, value string, n int) (over bool) {
	f.Helper()
	a, err := f.send(node, descriptor(n, key, value))
	if err != nil {
		f.Error(err)
		return true
	}
	return a.OverallCode == rls.RateLimitResponse_OVER_LIMIT
}

// 350 of 100 are charged: all nodes refuse, and metrics and explain say how much lies beyond the limit. So it is in each
// mode, with a Redis behind and without.
func TestPostPaidDebt(t *testing.T) {
	t.Parallel()
	withAndWithout(t, func(t *testing.T, store storeServer) {
		t.Parallel()
		r := newFleet(t, 3, setup{rules: patient(routingRules), store: store, ring: 3})
		values := []string{"routing"}
		if store != nil {
			values = append(values, "leasing", "approx")
		}
		var all sync.WaitGroup
		for _, value := range values {
			all.Go(func() { owes(t, r, value) })
		}
		all.Wait()
	})
}

func owes(t *testing.T, r *fleet, value string) {
	if !r.charge(0, "owes", value, 350) {
		t.Errorf("%s: 350 of 100 are no more than there is", value)
	}
	for i, n := range r.nodes {
		if !r.charge(i, "owes", value, 0) {
			t.Errorf("%s: node %d admits a peek; on_store_failure has decided %d requests there", value, i,
				n.metric(`sluice_decision_sources_total{source="fallback"}`))
		}
	}
	path, debt := "owes_"+value, int64(0)
	if value == "routing" {
		path = "owes"
	}
	for _, n := range r.nodes {
		debt += int64(n.sum("sluice_debt_tokens_total", `domain="d"`, `rule="`+path+`"`))
	}
	if debt != 250 {
		t.Errorf("%s: %d are counted as debt, and 250 of 350 lay beyond 100", value, debt)
	}
	if r.store == nil {
		return
	}
	_, text := r.nodes[1].get(r.nodes[1].debug + "/explain?domain=d&entry=owes=" + value)
	var e struct{ Ledger struct{ Free int } }
	if err := json.Unmarshal([]byte(text), &e); err != nil || e.Ledger.Free > -250 {
		t.Errorf("%s: %v, %s", value, err, text)
	}
}
