package envoy

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Live is a Client in real time, over gRPC without TLS. It is safe for concurrent use.
//
// Envoy applies an answer where it reads its socket; here gRPC reads it, and acknowledges
// pings, and a goroutine applies it a moment later.
type Live struct {
	conn  *grpc.ClientConn
	clock ratelimit.Clock
	stop  context.CancelFunc
	ctx   context.Context
	wg    sync.WaitGroup
	wake  chan struct{}
	still sync.RWMutex // held while it stands still, for its socket

	mu     sync.Mutex
	client *Client // guarded by mu
	out    *outbox // guarded by mu; of the stream that is open
	passed func(time.Time)
}

// outbox is what is to be sent on one stream.
type outbox struct {
	messages chan *rlqs.RateLimitQuotaUsageReports
	cancel   context.CancelFunc
}

// mostQueued is how many messages may wait for a stream to open; more are lost.
const mostQueued = 1024

// NewLive makes a client of the server at an address, and runs it until Close. passed, if not nil, is called
// with the time of each decision that passes a request, while others wait.
func NewLive(o Options, address string, passed func(time.Time)) (*Live, error) {
	ctx, stop := context.WithCancel(context.Background())
	l := &Live{clock: ratelimit.MonotonicClock(), ctx: ctx, stop: stop, wake: make(chan struct{}, 1), passed: passed}
	l.client = New(o, l)
	var err error
	l.conn, err = grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err != nil {
				return nil, fmt.Errorf("connecting to %s: %w", address, err)
			}
			return &still{c, &l.still}, nil
		}))
	if err != nil {
		stop()
		return nil, fmt.Errorf("a client of %s: %w", address, err)
	}
	l.wg.Go(l.run)
	return l, nil
}

// still is a connection that is not read while its client stands still.
type still struct {
	net.Conn
	frozen *sync.RWMutex
}

// Read implements net.Conn.
func (c *still) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.frozen.RLock()
	defer c.frozen.RUnlock()
	return n, err
}

// Request decides on a request. It blocks while the client stands still.
func (l *Live) Request(id map[string]string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ok := l.client.Request(l.clock(), id)
	if ok && l.passed != nil {
		l.passed(time.Now())
	}
	l.nudge()
	return ok
}

// Freeze has it stand still for a while, its socket too. It blocks for as long.
func (l *Live) Freeze(d time.Duration) {
	l.still.Lock()
	defer l.still.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-time.After(d):
	case <-l.ctx.Done():
	}
}

// Cut breaks the stream.
func (l *Live) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out != nil {
		l.out.cancel()
	}
}

// Opened tells how many streams it has opened, and whether it has one.
func (l *Live) Opened() (n int, connected bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client.Opened(), l.client.Connected()
}

// Close ends it, and waits for its goroutines.
func (l *Live) Close() {
	l.stop()
	_ = l.conn.Close()
	l.wg.Wait()
}

func (l *Live) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run looks at the client's timers.
func (l *Live) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-timer.C:
			l.mu.Lock()
			l.client.Tick(l.clock())
			l.mu.Unlock()
		case <-l.wake:
		}
		d := time.Hour
		l.mu.Lock()
		if next := l.client.Next(); next != 0 {
			d = max(0, next.Sub(l.clock()))
		}
		l.mu.Unlock()
		timer.Reset(d)
	}
}

// Open implements Wire; mu is held.
func (l *Live) Open() bool {
	ctx, cancel := context.WithCancel(l.ctx)
	out := &outbox{make(chan *rlqs.RateLimitQuotaUsageReports, mostQueued), cancel}
	l.out = out
	l.wg.Go(func() {
		defer cancel()
		l.exchange(ctx, out)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.out == out {
			l.out = nil
			l.client.Broken()
		}
	})
	return true
}

// Send implements Wire; mu is held.
func (l *Live) Send(m *rlqs.RateLimitQuotaUsageReports) {
	select {
	case l.out.messages <- m:
	default:
	}
}

// exchange sends and receives until the stream ends.
func (l *Live) exchange(ctx context.Context, out *outbox) {
	stream, err := rlqs.NewRateLimitQuotaServiceClient(l.conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		return
	}
	l.wg.Go(func() {
		for {
			select {
			case m := <-out.messages:
				if stream.Send(m) != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		l.mu.Lock()
		l.client.Receive(l.clock(), m)
		l.mu.Unlock()
		l.nudge()
	}
}
