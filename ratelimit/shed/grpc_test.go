package shed

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// overloaded fills a gate: ten thousand calls wait, a millisecond each.
func overloaded(g *Gate, now ratelimit.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting, g.each, g.measured, g.began, g.arrived = 10_000, 1e6, now, now, now
}

// Over a real connection: an overloaded server answers UNAVAILABLE, whether its
// caller waits for a moment or for an hour, does not run the handler, and lets other
// methods through.
func TestTap(t *testing.T) {
	const gated, free = healthpb.Health_Check_FullMethodName, healthpb.Health_List_FullMethodName
	gate, clock := NewGate(patience), ratelimit.MonotonicClock()
	ran := 0
	guard := func(ctx context.Context, q any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if info.FullMethod != gated {
			return handle(ctx, q)
		}
		if err := gate.Enter(ctx, clock()); err != nil {
			return nil, err
		}
		defer gate.End()
		ran++
		return handle(ctx, q)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.InTapHandle(gate.Tap(gated, clock)), grpc.UnaryInterceptor(guard))
	healthpb.RegisterHealthServer(s, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- s.Serve(gate.Listener(l, clock)) }()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		conn.Close()
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
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
	for i, wait := range []time.Duration{900 * time.Millisecond, time.Hour} { // by the tap, and by Enter
		overloaded(gate, clock())
		if code := call(wait); code != codes.Unavailable || ran != 1 {
			t.Errorf("overloaded, a caller that waits %v: %v, %d calls were handled", wait, code, ran)
		}
		if n := gate.Stats().Shed[Overload]; n != uint64(i+1) {
			t.Errorf("a caller that waits %v: %d are counted as shed", wait, n)
		}
	}
	overloaded(gate, clock())
	if err := conn.Invoke(context.Background(), free, &healthpb.HealthListRequest{}, &healthpb.HealthListResponse{}); err != nil {
		t.Errorf("another method, while overloaded: %v", err)
	}
	gate.mu.Lock()
	gate.waiting = 0
	gate.mu.Unlock()
	if code := call(10 * time.Second); code != codes.OK || ran != 2 {
		t.Errorf("when the overload is over: %v, %d calls were handled", code, ran)
	}
	if s := gate.Stats(); s.InFlight != 0 {
		t.Errorf("%d calls in flight when none is", s.InFlight)
	}
}

// A call whose caller has given up by the time that it is its turn is not begun.
func TestEnterOfALateCall(t *testing.T) {
	g := NewGate(patience)
	g.Arrive(start, patience)
	ctx, cancel := context.WithCancel(metadata.NewIncomingContext(context.Background(), nil))
	cancel()
	if err := g.Enter(ctx, start); !errors.Is(err, Err) {
		t.Errorf("Enter says %v", err)
	}
	if s := g.Stats(); s.Shed[Deadline] != 1 || s.InFlight != 0 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

// Without a tap a call is refused while others wait too long.
func TestEnterNow(t *testing.T) {
	g := NewGate(patience)
	if err := g.EnterNow(start); err != nil {
		t.Fatal(err)
	}
	g.End()
	overloaded(g, start)
	if err := g.EnterNow(start); !errors.Is(err, Err) {
		t.Errorf("overloaded: %v", err)
	}
	if s := g.Stats(); s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

// A connection that refused calls stays unread until they are paid for, but not
// while something of it was left behind by the last read.
func TestListenerPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		g := NewGate(patience)
		ours, theirs := net.Pipe()
		defer theirs.Close()
		c := &conn{Conn: ours, gate: g, clock: func() ratelimit.Instant { return ratelimit.Instant(time.Since(began)) + start }}
		defer c.Close()
		go func() { _, _ = theirs.Write([]byte("12345")) }()
		read := func(size int) time.Duration {
			g.owed.Add(int64(3 * time.Millisecond))
			before := time.Now()
			if _, err := c.Read(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			return time.Since(before)
		}
		if d := read(2); d != 3*time.Millisecond {
			t.Errorf("the first read waited for %v", d)
		}
		if d := read(4); d != 0 {
			t.Errorf("a read of what was left behind waited for %v", d)
		}
	})
}
