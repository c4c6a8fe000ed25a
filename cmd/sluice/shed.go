package main

import (
	"net"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/server"
	"github.com/sluice-gate/sluice/ratelimit/shed"
)

// gate decides which calls are begun; nil: all are (MAX_WAIT 0).
func (s *settings) gate() *shed.Gate {
	if s.MaxWait == 0 {
		return nil
	}
	return shed.NewGate(s.MaxWait)
}

// guard puts the gate before gRPC's calls.
func guard(o *server.Options, gate *shed.Gate, clock ratelimit.Clock) {
	if gate == nil {
		return
	}
	o.Extra = append(o.Extra, grpc.InTapHandle(gate.Tap(rls.RateLimitService_ShouldRateLimit_FullMethodName, clock)))
	o.Wrap = func(l net.Listener) net.Listener { return gate.Listener(l, clock) }
}
