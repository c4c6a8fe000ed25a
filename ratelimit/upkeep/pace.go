// Package upkeep is what a process does again and again while it serves: with pauses ([Every], [Sleep]), in a log
// ([Seldom], [ByKind]), and with files that change ([FileValue]).
package upkeep

import (
	"cmp"
	"context"
	"sync"
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

// kinds bounds the kinds with a count of their own.
const kinds = 16

// ByKind calls f with the first error of a kind, and with a later one when d has passed since the last call for that
// kind. count is the number of errors of the kind since then, this one included. The returned function is safe for
// concurrent use. The first [kinds] kinds have counts of their own, and all others share one.
func ByKind(
	clock func() time.Time, d time.Duration, kind func(error) string, f func(err error, count int),
) func(error) {
	type state struct {
		next  time.Time
		count int
	}
	var mu sync.Mutex
	known := map[string]*state{}
	return func(err error) {
		mu.Lock()
		name := kind(err)
		s := known[name]
		if s == nil {
			if len(known) >= kinds {
				name = ""
			}
			s = cmp.Or(known[name], &state{})
			known[name] = s
		}
		s.count++
		now := clock()
		if now.Before(s.next) {
			mu.Unlock()
			return
		}
		count := s.count
		s.next, s.count = now.Add(d), 0
		mu.Unlock()
		f(err, count)
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

// Sleep waits for d, or until ctx is done.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
