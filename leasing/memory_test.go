package leasing_test

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

func TestMemoryConforms(t *testing.T) {
	ledgertest.Run(t, func(*testing.T) ledgertest.Harness {
		now := ledgertest.Epoch
		clock := func() ratelimit.LedgerTime { return now }
		h := &forgetful{Memory: leasing.NewMemory(1000, clock)}
		return ledgertest.Harness{
			Ledger:  h,
			Advance: func(d time.Duration) { now = now.Add(d) },
			Forget:  func() { h.Memory = leasing.NewMemory(1000, clock) },
		}
	})
}

type forgetful struct{ *leasing.Memory }

var _ ratelimit.Ledger = (*forgetful)(nil)
