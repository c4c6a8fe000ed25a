package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/ratelimit"
)

// echo answers a request with itself, some after a wait.
func echo(ctx context.Context, in, out []byte) ([]byte, error) {
	if len(in) > 0 && in[len(in)-1]%2 == 0 {
		in = bytes.Clone(in)
		ratelimit.Waits(ctx)
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return append(out, in...), nil
}

// usual are the caps of a node.
var usual = Caps{
	Streams: 1000, HeaderBytes: 8 << 10, MessageBytes: 256 << 10, RequestTimeout: 10 * time.Second,
	Idle: 5 * time.Minute, Age: 24 * time.Hour, AgeGrace: time.Hour,
}

func echoes(budget *Budget) Options {
	return Options{
		Caps: usual, Budget: budget, Methods: []Method{{Name: "/x/Echo", Answer: echo}}, Services: echoServices(),
	}
}

// listens is a listener on a free port, until the test ends.
func listens(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// servePort serves until the test ends.
func servePort(t *testing.T, o Options) (addr string) {
	l := listens(t)
	p := NewPort(o)
	served := make(chan error, 1)
	go func() { served <- p.Serve(Listen(l, 0, o.Budget)) }()
	t.Cleanup(func() {
		p.Stop()
		p.GracefulStop()
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// Each call gets its own answer, whatever its size, and whether it waits or its caller gives up.
func TestPortAnswersEachCall(t *testing.T) {
	budget := NewBudget(64 << 20)
	conn, err := grpc.NewClient("passthrough:///"+servePort(t, echoes(budget)),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range 200 {
				q := make([]byte, random.IntN(1<<random.IntN(18)))
				for i := range q {
					q[i] = byte(random.Uint32())
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				hurried := random.IntN(4) == 0
				if hurried {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(2000))*time.Microsecond)
				}
				var a wrapperspb.BytesValue
				err := conn.Invoke(ctx, "/x/Echo", wrapperspb.Bytes(q), &a)
				cancel()
				if hurried && status.Code(err) == codes.DeadlineExceeded {
					continue
				}
				if err != nil || !bytes.Equal(a.Value, q) {
					t.Errorf("%d bytes: %d bytes, %v", len(q), len(a.Value), err)
				}
			}
		})
	}
	all.Wait()
	for end := time.Now().Add(10 * time.Second); budget.Held() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are held when all calls have ended", budget.Held())
		}
	}
}

// Nonsense ends a connection, and nothing else.
func FuzzPort(f *testing.F) {
	f.Add([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0})
	f.Add(appendHeaders(nil, 0, 1, []byte{0x83, 0x86}))
	f.Add(append(appendHeaders(nil, 0, 1, []byte{0x83}), appendFrame(nil, frameData, 1, 1, make([]byte, 9))...))
	f.Add(append([]byte{0, 0, 4, 8, 0, 0, 0, 0, 0}, 0x7f, 0xff, 0xff, 0xff))
	names := slices.Sorted(maps.Keys(variants))
	f.Add(append([]byte{2}, appendHeaders(appendSettings(nil), flagEndStream, 1, []byte{0x83, 0x86, 4, 0})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var o Options
		if len(b) > 0 {
			o = variants[names[int(b[0])%len(names)]](t, usual)
			b = b[1:]
		} else {
			o = echoes(NewBudget(1 << 20))
		}
		o.Security = nil // of TLS, Go has targets
		o.Bug = func(bug any) { panic(bug) }
		budget := o.Budget
		p := NewPort(o)
		here := greeted(p)
		go func() { _, _ = io.Copy(io.Discard, here) }()
		_ = here.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(here, http2.ClientPreface)
		_, _ = here.Write(b)
		here.Close()
		p.running.Wait()
		if budget.Held() != 0 {
			t.Fatalf("%d bytes are held", budget.Held())
		}
	})
}

// A caller that has not read the bound on calls yet may begin more, once.
func TestCallsBeforeTheBoundIsRead(t *testing.T) {
	caps := usual
	caps.Streams = 10
	s := onPort(t, caps)
	begin := func(first, calls uint32) (refused int) {
		for i := range calls {
			s.head(first+2*i, false, ordinary("/x/Echo")...)
		}
		return strings.Count(s.outcome(), "REFUSED_STREAM")
	}
	if n := begin(1, unbound*caps.Streams+1); n != 1 {
		t.Errorf("%d calls are refused before the bound is read", n)
	}
	_ = s.WriteSettingsAck()
	if n := begin(1001, 5); n != 6 {
		t.Errorf("%d of 5 more are refused", n-1)
	}
}

// A bug that a caller meets ends its call, or its connection, and no other. It is reported once.
func TestBugsEndNoOther(t *testing.T) {
	for name, x := range map[string]struct {
		breaks func(*Options)
		method string
		want   string
	}{
		"in the method": {func(o *Options) { o.Methods[0].Answer = nilled }, "/x/Echo", "1: status 13"},
		"in a service": {func(o *Options) {
			o.Services = streams{"Other": func(grpc.ServerStream) error { panic("a bug") }}.services()
		}, "/x/Other", "1: status 13"},
		"among the frames": {func(o *Options) {
			o.Gate = &Gated{Gate: broken{}, Refusal: status.New(0, ""), Clock: func() ratelimit.Instant { return 1 }}
		}, "/x/Echo", "0: ended"},
	} {
		t.Run(name, func(t *testing.T) {
			o := echoes(NewBudget(1 << 20))
			x.breaks(&o)
			var bugs atomic.Int32
			o.Bug = func(any) { bugs.Add(1) }
			p := NewPort(o)
			s := connectedTo(t, p)
			s.call(1, x.method, "a")
			s.await(func() bool { return s.became[1] != "" })
			if got := s.outcome(); got != x.want || bugs.Load() != 1 {
				t.Errorf("%q, want %q; %d bugs are told", got, x.want, bugs.Load())
			}
			var other error
			here := greeted(p)
			_ = here.SetDeadline(time.Now().Add(10 * time.Second))
			if _, other = here.Read(make([]byte, 1)); other != nil {
				t.Error("another connection:", other)
			}
			here.Close()
		})
	}
}

func nilled(context.Context, []byte, []byte) ([]byte, error) { panic("a bug") }

// broken is a gate with a bug.
type broken struct{ always }

func (broken) Arrive(ratelimit.Instant, int, time.Duration) bool { panic("a bug") }

// always is a gate with one answer.
type always bool

func (a always) Arrive(ratelimit.Instant, int, time.Duration) bool { return bool(a) }
func (always) Leave(ratelimit.Instant, int, int)                   {}
func (always) Begin()                                              {}
func (always) End()                                                {}

// discards is a connection whose writes go nowhere.
type discards struct{ net.Conn }

func (discards) Write(b []byte) (int, error)      { return len(b), nil }
func (discards) SetWriteDeadline(time.Time) error { return nil }

// BenchmarkCall is the port's own time for a call, of 32 that one read brings.
func BenchmarkCall(b *testing.B) {
	for name, answer := range map[string]always{"accepted": true, "refused": false} {
		b.Run(name, func(b *testing.B) {
			o := echoes(NewBudget(1 << 20))
			o.Gate = &Gated{
				Gate: answer, Clock: func() ratelimit.Instant { return 1 },
				Refusal: status.New(codes.Unavailable, "overloaded"),
			}
			c := newConnection(NewPort(o), discards{}, nil, nil)
			c.in.begun = true
			caller := newScript(discards{})
			fields := ordinary("/x/Echo", "grpc-timeout", "20m")
			if err := c.in.fields.read(caller.block(fields...)); err != nil {
				b.Fatal(err)
			}
			block := caller.block(fields...) // its fields are in the table now
			batch := make([]byte, 0, 64<<10)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				id := uint32(2*i + 1)
				batch = appendHeaders(batch, 0, id, block)
				batch = appendFrame(batch, frameData, flagEndStream, id, text("a"))
				if i%32 == 31 {
					c.out.window = mostWindow // the caller gives it back
					if _, err := c.framesLocked(batch); err != nil {
						b.Fatal(err)
					}
					for _, s := range c.in.turn {
						c.answer(s)
					}
					c.in.turn = c.in.turn[:0]
					c.flush()
					batch = batch[:0]
				}
			}
		})
	}
}
