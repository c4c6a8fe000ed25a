package routing_test

import (
	"context"
	"os"
	"slices"
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
	spends := func(of []*router, k int, cost tokens) bool { // at the key's owner, where it is decided at once
		a, v := []ask{{Rule: rule, Key: keyOf(k), Cost: cost}}, make([]verdict, 1)
		at := of[0]
		if at.Owner(&a[0]) != "" {
			at = of[1]
		}
		at.Decide(context.Background(), w.clock(), a, v)
		return !v[0].OverLimit
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
	var took []time.Duration // guarded by mu
	var latest time.Duration // guarded by mu: by how much requests began late, which is the machine's doing
	failed := 0              // guarded by mu
	decides := func(i int, due time.Time) {
		start, k, v := time.Now(), i*7919%keys, make([]verdict, 1)
		n := (*live.Load())[i%2]
		n.Decide(context.Background(), n.clock(), []ask{{Rule: rule, Key: keyOf(k), Cost: 1}}, v)
		mu.Lock()
		defer mu.Unlock()
		took, latest = append(took, time.Since(start)), max(latest, start.Sub(due))
		switch {
		case v[0].Source == ratelimit.FromFallback:
			failed++
		case !v[0].OverLimit:
			admitted[k].Add(1)
		}
	}
	spent := func() (longest, p999, late time.Duration) { // of decisions since the last call
		mu.Lock()
		defer mu.Unlock()
		if slices.Sort(took); len(took) > 0 {
			longest, p999 = took[len(took)-1], took[len(took)*999/1000]
		}
		late, took, latest = latest, nil, 0
		return longest, p999, late
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		var under sync.WaitGroup
		defer under.Wait()
		next := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			next = next.Add(time.Second / time.Duration(rate))
			time.Sleep(time.Until(next))
			due := next
			under.Go(func() { decides(i, due) })
		}
	}()
	time.Sleep(time.Second)
	before, before999, _ := spent()

	start := time.Now()
	third := w.start(2)
	w.eventually("the third node has its keys", third.Ready)
	joined := time.Since(start)
	rest := []*router{nodes[1], third}
	live.Store(&rest)
	start = time.Now()
	bounded, end := context.WithTimeout(context.Background(), time.Minute)
	nodes[0].Leave(bounded)
	end()
	left := time.Since(start)
	time.Sleep(100 * time.Millisecond)
	cancel()
	<-done
	longest, p999, late := spent()

	missing, over := 0, 0
	for k := range keys {
		had := tokens(admitted[k].Load())
		for had < 10 && spends(rest, k, 1) {
			had++
		}
		missing += int(max(0, 10-had))
		if had > 10 || spends(rest, k, 1) {
			over++
		}
	}
	handed := nodes[0].Stats().Handed + nodes[1].Stats().Handed
	t.Logf("%d keys, %d asks a second: %d handed over; joined in %v, left in %v", keys, rate, handed, joined, left)
	t.Logf("longest decision (and 99.9th percentile): before %v (%v), while nodes came and went %v (%v)",
		before, before999, longest, p999)
	t.Logf("requests began up to %v late", late)
	if over > 0 || missing > failed {
		t.Errorf("%d of %d keys admitted more than 10; %d tokens are lost, and %d decisions failed", over, keys, missing, failed)
	}
	quiet := late < ratelimit.StoreDeadline/3
	if measures && quiet && (failed > 0 || longest > before+ratelimit.StoreDeadline) {
		t.Errorf("%d decisions failed, and one took %v, before %v", failed, longest, before)
	}
}
