package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/rls"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type nobody struct{}

func (nobody) Observe(float64) {}

func newServer(t *testing.T, o Options) (*Server, error) {
	t.Helper()
	rules, _, problems := config.Parse([]config.Text{{Name: "t", Data: []byte("domain: d\n")}},
		config.Options{Coordination: ratelimit.DefaultCoordination()})
	if problems != nil {
		t.Fatal(problems)
	}
	log := slog.New(slog.DiscardHandler)
	s := rls.New(func() *config.Rules { return rules }, nil, ratelimit.MonotonicClock(), time.Now, nobody{},
		rls.Options{}, log)
	return New(s, http.NotFoundHandler(), http.NotFoundHandler(), http.NotFoundHandler(), o, log)
}

func local() Options {
	return Options{HTTP: "127.0.0.1:0", GRPC: "127.0.0.1:0", Debug: "127.0.0.1:0", GraceTime: time.Second}
}

// run serves until the test calls the function it returns.
func run(t *testing.T, v *Server) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	v.Open()
	go func() { done <- v.Serve(ctx, context.Background()) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// bounded is a server with its default bounds, except those that a test changes.
func bounded(t *testing.T, change func(*Options)) *Server {
	t.Helper()
	o := local()
	o.Caps = transport.Caps{
		Streams: 1000, HeaderBytes: 8 << 10, MessageBytes: 256 << 10, RequestTimeout: 10 * time.Second,
	}
	o.Budget, o.HTTPBudget = transport.NewBudget(8<<20), transport.NewBudget(1<<20)
	o.HTTPConnections, o.DebugConnections = 16, 4
	if change != nil {
		change(&o)
	}
	v, err := newServer(t, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(run(t, v))
	return v
}

func client(t *testing.T, v *Server) *grpc.ClientConn {
	t.Helper()
	_, rpc, _ := v.Addresses()
	conn, err := grpc.NewClient("passthrough:///"+rpc.String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// list asks reflection for all services.
var list = &grpc_reflection_v1.ServerReflectionRequest{
	MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
}

// eventually waits for what the server does in its own time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not within 10s: ", what)
		}
	}
}

// Ports of one process that have the same address would get each other's connections: processes may share ports.
func TestNoTwoPortsHaveOneAddress(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	_, port, _ := net.SplitHostPort(free.Addr().String())
	for _, host := range []string{"127.0.0.1:", "0.0.0.0:"} {
		o := local()
		o.GRPC, o.Debug = "127.0.0.1:"+port, host+port
		v, err := newServer(t, o)
		if err == nil {
			v.close()
		}
		want := "the gRPC (GRPC_HOST, GRPC_PORT) port: the debug (DEBUG_HOST, DEBUG_PORT) port has its address"
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// A socket that a dead process left is replaced; one in use, or a file, is not.
func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	o := local()
	o.GRPCSocket = path
	if _, err := newServer(t, o); err == nil {
		t.Error("took over a socket that is in use")
	}
	stale.Close()
	v, err := newServer(t, o)
	if err != nil {
		t.Fatal(err)
	}
	run(t, v)()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newServer(t, o); err == nil {
		t.Error("removed a file that is no socket")
	}
}

// A node that is not ready is alive: Kubernetes must not end it for that. Each usual path has an answer.
func TestHealthPaths(t *testing.T) {
	v, err := newServer(t, local())
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, v)()
	at, _, _ := v.Addresses()
	for _, ready := range []bool{false, true} {
		v.SetHealthy(ready)
		for path, want := range map[string]bool{
			"/livez": true, "/healthcheck": ready, "/readyz": ready, "/healthz": ready,
		} {
			answer, err := http.Get("http://" + at.String() + path)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if ok := answer.StatusCode == http.StatusOK; ok != want {
				t.Errorf("ready %v: %s answers %d", ready, path, answer.StatusCode)
			}
		}
	}
}

// While a node drains, the last look at its store may still end well. A watch of its health ends with the drain.
func TestHealthFailsUntilTheEndOfADrain(t *testing.T) {
	o := local()
	o.DrainTime, o.GraceTime = time.Hour, time.Hour
	v, err := newServer(t, o)
	if err != nil {
		t.Fatal(err)
	}
	drain, drained := context.WithCancel(context.Background())
	hurry, rush := context.WithCancel(context.Background())
	done := make(chan error, 1)
	v.Open()
	go func() { done <- v.Serve(drain, hurry) }()
	v.SetHealthy(true)
	watch, err := healthpb.NewHealthClient(client(t, v)).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	drained()
	health := func() int {
		w := httptest.NewRecorder()
		v.serveHealth(w, nil)
		return w.Code
	}
	eventually(t, "health fails", func() bool { return health() != http.StatusOK })
	v.SetHealthy(true)
	if got := health(); got != http.StatusInternalServerError {
		t.Errorf("/healthcheck of a node that drains: %d, want 500", got)
	}
	rush()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the drain waits for a watch")
	}
}

// What the bounds refuse is an error of the call, and the connection goes on.
func TestCallsBeyondTheBounds(t *testing.T) {
	v := bounded(t, nil)
	calls := rlsv3.NewRateLimitServiceClient(client(t, v))
	good := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{{}}}
	large := &rlsv3.RateLimitRequest{Domain: strings.Repeat("x", 300<<10), Descriptors: good.Descriptors}
	many := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: make([]*common.RateLimitDescriptor, 1001)}
	heavy := metadata.AppendToOutgoingContext(context.Background(), "x-large", strings.Repeat("x", 9<<10))
	packed := []grpc.CallOption{grpc.UseCompressor(gzip.Name)}
	for name, c := range map[string]struct {
		ctx     context.Context
		q       *rlsv3.RateLimitRequest
		options []grpc.CallOption
		want    codes.Code
	}{
		"good":          {context.Background(), good, nil, codes.OK},
		"large":         {context.Background(), large, nil, codes.ResourceExhausted},
		"entries":       {context.Background(), many, nil, codes.InvalidArgument},
		"headers":       {heavy, good, nil, codes.Internal},
		"packed":        {context.Background(), good, packed, codes.Unimplemented},
		"good as after": {context.Background(), good, nil, codes.OK},
	} {
		_, err := calls.ShouldRateLimit(c.ctx, c.q, c.options...)
		if status.Code(err) != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if name == "packed" && !strings.Contains(err.Error(), "send it without compression") {
			t.Errorf("it does not say why: %v", err)
		}
	}
	eventually(t, "when all calls have ended, nothing is held", func() bool { return v.options.Budget.Held() == 0 })
}

// Streams of reflection are few at a time.
func TestReflectionIsBounded(t *testing.T) {
	v := bounded(t, nil)
	refused := 0
	for range reflections + 3 {
		stream, err := grpc_reflection_v1.NewServerReflectionClient(client(t,
			v)).ServerReflectionInfo(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(list); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) == codes.ResourceExhausted {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if refused != 3 {
		t.Errorf("%d streams were refused, want 3", refused)
	}
}

// A stream of reflection that its caller keeps open, as grpcurl does, does not end its connection, which has other
// calls.
func TestReflectionEndsNoConnection(t *testing.T) {
	v := bounded(t, func(o *Options) { o.Caps.RequestTimeout = 100 * time.Millisecond })
	conn := client(t, v)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 1)
	go func() { _, err := watch.Recv(); ends <- err }()
	select {
	case err := <-ends:
		t.Errorf("the call beside it ends: %v", err)
	case <-time.After(3 * v.options.Caps.RequestTimeout):
	}
	if err := stream.Send(list); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Error(err)
	}
}

// An HTTP connection that says nothing, or half a header, is closed for one that has something to ask.
func TestHTTPConnectionsAreBounded(t *testing.T) {
	v := bounded(t, func(o *Options) { o.Caps.RequestTimeout = 400 * time.Millisecond })
	web, _, debug := v.Addresses()
	for _, address := range []string{web.String(), debug.String()} {
		var open []net.Conn
		for range 40 {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n")
			open = append(open, c)
		}
		r, err := http.Get("http://" + address + "/")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		for _, c := range open { // those that were not closed for others stall
			_, _ = io.ReadAll(c)
			c.Close()
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
