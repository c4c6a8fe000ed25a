package leasing

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A reset whose claim nobody sends, for the node has ended, is over after a while.
func TestResetOfANodeThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		clock := func() instant { return instant(1 + time.Since(start)) }
		f := NewFleet(ledger.NewMemory(0, func() ratelimit.LedgerTime { return ratelimit.LedgerTime(time.Now().UnixMicro()) }), 1, 100, clock, start)
		rule := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
		err := f.Reset(t.Context(), clock(), &ask{Rule: rule, Key: keyOf(1)})
		if took := time.Since(start); !errors.Is(err, ErrBusy) || took != resetMost {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
