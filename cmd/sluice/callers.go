package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/server"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// callerFlags say how much callers may have a node hold and do. The defaults are
// far above what Envoy sends.
type callerFlags struct {
	BytesInFlight    int64         `env:"MAX_BYTES_IN_FLIGHT" name:"max-bytes-in-flight" default:"67108864" help:"Of calls and bodies that callers have begun and not ended, together, as they are kept; a quarter is for /json. Beyond it, the connection that has held most for longer than 250ms is closed. A process grows by two to three times as much at most."`
	RequestBytes     int           `env:"MAX_REQUEST_BYTES" name:"max-request-bytes" default:"262144" help:"Of one request, over gRPC or /json. A request of Envoy has hundreds."`
	RequestTimeout   time.Duration `env:"REQUEST_TIMEOUT" name:"request-timeout" default:"10s" help:"For a request to be there as a whole, and for an answer to be taken; then the connection is closed."`
	GRPCConnections  int           `env:"GRPC_MAX_CONNECTIONS" name:"grpc-max-connections" default:"4096" help:"At once; one more closes that from which nothing came for longest. Envoy has one or two for each worker thread; each costs about 30 KB."`
	Streams          uint32        `env:"GRPC_MAX_CONCURRENT_STREAMS" name:"grpc-max-concurrent-streams" default:"1000" help:"Calls at once on one connection; Envoy opens another beyond."`
	HeaderBytes      uint32        `env:"GRPC_MAX_HEADER_BYTES" name:"grpc-max-header-bytes" default:"8192" help:"Of a call's headers, unpacked: names, values and 32 for each."`
	Idle             time.Duration `env:"GRPC_MAX_CONNECTION_IDLE" name:"grpc-max-connection-idle" default:"5m" help:"After which a gRPC connection without a call is asked to end, also one that never had any."`
	Gzip             bool          `env:"GRPC_ACCEPT_GZIP" name:"grpc-accept-gzip" help:"Take compressed requests, that become at most 16 times as large, and MAX_REQUEST_BYTES."`
	HTTPConnections  int           `env:"HTTP_MAX_CONNECTIONS" name:"http-max-connections" default:"1024" help:"At once, of /json and /healthcheck: each has one request."`
	DebugConnections int           `env:"DEBUG_MAX_CONNECTIONS" name:"debug-max-connections" default:"64" help:"At once, of the debug port."`
	PeerBytes        int64         `env:"PEER_MAX_BYTES_IN_FLIGHT" name:"peer-max-bytes-in-flight" default:"67108864" help:"Of messages at the peers' port that are not complete, together, of peers and of strangers who have not proved to be peers."`
	PeerConnections  int           `env:"PEER_MAX_CONNECTIONS" name:"peer-max-connections" default:"2000" help:"At once, at the peers' port; a peer has one."`
	DebugHosts       string        `env:"DEBUG_ALLOWED_HOSTS" name:"debug-allowed-hosts" placeholder:"NAME,..." help:"Names under which browsers may ask the debug port, beside addresses, names without a dot and those of a cluster (.svc, .cluster.local, .local, .internal); *: all. Others are refused, so that a strange page cannot read it."`
	Pprof            string        `env:"DEBUG_PPROF" name:"debug-pprof" default:"local" help:"Who may take profiles, of 60s at most: local (this machine, and who forwards the port), on or off."`
	ExplainRate      int           `env:"DEBUG_EXPLAIN_RATE" name:"debug-explain-rate" default:"20" help:"Explanations a second: each may ask the store twice, over connections of its own."`
}

func (f *callerFlags) transport() transport.Caps {
	return transport.Caps{
		Connections: f.GRPCConnections, Streams: f.Streams, HeaderBytes: f.HeaderBytes, MessageBytes: f.RequestBytes,
		RequestTimeout: f.RequestTimeout, Idle: f.Idle, Gzip: f.Gzip,
	}
}

// budgets are shares of MAX_BYTES_IN_FLIGHT. Each has its own, so that callers of
// one port cannot have those of another closed.
type budgets struct{ grpc, http *transport.Budget }

func (f *callerFlags) budgets() budgets {
	bodies := f.BytesInFlight / 4
	return budgets{grpc: transport.NewBudget(f.BytesInFlight - bodies), http: transport.NewBudget(bodies)}
}

// peers has the listener of the peers' port, and its budget, in bounds.
func (f *callerFlags) peers(l net.Listener) (*transport.Listener, *transport.Budget) {
	budget := transport.NewBudget(f.PeerBytes)
	return transport.Listen(l, f.PeerConnections, budget), budget
}

func (b budgets) all() map[string]*transport.Budget {
	return map[string]*transport.Budget{"grpc": b.grpc, "http": b.http}
}

func (f *callerFlags) validate() error {
	b := f.transport()
	errs := []error{b.Validate()}
	if least := int64(16 * f.RequestBytes); f.BytesInFlight < least {
		errs = append(errs, fmt.Errorf("MAX_BYTES_IN_FLIGHT is %d, must be at least %d: sixteen times MAX_REQUEST_BYTES", f.BytesInFlight, least))
	}
	if least := int64(32 << 20); f.PeerBytes < least {
		errs = append(errs, fmt.Errorf("PEER_MAX_BYTES_IN_FLIGHT is %d, must be at least %d: eight of the largest messages", f.PeerBytes, least))
	}
	for name, n := range map[string]int{"HTTP_MAX_CONNECTIONS": f.HTTPConnections, "PEER_MAX_CONNECTIONS": f.PeerConnections, "DEBUG_MAX_CONNECTIONS": f.DebugConnections, "DEBUG_EXPLAIN_RATE": f.ExplainRate} {
		if n < 1 || n > 1<<20 {
			errs = append(errs, fmt.Errorf("%s is %d, must be between 1 and %d", name, n, 1<<20))
		}
	}
	if all := []string{server.ProfilesFromHere, server.ProfilesFromAll, server.ProfilesOff}; !slices.Contains(all, f.Pprof) {
		errs = append(errs, fmt.Errorf("DEBUG_PPROF is %q, must be %s", f.Pprof, strings.Join(all, ", ")))
	}
	return errors.Join(errs...)
}

func (s *settings) debugOptions() server.DebugOptions {
	o := server.DebugOptions{Profiles: s.Callers.Pprof, Unnamed: []string{"/metrics"}}
	for name := range strings.SplitSeq(s.Callers.DebugHosts, ",") {
		if name = strings.TrimSpace(name); name != "" {
			o.Hosts = append(o.Hosts, name)
		}
	}
	return o
}
