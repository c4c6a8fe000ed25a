package approx_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The cost and the benefit of each default, and of its alternatives: three nodes, 10,000 tokens in 10 s, and
// a demand of twice that. The ledger is a few milliseconds away, takes 50 ms for a while, and one node
// crashes in the third of six windows. make bench-defaults prints the table.
func TestDefaults(t *testing.T) {
	for _, c := range []struct {
		mode   ratelimit.Mode
		field  string
		values []string
	}{
		{ratelimit.Leasing, "lease.size", []string{"auto", "1", "100", "2000"}},
		{ratelimit.Leasing, "reclaim", []string{"safe", "eager"}},
		{ratelimit.Approx, "drift_budget", []string{"1%", "0.1%", "5%"}},
		{ratelimit.Approx, "check_timeout", []string{"2ms", "0s", "10ms"}},
	} {
		for i, value := range c.values {
			what := fmt.Sprintf("%-8s %-13s %-5s", c.mode, c.field, value)
			if i == 0 {
				what += " (default)"
			}
			synctest.Test(t, func(t *testing.T) { tryDefault(t, what, c.mode, c.field, value) })
		}
	}
}

func tryDefault(t *testing.T, what string, mode ratelimit.Mode, field, value string) {
	const limit = 10_000
	r := rule(ratelimit.FixedWindow, 10, limit, "1%", 3)
	r.Coordination.Mode = mode
	if err := r.Coordination.Set(field, value); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, 1, r)
	defer w.end()
	for range 3 {
		w.join(3 * time.Millisecond)
	}
	time.Sleep(time.Second)
	until := time.Now().Add(62 * time.Second)
	var wg sync.WaitGroup
	for i, n := range w.nodes {
		end := until
		if i == 2 {
			end = time.Now().Add(22 * time.Second)
		}
		wg.Go(func() { w.load(n, 1500*time.Microsecond, end) })
	}
	time.Sleep(22 * time.Second)
	w.nodes[2].set(func() { w.nodes[2].cut = true })
	time.Sleep(15 * time.Second)
	slow := func(trip time.Duration) {
		for _, n := range w.nodes {
			n.set(func() { n.trip = trip })
		}
	}
	slow(50 * time.Millisecond)
	time.Sleep(10 * time.Second)
	slow(3 * time.Millisecond)
	wg.Wait()
	claims := 0
	for _, n := range w.nodes {
		n.set(func() { claims += n.calls })
	}
	slices.Sort(w.waits)
	waited := 0
	for _, d := range w.waits {
		if d > 0 {
			waited++
		}
	}
	least, _ := w.judge.Least(ledgerNow())
	decisions := float64(len(w.waits))
	t.Logf("%-40s %6.2f claims for 1000 decisions, %5.2f%% waited, p99.9 %-8v %4d over, least %5d of %d",
		what, 1000*float64(claims)/decisions, 100*float64(waited)/decisions, w.waits[len(w.waits)*999/1000].Round(100*time.Microsecond), w.judge.Worst(), least, limit)
	if declared := r.Declare(3, ratelimit.SharedStore).Over.Tokens; w.judge.Worst() > declared {
		t.Errorf("%s: %d over, declared %d", what, w.judge.Worst(), declared)
	}
}
