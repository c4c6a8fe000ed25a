package shed

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// crowd is more than any node can answer while a gate remembers it, however long the test takes.
const crowd = 1 << 40

// overloaded fills a gate with calls of very many connections, so that no share is left.
func overloaded(g *Gate, now ratelimit.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside, g.callers = crowd, crowd
	g.each, g.measured = 1e6, now
}

// Over a real connection: an overloaded server answers UNAVAILABLE, whether its caller waits for a moment or for an
// hour, does not run the handler, and lets other methods through. It does so for more calls, and more bytes of them,
// than a connection has streams and window for.
func TestOverAConnection(t *testing.T) {
	// relieved empties it.
	relieved := func(g *Gate) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.inside = 0
	}
	const gated, free = healthpb.Health_Check_FullMethodName, healthpb.Health_List_FullMethodName
	gate, clock := NewGate(time.Minute), ratelimit.MonotonicClock()
	ran := 0
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	others := new(transport.Services)
	healthpb.RegisterHealthServer(others, health.NewServer())
	s := transport.NewPort(transport.Options{
		Gate: gate.Before(clock), Services: others,
		Methods: []transport.Method{{Name: gated, Answer: func(_ context.Context, _, out []byte) ([]byte, error) {
			ran++
			return out, nil
		}}},
	})
	served := make(chan error, 1)
	go func() { served <- s.Serve(transport.Listen(l, 10, nil)) }()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		conn.Close()
		s.GracefulStop()
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
		if s := gate.Stats(); s.InFlight != 0 || s.Waiting != 0 {
			t.Errorf("afterwards %+v", s)
		}
	}()
	call := func(wait time.Duration) codes.Code {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		err := conn.Invoke(ctx, gated, &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
		return status.Code(err)
	}
	if code := call(10 * time.Second); code != codes.OK || ran != 1 {
		t.Fatalf("a quiet server: %v, %d calls were handled", code, ran)
	}
	refused := uint64(0)
	for range 1500 {
		for _, wait := range []time.Duration{900 * time.Millisecond, time.Hour} {
			overloaded(gate, clock())
			if code := call(wait); code != codes.Unavailable || ran != 1 {
				t.Fatalf("overloaded, a caller that waits %v: %v, %d calls were handled", wait, code, ran)
			}
			refused++
			relieved(gate)
		}
	}
	if n := gate.Stats().Shed[Overload]; n != refused {
		t.Errorf("%d calls are counted as shed, %d were", n, refused)
	}
	overloaded(gate, clock())
	if err := conn.Invoke(context.Background(), free, &healthpb.HealthListRequest{}, &healthpb.HealthListResponse{}); err != nil {
		t.Errorf("another method, while overloaded: %v", err)
	}
	relieved(gate)
	if code := call(10 * time.Second); code != codes.OK || ran != 2 {
		t.Errorf("when the overload is over: %v, %d calls were handled", code, ran)
	}
}

// Without a transport a call is refused while others wait too long.
func TestEnterNow(t *testing.T) {
	g := NewGate(patience)
	if err := g.EnterNow(start); err != nil {
		t.Fatal(err)
	}
	g.EndNow()
	if s := g.Stats(); s.InFlight != 0 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
	overloaded(g, start)
	if err := g.EnterNow(start); !errors.Is(err, Err) {
		t.Errorf("overloaded: %v", err)
	}
	if s := g.Stats(); s.InFlight != 0 || s.Waiting != crowd {
		t.Errorf("%+v", s)
	}
}
