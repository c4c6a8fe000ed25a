package store

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// tally is the caller's count, by key and window. A request near a turn may count in either of two windows,
// and is evidence for neither: it makes no window over or under its limit. It is safe for concurrent use.
type tally struct {
	limit   int64
	window  time.Duration
	mu      sync.Mutex
	counts  map[countKey]*count     // guarded by mu
	latency *hdrhistogram.Histogram // guarded by mu: microseconds
	asked   int64                   // guarded by mu
	passed  int64                   // guarded by mu
	failed  int64                   // guarded by mu
	early   int64                   // guarded by mu: refused while fewer than the limit had been admitted
	lastErr error                   // guarded by mu
}

type countKey struct {
	key    int
	window int64
}

// count is of one key in one window.
type count struct{ offered, admitted, perhaps int64 }

// turn is how near to the end of a window a request may be in either: nodes have the ledger's clock from an
// older answer.
const turn = 5 * time.Millisecond

func newTally(limit int64, window time.Duration) *tally {
	return &tally{limit: limit, window: window, counts: map[countKey]*count{}, latency: hdrhistogram.New(1, int64(10*time.Second/time.Microsecond), 3)}
}

// answered counts the answer to a request for one token; err says that there was none.
func (t *tally) answered(key int, intended, sent, now time.Time, ok bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.latency.RecordValue(max(1, int64(now.Sub(intended)/time.Microsecond)))
	t.asked++
	first, last := sent.Add(-turn).UnixNano()/int64(t.window), now.Add(turn).UnixNano()/int64(t.window)
	if err != nil {
		t.failed++
		t.lastErr = err
		ok = true // for all that is known, it may have been charged
		last = first + 1
	} else if ok {
		t.passed++
	}
	if first != last {
		for w := first; w <= last; w++ {
			if ok {
				t.of(key, w).perhaps++
			}
		}
		return
	}
	c := t.of(key, first)
	c.offered++
	if ok {
		c.admitted++
		return
	}
	if used := c.admitted + c.perhaps; used < t.limit {
		t.early++
	}
}

// of must be called with mu held.
func (t *tally) of(key int, window int64) *count {
	k := countKey{key, window}
	c := t.counts[k]
	if c == nil {
		c = &count{}
		t.counts[k] = c
	}
	return c
}

// sums are over all keys and windows, but over, which is of the one that went
// furthest; allowed is what an exact limiter had admitted of the same requests.
func (t *tally) sums() (admitted, over, under, allowed int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.counts {
		over = max(over, c.admitted-t.limit)
		exact := min(t.limit, c.offered)
		allowed += exact
		under += max(0, exact-c.admitted-c.perhaps)
	}
	return t.passed, over, under, allowed
}

func (t *tally) decisions() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.asked
}

func (t *tally) quantile(q float64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Duration(t.latency.ValueAtQuantile(q)) * time.Microsecond
}
