package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What rules declare follows from the pace of leases: package ratelimit says it, and this
// package goes by it.
func TestBoundsGoByThePaceOfLeases(t *testing.T) {
	us := func(t ledgerTime) time.Duration { return time.Duration(t) * time.Microsecond }
	for name, c := range map[string]struct{ declared, kept any }{
		"how long a lease lasts":       {ratelimit.LeaseHorizon, lease.Horizon},
		"between claims":               {ratelimit.ClaimBackOff, lease.BackOff},
		"what a loss may cost, one of": {ratelimit.LossPart, ledger.RelearnShare},
		"a lease of plenty, one of":    {ratelimit.PlentyPart, ledger.IdleShare * ledger.LeastShares},
		"claims for recalls in a second": {
			ratelimit.RecallsPerSecond,
			int(time.Second/us(ledger.RecallAgain)) + int(us(ledger.RecallTakes)/lease.RecallPause) + 1, // given back, asked again, and the first that wants one
		},
	} {
		if c.declared != c.kept {
			t.Errorf("%s: bounds go by %v, leases by %v", name, c.declared, c.kept)
		}
	}
}
