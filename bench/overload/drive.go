package overload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-gate/sluice/bench/caller"
)

const method = rls.RateLimitService_ShouldRateLimit_FullMethodName

// tally is what became of calls.
type tally struct {
	Offered  int64
	Sent     int64 // the others were held back on the caller's side
	Answered int64 // before the caller gave up
	Refused  int64
	GivenUp  int64
	latency  *hdrhistogram.Histogram // microseconds, of those answered
}

func newTally() *tally { return &tally{latency: hdrhistogram.New(1, 60_000_000, 3)} }

func (t *tally) add(o *tally) {
	t.Offered, t.Sent, t.Answered = t.Offered+o.Offered, t.Sent+o.Sent, t.Answered+o.Answered
	t.Refused, t.GivenUp = t.Refused+o.Refused, t.GivenUp+o.GivenUp
	t.latency.Merge(o.latency)
}

// warmUp is the request of a connection's first call.
var warmUp = message("warm-up")

// message is a request as gRPC frames it.
func message(value string) []byte {
	body := caller.Encoded(caller.Request("bench", "api_key", value))
	return append([]byte{0, byte(len(body) >> 24), byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

// messages are requests of keys keys.
func messages(keys int) [][]byte {
	all := make([][]byte, keys)
	for i := range all {
		all[i] = message(fmt.Sprintf("key-%06d", i))
	}
	return all
}

// client is all connections.
type client struct {
	conns    []*conn
	messages [][]byte
}

func dial(address string, connections, most int, patience time.Duration, traced bool) (*client, error) {
	c := &client{messages: messages(1000)}
	for range connections {
		one, err := open(address, max(1, most/connections), patience, traced)
		if err != nil {
			c.close()
			return nil, err
		}
		c.conns = append(c.conns, one)
	}
	return c, nil
}

func (c *client) close() {
	for _, one := range c.conns {
		one.close()
	}
}

// each runs f for every connection at once, and sums what became of its calls.
func (c *client) each(f func(i int, one *conn) error) (*tally, error) {
	var wg sync.WaitGroup
	errs := make([]error, len(c.conns))
	for i, one := range c.conns {
		wg.Go(func() { errs[i] = f(i, one) })
	}
	wg.Wait()
	total := newTally()
	for _, one := range c.conns {
		one.mu.Lock()
		total.add(one.tally)
		one.tally = newTally()
		one.mu.Unlock()
	}
	return total, errors.Join(errs...)
}

// open makes calls at a rate, whatever becomes of them: those that are due, a few at once.
func (c *client) open(ctx context.Context, rate float64, length time.Duration) (*tally, error) {
	start := time.Now()
	end := start.Add(length)
	every := time.Duration(float64(time.Second) / rate * float64(len(c.conns)))
	return c.each(func(i int, one *conn) error {
		intended := start.Add(every * time.Duration(i) / time.Duration(len(c.conns)))
		return c.drive(ctx, one, func(now time.Time, next func() []byte) (over bool) {
			for ; !intended.After(now) && intended.Before(end); intended = intended.Add(every) {
				one.tally.Offered++
				if now.Sub(intended) <= one.patience {
					one.beginLocked(next(), intended)
				}
			}
			return !intended.Before(end)
		}, func() { time.Sleep(tick) })
	})
}

// tick is how often calls that are due are made.
const tick = 500 * time.Microsecond

// closed keeps callers calls under way, for a time.
func (c *client) closed(ctx context.Context, callers int, length time.Duration) (*tally, error) {
	end := time.Now().Add(length)
	callers = max(1, callers/len(c.conns)) // of each connection
	return c.each(func(_ int, one *conn) error {
		ticks := time.NewTicker(time.Millisecond)
		defer ticks.Stop()
		return c.drive(ctx, one, func(now time.Time, next func() []byte) (over bool) {
			for now.Before(end) && one.outstanding < callers {
				one.tally.Offered++
				if !one.beginLocked(next(), now) {
					break
				}
			}
			return !now.Before(end)
		}, func() {
			select {
			case <-one.more:
			case <-ticks.C:
			}
		})
	})
}

// drive makes the calls of one connection, until begin says that it makes no more, and all have ended. It gives up
// those whose caller has left. begin makes those that are due, with one.mu held.
func (c *client) drive(
	ctx context.Context, one *conn, begin func(now time.Time, next func() []byte) (over bool), wait func(),
) error {
	n := 0
	next := func() []byte {
		n++
		return c.messages[n*7919%len(c.messages)]
	}
	for {
		now := time.Now()
		one.mu.Lock()
		one.giveUpLocked(now)
		over := begin(now, next)
		err := errors.Join(one.flushLocked(), one.err)
		done := over && one.outstanding == 0
		one.mu.Unlock()
		if done || err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		wait()
	}
}
