package rls

import (
	"context"
	"errors"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit/internal/wire"
)

// Register adds the service to a server that was made with wire.ServerCodec.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: rlsv3.RateLimitService_ServiceDesc.ServiceName,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: shouldRateLimit}},
		Metadata:    rlsv3.RateLimitService_ServiceDesc.Metadata,
	}, s)
}

func shouldRateLimit(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	s := srv.(*Service)
	// The gate is asked before anything is decoded: a refusal under overload must cost little.
	if gate := s.options.Gate; gate != nil {
		now := s.clock()
		if err := gate.Enter(ctx, now); err != nil {
			return nil, err
		}
		defer gate.End(now)
	}
	c := s.calls.Get().(*call)
	if err := decode(c); err != nil {
		s.calls.Put(c)
		return nil, err
	}
	if err := s.answer(ctx, c); err != nil {
		s.calls.Put(c)
		return nil, grpcstatus.Error(grpcCode(err), err.Error())
	}
	// The call goes back to the pool when gRPC has marshalled it (call.Write), not here.
	c.service = s
	return c, nil
}

func grpcCode(err error) codes.Code {
	var client *badRequest
	switch {
	case errors.As(err, &client):
		return codes.InvalidArgument
	case errors.Is(err, errInternal):
		return codes.Internal
	// Envoy's failure_mode_deny decides what becomes of a request without a decision.
	default:
		return codes.Unavailable
	}
}

// Read implements wire.Reader: a call stays bytes until the service reads it.
func (c *call) Read(data mem.BufferSlice) error {
	c.in = wire.CopyTo(c.in, data)
	return nil
}

// Write implements wire.Writer. It ends an answered call.
func (c *call) Write() mem.BufferSlice {
	if c.large {
		out := c.out
		c.out, c.large = nil, false
		c.service.release(c)
		return mem.BufferSlice{mem.SliceBuffer(out)}
	}
	// gRPC keeps the bytes until they are written, and the call is another request's by then.
	out := append([]byte(nil), c.out...)
	c.service.release(c)
	return mem.BufferSlice{mem.SliceBuffer(out)}
}

// release puts a call back. One that an unusually large request has grown is dropped, so that memory stays
// typical.
func (s *Service) release(c *call) {
	if cap(c.in) > 64<<10 || cap(c.keys) > 64<<10 || cap(c.name) > 64<<10 || cap(c.matches) > 128 ||
		cap(c.request.entries) > 1024 || cap(c.out) > 64<<10 {
		return
	}
	s.calls.Put(c)
}
