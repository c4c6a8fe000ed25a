// Package server opens and closes the ports: gRPC, HTTP and debug, health, and the order of a shutdown.
//
// Guarantee: all ports are open before any is announced, or none stays open. On Drain, health fails first, and calls
// are served for the drain time. Then streams end and ports close. No accepted call is cut off within the grace time.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/ratelimit/internal/wire"
	"github.com/sluice-gate/sluice/ratelimit/rls"
	"github.com/sluice-gate/sluice/ratelimit/transport"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// Options are where to listen and for how long to go on.
type Options struct {
	// Note, if set, returns a remark for /healthcheck after OK, or "".
	Note              func() string
	HTTP, GRPC, Debug string                           // host:port
	GRPCSocket        string                           // a path: instead of GRPC
	TLS               credentials.TransportCredentials // of gRPC; nil: none
	Metrics           string                           // host:port for metrics alone, "" for none
	Caps              transport.Caps                   // of gRPC; its RequestTimeout also of HTTP
	Budget            *transport.Budget                // of what callers have begun on gRPC
	HTTPBudget        *transport.Budget                // counts connections of HTTP, debug and metrics that were closed
	HTTPConnections   int                              // at once; 0: any number
	DebugConnections  int                              // the same, of the debug and the metrics port each
	DrainTime         time.Duration                    // between health failing and ports closing
	GraceTime         time.Duration                    // for calls under way when ports close
	Spans             stats.Handler                    // of calls; nil: none
	Streams           Streams                          // further gRPC services; nil: none
	Gate              *transport.Gated                 // of rate limit calls on gRPC; nil: all start
}

// Streams is a service whose calls do not end by themselves.
type Streams interface {
	Register(grpc.ServiceRegistrar)
	Drain() // ends them all; it does not wait
}

// Server serves until it is drained. ready is the last SetHealthy, and drains wins over it.
type Server struct {
	options Options
	log     *slog.Logger
	port    *transport.Port
	health  *health.Server
	ready   atomic.Bool
	drains  atomic.Bool // it is not ready again
	// ending is done when calls that do not end by themselves are to end.
	ending    context.Context
	end       context.CancelFunc
	https     []*http.Server
	listeners []net.Listener // of the HTTP servers, and of gRPC last
	calls     gate
}

// healthServices are the names of the health service. ratelimit is the name that envoyproxy/ratelimit has.
var healthServices = []string{"", "ratelimit"}

// New makes a server and opens its ports. Handlers are for the HTTP, debug and metrics ports. If its address is fixed,
// the gRPC port is closed again until Open (gate). After an error no port is open.
func New(s *rls.Service, public, debug, metrics http.Handler, o Options, log *slog.Logger) (*Server, error) {
	v := &Server{options: o, log: log, health: health.NewServer()}
	v.ending, v.end = context.WithCancel(context.Background())
	services := &transport.Services{Codec: wire.Codec(), Around: v.endsWatches(fewReflections()), Spans: o.Spans}
	s.Register(services)
	if o.Streams != nil {
		o.Streams.Register(services)
	}
	healthpb.RegisterHealthServer(services, v.health)
	reflection.Register(services)
	v.port = transport.NewPort(transport.Options{
		Caps: o.Caps, Budget: o.Budget, Security: o.TLS, Gate: o.Gate, Services: services, Bug: s.Bug,
		Methods: []transport.Method{
			{
				Name:   rlsv3.RateLimitService_ShouldRateLimit_FullMethodName,
				Answer: s.Answer, Malformed: s.CountMalformed, Spans: o.Spans,
			},
			// Without a goroutine: a flood of health checks must not delay those of others.
			{Name: healthpb.Health_Check_FullMethodName, Answer: v.check, Free: true},
		},
	})
	// No traffic must come before the rules are read. The reader of rules changes this later.
	v.SetHealthy(false)

	mux := http.NewServeMux()
	for _, path := range []string{"/healthcheck", "/readyz", "/healthz"} {
		mux.HandleFunc(path, v.serveHealth)
	}
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("OK")) })
	mux.Handle("/", public)
	// Ports that were opened before the one that failed are closed: all are open, or none.
	if err := v.open(mux, debug, metrics); err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

// Reflection is for people, and each of its streams may have 64 KB of replies
// that wait to be read. So few at a time, and for so long, are enough.
const (
	reflections    = 8
	reflectionTime = 10 * time.Second
)

// endsWatches has health watches end with a drain, which would wait for them until the grace time is over.
func (v *Server) endsWatches(next grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		if info.FullMethod == healthpb.Health_Watch_FullMethodName {
			if talk, ok := transport.Converse(stream.Context()); ok {
				defer context.AfterFunc(v.ending, talk.End)()
			}
		}
		return next(srv, stream, info, handle)
	}
}

// fewReflections bounds streams of reflection.
func fewReflections() grpc.StreamServerInterceptor {
	slots := make(chan struct{}, reflections)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		if !strings.HasPrefix(info.FullMethod, "/grpc.reflection.") {
			return handle(srv, stream)
		}
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			return status.Errorf(codes.ResourceExhausted, "%d streams of reflection are under way: try again",
				reflections)
		}
		// A client may keep the stream open during its other calls. Their connection must not end when the time
		// of a request is over.
		talk, ok := transport.Converse(stream.Context())
		if !ok {
			return status.Error(codes.Canceled, "the stream has ended")
		}
		late := time.AfterFunc(reflectionTime, talk.End)
		err := handle(srv, stream)
		if !late.Stop() {
			return status.Errorf(codes.DeadlineExceeded, "a stream of reflection may take %v", reflectionTime)
		}
		return err
	}
}

// open opens all ports in the order of the table. listeners[0] is HTTP, listeners[1] debug, and the last one gRPC.
func (v *Server) open(public, debug, metrics http.Handler) error {
	ports := []struct {
		what, network, address string
		handler                http.Handler
		connections            int
		answer                 time.Duration // how long one may take, reading and deciding included
		budget                 *transport.Budget
	}{
		{
			"HTTP (HOST, PORT)", "tcp", v.options.HTTP, public, v.options.HTTPConnections,
			3 * v.options.Caps.RequestTimeout, v.options.HTTPBudget,
		},
		{
			"debug (DEBUG_HOST, DEBUG_PORT)", "tcp", v.options.Debug, debug, v.options.DebugConnections,
			// A profile is written while it is taken, and must not be cut off.
			longestProfile + 30*time.Second, v.options.HTTPBudget,
		},
		{
			"metrics (PROMETHEUS_ADDR)", "tcp", v.options.Metrics, metrics, v.options.DebugConnections, time.Minute,
			v.options.HTTPBudget,
		},
		{"gRPC (GRPC_HOST, GRPC_PORT)", "tcp", v.options.GRPC, nil, v.options.Caps.Connections, 0, v.options.Budget},
	}
	if path := v.options.GRPCSocket; path != "" {
		grpc := &ports[len(ports)-1]
		// The socket takes the place of the port, which stays closed.
		grpc.what = "gRPC (GRPC_UDS)"
		grpc.network = "unix"
		grpc.address = path
		removeStaleSocket(path)
	}
	var opened []string // as listeners
	for _, p := range ports {
		if p.address == "" {
			continue
		}
		// It is a function because the gate opens gRPC's port again.
		open := func() (*transport.Listener, error) {
			shared := net.ListenConfig{Control: sharePort} // by several processes
			l, err := shared.Listen(context.Background(), p.network, p.address)
			if err != nil {
				return nil, fmt.Errorf("cannot open the %s port: %w", p.what, err)
			}
			return transport.Listen(l, p.connections, p.budget), nil
		}
		l, err := open()
		if err != nil {
			return err
		}
		for i, other := range v.listeners {
			if overlap(other.Addr(), l.Addr()) {
				_ = l.Close()
				return fmt.Errorf("cannot open the %s port: the %s port has its address, %s", p.what, opened[i],
					other.Addr())
			}
		}
		// gRPC's port is the last of the list, so that each HTTP server has its listener's index.
		v.listeners, opened = append(v.listeners, l), append(opened, p.what)
		fixed := p.network == "tcp" && !strings.HasSuffix(p.address, ":0")
		v.calls = gate{opens: make(chan struct{}), again: open, is: l, fixed: fixed}
		if p.handler != nil {
			v.https = append(v.https, &http.Server{
				Handler: p.handler, ReadTimeout: v.options.Caps.RequestTimeout, WriteTimeout: p.answer,
				IdleTimeout:    time.Minute,
				MaxHeaderBytes: maxHTTPHeader, ErrorLog: slog.NewLogLogger(v.log.Handler(), slog.LevelDebug),
			})
		}
	}
	return nil
}

// overlap reports whether connections to one address may come to the other. The kernel does not: see sharePort. With
// SO_REUSEPORT, two ports of this process on one address would each get a part of the connections. Some calls would
// then meet the wrong handler.
func overlap(a, b net.Addr) bool {
	x, isTCP := a.(*net.TCPAddr)
	y, areBoth := b.(*net.TCPAddr)
	return isTCP && areBoth && x.Port == y.Port && (x.IP.Equal(y.IP) || x.IP.IsUnspecified() || y.IP.IsUnspecified())
}

// maxHTTPHeader bounds the headers of an HTTP request, and with them the question that /explain is asked.
const maxHTTPHeader = 16 << 10

// removeStaleSocket removes a socket that a process which is gone left behind. Only sockets are removed, so a wrong
// GRPC_UDS deletes no file.
func removeStaleSocket(path string) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return
	}
	// A process answers, so that the socket is in use: opening it fails then, and says so.
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return
	}
	_ = os.Remove(path)
}

// Addresses are where the HTTP, gRPC and debug ports were opened.
func (v *Server) Addresses() (http, grpc, debug net.Addr) {
	return v.listeners[0].Addr(), v.listeners[len(v.listeners)-1].Addr(), v.listeners[1].Addr()
}

// Open has gRPC's port open, which is closed until then. It is called once.
func (v *Server) Open() { close(v.calls.opens) }

// SetHealthy sets the result of health checks, until the server drains.
func (v *Server) SetHealthy(ok bool) {
	v.ready.Store(ok)
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		state = healthpb.HealthCheckResponse_SERVING
	}
	// Health checks ask for the server as a whole or for the service by name.
	for _, name := range healthServices {
		v.health.SetServingStatus(name, state)
	}
}

// check answers a health check. It is the method of a transport.Port. It must not block, because the port calls it
// without a goroutine.
func (v *Server) check(ctx context.Context, request, out []byte) ([]byte, error) {
	var q healthpb.HealthCheckRequest
	if err := proto.Unmarshal(request, &q); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "malformed request: %v", err)
	}
	answer, err := v.health.Check(ctx, &q)
	if err != nil {
		return nil, err
	}
	return proto.MarshalOptions{}.MarshalAppend(out, answer)
}

// A drain fails the check although the node still answers: that is its sign to load balancers.
func (v *Server) serveHealth(w http.ResponseWriter, _ *http.Request) {
	if v.drains.Load() || !v.ready.Load() {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte("OK"))
	if v.options.Note != nil {
		if note := v.options.Note(); note != "" {
			_, _ = w.Write([]byte("\n" + note + "\n"))
		}
	}
}

// Serve serves until ctx is done, and then drains; hurry ends the drain time early. It returns when everything has
// ended, and why, if not because of ctx.
func (v *Server) Serve(ctx, hurry context.Context) error {
	var g errgroup.Group
	failed, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	run := func(serve func(net.Listener) error, l net.Listener) {
		g.Go(func() error {
			err := serve(l)
			// A port that fails ends all others, so that the process ends and is started anew instead of serving half.
			if err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
				fail(err)
				return fmt.Errorf("serving on %s: %w", l.Addr(), err)
			}
			return nil
		})
	}
	// The HTTP servers have the first listeners, in the same order.
	for i, h := range v.https {
		run(h.Serve, v.listeners[i])
	}
	run(func(net.Listener) error { return v.calls.serve(failed, v.port.Serve) },
		v.listeners[len(v.listeners)-1])
	// It ends with ctx, or with the first port that fails.
	<-failed.Done()
	v.drain(hurry)
	return g.Wait()
}

// The steps: health fails, DRAIN_TIME passes, streams end, and calls under way have the grace time to end.
func (v *Server) drain(hurry context.Context) {
	// From here on, serveHealth fails, whatever SetHealthy says.
	v.drains.Store(true)
	v.health.Shutdown() // no later SetHealthy changes it, nor drains
	if hurry.Err() == nil {
		v.log.Info("draining: health fails, calls are still served", "for", v.options.DrainTime)
	}
	// Load balancers learn only by failing health checks that this node ends. Until then they send
	// calls, which are served.
	upkeep.Sleep(hurry, v.options.DrainTime)
	// Streams do not end by themselves, and GracefulStop would wait for them until the grace time is over.
	if v.options.Streams != nil {
		v.options.Streams.Drain()
	}
	v.end()
	grace, cancel := context.WithTimeout(context.Background(), v.options.GraceTime)
	defer cancel()
	// GracefulStop has no time of its own: after the grace time Stop cuts off the rest.
	stop := context.AfterFunc(grace, func() {
		for _, l := range v.listeners {
			l.(*transport.Listener).End() // the port waits for those that have not shaken hands
		}
		v.calls.end()
		v.port.Stop()
	})
	defer stop()
	var g errgroup.Group
	for _, h := range v.https {
		g.Go(func() error {
			// The grace time is over, and a request still goes on.
			if err := h.Shutdown(grace); err != nil {
				return h.Close()
			}
			return nil
		})
	}
	v.port.GracefulStop()
	_ = g.Wait()
}

// close is for a start that failed: no call was accepted yet.
func (v *Server) close() {
	for _, l := range v.listeners {
		l.Close()
	}
	v.port.Stop()
}
