package leasing

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
)

// distant is a ledger whose round trips take a time.
type distant struct {
	account.Ledger
	trip time.Duration
}

func (d distant) Settle(
	ctx context.Context, claims []account.Claim, grants []account.Grant,
) (ratelimit.Epoch, ratelimit.LedgerTime, error) {
	defer time.Sleep(d.trip / 2)
	time.Sleep(d.trip / 2)
	return d.Ledger.Settle(ctx, claims, grants)
}

// A first request of a key waits for one interval of batches and a round trip, however many senders wait for theirs.
func TestFirstRequestsLeaveWithTheNextBatch(t *testing.T) {
	for _, p := range []struct {
		trip, wait time.Duration
		mode       ratelimit.Mode
	}{
		{500 * time.Microsecond, lane.Gather, ratelimit.Leasing},
		{3 * time.Millisecond, lane.Gather, ratelimit.Leasing},
		{500 * time.Microsecond, 250 * time.Microsecond, ratelimit.Approx}, // after check_timeout it would drift
	} {
		synctest.Test(t, func(t *testing.T) {
			trip := p.trip
			c := newCluster(t, 0, hour)
			c.rule.Coordination.Mode = p.mode
			for field, text := range map[string]string{"check_timeout": "2ms", "drift_budget": "50%", "max_nodes": "1"} {
				if err := c.rule.Coordination.Set(field, text); err != nil {
					t.Fatal(err)
				}
			}
			f := NewFleet(distant{c.ledger, trip}, account.NewHolder(), 1000, c.clock, time.Now())
			c.nodes = append(c.nodes, f)
			var all sync.WaitGroup
			defer all.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			all.Go(func() { f.Run(ctx) })
			c.ask(0, "what time it is there", ratelimit.Spend, 1)
			var asks sync.WaitGroup
			for i := range 300 {
				asks.Go(func() {
					began := c.clock()
					c.ask(0, fmt.Sprint(i), ratelimit.Spend, 1)
					if took := c.clock().Sub(began); took > trip+p.wait {
						t.Errorf("a round trip takes %v, and request %d took %v", trip, i, took)
					}
				})
				time.Sleep(900 * time.Microsecond)
			}
			asks.Wait()
		})
	}
}
