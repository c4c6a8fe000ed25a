// Package baseline is what Sluice is compared with: a gRPC server of the same protocol and transport that does no work,
// or asks Redis for each request. sluicelab runs it as a process of its own.
package baseline

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// Server answers OK to every request. With a Redis, it asks that for each, like envoyproxy/ratelimit's fixed window. It
// sends INCRBY and EXPIRE of a key that names the window, in one pipeline, over one of ten connections. It adds
// hits_addend of a descriptor, also if that is 0 or the limit is exceeded already. Its fields are flags of `sluicelab
// bench baseline`.
type Server struct {
	Address string        `required:"" help:"host:port"`
	Redis   string        `help:"host:port; without it, no work is done."`
	Limit   int64         `help:"Requests in a window."`
	Window  time.Duration `default:"1s" help:"Unit of the limit."`
}

// Join runs it as a process of a fleet, by sluicelab, at an address that is free. Without a Redis, its flag is empty,
// which the command takes for none.
func (s Server) Join(f *process.Fleet, lab string) error {
	ports, err := freeport.Find(1)
	if err != nil {
		return err
	}
	address := "127.0.0.1:" + ports[0]
	p, err := process.Start(nil, lab, address, "bench", "baseline", "--address", address, "--redis", s.Redis,
		"--limit", strconv.FormatInt(s.Limit, 10), "--window", max(s.Window, time.Second).String())
	if err != nil {
		return err
	}
	return f.Join(p)
}

// baseline is the service of a Server. It keeps no state: every request is judged by Redis alone.
type baseline struct {
	rls.UnimplementedRateLimitServiceServer
	Server
	client *redis.Client // nil: it does no work
}

// ShouldRateLimit implements rls.RateLimitServiceServer. A key is like `bench_key_client-7_1800144000`: the domain, the
// entries and the start of the window. Redis removes it one window after its last use.
func (b *baseline) ShouldRateLimit(ctx context.Context, q *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	answer := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
	if b.client == nil {
		return answer, nil
	}
	seconds := max(1, int64(b.Window/time.Second))
	start := time.Now().Unix() / seconds * seconds
	for _, d := range q.GetDescriptors() {
		var key strings.Builder
		key.WriteString(q.GetDomain())
		for _, e := range d.GetEntries() {
			key.WriteString("_" + e.GetKey() + "_" + e.GetValue())
		}
		key.WriteString("_" + strconv.FormatInt(start, 10))
		pipe := b.client.Pipeline()
		hits := int64(1)
		if n := d.GetHitsAddend(); n != nil {
			hits = int64(n.GetValue()) //nolint:gosec // at most 1e9 from an Envoy
		}
		used := pipe.IncrBy(ctx, key.String(), hits)
		pipe.Expire(ctx, key.String(), time.Duration(seconds)*time.Second)
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, fmt.Errorf("baseline: %w", err)
		}
		status := &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_OK, LimitRemaining: uint32(max(0, b.Limit-used.Val()))}
		if used.Val() > b.Limit {
			status.Code, answer.OverallCode = rls.RateLimitResponse_OVER_LIMIT, rls.RateLimitResponse_OVER_LIMIT
		}
		answer.Statuses = append(answer.Statuses, status)
	}
	return answer, nil
}

// Serve serves until ctx is done. Ten connections are the default of envoyproxy/ratelimit.
func (s Server) Serve(ctx context.Context, out io.Writer) error {
	l, err := net.Listen("tcp", s.Address)
	if err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	b := &baseline{Server: s}
	if s.Redis != "" {
		b.client = redis.NewClient(&redis.Options{Addr: s.Redis, PoolSize: 10})
		defer func() { _ = b.client.Close() }()
	}
	server := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(server, b)
	healthy := health.NewServer() // Envoy needs it
	healthy.SetServingStatus("ratelimit", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healthy)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	fmt.Fprintf(out, "baseline on %s\n", l.Addr())
	return server.Serve(l)
}
