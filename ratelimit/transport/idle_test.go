package transport

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// Frames that begin no call and bring nothing end a connection when there are far more of them than its calls and
// its time explain. Calls that fail explain few.
func TestIdleFramesEndAConnection(t *testing.T) {
	const fails = 100
	ping := func(s *script) error { return s.WritePing(false, [8]byte{}) }
	for name, x := range map[string]struct {
		write func(*script) error
		calls uint32
	}{
		"pings":      {ping, 0},
		"answers":    {func(s *script) error { return s.WritePing(true, [8]byte{}) }, 0},
		"settings":   {func(s *script) error { return s.WriteSettings() }, 0},
		"priorities": {func(s *script) error { return s.WritePriority(5, http2.PriorityParam{}) }, 0},
		"windows":    {func(s *script) error { return s.WriteWindowUpdate(0, 1) }, 0},
		"empty data": {func(s *script) error { return s.WriteData(1, false, nil) }, 0},
		"bytes":      {func(s *script) error { return s.WriteData(1, false, []byte{0}) }, 0},
		"resets":     {func(s *script) error { return s.WriteRSTStream(1, http2.ErrCodeCancel) }, 0},
		"failures":   {ping, fails},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, s *script, p *Port) {
				s.head(1, false, ordinary("/x/Echo")...)
				for i := range x.calls {
					s.head(2*i+3, true, ordinary("/x/Echo")...) // it has no request
				}
				synctest.Wait()
				stock, n := framesInStock+int(x.calls)*framesACall, 0
				for err := error(nil); err == nil && n < 3*stock; n++ {
					err = x.write(s)
					synctest.Wait()
				}
				if n < stock || n > stock+2*framesACall || p.Budget.Excess.Load() != 1 {
					t.Errorf("it ended after %d, must after %d; %d are counted", n, stock, p.Budget.Excess.Load())
				}
			})
		})
	}
}

// Pieces of more headers than the bound end a connection at once, and empty ones when there are many.
func TestPiecesOfHeadersAreBounded(t *testing.T) {
	for name, x := range map[string]struct {
		piece []byte
		times int
	}{"empty": {nil, 2 * framesInStock}, "large": {make([]byte, 9<<10), 1}} {
		inTime(t, func(t *testing.T, s *script, p *Port) {
			_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, 8<<10)})
			for range x.times {
				_ = s.WriteContinuation(1, false, x.piece)
			}
			s.endsAfter(t, 0, time.Second)
			if n := p.Budget.Excess.Load(); n != 1 {
				t.Errorf("%s: %d are counted", name, n)
			}
		})
	}
}

// Callers cannot have answers that wait for windows looked at, or their handlers wake, again and again, by windows of
// a byte.
func TestWakesOfHandlersAreFewer(t *testing.T) {
	for method, open := range map[string]func(*script){
		"/x/Echo":  func(s *script) { _ = s.WriteWindowUpdate(0, 1) },
		"/x/Other": func(s *script) { s.windows(1); s.windows(0) },
	} {
		played(t, others(answers(200)), &slow{}, func(t *testing.T, s *script, p *Port) {
			s.windows(0)
			for i := range uint32(500) {
				s.call(2*i+1, method, "a")
			}
			for range framesInStock / 3 { // fewer than may be idle
				open(s)
				synctest.Wait() // all wait again
			}
			if n := p.Budget.Excess.Load(); n != 1 {
				t.Errorf("%s: %d are counted", method, n)
			}
		})
	}
}

// Settings that change the windows cost the same, however many calls are open.
func TestSettingsCostTheirSize(t *testing.T) {
	const frames = 100_000 // many, because some kernels count the processor time of a thread in ticks of 4 ms
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration { // by this thread, of a processor: others take no part of it
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	took := func(calls uint32) time.Duration {
		c := newConnection(NewPort(echoes(nil)), discards{}, nil, nil)
		c.in.begun = true
		caller := newScript(discards{})
		for i := range calls {
			head := appendHeaders(nil, 0, 2*i+1, caller.block(ordinary("/x/Echo")...))
			if _, err := c.framesLocked(head); err != nil {
				t.Fatal(err)
			}
		}
		begun := used()
		for i := range uint32(frames) {
			c.idle = idle{}
			change := appendSettings(nil, uint32(http2.SettingInitialWindowSize), 1+i%2)
			if _, err := c.framesLocked(change); err != nil {
				t.Fatal(err)
			}
			c.out.frames = c.out.frames[:0]
		}
		return used() - begun
	}
	// The least of several: the collector may work in one.
	one, many := min(took(1), took(1), took(1)), min(took(1000), took(1000), took(1000))
	if many > 5*one {
		t.Errorf("%d frames take %v with a call, and %v with a thousand", frames, one, many)
	}
}

// Callers whose frames their calls and their time explain go on.
func TestIdleFramesOfHonestCallers(t *testing.T) {
	for name, write := range map[string]func(*script, uint32) error{
		"all given up at once": func(s *script, id uint32) error {
			return s.WriteRSTStream(id, http2.ErrCodeCancel)
		},
		"all given back a little window": func(s *script, id uint32) error { return s.WriteWindowUpdate(id, 10) },
	} {
		inTime(t, func(t *testing.T, s *script, _ *Port) {
			for id := uint32(1); id < 2000; id += 2 {
				s.call(id, "/x/Echo", "the content of a call that is not idle")
			}
			for id := uint32(1); id < 2000; id += 2 {
				if err := write(s, id); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			s.outcome()
		})
	}
	var i idle
	now := int64(0)
	take := func(kind http2.FrameType, length int) {
		t.Helper()
		if !i.afford(&frame{kind: kind, length: length}, true, now) {
			t.Fatalf("a frame of kind %d, after %v, ended the connection", kind, time.Duration(now))
		}
	}
	for range 10_000 { // as gRPC's own client, whose calls are answered and given up
		take(frameHeaders, 30)
		take(frameData, 60)
		take(framePing, 8)
		take(frameWindow, 4)
		take(frameWindow, 4)
		take(frameReset, 4)
	}
	for range 10_000 { // a stream of reports, and 50 pings a second
		now += int64(20 * time.Millisecond)
		take(frameData, 200)
		take(framePing, 8)
	}
	for range 1000 { // a large body
		take(frameData, 16<<10)
	}
}

// A client of grpc-go with large messages on many streams, which share a small window, is no flood.
func TestManyStreamsShareAWindow(t *testing.T) {
	o := others(answers(200 << 10))
	conn := client(t, o, grpc.WithInitialConnWindowSize(65535), grpc.WithInitialWindowSize(65535),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bareCodec{})))
	var calls sync.WaitGroup
	for range 100 {
		calls.Go(func() {
			var out []byte
			if err := conn.Invoke(t.Context(), "/x/Other", &[]byte{1}, &out); err != nil || len(out) != 200<<10 {
				t.Errorf("%d bytes: %v", len(out), err)
			}
		})
	}
	calls.Wait()
	if n := o.Budget.Excess.Load(); n != 0 {
		t.Errorf("%d connections are closed for idle frames", n)
	}
}
