// Package pace repeats what happens now and then: [Every] with a ticker, [Seldom] in logs.
package pace

import (
	"context"
	"sync/atomic"
	"time"
)

// Seldom calls f, but not again for a while. The returned function is safe for concurrent use.
func Seldom(d time.Duration, f func(error)) func(error) {
	var next atomic.Int64
	return func(err error) {
		now := time.Now().UnixNano()
		if due := next.Load(); now >= due && next.CompareAndSwap(due, now+int64(d)) {
			f(err)
		}
	}
}

// Every calls f at each interval until ctx is done. It blocks.
func Every(ctx context.Context, d time.Duration, f func()) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f()
		}
	}
}
