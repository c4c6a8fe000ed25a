package leasing

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What a decision from a lease costs on a fleet's node, of one busy key.
func BenchmarkFleetDecide(b *testing.B) {
	memory := ledger.NewMemory(10, func() ledgerTime { return ledgertest.Epoch })
	now := instant(time.Hour)
	f := NewFleet(memory, 1, 100, func() instant { return now }, testWall)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { f.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	rule := testRule(ratelimit.Limit{Unit: ratelimit.Day, Requests: 1 << 38})
	rule.Coordination.Lease.Fixed = 1 << 37
	asks, verdicts := []ask{{Rule: rule, Key: keyOf(1), Cost: 1}}, make([]verdict, 1)
	f.Decide(ctx, now, asks, verdicts)
	b.ReportAllocs()
	for b.Loop() {
		verdicts[0] = verdict{}
		f.Decide(ctx, now, asks, verdicts)
	}
	if verdicts[0].Source != ratelimit.FromLease {
		b.Fatalf("%+v", verdicts[0])
	}
}
