package routing_test

import (
	"context"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Many accounts move while requests go on, as a node joins and another leaves: none is lost, none is counted twice.
// make bench-handover moves a million, and holds decisions to their time.
func TestHandOverUnderLoad(t *testing.T) {
	keys, rate, measures := 30_000, 500, false
	if n, err := strconv.Atoi(os.Getenv("HANDOVER_KEYS")); err == nil {
		keys, rate, measures = n, 2000, true
	}
	w, rule := newPorts(t, 3), routed(10)
	w.table = 2 * keys
	nodes := w.ring(2)
	decide := func(n *router, k int, cost tokens) verdict {
		v := make([]verdict, 1)
		n.Decide(context.Background(), n.clock(), []ask{{Rule: rule, Key: keyOf(k), Cost: cost}}, v)
		return v[0]
	}
	spends := func(of []*router, k int, cost tokens) bool { // at the key's owner, where it is decided at once
		at := of[0]
		if at.Owner(&ask{Rule: rule, Key: keyOf(k)}) != "" {
			at = of[1]
		}
		return !decide(at, k, cost).OverLimit
	}
	admitted := make([]atomic.Int32, keys)
	for k := range keys {
		if spends(nodes, k, 7) {
			admitted[k].Add(7)
		}
	}
	var live atomic.Pointer[[]*router]
	live.Store(&nodes)
	var mu sync.Mutex
	var longest, late time.Duration // guarded by mu: of decisions, and from when they were due, which is the machine's doing
	failed := 0                     // guarded by mu
	decides := func(i int, due time.Time) {
		start, k := time.Now(), i*7919%keys
		v := decide((*live.Load())[i%2], k, 1)
		mu.Lock()
		defer mu.Unlock()
		longest, late = max(longest, time.Since(start)), max(late, start.Sub(due))
		switch {
		case v.Source == ratelimit.FromFallback:
			failed++
		case !v.OverLimit:
			admitted[k].Add(1)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	load.Go(func() {
		next := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			next = next.Add(time.Second / time.Duration(rate))
			time.Sleep(time.Until(next))
			due := next
			load.Go(func() { decides(i, due) })
		}
	})
	time.Sleep(time.Second)
	mu.Lock()
	before := longest
	longest, late = 0, 0
	mu.Unlock()

	start := time.Now()
	third := w.start(2)
	w.eventually("the third node has its keys", third.Ready)
	joined := time.Since(start)
	rest := []*router{nodes[1], third}
	live.Store(&rest)
	start = time.Now()
	bounded, end := context.WithTimeout(ctx, time.Minute)
	nodes[0].Leave(bounded)
	end()
	left := time.Since(start)
	time.Sleep(100 * time.Millisecond)
	cancel()
	load.Wait()

	missing, over := 0, 0
	for k := range keys {
		had := admitted[k].Load()
		for had < 10 && spends(rest, k, 1) {
			had++
		}
		missing += int(max(0, 10-had))
		if had > 10 || spends(rest, k, 1) {
			over++
		}
	}
	t.Logf("%d keys, %d asks a second: %d handed over; joined in %v, left in %v; longest decision before %v, then %v, "+
		"begun up to %v late", keys, rate, nodes[0].Stats().Handed+nodes[1].Stats().Handed, joined, left, before, longest, late)
	if over > 0 || missing > failed {
		t.Errorf("%d of %d keys admitted more than 10; %d tokens are lost, and %d decisions failed", over, keys, missing, failed)
	}
	quiet := late < ratelimit.StoreDeadline/3
	if measures && quiet && (failed > 0 || longest > before+ratelimit.StoreDeadline) {
		t.Errorf("%d decisions failed, and one took %v, before %v", failed, longest, before)
	}
}
