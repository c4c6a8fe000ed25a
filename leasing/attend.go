package leasing

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// server is a ledger that may lose its data, and asks nodes to give back what others need. [account.Redis] is one.
type server interface {
	account.Ledger
	// Recalls calls recalled with each account whose tokens other nodes need. It returns when ctx is done.
	Recalls(ctx context.Context, node ratelimit.Holder, recalled func(key string, w ratelimit.Window))
	// Verify looks whether the same server has the data; Prolong also has its learning go on, if it has lost it.
	Verify(ctx context.Context) (ratelimit.Epoch, error)
	Prolong(ctx context.Context) error
}

// greetEvery is how often a server is heard of at least, and verifyEvery how often it is looked whether the same one
// has the data: answers of the same server tell it as well, but not after each change of its replication.
const greetEvery, verifyEvery = 500 * time.Millisecond, 2 * time.Second

// attend listens to a server, and looks after what it knows, until ctx is done.
func (f *Fleet) attend(ctx context.Context, s server) {
	var all sync.WaitGroup
	all.Go(func() { s.Recalls(ctx, f.name, f.Recalled) })
	all.Go(func() { f.verify(ctx, s) })
	all.Wait()
}

// verify has the server look whose data there is, and prolong its learning as long as this node has more to tell.
func (f *Fleet) verify(ctx context.Context, s server) {
	tick := time.NewTicker(greetEvery)
	defer tick.Stop()
	verified, losses := f.clock(), uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// A node that has known another life of the ledger says so once, also with nothing left to tell. Otherwise the
		// ledger would count as new.
		telling := f.Telling() || f.Recoveries() != losses
		losses = f.Recoveries()
		if now := f.clock(); !telling && now.Sub(verified) < verifyEvery {
			f.Greet()
			continue
		} else if !telling {
			verified = now
		}
		if err := look(ctx, s, telling); err != nil && ctx.Err() == nil && f.OnFailure != nil {
			f.OnFailure(err)
		}
	}
}

func look(ctx context.Context, s server, telling bool) error {
	ctx, cancel := context.WithTimeout(ctx, TimeLimit)
	defer cancel()
	if telling {
		return s.Prolong(ctx)
	}
	_, err := s.Verify(ctx)
	return err
}
