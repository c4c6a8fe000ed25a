package leasing

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Run sends claims until ctx is done, and then returns what is unspent: all of it, unless
// that takes longer than releaseMost. It blocks.
func (f *Fleet) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range f.lanes {
		wg.Go(func() { f.send(ctx, &f.lanes[i]) })
	}
	wg.Go(func() { f.sweep(ctx) })
	if r, ok := f.ledger.(ratelimit.Recaller); ok {
		wg.Go(func() { r.Recalls(ctx, f.Holders(), f.Recalled) })
	}
	wg.Wait()
	f.releaseAll()
}

// send takes flights off the queue, as many as are there, and settles them
// together. The next batch leaves when the last one is back, and no sooner than
// batchEvery after it, so that batches grow with what there is to claim: the claims
// of one batch cost Redis a fraction of what they cost one by one. When the last one
// takes longer than lateBatch, others leave meanwhile, up to senders.
func (f *Fleet) send(ctx context.Context, l *lane) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, senders)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var some []*flight
		select {
		case <-ctx.Done():
			return
		case first := <-l.queue:
			some = append(some, first)
		case <-l.bell:
		}
		select {
		case <-ctx.Done():
			return
		case slots <- struct{}{}:
		}
		flights, back, left := l.take(some...), make(chan struct{}), f.clock()
		if len(flights) == 0 { // the bell rang for what has left with others
			<-slots
			continue
		}
		wg.Go(func() {
			f.settle(l, flights)
			<-slots
			close(back)
		})
		timer.Reset(lateBatch)
		await(ctx, back, timer.C)
		if rest := batchEvery - f.clock().Sub(left); rest > 0 {
			timer.Reset(rest)
			await(ctx, nil, timer.C)
		}
	}
}

func reasonOf(err error) ratelimit.FallbackReason {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return ratelimit.FallbackDeadline
	case errors.Is(err, errBreaker):
		return ratelimit.FallbackBreaker
	case errors.Is(err, errQueueFull):
		return ratelimit.FallbackQueueFull
	}
	return ratelimit.FallbackError
}

// sweep looks through a part of the shards at a time: it returns what idle keys
// have not spent. When the ledger has lost its data, or its clock was set, it
// tells it of all keys.
func (f *Fleet) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	f.beat(f.clock()) // who waits until the ledger is heard of need not wait for a tick
	for part := 0; ; part++ {
		select {
		case <-ctx.Done():
			return
		case <-f.tellAtOnce:
			f.tell(f.clock())
		case <-tick.C:
			f.sweepPart(f.clock(), part)
		}
	}
}

// Recalled takes in that others wait for tokens of an account, by its name in the
// ledger. It does not block.
func (f *Fleet) Recalled(account string) {
	key := []byte(account)
	if !f.RawNames {
		var ok bool
		if key, ok = KeyOfName(account); !ok {
			return // nothing of this version's
		}
	}
	s, _, h := f.locked(key)
	defer s.mu.Unlock()
	if h == nil {
		return
	}
	now := f.clock()
	h.Recall(now)
	f.hurry(h)
	f.do(h, now)
}
