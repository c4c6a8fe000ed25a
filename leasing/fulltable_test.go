package leasing

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A table that is full of keys which nobody asks for any more has room for others: what they have in hand goes back.
func TestIdleLeasesMakeRoom(t *testing.T) {
	b := newSetBack(t, ratelimit.Limit{Unit: ratelimit.Day, Requests: 1000})
	b.ledger = account.NewMemory(10_000, func() ledgerTime {
		return ledgerTime(20_834 * 86_400 * 1_000_000).Add(b.now.Sub(instant(time.Hour)))
	})
	const keys = 3000 // of which the node may track a third
	for i := range keys {
		b.key = fmt.Appendf(nil, "k%d", i)
		b.ask(1)
		if i%100 != 0 {
			continue
		}
		for range 100 { // in ten seconds all of them are idle
			b.now = b.now.Add(SweepEvery)
			b.Sweep(b.now)
			b.exchange()
		}
	}
	if n := b.stats.fallbacks[ratelimit.FallbackTableFull].Load(); n > 0 {
		t.Errorf("%d of %d keys were limited by this node alone", n, keys)
	}
}
