package leasing

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// server is a ledger that can lose its data, and that recalls tokens. [account.Redis] is one.
type server interface {
	account.Ledger
	// Recalls calls recalled with each account whose tokens other nodes need. It returns when ctx is done.
	Recalls(ctx context.Context, node ratelimit.Holder, recalled func(key string, w ratelimit.Window))
	// After a loss of data, Prolong prolongs the youth of the epoch, in which nodes state their totals.
	Prolong(ctx context.Context) (ratelimit.Epoch, error)
}

// beatEvery is the time between two beats. It bounds the time between two answers of a server, and so the time until a
// loss is noticed.
const beatEvery = 500 * time.Millisecond

// attend follows a server's recalls and epochs until ctx is done.
func (f *Fleet) attend(ctx context.Context, s server) {
	var all sync.WaitGroup
	all.Go(func() { s.Recalls(ctx, f.name, f.Recalled) })
	all.Go(func() { f.beats(ctx, s) })
	if r, ok := s.(reclaimer); ok {
		all.Go(func() { f.registers(ctx, r) })
		all.Go(func() { f.reclaims(ctx, r) })
	}
	all.Wait()
}

// beats reads the server's epoch, and prolongs its youth while this node has more to state.
func (f *Fleet) beats(ctx context.Context, s server) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !f.Restating() {
			f.Beat()
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, TimeLimit)
		_, err := s.Prolong(bounded)
		cancel()
		if err != nil && ctx.Err() == nil {
			f.OnFailure(err)
		}
	}
}
