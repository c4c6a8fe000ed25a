package rls

import (
	"context"
	"errors"
	"runtime/debug"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit/shed"
)

// Register has a server list the service, without methods: reflection shows it. transport.Port answers ShouldRateLimit
// itself, by Answer.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: rlsv3.RateLimitService_ServiceDesc.ServiceName,
		HandlerType: (*any)(nil),
		Metadata:    rlsv3.RateLimitService_ServiceDesc.Metadata,
	}, s)
}

// Answer decides a request, and appends the answer to out. It is the method of a transport.Port. The request is copied,
// because its bytes are not valid once the decision waits, and the strings of the call lie in them.
func (s *Service) Answer(ctx context.Context, request, out []byte) ([]byte, error) {
	if gate := s.options.Gate; gate != nil && ctx.Err() != nil {
		// The caller gave up while the call waited for its turn. It is not begun, so that a node with too much to do
		// does no work in vain.
		gate.Late()
		return nil, shed.Err
	}
	c := s.calls.Get().(*call)
	defer s.release(c)
	c.in = append(c.in[:0], request...)
	if err := s.answer(ctx, c); err != nil {
		return nil, grpcstatus.Error(grpcCode(err), err.Error())
	}
	return append(out, c.out...), nil
}

// Bug counts and logs a bug that a request met. It is called by the goroutine that panicked.
func (s *Service) Bug(bug any) {
	s.Stats.Panics.Add(1)
	s.log.Error("a request hit a bug in Sluice: please report it", "panic", bug, "stack", string(debug.Stack()))
}

// CountMalformed counts a call whose request was none, and never came to Answer.
func (s *Service) CountMalformed(err error) {
	s.Stats.count(bad("malformed request: %v", err))
}

// grpcCode is the code of an error. Envoy treats any as no decision: its failure_mode_deny says whether the request
// passes.
func grpcCode(err error) codes.Code {
	var client *badRequest
	switch {
	case errors.As(err, &client):
		return codes.InvalidArgument
	case errors.Is(err, errInternal):
		return codes.Internal
	default: // no rules yet, overloaded, or the caller has gone
		return codes.Unavailable
	}
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
