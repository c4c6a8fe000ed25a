package rls

import (
	"context"
	"errors"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	grpcstatus "google.golang.org/grpc/status"
)

// Register adds the service to a server that was made with ServerCodec.
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
	// The call goes back to the pool when gRPC has marshalled it (Codec.Marshal), not here.
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

// Codec is the protobuf codec, with a short way for rate limit calls: they
// stay bytes until the service reads them. Other messages (health, reflection)
// go the ordinary way.
type Codec struct{ ordinary encoding.CodecV2 }

// ServerCodec makes a server use Codec.
func ServerCodec() grpc.ServerOption {
	return grpc.ForceServerCodecV2(Codec{encoding.GetCodecV2(proto.Name)})
}

// Name implements encoding.CodecV2.
func (c Codec) Name() string { return proto.Name }

// Unmarshal implements encoding.CodecV2.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	call, ok := v.(*call)
	if !ok {
		return c.ordinary.Unmarshal(data, v)
	}
	n := data.Len()
	if cap(call.in) < n {
		call.in = make([]byte, n)
	}
	call.in = call.in[:n]
	data.CopyTo(call.in)
	return nil
}

// Marshal implements encoding.CodecV2. It ends an answered call.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	call, ok := v.(*call)
	if !ok {
		return c.ordinary.Marshal(v)
	}
	if call.large {
		out := call.out
		call.out, call.large = nil, false
		call.service.release(call)
		return mem.BufferSlice{mem.SliceBuffer(out)}, nil
	}
	// gRPC keeps the bytes until they are written, and the call is another request's by then.
	out := append([]byte(nil), call.out...)
	call.service.release(call)
	return mem.BufferSlice{mem.SliceBuffer(out)}, nil
}

// release puts a call back. One that an absurd request has grown is dropped,
// so that memory follows what is typical.
func (s *Service) release(c *call) {
	if cap(c.in) > 64<<10 || cap(c.keys) > 64<<10 || cap(c.name) > 64<<10 || cap(c.matches) > 128 ||
		cap(c.request.entries) > 1024 || cap(c.out) > 64<<10 {
		return
	}
	s.calls.Put(c)
}
