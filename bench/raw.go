package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// client drives one server from many callers over a few connections. It sends prepared bytes and does not
// read answers: its cost is the same for every server.
type client struct {
	conns    []*grpc.ClientConn
	requests [][]byte
}

// rawCodec passes messages as the bytes they are.
type rawCodec struct{}

// Name implements encoding.CodecV2.
func (rawCodec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*int) = data.Len()
	return nil
}

func dial(address string, connections int, requests [][]byte) (*client, error) {
	c := &client{requests: requests}
	for range connections {
		conn, err := grpc.NewClient("passthrough:///"+address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.WaitForReady(true)))
		if err != nil {
			c.close()
			return nil, fmt.Errorf("dialling %s: %w", address, err)
		}
		c.conns = append(c.conns, conn)
	}
	return c, nil
}

func (c *client) close() {
	for _, conn := range c.conns {
		conn.Close()
	}
}

// round is what one round of load saw.
type round struct {
	calls   int64
	errors  int64
	first   error
	took    time.Duration
	latency *hdrhistogram.Histogram // nanoseconds
}

func newLatency() *hdrhistogram.Histogram { return hdrhistogram.New(1000, int64(10*time.Second), 3) }

// run calls for a time, from so many callers: at a rate, or, if that is 0, in a closed loop. Calls that are under way
// then are waited for. The time of a call counts from its due time, so that a late server is late for later calls,
// too.
func (c *client) run(ctx context.Context, callers int, perSecond float64, length time.Duration) round {
	total := round{latency: newLatency()}
	var mu sync.Mutex
	var wg sync.WaitGroup
	p := pace{began: time.Now()}
	p.end = p.began.Add(length)
	if perSecond > 0 {
		p.each = time.Duration(float64(callers) / perSecond * float64(time.Second))
	}
	for i := range callers {
		wg.Go(func() {
			r := c.call(ctx, p, p.began.Add(p.each*time.Duration(i)/time.Duration(callers)), i)
			mu.Lock()
			defer mu.Unlock()
			total.calls += r.calls
			total.errors += r.errors
			if total.first == nil {
				total.first = r.first
			}
			total.latency.Merge(r.latency)
		})
	}
	wg.Wait()
	total.took = time.Since(p.began)
	return total
}

// pace is when the calls of one caller are due.
type pace struct {
	began, end time.Time
	each       time.Duration // between two; 0: the next is due after the last
}

func (c *client) call(ctx context.Context, p pace, due time.Time, i int) round {
	r := round{latency: newLatency()}
	conn, at := c.conns[i%len(c.conns)], i
	var size int
	for ; ; due = due.Add(p.each) {
		if p.each == 0 {
			due = time.Now()
		}
		if !due.Before(p.end) || ctx.Err() != nil {
			return r
		}
		time.Sleep(time.Until(due))
		at = (at + 7919) % len(c.requests)
		r.calls++
		if err := conn.Invoke(ctx, rls.RateLimitService_ShouldRateLimit_FullMethodName, c.requests[at], &size); err != nil {
			r.errors++
			r.first = err
			continue
		}
		_ = r.latency.RecordValue(time.Since(due).Nanoseconds())
	}
}
