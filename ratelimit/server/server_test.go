package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

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

// While a node drains, the last look at its store may still end well.
func TestHealthFailsUntilTheEndOfADrain(t *testing.T) {
	o := local()
	o.DrainTime = time.Hour
	v, err := newServer(t, o)
	if err != nil {
		t.Fatal(err)
	}
	drain, drained := context.WithCancel(context.Background())
	hurry, rush := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.Serve(drain, hurry) }()
	v.SetHealthy(true)
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
	if err := <-done; err != nil {
		t.Error(err)
	}
}
