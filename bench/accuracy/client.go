package accuracy

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
)

// client stands in for Envoy, and counts its answers.
type client struct {
	domain string
	caller.Pool
}

// tally is what clients counted. It is safe for concurrent use.
type tally struct {
	limit    int64
	start    time.Time
	mu       sync.Mutex
	keys     []keyTally              // guarded by mu
	latency  *hdrhistogram.Histogram // guarded by mu: microseconds
	early    int64                   // guarded by mu: refused while fewer than the limit had been admitted
	failed   int64                   // guarded by mu
	lastErr  error                   // guarded by mu
	admitted []int64                 // guarded by mu: in each tenth of a second
	offered  []int64                 // guarded by mu: the same
}

type keyTally struct{ offered, admitted int64 }

func newTally(keys int, limit int64) *tally {
	return &tally{limit: limit, start: time.Now(), keys: make([]keyTally, keys), latency: hdrhistogram.New(1, int64(10*time.Second/time.Microsecond), 3)}
}

// count books an answer to a request for one token; err says that there was
// none.
func (t *tally) count(key int, intended time.Time, ok bool, err error) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.latency.RecordValue(max(1, int64(now.Sub(intended)/time.Microsecond)))
	k := &t.keys[key]
	tenth := int(now.Sub(t.start) / (100 * time.Millisecond))
	for len(t.admitted) <= tenth {
		t.admitted, t.offered = append(t.admitted, 0), append(t.offered, 0)
	}
	k.offered++
	t.offered[tenth]++
	switch {
	case err != nil:
		t.failed++
		t.lastErr = err
	case ok:
		k.admitted++
		t.admitted[tenth]++
	case k.admitted < t.limit:
		t.early++
	}
}

// sum is over all keys: over is of the key that went furthest, under of all.
func (t *tally) sum() (offered, admitted, over, under int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.keys {
		offered += k.offered
		admitted += k.admitted
		over = max(over, k.admitted-t.limit)
		under += max(0, min(t.limit, k.offered)-k.admitted)
	}
	return offered, admitted, over, under
}

// demand names the requested keys.
type demand struct {
	entry  string // the descriptor's key: it names the rule
	prefix string // of values, so that no budget was used before
	load   load.Load
	closed int // callers of a closed loop; 0: the loop is open
}

func (d *demand) request(domain string, key int) *rls.RateLimitRequest {
	return &rls.RateLimitRequest{Domain: domain, Descriptors: []*common.RateLimitDescriptor{
		{Entries: []*common.RateLimitDescriptor_Entry{{Key: d.entry, Value: fmt.Sprintf("%s-%d", d.prefix, key)}}},
	}}
}

// ask asks once, and again elsewhere if the node does not answer, as Envoy would
// with another host.
func (c *client) ask(ctx context.Context, d *demand, t *tally, key int, intended time.Time) {
	q := d.request(c.domain, key)
	conn := c.Next()
	if conn == nil {
		t.count(key, intended, false, context.Canceled)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, caller.Timeout)
	defer cancel()
	answer, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, q)
	t.count(key, intended, answer.GetOverallCode() == rls.RateLimitResponse_OK, err)
}

// run drives the demand until its time is over. In an open loop, calls are made
// when they are meant to be, whatever became of those before, and latency counts
// from then.
func (c *client) run(ctx context.Context, d *demand, t *tally, seed uint64) {
	ctx, cancel := context.WithTimeout(ctx, d.load.Length+5*time.Second)
	defer cancel()
	call := func(r load.Request, intended time.Time) { c.ask(ctx, d, t, r.Key, intended) }
	if d.closed > 0 {
		caller.Closed(ctx, d.closed, d.load, seed, t.start, call)
		return
	}
	caller.Open(ctx, d.load, seed, t.start, call)
}
