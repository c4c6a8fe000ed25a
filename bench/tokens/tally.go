package tokens

import (
	"errors"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-gate/sluice/bench/envoy"
)

// tally is what the caller counted. It is safe for concurrent use.
type tally struct {
	limit   int64
	mu      sync.Mutex
	latency *hdrhistogram.Histogram // guarded by mu: microseconds, of requests' calls
	asked   int64                   // guarded by mu, as all below
	refused int64
	fitted  int64 // of them, those whose cost fitted into the limit with that of all that passed
	used    int64 // the cost of all that passed
	failed  int64
	lastErr error
	// excess is the cost of requests in flight above their holds, and mostExcess its maximum.
	excess, mostExcess int64
}

func newTally(limit int64) *tally {
	return &tally{limit: limit, latency: hdrhistogram.New(1, int64(10*time.Second/time.Microsecond), 3)}
}

// answered counts a request's call.
func (t *tally) answered(err error, cost int64, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.latency.RecordValue(max(1, took.Microseconds()))
	t.asked++
	switch {
	case err == nil:
		t.used += cost
	case errors.Is(err, envoy.ErrOver):
		t.refused++
		if t.used+cost <= t.limit {
			t.fitted++
		}
	default:
		t.failed, t.lastErr = t.failed+1, err
	}
}

// flies counts the cost of a request above its hold, when it passes, and minus that when it ends.
func (t *tally) flies(excess int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.excess += excess
	t.mostExcess = max(t.mostExcess, t.excess)
}

// fails counts a call at the end that had no answer.
func (t *tally) fails(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed++
	t.lastErr = err
}
