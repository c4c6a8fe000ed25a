package main

import (
	"context"
	"sync/atomic"
	"time"
)

// seldom calls f, but not again for a while.
func seldom(d time.Duration, f func(error)) func(error) {
	var next atomic.Int64
	return func(err error) {
		now := time.Now().UnixNano()
		if due := next.Load(); now >= due && next.CompareAndSwap(due, now+int64(d)) {
			f(err)
		}
	}
}

func every(ctx context.Context, d time.Duration, f func()) {
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
