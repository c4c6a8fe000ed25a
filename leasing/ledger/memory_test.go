package ledger_test

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

func TestMemoryConforms(t *testing.T) {
	ledgertest.Run(t, func(*testing.T) ledgertest.Harness {
		now := ledgertest.Epoch
		clock := func() ratelimit.LedgerTime { return now }
		h := &forgetful{Memory: ledger.NewMemory(1000, clock)}
		return ledgertest.Harness{
			Ledger:  h,
			Advance: func(d time.Duration) { now = now.Add(d) },
			Forget:  func() { h.Memory = ledger.NewMemory(1000, clock) },
		}
	})
}

type forgetful struct{ *ledger.Memory }

var _ ratelimit.Ledger = (*forgetful)(nil)
