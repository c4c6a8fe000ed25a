package main

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
)

// fleetLike is a limiter over a store.
type fleetLike interface {
	limiter
	Alone() *leasing.Local
	SpendAlone(*leasing.Local)
}

// byUnit has limits for a second decided by one limiter, and all others by
// another: REDIS_PERSECOND. It is safe for concurrent use.
type byUnit struct {
	usual, brief limiter
	alone        *leasing.Local
}

// newByUnit makes one of two fleets, which must not have been used yet.
func newByUnit(usual, brief fleetLike) *byUnit {
	brief.SpendAlone(usual.Alone())
	return &byUnit{usual, brief, usual.Alone()}
}

// Alone is the node's own budgets for outages. Both limiters spend from them, so that who decides
// for a key whose owner is out of reach (package routing) need not know which of the two has it.
func (b *byUnit) Alone() *leasing.Local { return b.alone }

func (b *byUnit) of(a *ratelimit.Ask) limiter {
	if a.Rule.Limit.Unit == ratelimit.Second {
		return b.brief
	}
	return b.usual
}

// Decide implements [ratelimit.Limiter]. Where both decide, they wait at the
// same time.
func (b *byUnit) Decide(ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	mixed := false
	for i := range asks {
		mixed = mixed || b.of(&asks[i]) != b.of(&asks[0])
	}
	if !mixed {
		if len(asks) > 0 {
			b.of(&asks[0]).Decide(ctx, now, asks, verdicts)
		}
		return
	}
	var wg sync.WaitGroup
	var panicked [2]any
	for n, l := range []limiter{b.usual, b.brief} {
		var some []ratelimit.Ask
		var at []int
		for i := range asks {
			if b.of(&asks[i]) == l {
				some, at = append(some, asks[i]), append(at, i)
			}
		}
		wg.Go(func() {
			defer func() { panicked[n] = recover() }()
			got := make([]ratelimit.Verdict, len(some))
			l.Decide(ctx, now, some, got)
			for i, v := range got {
				verdicts[at[i]] = v
			}
		})
	}
	wg.Wait()
	for _, p := range panicked {
		if p != nil {
			panic(p) // where it fails one request, and no more
		}
	}
}

// Undo implements [ratelimit.Limiter].
func (b *byUnit) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		b.of(&asks[i]).Undo(now, asks[i:i+1], verdicts[i:i+1])
	}
}

// Stats sums both.
func (b *byUnit) Stats() ratelimit.LimiterStats {
	s := b.usual.Stats()
	s.Add(b.brief.Stats())
	return s
}

// Look implements [ratelimit.Inspector].
func (b *byUnit) Look(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) ratelimit.Look {
	return b.of(a).Look(ctx, now, a)
}

// Hottest implements [ratelimit.Inspector].
func (b *byUnit) Hottest(now ratelimit.Instant, n int) []ratelimit.HotKey {
	all := append(b.usual.Hottest(now, n), b.brief.Hottest(now, n)...)
	slices.SortStableFunc(all, func(a, b ratelimit.HotKey) int { return cmp.Compare(b.PerSecond, a.PerSecond) })
	return all[:min(n, len(all))]
}

// Drop implements [ratelimit.Inspector]. A key is in one of them.
func (b *byUnit) Drop(now ratelimit.Instant, key []byte) bool {
	usual, brief := b.usual.Drop(now, key), b.brief.Drop(now, key)
	return usual || brief
}

// Reset implements [ratelimit.Inspector].
func (b *byUnit) Reset(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	return b.of(a).Reset(ctx, now, a)
}

// SyncClock implements limiter.
func (b *byUnit) SyncClock(now ratelimit.Instant, wall time.Time) {
	b.usual.SyncClock(now, wall)
	b.brief.SyncClock(now, wall)
}
