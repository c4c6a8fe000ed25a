package leasing

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// pooled is a ledger that serves as many round trips at a time as it has connections, each in a time.
type pooled struct {
	account.Ledger
	conns chan bool
	takes time.Duration
}

func (p pooled) Settle(
	ctx context.Context, claims []account.Claim, grants []account.Grant,
) (ratelimit.Epoch, ratelimit.LedgerTime, error) {
	select {
	case p.conns <- true:
	case <-ctx.Done():
		return ratelimit.Epoch{}, 0, ctx.Err()
	}
	defer func() { <-p.conns }()
	time.Sleep(p.takes)
	return p.Ledger.Settle(ctx, claims, grants)
}

// First requests of keys, below the capacity of a store. More flights do not serve more: they wait in the store, which
// counts as a longer round trip, which permits still more flights.
func TestFlightsDoNotRunAway(t *testing.T) {
	for _, p := range []struct {
		what     string
		nodes    int
		conns    int
		takes    time.Duration
		deadline time.Duration
	}{
		{"a near store that serves one batch after the other, in 8 ms", 1, 1, 8 * time.Millisecond, 80 * time.Millisecond},
		{"a near store that serves one batch after the other, in 4 ms", 1, 1, 4 * time.Millisecond, 80 * time.Millisecond},
		{"eight nodes, and a near store that serves one batch after the other, in 1 ms", 8, 1, time.Millisecond, 80 * time.Millisecond},
		{"a store at 80 ms, with the default pool of 10", 1, 10, 80 * time.Millisecond, 240 * time.Millisecond},
		{"a store at 80 ms, with a pool of 40", 1, 40, 80 * time.Millisecond, 240 * time.Millisecond},
	} {
		t.Run(p.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 0, hour)
				c.rule.Coordination.StoreDeadline = p.deadline
				l := pooled{c.ledger, make(chan bool, p.conns), p.takes}
				var all sync.WaitGroup
				defer all.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				for range p.nodes {
					f := NewFleet(pooled{c.ledger, l.conns, p.takes}, account.NewHolder(), 100_000, c.clock, time.Now())
					c.nodes = append(c.nodes, f)
					all.Go(func() { f.Run(ctx) })
				}
				var mu sync.Mutex
				var waits []time.Duration
				fallbacks := 0
				var asks sync.WaitGroup
				for i := range 10_000 {
					asks.Go(func() {
						began := c.clock()
						var v [1]ratelimit.Verdict
						c.nodes[i%p.nodes].Decide(t.Context(), began, []ask{{Rule: c.rule, Key: []byte(fmt.Sprint(i)), Cost: 1}}, v[:])
						mu.Lock()
						defer mu.Unlock()
						waits = append(waits, c.clock().Sub(began))
						if v[0].Source == ratelimit.FromFallback {
							fallbacks++
						}
					})
					time.Sleep(time.Second / 2000)
				}
				asks.Wait()
				slices.Sort(waits)
				t.Logf("%s: p50 %v, p99 %v, %d of 10000 by policy; at the end a round trip takes %v", p.what, waits[5000], waits[9900], fallbacks, c.nodes[0].lanes[0].roundTrip())
				if fallbacks > 500 {
					t.Errorf("%s: %d of 10000 requests are not decided by the store, which is not full", p.what, fallbacks)
				}
			})
		})
	}
}
