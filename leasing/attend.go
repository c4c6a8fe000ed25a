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
	// Verify checks whether the same server has the data. After a loss of data, Prolong also prolongs the learning:
	// the time in which nodes restate their totals, and the ledger grants little.
	Verify(ctx context.Context) (ratelimit.Epoch, error)
	Prolong(ctx context.Context) (ratelimit.Epoch, error)
}

// greetEvery bounds the time between two answers of a server. verifyEvery is the interval of checks for a change of
// server: answers show that too, but not after each change of its replication.
const greetEvery, verifyEvery = 500 * time.Millisecond, 2 * time.Second

// attend follows a server's recalls and epochs until ctx is done.
func (f *Fleet) attend(ctx context.Context, s server) {
	var all sync.WaitGroup
	all.Go(func() { s.Recalls(ctx, f.name, f.Recalled) })
	all.Go(func() { f.verify(ctx, s) })
	all.Wait()
}

// verify reads the server's epoch, and prolongs its learning while this node has more to state.
func (f *Fleet) verify(ctx context.Context, s server) {
	tick := time.NewTicker(greetEvery)
	defer tick.Stop()
	for verified := f.clock(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		read, now := s.Verify, f.clock()
		switch {
		case f.Restating():
			read = s.Prolong
		case now.Sub(verified) < verifyEvery:
			f.Greet()
			continue
		default:
			verified = now
		}
		bounded, cancel := context.WithTimeout(ctx, TimeLimit)
		_, err := read(bounded)
		if cancel(); err != nil && ctx.Err() == nil {
			f.OnFailure(err)
		}
	}
}
