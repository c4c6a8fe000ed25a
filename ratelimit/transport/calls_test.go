package transport

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A caller that has not read the bound on calls yet may begin more, once.
func TestCallsBeforeTheBoundIsRead(t *testing.T) {
	o := echoes(nil)
	o.Caps.Streams = 10
	s := connected(t, NewPort(o))
	begin := func(first, calls uint32) (refused int) {
		for i := range calls {
			s.head(first+2*i, false, ordinary("/x/Echo")...)
		}
		return strings.Count(s.outcome(), "REFUSED_STREAM")
	}
	if n := begin(1, unbound*o.Caps.Streams+1); n != 1 {
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
		"in the method": {func(o *Options) {
			o.Methods[0].Answer = func(context.Context, []byte, []byte) ([]byte, error) { panic("a bug") }
		}, "/x/Echo", "1: status 13"},
		"in a service": {func(o *Options) {
			o.Services = streams{"Other": func(grpc.ServerStream) error { panic("a bug") }}.services()
		}, "/x/Other", "1: status 13"},
		"among the frames": {func(o *Options) {
			o.Gate = gated(new(inside))
			o.Gate.Clock = func() ratelimit.Instant { panic("a bug") }
		}, "/x/Echo", "0: ended"},
	} {
		t.Run(name, func(t *testing.T) {
			o := echoes(NewBudget(1 << 20))
			x.breaks(&o)
			var bugs atomic.Int32
			o.Bug = func(any) { bugs.Add(1) }
			p := NewPort(o)
			s := connected(t, p)
			s.call(1, x.method, "a")
			s.awaits(1)
			if got := s.outcome(); got != x.want || bugs.Load() != 1 {
				t.Errorf("%q, want %q; %d bugs are told", got, x.want, bugs.Load())
			}
			here := greeted(p)
			_ = here.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := here.Read(make([]byte, 1)); err != nil {
				t.Error("another connection:", err)
			}
			here.Close()
		})
	}
}

// A decision ends with its caller's patience, and when its call is reset or its connection ends.
func TestDecisionsEndWithTheirCall(t *testing.T) {
	inTime(t, func(t *testing.T, s *script, p *Port) {
		hasty := func(id uint32, timeout, want string, after time.Duration) {
			t.Helper()
			begun := time.Now()
			s.head(id, false, ordinary("/x/Echo", "grpc-timeout", timeout)...)
			_ = s.WriteData(id, true, text("a"))
			if s.awaits(id); s.became[id] != want || time.Since(begun) != after {
				t.Errorf("a caller that waits %s: %q after %v", timeout, s.became[id], time.Since(begun))
			}
		}
		s.head(1, false, ordinary("/x/Talk")...)
		time.Sleep(time.Hour)                              // since the process began
		hasty(3, "2562047H", "status 0", 10*time.Second)   // the longest there is, as grpc-java says it
		hasty(5, "100m", "status 4", 100*time.Millisecond) // it gives up
		s.call(7, "/x/Echo", "a")
		_ = s.WriteRSTStream(7, http2.ErrCodeCancel)
		s.call(9, "/x/Echo", "a")
		s.outcome()
		begun := time.Now()
		s.Close()
		p.GracefulStop()
		if took := time.Since(begun); took > time.Second {
			t.Errorf("decisions went on for %v", took)
		}
	})
}

// The context of a decision that has returned stays ended: no later call has it, though calls are used again.
func TestContextsOutliveTheirCall(t *testing.T) {
	o, alive := echoes(nil), 0
	var kept []context.Context
	o.Methods[0].Answer = func(ctx context.Context, in, out []byte) ([]byte, error) {
		for _, before := range kept {
			if before.Err() == nil {
				alive++
			}
		}
		ctx.Done() // as who has a timer wait for it
		kept = append(kept, ctx)
		return append(out, in...), nil
	}
	played(t, o, &slow{}, func(t *testing.T, s *script, _ *Port) {
		for id := uint32(1); id < 100; id += 2 {
			s.call(id, "/x/Echo", "a")
			s.outcome(id)
		}
		if len(kept) != 50 || alive > 0 {
			t.Errorf("of the contexts of %d calls, later ones have %d", len(kept), alive)
		}
	})
}

// Only calls that need the processor are inside the gate: not those that never become complete, nor those whose answers
// find no window, nor those that wait for their decision.
func TestOnlyWorkIsInsideTheGate(t *testing.T) {
	o, gate := echoes(nil), &inside{}
	o.Gate = gated(gate)
	o.Methods[0].Answer = func(ctx context.Context, in, out []byte) ([]byte, error) {
		out = append(out, in...)
		if string(in) == "wait" {
			ratelimit.Waits(ctx)
			<-ctx.Done()
		}
		return out, nil
	}
	played(t, o, &slow{}, func(t *testing.T, s *script, _ *Port) {
		s.windows(0)
		expect := func(what string, arrived int) {
			t.Helper()
			s.outcome()
			synctest.Wait()
			if gate.arrived != arrived || gate.calls != 0 || gate.callers != 0 {
				t.Errorf("%s: %d have arrived, want %d; %d calls of %d callers are inside", what, gate.arrived, arrived,
					gate.calls, gate.callers)
			}
		}
		s.head(1, false, ordinary("/x/Echo")...)
		_ = s.WriteData(1, false, text("abc")[:6])
		expect("an unfinished call", 0)
		s.call(3, "/x/Echo", "a")
		expect("an answer without a window", 1)
		s.call(5, "/x/Echo", "wait")
		expect("a call that waits", 2)
		_ = s.WriteRSTStream(5, http2.ErrCodeCancel)
		expect("a reset", 2)
	})
}

// A shut gate refuses calls without their handler, more than a connection has streams and window for, and lets other
// methods pass.
func TestShutGateRefusesCalls(t *testing.T) {
	o := others(answers(1))
	o.Gate = gated(&inside{shut: true})
	o.Methods[0].Answer = func(context.Context, []byte, []byte) ([]byte, error) { panic("it is called") }
	conn := client(t, o, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bareCodec{})))
	call := func(method string) codes.Code {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		request := make([]byte, 400)
		return status.Code(conn.Invoke(ctx, method, &request, new([]byte)))
	}
	for i := range 3000 {
		if code := call("/x/Echo"); code != codes.Unavailable {
			t.Fatalf("call %d: %v, must be unavailable", i, code)
		}
	}
	if code := call("/x/Other"); code != codes.OK {
		t.Errorf("another method: %v", code)
	}
}

// Several parts of a decision may wait, each in a goroutine of its own: one other goroutine leads, and no more.
func TestPartsOfADecisionWait(t *testing.T) {
	o, gate := echoes(nil), &inside{}
	o.Gate = gated(gate)
	o.Methods[0].Answer = func(ctx context.Context, in, out []byte) ([]byte, error) {
		out = append(out, in...)
		var parts sync.WaitGroup
		var ready atomic.Int64
		for range 2 {
			parts.Go(func() {
				for ready.Add(1); ready.Load() < 2; { // they wait at the same instant
				}
				ratelimit.Waits(ctx)
			})
		}
		parts.Wait()
		return out, nil
	}
	const calls = 300
	s := connected(t, NewPort(o))
	for id := uint32(1); id < 2*calls; id += 2 {
		s.call(id, "/x/Echo", "a")
		s.awaits(id)
	}
	if n := gate.waits.Load(); n > 0 {
		t.Errorf("%d of %d calls had two goroutines lead", n, calls)
	}
}

// Each connection of thousands that are opened at once begins before the next is taken, so that those that wait are not
// in the scheduler's queue, before everybody's calls.
func TestListenerTakesOneAfterTheOther(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	left := 1000
	l := Listen(accepting(func() (net.Conn, error) {
		if left--; left < 0 {
			return nil, net.ErrClosed
		}
		c, _ := net.Pipe()
		return c, nil
	}), 0, nil)
	var waiting, most atomic.Int32
	var all sync.WaitGroup
	for c, err := l.Accept(); err == nil; c, err = l.Accept() {
		most.Store(max(most.Load(), waiting.Add(1)))
		all.Go(func() {
			waiting.Add(-1)
			c.Close()
		})
	}
	all.Wait()
	if n := most.Load(); n > 10 {
		t.Errorf("%d connections of 1000 were taken and had not begun", n)
	}
}

// accepting is a listener that is this function.
type accepting func() (net.Conn, error)

func (l accepting) Accept() (net.Conn, error) { return l() }
func (accepting) Close() error                { return nil }
func (accepting) Addr() net.Addr              { return nil }

// A port goes on when there was no file descriptor for a connection.
func TestPortOutlivesALackOfDescriptors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, failed := NewPort(echoes(nil)), false
		comes := make(chan net.Conn)
		served := make(chan error, 1)
		go func() {
			served <- p.Serve(accepting(func() (net.Conn, error) {
				if !failed {
					failed = true
					return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
				}
				if c, open := <-comes; open {
					return c, nil
				}
				return nil, net.ErrClosed
			}))
		}()
		here, there := net.Pipe()
		comes <- there
		s := newScript(here)
		s.call(1, "/x/Echo", "a")
		if got := s.outcome(1); got != "1: status 0" {
			t.Error(got)
		}
		p.Stop()
		close(comes)
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("after Stop: %v", err)
		}
		p.GracefulStop()
	})
}

// One connection too many closes the one that has been silent longest.
func TestListenerClosesTheSilent(t *testing.T) {
	budget := NewBudget(1)
	l := Listen(listens(t), 3, budget)
	defer l.Close()
	var there, here []net.Conn
	dial := func() {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		a, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		there, here = append(there, c), append(here, a)
	}
	for range 3 {
		dial()
	}
	one := make([]byte, 1)
	for _, i := range []int{0, 2} { // the second says nothing
		if _, err := there[i].Write(one); err != nil {
			t.Fatal(err)
		}
		if _, err := here[i].Read(one); err != nil {
			t.Fatal(err)
		}
	}
	dial()
	if _, err := there[1].Read(one); err == nil {
		t.Error("the silent one is open")
	}
	for _, i := range []int{0, 2, 3} {
		if _, err := here[i].Write(one); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	if len(l.conns) != 3 || budget.Crowded.Load() != 1 {
		t.Errorf("%d are open, %d were closed", len(l.conns), budget.Crowded.Load())
	}
	for i := range here {
		here[i].Close()
		there[i].Close()
	}
	if len(l.conns) != 0 {
		t.Errorf("%d are open", len(l.conns))
	}
}
