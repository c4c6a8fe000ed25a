package ratelimit

import "context"

// Waiter is the value of WaitsKey in a context. Waits is called before a decision waits, also by several goroutines
// that decide parts of it.
type Waiter interface{ Waits() }

// WaitsKey is the key of a Waiter.
type WaitsKey struct{}

// Waits is called before a decision waits. It calls the Waiter of its context, if there is one.
func Waits(ctx context.Context) {
	if w, ok := ctx.Value(WaitsKey{}).(Waiter); ok {
		w.Waits()
	}
}
