package rls

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A request of largeBytes or more may grow a hundred times while it is decided: each descriptor has a key, a
// verdict and a status. So only a few are decided at a time. A few others wait as bytes. The rest are refused
// at once, so that the end of their connection need not wake all of them at the same instant.
const (
	largeBytes   = 4 << 10
	largeAtOnce  = 16
	largeWaiting = 64
)

// large has the calls in which large requests are decided. They have grown, and are kept apart from the many small
// ones. Otherwise, in a flood of large requests, each waiting call would grow by megabytes, and the garbage collector
// would slow down all other requests.
type large struct {
	slots   chan struct{} // of those that are being decided
	waiting atomic.Int32  // calls that wait for a slot, or have one
	// calls are *call. There are at most as many as slots, plus those that the collector is about to drop.
	calls sync.Pool
}

// answerLarge does for a large request what answerOne does for any. It blocks until there is a slot, or ctx ends. The
// small call of the caller lends its bytes and gets the answer; all that grows is in a call of the pool for large ones.
func (s *Service) answerLarge(ctx context.Context, c *call, start ratelimit.Instant) error {
	defer s.large.waiting.Add(-1)
	if s.large.waiting.Add(1) > largeAtOnce+largeWaiting {
		s.ended(ctx, c, start, errLarge)
		return errLarge
	}
	select {
	case s.large.slots <- struct{}{}:
		defer func() { <-s.large.slots }()
	// The caller has given up, and its request must not keep its place in the queue.
	case <-ctx.Done():
		err := fmt.Errorf("%w: %w", errLarge, ctx.Err())
		s.ended(ctx, c, start, err)
		return err
	}
	// Other runnable goroutines go first: small requests, and large ones, which find the slots taken and
	// wait. Otherwise each would be decided whole in its turn. A small request behind a thousand large ones
	// would have its turn a quarter of a second later.
	runtime.Gosched()
	grown := s.large.calls.Get().(*call)
	grown.in, c.in = c.in, nil
	err := s.answerOne(ctx, grown, start)
	if err == nil { // the answer is all that is kept of it until it is sent
		c.out = slices.Clone(grown.out)
	}
	// Buffers beyond the size of nearly all large requests are not kept.
	grown.in = nil
	if cap(grown.matches) <= 2*MaxDescriptors && cap(grown.keys) <= 256<<10 && cap(grown.out) <= 256<<10 {
		s.large.calls.Put(grown)
	}
	return err
}
