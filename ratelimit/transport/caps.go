// Package transport bounds the memory and connections that callers can make a server hold, for any service:
// connections, streams, headers, unfinished messages and unread replies.
//
// Guarantee: the unfinished calls on all connections of a Budget together cost at most its bytes, as this
// package counts them. They are each open call, and each frame of its request with the transport's overhead,
// until the call's reply has left. Beyond that, the connection that has held most for longer than a moment is
// closed, so that callers who finish their calls continue. If little was held for so long, the one that holds
// most is closed. A Listener never has more connections than its bound: beyond it, the longest-idle one is
// closed for the new one.
//
// With a Gated method, calls of it start only if its gate accepts them: the others are answered without gRPC.
//
// It does not bound the work of the service on a complete request, nor tell callers apart by address: they
// may all come through one proxy.
package transport

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Caps are the most that callers of one port may have a server keep. The zero value caps nothing
// that it names 0.
type Caps struct {
	Connections    int           // at once; 0: any number
	Streams        uint32        // calls at once on one connection
	HeaderBytes    uint32        // of a call, unpacked, as HTTP/2 counts them
	MessageBytes   int           // of a request
	RequestTimeout time.Duration // for a request to be complete, and for a reply to be taken
	// Idle is for how long a connection may be without a call before it is asked to end.
	Idle time.Duration
	// A connection that is as old as Age is asked to end, too. Calls under way may take AgeGrace.
	Age, AgeGrace time.Duration
	// Conversations says that calls are long, and consist of messages each of which is processed at once.
	// Then a call costs as much as its message under way, and need never be complete.
	Conversations bool
}

// Default are the caps of the gRPC port. What Envoy sends is far below them.
func Default() Caps {
	return Caps{
		Connections: 4096, Streams: 1000, HeaderBytes: 8 << 10, MessageBytes: 256 << 10,
		RequestTimeout: 10 * time.Second, Idle: 5 * time.Minute,
		Age: 24 * time.Hour, AgeGrace: time.Hour,
	}
}

// DefaultBytesInFlight is the default size of a Budget.
const DefaultBytesInFlight = 64 << 20

// Validate reports every cap that makes no sense, under the name of its setting.
func (b *Caps) Validate() error {
	var errs []error
	within := func(name string, value, least, most int64) {
		if value < least || value > most {
			errs = append(errs, fmt.Errorf("%s is %d, must be between %d and %d", name, value, least, most))
		}
	}
	within("Connections", int64(b.Connections), 1, 1<<20)
	within("Streams", int64(b.Streams), 1, 1<<20)
	within("HeaderBytes", int64(b.HeaderBytes), 1<<10, 1<<20)
	within("MessageBytes", int64(b.MessageBytes), 1<<10, 16<<20)
	if b.RequestTimeout < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("the time of a request is %v, must be at least 100ms", b.RequestTimeout))
	}
	if b.Idle < time.Second {
		errs = append(errs, fmt.Errorf("the idle time is %v, must be at least 1s", b.Idle))
	}
	return errors.Join(errs...)
}

// Buffers of a connection. A silent one keeps the first; the second is shared by
// those that write.
const (
	readBuffer  = 8 << 10
	writeBuffer = 32 << 10
)

// handshake bounds TLS and the preface.
const handshake = 10 * time.Second

// Options are the server options that hold a gRPC server to the caps. security
// may be nil: none. gated may be nil: all calls are begun. Connections must come from
// a Listener of the same budget.
func Options(b Caps, budget *Budget, security credentials.TransportCredentials, gated *Gated) []grpc.ServerOption {
	if security == nil {
		security = insecure.NewCredentials()
	}
	// A caller that pings more often is disconnected by gRPC. On a port with conversations it may
	// ping each second.
	pings := 5 * time.Second
	if b.Conversations {
		pings = time.Second
	}
	options := []grpc.ServerOption{
		// Credentials are where gRPC hands each connection over before it reads from it.
		grpc.Creds(&guarding{security, b, budget, gated}),
		grpc.ConnectionTimeout(handshake),
		grpc.ReadBufferSize(readBuffer), grpc.WriteBufferSize(writeBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: b.Age, MaxConnectionAgeGrace: b.AgeGrace, MaxConnectionIdle: b.Idle, Time: time.Minute,
			Timeout: 20 * time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pings, PermitWithoutStream: true}),
		// The newer kind is registered for clients and servers alike, and by the tracing library.
		grpc.RPCDecompressor(packed{}), //nolint:staticcheck // see above
	}
	if b.MessageBytes > 0 {
		options = append(options, grpc.MaxRecvMsgSize(b.MessageBytes))
	}
	if b.HeaderBytes > 0 {
		options = append(options, grpc.MaxHeaderListSize(b.HeaderBytes))
	}
	if b.Streams > 0 {
		options = append(options, grpc.MaxConcurrentStreams(b.Streams))
	}
	return options
}
