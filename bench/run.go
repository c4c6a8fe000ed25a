package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
)

// domain and entry are what requests are for.
const domain, entry = "bench", "key"

// inTurn measures each of several ways in each round. None is always the one after another.
func inTurn(rounds, ways int, measure func(round, way int) error) error {
	for round := range rounds {
		for i := range ways {
			if err := measure(round, (round+i)%ways); err != nil {
				return err
			}
		}
	}
	return nil
}

// drive makes the calls of a load: at its times, or if there are callers, each after its last answer.
func drive(
	ctx context.Context, callers int, l load.Load, seed uint64, start time.Time, call func(r load.Request, intended time.Time),
) {
	if callers > 0 {
		caller.Closed(ctx, callers, l, seed, start, call)
	} else {
		caller.Open(ctx, l, seed, start, call)
	}
}

// latencies are those of calls, from when they were due.
type latencies struct{ *hdrhistogram.Histogram }

func newLatencies() latencies {
	return latencies{hdrhistogram.New(1000, int64(time.Minute), 3)}
}

func (l latencies) record(d time.Duration) {
	_ = l.RecordValue(min(int64(time.Minute), max(1000, int64(d))))
}

func (l latencies) at(quantile float64) time.Duration {
	return time.Duration(l.ValueAtQuantile(quantile))
}

// calls are what came of calls, as their caller counts them. They are safe for concurrent use by mu.
type calls struct {
	mu      sync.Mutex
	latency latencies // guarded by mu, as all below
	asked   int64
	failed  int64 // without an answer
	lastErr error // of them
}

func newCalls() *calls { return &calls{latency: newLatencies()} }

// drive makes the calls of a load, each for a key, and counts them. It fails if one has.
func (c *calls) drive(ctx context.Context, callers int, l load.Load, start time.Time, call func(key int) error) error {
	drive(ctx, callers, l, 1, start, func(r load.Request, intended time.Time) {
		err := call(r.Key)
		c.add(time.Since(intended), err)
	})
	if c.failed > 0 || c.asked == 0 {
		return fmt.Errorf("%d of %d calls failed, such as: %w", c.failed, c.asked, errors.Join(c.lastErr, ctx.Err()))
	}
	return ctx.Err()
}

// add counts a call, which may have failed.
func (c *calls) add(took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(took, err)
}

func (c *calls) addLocked(took time.Duration, err error) {
	c.asked++
	c.latency.record(took)
	c.failLocked(err)
}

func (c *calls) failLocked(err error) {
	if err != nil {
		c.failed++
		c.lastErr = err
	}
}

// middle has the median of each number in a struct's rounds.
func middle[T any](rounds []T) T {
	m := rounds[0]
	to := reflect.ValueOf(&m).Elem()
	for i := range to.NumField() {
		if !to.Field(i).CanInt() && !to.Field(i).CanFloat() {
			continue
		}
		number := func(r T) float64 { return reflect.ValueOf(r).Field(i).Convert(reflect.TypeFor[float64]()).Float() }
		sorted := slices.SortedFunc(slices.Values(rounds), func(a, b T) int { return cmp.Compare(number(a), number(b)) })
		to.Field(i).Set(reflect.ValueOf(sorted[len(sorted)/2]).Field(i))
	}
	return m
}

// micros are microseconds for each of n calls.
func micros(d time.Duration, n int64) float64 {
	return float64(d.Nanoseconds()) / 1e3 / float64(max(1, n))
}
