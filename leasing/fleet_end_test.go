package leasing

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// elsewhen is a ledger whose clock is so wrong that each claim is over when it arrives.
type elsewhen struct{ asked int }

func (e *elsewhen) Settle(
	_ context.Context, claims []account.Claim, grants []account.Grant,
) (ratelimit.Epoch, ratelimit.LedgerTime, error) {
	if e.asked++; e.asked > 10_000 {
		return ratelimit.Epoch{}, 0, errors.New("it was asked for ever")
	}
	for i := range claims {
		grants[i].Err = account.ErrOver
	}
	return ratelimit.Epoch{ID: 1}, 1_000_001, nil
}

// A node ends although what it has to tell is never accepted.
func TestNodeEndsUntold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		clock := func() instant { return instant(time.Since(began)) + 1 }
		ledger := &elsewhen{}
		f := NewFleet(ledger, account.NewHolder(), 100, clock, began)
		f.Random = func() float64 { return 0.5 }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.Run(ctx) }()
		rule := &ratelimit.Rule{Limit: ratelimit.Limit{Unit: ratelimit.Year, Requests: 10}}
		rule.Coordination = ratelimit.DefaultCoordination()
		f.Decide(t.Context(), clock(), []ask{{Rule: rule, Key: []byte("k"), Cost: 1}}, make([]verdict, 1))
		before := ledger.asked
		cancel()
		<-done
		if n := ledger.asked - before; n > 20 {
			t.Errorf("it asked %d times before it ended", n)
		}
	})
}
