package main

import (
	"context"
	"slices"
	"sync"

	"github.com/sluice-gate/sluice/ratelimit"
)

// split is a limiter made of several: of says which of them decides an ask. It is safe for concurrent use. of must
// return the same limiter for the same ask, or Undo would go to another one than Decide.
type split struct {
	of func(*ratelimit.Ask) ratelimit.Limiter
}

// Decide implements [ratelimit.Limiter]. It allocates only for a request that several decide; these wait at the same
// time.
func (s *split) Decide(ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	if len(asks) == 0 {
		return
	}
	// Most requests have one limiter for all asks. They are passed on as they are, without a copy.
	first := s.of(&asks[0])
	for i := 1; i < len(asks); i++ {
		if s.of(&asks[i]) != first {
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

// each gathers the asks by their limiter, has all decide at the same time, and puts the verdicts back in place. One
// after the other, the waits for the store and for an owner would add up.
func (s *split) each(ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	var parts []*part
	for i := range asks {
		l := s.of(&asks[i])
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
		// A panic in one of these goroutines would end the process, instead of failing one request. It is passed on
		// after all have ended.
		if p.panicked != nil {
			panic(p.panicked) // where it fails one request, and no more
		}
		for i, v := range p.verdicts {
			verdicts[p.at[i]] = v
		}
	}
}

// Undo implements [ratelimit.Limiter]. Each ask goes back by itself, to the limiter that decided it.
func (s *split) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for i := range asks {
		s.of(&asks[i]).Undo(now, asks[i:i+1], verdicts[i:i+1])
	}
}
