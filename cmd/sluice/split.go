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

// split is a limiter made of several: of says which of them decides an ask. It is safe for concurrent use.
type split struct {
	of  func(*ratelimit.Ask) int
	all []ratelimit.Limiter
}

// Decide implements [ratelimit.Limiter]. It allocates only for a request that several decide; these wait at the same
// time.
func (s *split) Decide(ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	if len(asks) == 0 {
		return
	}
	first := s.all[s.of(&asks[0])]
	for i := 1; i < len(asks); i++ {
		if s.all[s.of(&asks[i])] != first {
			s.each(ctx, now, asks, verdicts)
			return
		}
	}
	first.Decide(ctx, now, asks, verdicts)
}

// part is what one limiter decides of a request.
type part struct {
	limiter  ratelimit.Limiter
	asks     []ratelimit.Ask
	at       []int
	verdicts []ratelimit.Verdict
	panicked any
}

func (s *split) each(ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	var parts []*part
	for i := range asks {
		l := s.all[s.of(&asks[i])]
		n := slices.IndexFunc(parts, func(p *part) bool { return p.limiter == l })
		if n < 0 {
			n, parts = len(parts), append(parts, &part{limiter: l})
		}
		parts[n].asks, parts[n].at = append(parts[n].asks, asks[i]), append(parts[n].at, i)
	}
	var wg sync.WaitGroup
	for _, p := range parts {
		wg.Go(func() {
			defer func() { p.panicked = recover() }()
			p.verdicts = make([]ratelimit.Verdict, len(p.asks))
			p.limiter.Decide(ctx, now, p.asks, p.verdicts)
		})
	}
	wg.Wait()
	for _, p := range parts {
		if p.panicked != nil {
			panic(p.panicked) // where it fails one request, and no more
		}
		for i, v := range p.verdicts {
			verdicts[p.at[i]] = v
		}
	}
}

// Undo implements [ratelimit.Limiter].
func (s *split) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		s.all[s.of(&asks[i])].Undo(now, asks[i:i+1], verdicts[i:i+1])
	}
}

// byUnit has limits for a second decided by brief, and all others by usual: REDIS_PERSECOND.
type byUnit struct {
	split
	usual, brief *leasing.Fleet
}

// newByUnit makes one of two fleets, which must not have been used yet.
func newByUnit(usual, brief *leasing.Fleet) *byUnit {
	brief.SpendAlone(usual.Alone())
	return &byUnit{split{isBrief, []ratelimit.Limiter{usual, brief}}, usual, brief}
}

func isBrief(a *ratelimit.Ask) int {
	if a.Rule.Limit.Unit == ratelimit.Second {
		return 1
	}
	return 0
}

func (b *byUnit) fleet(a *ratelimit.Ask) *leasing.Fleet {
	return [...]*leasing.Fleet{b.usual, b.brief}[isBrief(a)]
}

// Alone has the node's own budgets for outages. Both limiters spend from them. So package routing can decide
// for a key whose owner is out of reach, whichever of the two has the key.
func (b *byUnit) Alone() *leasing.Local { return b.usual.Alone() }

// Stats sums both.
func (b *byUnit) Stats() ratelimit.LimiterStats {
	s := b.usual.Stats()
	s.Add(b.brief.Stats())
	return s
}

// Look implements [ratelimit.Inspector].
func (b *byUnit) Look(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) ratelimit.Look {
	return b.fleet(a).Look(ctx, now, a)
}

// Hottest implements [ratelimit.Inspector].
func (b *byUnit) Hottest(now ratelimit.Instant, n int) []ratelimit.HotKey {
	all := append(b.usual.Hottest(now, n), b.brief.Hottest(now, n)...)
	slices.SortStableFunc(all, func(a, b ratelimit.HotKey) int { return cmp.Compare(b.PerSecond, a.PerSecond) })
	return all[:min(n, len(all))]
}

// Drop implements [ratelimit.Inspector]. A key is in one of them.
func (b *byUnit) Drop(ctx context.Context, now ratelimit.Instant, key []byte) bool {
	usual, brief := b.usual.Drop(ctx, now, key), b.brief.Drop(ctx, now, key)
	return usual || brief
}

// Reset implements [ratelimit.Inspector].
func (b *byUnit) Reset(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	return b.fleet(a).Reset(ctx, now, a)
}

// SyncClock implements limiter.
func (b *byUnit) SyncClock(now ratelimit.Instant, wall time.Time) {
	b.usual.SyncClock(now, wall)
	b.brief.SyncClock(now, wall)
}

// limiter is what decides, and what must run for it to.
type limiter interface {
	ratelimit.Limiter
	ratelimit.Inspector
	Stats() ratelimit.LimiterStats
	SyncClock(ratelimit.Instant, time.Time)
}
