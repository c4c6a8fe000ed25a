package main

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

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

// 350 of 100 in three seconds are charged, with debt: carry: two windows are used up at all nodes, and the third has 50
// left. So it is in each mode, with a Redis behind and without, and metrics and explain say it.
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
	const period = 3 * time.Second
	window := func() int64 { return time.Now().UnixMicro() / period.Microseconds() }
	for before := window(); window() == before; {
		time.Sleep(time.Millisecond)
	}
	began := window()
	ask := func(i, n int) bool { return r.charge(i%3, "owes", value, n) }
	if !ask(0, 350) {
		t.Errorf("%s: 350 of 100 are no more than there is", value)
	}
	if r.store != nil {
		for window() == began {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond) // no request has arrived yet
		_, text := r.nodes[1].get(r.nodes[1].debug + "/explain?domain=d&entry=owes=" + value)
		var e struct {
			Ledger struct{ Free, Carried, Charged int }
		}
		if err := json.Unmarshal([]byte(text), &e); err != nil || e.Ledger.Free > -150 || e.Ledger.Carried < 250 ||
			e.Ledger.Charged < 250 {
			t.Errorf("%s: %v, %s", value, err, text)
		}
	}
	for i := 0; window() < began+3; i++ {
		if over := ask(i, 0); !over && window() < began+3 {
			t.Errorf("%s: node %d admits a peek in window %d; on_store_failure has decided %d requests there", value, i%3, window()-began,
				r.nodes[i%3].metric(`sluice_decision_sources_total{source="fallback"}`))
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	path := "owes_" + value
	if value == "routing" {
		path = "owes"
	}
	debt := 0
	for _, n := range r.nodes {
		debt += n.sum("sluice_debt_tokens_total", `domain="d"`, `rule="`+path+`"`)
	}
	if debt != 250 {
		t.Errorf("%s: %d are counted as debt, and 250 of 350 lay beyond 100", value, debt)
	}
	admitted, most := 0, 50
	if value == "approx" {
		most += 30
	}
	for i := range 150 {
		if !ask(i, 1) {
			admitted++
		}
	}
	if window() == began+3 && (admitted < 50 || admitted > most) {
		t.Errorf("%s: %d are admitted, and 50 are left", value, admitted)
	}
}
