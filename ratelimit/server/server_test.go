package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
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
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/rls"
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
	go func() { done <- v.Serve(ctx, context.Background()) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Absurd sizes and broken bytes are errors of the one call.
func TestBadCallsOverGRPC(t *testing.T) {
	v, err := newServer(t, local())
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, v)()
	_, rpc, _ := v.Addresses()
	conn, err := grpc.NewClient("passthrough:///"+rpc.String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := rlsv3.NewRateLimitServiceClient(conn)
	good := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{{}}}
	huge := &rlsv3.RateLimitRequest{Domain: strings.Repeat("x", 5<<20), Descriptors: good.Descriptors}
	for want, r := range map[codes.Code]*rlsv3.RateLimitRequest{
		codes.OK: good, codes.InvalidArgument: {Domain: "d"}, codes.ResourceExhausted: huge,
	} {
		if _, err := client.ShouldRateLimit(context.Background(), r); status.Code(err) != want {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if _, err := client.ShouldRateLimit(context.Background(), good); err != nil {
		t.Errorf("after those: %v", err)
	}
}

func TestAllPortsOrNone(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	o := local()
	o.GRPC = taken.Addr().String()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.HTTP = free.Addr().String()
	free.Close()
	if _, err := newServer(t, o); err == nil || !strings.Contains(err.Error(),
		"cannot open the gRPC (GRPC_HOST, GRPC_PORT) port") {
		t.Errorf("%v", err)
	}
	if again, err := net.Listen("tcp", o.HTTP); err != nil {
		t.Errorf("the HTTP port stayed open: %v", err)
	} else {
		again.Close()
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
