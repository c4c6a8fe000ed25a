package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-gate/sluice/bench/baseline"
	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
)

// Parts that several measurements share: the order of rounds (inTurn), calls and their latencies (calls), the caller's
// count of admissions (tally), and fleets with their stores.

// domain and entry are what requests are for. The regular expressions of counters below contain both.
const domain, entry = "bench", "key"

// inTurn measures each of several ways in each round. None is always the one after another. A machine gets warm, and
// other work on it comes and goes. If one way always came last, that would look like a property of the way.
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

// drive makes the calls of a load: at its times, or if there are callers, each after its last answer. It returns when
// all calls have ended.
func drive(
	ctx context.Context, callers int, l load.Load, seed uint64, start time.Time, call func(r load.Request, intended time.Time),
) {
	if callers > 0 {
		caller.Closed(ctx, callers, l, seed, start, call)
	} else {
		caller.Open(ctx, l, seed, start, call)
	}
}

// latencies are those of calls, from when they were due. A call that is made late because earlier ones took long counts
// from its intended time. Otherwise a slow server would be asked less and look better (coordinated omission).
type latencies struct{ *hdrhistogram.Histogram }

// newLatencies makes an empty histogram. The range is 1 µs to a minute, in nanoseconds, with three digits.
func newLatencies() latencies {
	return latencies{hdrhistogram.New(1000, int64(time.Minute), 3)}
}

func (l latencies) record(d time.Duration) {
	_ = l.RecordValue(min(int64(time.Minute), max(1000, int64(d))))
}

func (l latencies) at(quantile float64) time.Duration {
	return time.Duration(l.ValueAtQuantile(quantile))
}

// calls are what came of calls, as their caller counts them. They are safe for concurrent use by mu. failed and asked
// show whether the figures can be trusted: a failed call has a latency, too.
type calls struct {
	mu      sync.Mutex
	latency latencies // guarded by mu, as all below
	asked   int64
	failed  int64 // without an answer
	lastErr error // of them
}

func newCalls() *calls { return &calls{latency: newLatencies()} }

// drive makes the calls of a load, each for a key, and counts them. It fails if one has. It reads the counts without
// the lock: no call is under way any more.
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

// middle has the median of each number in a struct's rounds. The numbers of one result can come from different rounds.
// Fields of other types are the first round's. Of an even number of rounds it takes the upper of the two in the middle.
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

// micros are microseconds for each of n calls. Without calls, it is the whole time.
func micros(d time.Duration, n int64) float64 {
	return float64(d.Nanoseconds()) / 1e3 / float64(max(1, n))
}

// tally is the caller's count, by key and window. A request near a turn may count in either of two windows, and is
// evidence for neither: it makes no window over or under its limit. It is safe for concurrent use. The caller's count
// is the judge here: a bug in the nodes' own counters cannot hide an admission from it.
type tally struct {
	calls
	limit  int64
	window time.Duration
	counts map[[2]int64]*count // guarded by mu; by key and window
	passed int64               // guarded by mu
	early  int64               // guarded by mu: refused while fewer than the limit had been admitted
}

// count is of one key in one window.
type count struct{ offered, admitted, perhaps int64 }

// turn is how near to the end of a window a request may be in either: nodes have the ledger's clock from an older
// answer. The caller and Redis run on one machine, with one clock.
const turn = 5 * time.Millisecond

func newTally(limit int64, window time.Duration) *tally {
	return &tally{calls: calls{latency: newLatencies()}, limit: limit, window: window, counts: map[[2]int64]*count{}}
}

// answered counts the answer to a request for one token; err says that there was none. A request counts in the windows
// from first to last, which are one except near a turn. It counts as perhaps admitted in each of several. A call
// without an answer may still be decided after the caller has given up, so the next window is added.
func (t *tally) answered(key int, intended, sent, now time.Time, ok bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLocked(now.Sub(intended), err)
	first, last := sent.Add(-turn).UnixNano()/int64(t.window), now.Add(turn).UnixNano()/int64(t.window)
	if err != nil {
		ok = true // for all that is known, it may have been charged
		last = first + 1
	} else if ok {
		t.passed++
	}
	if first != last {
		for w := first; w <= last; w++ {
			if ok {
				t.ofLocked(key, w).perhaps++
			}
		}
		return
	}
	c := t.ofLocked(key, first)
	c.offered++
	if ok {
		c.admitted++
		return
	}
	if c.admitted+c.perhaps < t.limit {
		t.early++
	}
}

func (t *tally) ofLocked(key int, window int64) *count {
	k := [2]int64{int64(key), window}
	c := t.counts[k]
	if c == nil {
		c = &count{}
		t.counts[k] = c
	}
	return c
}

// count has what the caller counted. Over is of the key and window that went furthest. An exact limiter would admit the
// limit or all that was offered, whichever is less, in each window.
func (m *Measured) count(t *tally) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.Asked = t.asked
	m.Failed = t.failed
	m.Admitted = t.passed
	m.Early = t.early
	m.P50 = t.latency.at(50)
	m.P99 = t.latency.at(99)
	m.P999 = t.latency.at(99.9)
	for _, c := range t.counts {
		exact := min(t.limit, c.offered)
		m.Allowed += exact
		m.Under += max(0, exact-c.admitted-c.perhaps)
		m.Over = max(m.Over, c.admitted-t.limit)
	}
}

// openFleet starts nodes of sluice, a binary, with rules and a Redis that is empty, and waits until they have found
// each other. It has places for others that may join, and adds flags to the command lines. With --drain-time 200ms, a
// node that leaves does not wait for balancers, which do not exist here.
func openFleet(binary, rules string, nodes, others int, flags ...string) (*process.Fleet, error) {
	flags = append([]string{"--max-keys", strconv.Itoa(maxKeys), "--drain-time", "200ms"}, flags...)
	f, err := process.NewFleet(binary, rules, nodes+others, true, flags...)
	if err != nil {
		return nil, err
	}
	if err := f.StartFirst(nodes); err != nil {
		return nil, err
	}
	time.Sleep(young)
	return f, nil
}

// maxKeys is more than most rows have. The largest row has 100,000.
const maxKeys = 200_000

// young is how long a Redis that begins empty counts as one that may have lost its data, and grants little. It is
// ratelimit.YoungFor and a beat, in which the nodes read the epoch.
const young = 2500 * time.Millisecond

// openOther starts servers that are not Sluice, and a Redis that is empty: where none is needed, its use is that of an
// idle one. A failed start leaves nothing running.
func openOther(start func(f *process.Fleet) error) (*process.Fleet, error) {
	f := &process.Fleet{}
	if err := f.OpenRedis(); err != nil {
		return nil, err
	}
	if err := start(f); err != nil {
		f.Stop()
		return nil, err
	}
	return f, nil
}

// openBaseline starts servers that ask Redis for each request, by sluicelab, a binary. The servers share one Redis, as
// nodes of envoyproxy/ratelimit do.
func openBaseline(lab string, limit int64, window time.Duration, nodes int) (*process.Fleet, error) {
	return openOther(func(f *process.Fleet) error {
		for range nodes {
			s := baseline.Server{Redis: f.Redis.Addr, Limit: limit, Window: window}
			if err := s.Join(f, lab); err != nil {
				return err
			}
		}
		return nil
	})
}

// Counters of nodes, by a label.
var (
	// Examples of lines:
	//
	//	sluice_fallback_decisions_total{reason="deadline"} 12
	//	ratelimit_service_rate_limit_total_hits{domain="bench",key1="key",key2=""} 45000
	fallbacks = regexp.MustCompile(`(?m)^sluice_fallback_decisions_total\{reason="([a-z_]+)"\} (\d+)`)
	counted   = regexp.MustCompile(`(?m)^ratelimit_service_rate_limit_(total_hits|within_limit)\{domain="bench",key1="key",key2=""\} ([0-9.e+]+)$`)
)

// sum is a counter of all nodes together, by label. A node that does not answer adds nothing: it may be the one that a
// scenario has killed.
func sum(f *process.Fleet, counter *regexp.Regexp) map[string]int64 {
	all := map[string]int64{}
	for _, node := range f.Running() {
		if node.Debug == "" { // the baseline has no metrics
			continue
		}
		text, err := node.Ask("/metrics")
		if err != nil {
			continue
		}
		for _, m := range counter.FindAllStringSubmatch(text, -1) {
			if n, _ := strconv.ParseFloat(m[2], 64); n > 0 {
				all[m[1]] += int64(n)
			}
		}
	}
	return all
}
