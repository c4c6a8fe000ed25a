package main

import (
	"context"
	"sync"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/cmd/sluice/pace"
	"github.com/sluice-gate/sluice/ratelimit"
)

// liveEnvoy is an Envoy in real time, over gRPC without TLS. Its requests come at an interval.
type liveEnvoy struct {
	conn  *grpc.ClientConn
	clock ratelimit.Clock

	mu     sync.Mutex
	client *envoy.Client                                            // guarded by mu
	stream rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasClient // guarded by mu; nil: it has none
	cancel context.CancelFunc                                       // guarded by mu; of the stream
}

func newLiveEnvoy(t *testing.T, address string) *liveEnvoy {
	t.Helper()
	e := &liveEnvoy{clock: ratelimit.MonotonicClock()}
	e.client = envoy.New(envoy.Options{Domain: "d", Quirks: envoy.Stock()}, e)
	var err error
	e.conn, err = grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.conn.Close() })
	return e
}

// asks makes requests at an interval until ctx is done, with done called after each, while others wait.
func (e *liveEnvoy) asks(ctx context.Context, d time.Duration, id map[string]string, done func(allowed bool)) {
	pace.Every(ctx, d, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		now := e.clock()
		if next := e.client.Next(); next != 0 && now >= next {
			e.client.Tick(now)
		}
		done(e.client.Request(now, id))
	})
}

// Open implements envoy.Wire; mu is held.
func (e *liveEnvoy) Open() bool {
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := rlqsv3.NewRateLimitQuotaServiceClient(e.conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		cancel()
		return false
	}
	e.stream, e.cancel = stream, cancel
	go e.receive(stream)
	return true
}

// receive applies answers until the stream ends.
func (e *liveEnvoy) receive(stream rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasClient) {
	for {
		m, err := stream.Recv()
		e.mu.Lock()
		if err != nil {
			e.cancel()
			e.stream = nil
			e.client.Broken()
			e.mu.Unlock()
			return
		}
		e.client.Receive(e.clock(), m)
		e.mu.Unlock()
	}
}

// Send implements envoy.Wire; mu is held.
func (e *liveEnvoy) Send(m *rlqsv3.RateLimitQuotaUsageReports) { _ = e.stream.Send(m) }
