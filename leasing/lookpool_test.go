package leasing

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What people ask takes none of the connections that claims need.
func TestLooksHaveConnectionsOfTheirOwn(t *testing.T) {
	server := redistest.Start(t)
	claims, people := server.Client(), server.Client()
	defer claims.Close()
	defer people.Close()
	l := ledger.NewRedis(claims, "")
	l.LookThrough(people)
	f := NewFleet(l, ledger.NewHolder(), 10, func() ratelimit.Instant { return 0 }, time.Unix(1000, 0))
	rule := &ratelimit.Rule{Limit: ratelimit.Limit{Requests: 5, Unit: ratelimit.Minute}, Coordination: ratelimit.DefaultCoordination()}
	for range 10 {
		if v := f.Look(context.Background(), 0, &ratelimit.Ask{Rule: rule, Key: []byte("k"), Kind: ratelimit.Peek}); v.LedgerError != "" {
			t.Fatal(v.LedgerError)
		}
	}
	if a, b := claims.PoolStats(), people.PoolStats(); a.Hits+a.Misses != 0 || b.Hits+b.Misses == 0 {
		t.Errorf("claims' connections were used %d times, people's %d", a.Hits+a.Misses, b.Hits+b.Misses)
	}
}
