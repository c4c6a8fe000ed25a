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
	BytesInFlight    int64         `env:"MAX_BYTES_IN_FLIGHT" name:"max-bytes-in-flight" default:"67108864" help:"Maximum size in bytes of unfinished calls and bodies of all callers, a quarter of it for /json. Beyond it, the connection that held most for more than 250ms is closed. The process grows by two to three times as much."`
	RequestBytes     int           `env:"MAX_REQUEST_BYTES" name:"max-request-bytes" default:"262144" help:"Maximum size of a request in bytes, over gRPC or /json. A request of Envoy has some hundred."`
	RequestTimeout   time.Duration `env:"REQUEST_TIMEOUT" name:"request-timeout" default:"10s" help:"Maximum time to read a request or write a response. Slower connections are closed."`
	GRPCConnections  int           `env:"GRPC_MAX_CONNECTIONS" name:"grpc-max-connections" default:"4096" help:"Maximum of open gRPC connections; beyond it, the longest-idle one is closed. Envoy has one or two for each worker thread, and each takes about 30 KB."`
	Streams          uint32        `env:"GRPC_MAX_CONCURRENT_STREAMS" name:"grpc-max-concurrent-streams" default:"1000" help:"Maximum of concurrent calls on a connection. Beyond it, Envoy opens another one."`
	HeaderBytes      uint32        `env:"GRPC_MAX_HEADER_BYTES" name:"grpc-max-header-bytes" default:"8192" help:"Maximum size of a call's unpacked headers in bytes: names, values and 32 for each."`
	Idle             time.Duration `env:"GRPC_MAX_CONNECTION_IDLE" name:"grpc-max-connection-idle" default:"5m" help:"Maximum idle time of a gRPC connection. Then it is asked to close."`
	Gzip             bool          `env:"GRPC_ACCEPT_GZIP" name:"grpc-accept-gzip" help:"Accept compressed requests, up to 16 times their size and MAX_REQUEST_BYTES."`
	HTTPConnections  int           `env:"HTTP_MAX_CONNECTIONS" name:"http-max-connections" default:"1024" help:"Maximum of open HTTP connections; beyond it, the longest-idle one is closed."`
	DebugConnections int           `env:"DEBUG_MAX_CONNECTIONS" name:"debug-max-connections" default:"64" help:"Maximum of open connections to the debug port; beyond it, the longest-idle one is closed."`
	PeerBytes        int64         `env:"PEER_MAX_BYTES_IN_FLIGHT" name:"peer-max-bytes-in-flight" default:"67108864" help:"Maximum size in bytes of incomplete messages at the port for peers."`
	PeerConnections  int           `env:"PEER_MAX_CONNECTIONS" name:"peer-max-connections" default:"2000" help:"Maximum of open connections at the port for peers; each peer has one."`
	DebugHosts       string        `env:"DEBUG_ALLOWED_HOSTS" name:"debug-allowed-hosts" placeholder:"NAME,..." help:"Host names of the debug port, in addition to addresses, names without a dot and .svc, .cluster.local, .local, .internal. *: all. Requests for other names are refused, against DNS rebinding."`
	Pprof            string        `env:"DEBUG_PPROF" name:"debug-pprof" default:"local" help:"Access to profiles of at most 60s: local (this machine and port forwards), on or off."`
	ExplainRate      int           `env:"DEBUG_EXPLAIN_RATE" name:"debug-explain-rate" default:"20" help:"Maximum of explanations a second. Each reads the store up to twice, over its own connections."`
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
