package routing

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/sluice-gate/sluice/routing/wire"
)

// NewServer makes the gRPC server on which peers reach a router. creds may be
// nil: then the secret is all that guards it, and what is said can be read on
// the way.
func (r *Router) NewServer(creds credentials.TransportCredentials) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxFrame), grpc.MaxConcurrentStreams(16), grpc.ConnectionTimeout(5 * time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
	if creds != nil {
		options = append(options, grpc.Creds(creds))
	}
	s := grpc.NewServer(options...)
	wire.RegisterPeerServer(s, exchange{Router: r})
	return s
}

type exchange struct {
	wire.UnimplementedPeerServer
	*Router
}

// Exchange implements the peers' service.
func (e exchange) Exchange(s grpc.BidiStreamingServer[wire.Frame, wire.Frame]) error {
	return e.exchange(s)
}
