package transport

import "sync"

// Body is the body of an HTTP request that is being read, as a Budget sees it. The reader calls Grow for each piece
// before it keeps it, and Close when it has let go of all. It is safe for concurrent use.
type Body struct {
	budget *Budget
	since  int64
	stop   func()

	mu    sync.Mutex
	bytes int64 // guarded by mu
	// over says that the body has ended, or had to. Its bytes are given back once only. It is guarded by mu.
	over bool
}

// bodyCost is what a request costs before its body. It stands for the goroutine and the buffers of net/http.
const bodyCost = 8 << 10

// Body begins one. If the body has to end, stop is called, from another goroutine and at most once. It must
// make the reader return, and must not block. A nil Budget bounds nothing.
func (b *Budget) Body(stop func()) *Body {
	b = b.orAll()
	v := &Body{budget: b, since: nanotime(), stop: stop, bytes: bodyCost}
	// It is among the holders before it is charged, so that the charge can end it.
	b.join(v)
	b.charge(bodyCost)
	return v
}

// Grow notes that more bytes are held. It reports whether the body may go on.
func (v *Body) Grow(bytes int64) bool {
	v.mu.Lock()
	if v.over {
		v.mu.Unlock()
		return false
	}
	v.bytes += bytes
	// The budget may end any holder while it is charged, this one too, which takes mu.
	v.mu.Unlock()
	v.budget.charge(bytes)
	return !v.Ended()
}

// Ended reports whether it had to end.
func (v *Body) Ended() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.over
}

// Close lets go of it.
func (v *Body) Close() {
	// This is first, so that no other goroutine ends it after it has let go.
	v.budget.leave(v)
	v.let()
}

// let gives back its bytes, once: the reader and the budget may both end it.
func (v *Body) let() {
	v.mu.Lock()
	bytes := v.bytes
	v.bytes, v.over = 0, true
	v.mu.Unlock()
	v.budget.charge(-bytes)
}

// holds implements holder.
func (v *Body) holds(since int64) (now, long int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.since <= since {
		long = v.bytes
	}
	return v.bytes, long
}

// end implements holder.
func (v *Body) end() {
	v.let()
	v.stop()
}
