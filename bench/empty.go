package bench

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// empty answers every request with OK and nothing else, as a gRPC server does
// that was written by the book.
type empty struct {
	rls.UnimplementedRateLimitServiceServer
}

// ShouldRateLimit implements rls.RateLimitServiceServer.
func (empty) ShouldRateLimit(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	return &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}, nil
}

// ServeEmpty serves the empty server until ctx is done. It is the baseline for the cost of this service: the
// same protocol and transport, no work.
func ServeEmpty(ctx context.Context, address string, out io.Writer) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("empty server: %w", err)
	}
	s := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(s, empty{})
	healthy := health.NewServer() // Envoy needs it
	healthy.SetServingStatus("ratelimit", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, healthy)
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	fmt.Fprintf(out, "empty server on %s\n", l.Addr())
	return s.Serve(l)
}

// StartEmpty runs it as a process of its own, by sluicelab.
func StartEmpty(lab string) (*process.Process, error) {
	ports, err := freeport.Find(1)
	if err != nil {
		return nil, err
	}
	address := "127.0.0.1:" + ports[0]
	return process.Start(lab, address, "bench", "empty", "--address", address)
}
