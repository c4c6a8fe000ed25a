package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// fleetOfThree is three processes on one Redis.
func fleetOfThree(t *testing.T, rules string) []rls.RateLimitServiceClient {
	t.Helper()
	_, nodes := nodesOfThree(t, redistest.Start(t), rules, nil)
	return nodes
}

// nodesOfThree are three processes. Each writes a file of its own, if there are any.
func nodesOfThree(
	t *testing.T, store *redistest.Server, rules string, files []string,
) (all []*sluice, nodes []rls.RateLimitServiceClient) {
	t.Helper()
	file := t.TempDir() + "/rules.yaml"
	writeFile(t, file, rules)
	for i := range 3 {
		env := []string{"REDIS_URL=" + store.Addr, "COORDINATION_STORE_DEADLINE=1s"}
		if files != nil {
			env = append(env, "CACHE_KEY_PREFIX=p[x]*", "AUDIT_FILE="+files[i])
		}
		s := serve(t, env, "--config", file)
		all, nodes = append(all, s), append(nodes, rls.NewRateLimitServiceClient(s.dial()))
	}
	for _, s := range all {
		s.untilHealthy()
	}
	return all, nodes
}

// charge is whether a node refuses a charge of so many tokens; 0 peeks, and fewer than none refunds.
func charge(t testing.TB, node rls.RateLimitServiceClient, key string, n int) (over bool) {
	t.Helper()
	return chargeOf(t, node, "key", key, n)
}

func chargeOf(t testing.TB, node rls.RateLimitServiceClient, of, key string, n int) (over bool) {
	t.Helper()
	return chargeIn(t, node, "llm", of, key, n)
}

func chargeIn(t testing.TB, node rls.RateLimitServiceClient, domain, of, key string, n int) (over bool) {
	t.Helper()
	d := &common.RateLimitDescriptor{
		Entries:    []*common.RateLimitDescriptor_Entry{{Key: of, Value: key}},
		HitsAddend: wrapperspb.UInt64(uint64(max(n, -n))), IsNegativeHits: n < 0,
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a, err := node.ShouldRateLimit(ctx, &rls.RateLimitRequest{Domain: domain, Descriptors: []*common.RateLimitDescriptor{d}})
	if err != nil {
		t.Error(err)
		return true
	}
	return a.OverallCode == rls.RateLimitResponse_OVER_LIMIT
}

const llmRules = "domain: llm\ndescriptors:\n  - {key: key, rate_limit: {unit: year, requests_per_unit: %d}}\n"

// A refund of a refused charge elsewhere frees no tokens that another node has used.
func TestRefundElsewhere(t *testing.T) {
	n := fleetOfThree(t, fmt.Sprintf(llmRules, 100))
	if charge(t, n[0], "k", 100) {
		t.Fatal("100 of 100 are refused")
	}
	for range 8 {
		if !charge(t, n[1], "k", 1) {
			t.Error("node 1 admits the 101st")
		}
	}
	for range 8 {
		charge(t, n[0], "k", -1)
	}
	if !charge(t, n[0], "k", 8) {
		t.Error("100 and 8 are charged, 8 refunded, and 8 more are admitted")
	}
}

// 50 clients peek, and charge 5,000 of 10,000 at the end. The usage is at most the limit plus the costs in
// flight, and from then on all nodes refuse.
func TestPostPaid(t *testing.T) {
	const limit, cost, clients = 10_000, 5000, 50
	n := fleetOfThree(t, fmt.Sprintf(llmRules, limit))
	var used, passed, refused atomic.Int64
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for j := range 8 {
				if charge(t, n[(i+j)%3], "k", 0) {
					refused.Add(1)
					continue
				}
				passed.Add(1)
				time.Sleep(100 * time.Millisecond) // the completion
				charge(t, n[(i+2*j+1)%3], "k", cost)
				used.Add(cost)
			}
		})
	}
	all.Wait()
	for i := range n {
		if !charge(t, n[i], "k", 0) || !charge(t, n[i], "k", 1) {
			t.Errorf("node %d admits, and %d of %d are used", i, used.Load(), limit)
		}
	}
	t.Logf("%d passed, %d refused, %d used of %d", passed.Load(), refused.Load(), used.Load(), limit)
	if used.Load() > limit+clients*cost {
		t.Errorf("%d were used, of %d and %d in flight", used.Load(), limit, clients)
	}
}

// 350 of 100 in three seconds are charged, with debt: carry: two windows are used up at all nodes, and the third has 50
// left. So it is in each mode, with a Redis behind and without, and metrics and explain say it.
func TestPostPaidDebt(t *testing.T) {
	t.Parallel()
	withAndWithout(t, func(t *testing.T, store ratelimit.Storage) {
		t.Parallel()
		r := newRing(t, 3, 0, store, "COORDINATION_STORE_DEADLINE=1s")
		values := []string{"routing"}
		if store == ratelimit.SharedStore {
			values = append(values, "leasing", "approx")
		}
		var all sync.WaitGroup
		for _, value := range values {
			all.Go(func() { owes(t, r, value) })
		}
		all.Wait()
	})
}

func owes(t *testing.T, r *ringFleet, value string) {
	const period = 3 * time.Second
	window := func() int64 { return time.Now().UnixMicro() / period.Microseconds() }
	for before := window(); window() == before; {
		time.Sleep(time.Millisecond)
	}
	began := window()
	ask := func(i, n int) bool { return chargeIn(t, r.clients[i%3], "d", "owes", value, n) }
	if !ask(0, 350) {
		t.Errorf("%s: 350 of 100 are no more than there is", value)
	}
	if r.store == ratelimit.SharedStore {
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
	debt, path := 0, "owes_"+value
	if value == "routing" {
		path = "owes"
	}
	for _, n := range r.nodes {
		_, text := n.get(n.debug + "/metrics")
		for line := range strings.Lines(text) {
			if rest, ok := strings.CutPrefix(line, `sluice_debt_tokens_total{domain="d",rule="`+path+`"`); ok {
				n, _ := strconv.Atoi(strings.Fields(rest)[1])
				debt += n
			}
		}
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
