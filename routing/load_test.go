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

// askLoad asks nodes at a steady rate, and notes what was admitted and how long each decision took.
type askLoad struct {
	rule     *ratelimit.Rule
	rate     int // a second
	admitted []atomic.Int32
	live     atomic.Pointer[[]*router]
	failed   atomic.Int64
	mu       sync.Mutex
	took     []time.Duration // guarded by mu
	late     time.Duration   // guarded by mu: by how much a request began late, at most: that is the machine's doing
}

func (l *askLoad) run(ctx context.Context) {
	var wg sync.WaitGroup
	next := time.Now()
	for i := 0; ctx.Err() == nil; i++ {
		next = next.Add(time.Second / time.Duration(l.rate))
		time.Sleep(time.Until(next))
		due := next
		wg.Go(func() {
			start := time.Now()
			nodes, k := *l.live.Load(), i*7919%len(l.admitted)
			v := make([]verdict, 1)
			n := nodes[i%len(nodes)]
			n.Decide(context.Background(), n.clock(), []ask{{Rule: l.rule, Key: keyOf(k), Cost: 1}}, v)
			if v[0].Source == ratelimit.FromFallback {
				l.failed.Add(1)
			}
			if !v[0].OverLimit {
				l.admitted[k].Add(1)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.took, l.late = append(l.took, time.Since(start)), max(l.late, start.Sub(due))
		})
	}
	wg.Wait()
}

// spent are the longest time of a decision since the last call, the 99.9th percentile, and the machine's delay.
func (l *askLoad) spent() (longest, p999, late time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.took)
	if n := len(l.took); n > 0 {
		longest, p999 = l.took[n-1], l.took[n*999/1000]
	}
	late, l.took, l.late = l.late, nil, 0
	return longest, p999, late
}

// Many accounts move while requests go on, as a node joins and another leaves: none is lost, none is counted twice.
// make bench-handover moves a million, and holds decisions to their time.
func TestHandOverUnderLoad(t *testing.T) {
	keys, measures := 30_000, false
	l := &askLoad{rule: routed(10), rate: 500}
	if n, err := strconv.Atoi(os.Getenv("HANDOVER_KEYS")); err == nil {
		keys, l.rate, measures = n, 2000, true
	}
	w := newPorts(t, 3)
	w.table, l.admitted = 2*keys, make([]atomic.Int32, keys)
	nodes := w.ring(2)
	l.live.Store(&nodes)
	spends := func(of []*router, k int, cost tokens) bool { // at the key's owner, where it is decided at once
		a, v := []ask{{Rule: l.rule, Key: keyOf(k), Cost: cost}}, make([]verdict, 1)
		at := of[0]
		if at.Owner(&a[0]) != "" {
			at = of[1]
		}
		at.Decide(context.Background(), w.clock(), a, v)
		return !v[0].OverLimit
	}
	for k := range keys {
		if spends(nodes, k, 7) {
			l.admitted[k].Add(7)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); l.run(ctx) }()
	time.Sleep(time.Second)
	before, before999, _ := l.spent()

	start := time.Now()
	third := w.start(2)
	w.eventually("the third node has its keys", third.Ready)
	joined := time.Since(start)
	rest := []*router{nodes[1], third}
	l.live.Store(&rest)
	start = time.Now()
	bounded, end := context.WithTimeout(context.Background(), time.Minute)
	nodes[0].Leave(bounded)
	end()
	left := time.Since(start)
	time.Sleep(100 * time.Millisecond)
	cancel()
	<-done
	longest, p999, late := l.spent()

	missing, over := 0, 0
	for k := range keys {
		had := tokens(l.admitted[k].Load())
		for had < 10 && spends(rest, k, 1) {
			had++
		}
		missing += int(max(0, 10-had))
		if had > 10 || spends(rest, k, 1) {
			over++
		}
	}
	handed, failed := nodes[0].Stats().Handed+nodes[1].Stats().Handed, int(l.failed.Load())
	t.Logf("%d keys, %d asks a second: %d handed over; joined in %v, left in %v", keys, l.rate, handed, joined, left)
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
