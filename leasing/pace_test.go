package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// What rules declare follows from the pace of leases: package ratelimit says it, and this
// package goes by it.
func TestBoundsGoByThePaceOfLeases(t *testing.T) {
	us := func(t ledgerTime) time.Duration { return time.Duration(t) * time.Microsecond }
	for name, c := range map[string]struct{ declared, kept any }{
		"how long a lease lasts":       {ratelimit.LeaseHorizon, horizon},
		"between claims":               {ratelimit.ClaimBackOff, backOff},
		"what a loss may cost, one of": {ratelimit.LossPart, relearnShare},
		"a lease of plenty, one of":    {ratelimit.PlentyPart, idleShare * leastShares},
		"claims for recalls in a second": {
			ratelimit.RecallsPerSecond,
			int(time.Second/us(recallAgain)) + int(us(recallTakes)/recallPause) + 1, // given back, asked again, and the first that wants one
		},
	} {
		if c.declared != c.kept {
			t.Errorf("%s: bounds go by %v, leases by %v", name, c.declared, c.kept)
		}
	}
}
