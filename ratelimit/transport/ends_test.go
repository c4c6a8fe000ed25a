package transport

import (
	"bytes"
	"crypto/tls"
	"io"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// A request that is not complete in time ends its connection, and so does an answer that is not taken.
func TestStalledCallsEndTheirConnection(t *testing.T) {
	for name, frames := range map[string]string{
		"half a frame":                     `bytes \x00\x00\x20\x01\x04\x00\x00\x00\x01\x82`,
		"half a block":                     "piece 1 /x/Echo 3",
		"half a request":                   `head 1 /x/Echo; data 1 \x00\x00\x00\x00\x03a`,
		"half a request of another method": "head 1 /x/Other",
		"an answer without a window":       noWindow + "call 1 /x/Echo",
		"a handler's without a window":     noWindow + "call 1 /x/Answer a",
		"a request that goes on":           "head 1 /x/Echo",
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, s *script, p *Port) {
				_ = s.says(frames)
				if name == "a request that goes on" {
					go func() {
						for s.says(`data 1 \x00`) == nil {
							time.Sleep(time.Second)
						}
					}()
				}
				s.endsAfter(t, 9*time.Second, 12*time.Second)
				synctest.Wait()
				if n := p.Budget.Stalled.Load(); n != 1 {
					t.Errorf("%d connections are counted as stalled", n)
				}
			})
		})
	}
}

// An answer that found no window stalls no connection once its call was reset, or it found one.
func TestCallsThatWentOnAreNotStalled(t *testing.T) {
	for _, goesOn := range []string{
		`call 1 /x/Echo; raw RST_STREAM 0 1 \x00\x00\x00\x08`,
		`head 1 /x/Watch; raw WINDOW_UPDATE 0 1 \x00\x00\x01\x00`,
	} {
		inTime(t, func(t *testing.T, s *script, _ *Port) {
			for said := range strings.SplitSeq(noWindow+goesOn, "; ") {
				_ = s.says(said)
				synctest.Wait()
			}
			time.Sleep(time.Minute)
			if got := s.outcome(); got != "" {
				t.Errorf("%s: %s", goesOn, got)
			}
		})
	}
}

// A caller that does not read is given up, however much it sends.
func TestCallersThatDoNotRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := NewPort(echoes(NewBudget(1 << 20)))
		here, begun := greeted(p), time.Now()
		_, _ = io.WriteString(here, http2.ClientPreface)
		for err := error(nil); err == nil; {
			_, err = here.Write(appendFrame(nil, frameSettings, 0, 0))
		}
		if took := time.Since(begun); took > 12*time.Second || p.Budget.Stalled.Load() == 0 {
			t.Errorf("it ended after %v, %d are counted as stalled", took, p.Budget.Stalled.Load())
		}
		p.GracefulStop()
	})
}

// Callers that are silent are asked whether they live, and end if they do not answer.
func TestSilentCallersAreAsked(t *testing.T) {
	inTime(t, func(t *testing.T, s *script, _ *Port) {
		s.head(1, false, ordinary("/x/Talk")...)
		time.Sleep(time.Hour) // its pings are answered
		if got := s.outcome(); got != "" {
			t.Errorf("a caller that answers pings: %s", got)
		}
		defer s.stands()()
		s.endsAfter(t, 15*time.Second, 85*time.Second)
	})
}

// Connections without a call, and old ones, are asked to end. Calls under way get their time.
func TestOldConnectionsAreAskedToEnd(t *testing.T) {
	inTime(t, func(t *testing.T, s *script, _ *Port) {
		s.endsAfter(t, 5*time.Minute, 5*time.Minute+time.Second)
	})
	inTime(t, func(t *testing.T, s *script, _ *Port) {
		s.head(1, false, ordinary("/x/Talk")...)
		s.endsAfter(t, 20*time.Hour, 29*time.Hour) // 24 h, a tenth, and an hour of grace
	})
}

// Draining answers the calls that are under way, and takes no later ones. A connection that is not accepted yet ends.
func TestDrainAnswersCallsUnderWay(t *testing.T) {
	inTime(t, func(t *testing.T, s *script, p *Port) {
		s.call(1, "/x/Echo", "a")
		late := greeted(p) // it has not begun to speak yet
		time.Sleep(time.Second)
		goOn := s.stands()
		go p.GracefulStop()
		synctest.Wait()
		s.call(3, "/x/Echo", "b") // on its way
		goOn()
		time.Sleep(time.Second)
		s.call(5, "/x/Echo", "c")
		newScript(late).endsAfter(t, 0, time.Second)
		s.endsAfter(t, 7*time.Second, 9*time.Second)
		if got := s.outcome(1, 3); got != "0: ended, 1: status 0, 3: status 0" {
			t.Error(got)
		}
		late.Close()
	})
	inTime(t, func(t *testing.T, _ *script, p *Port) { // its caller reads late
		here := greeted(p)
		_ = here.SetReadDeadline(time.Now().Add(time.Second))
		go func() { _, _ = io.Copy(io.Discard, here) }()
		b := appendSettings([]byte(http2.ClientPreface))
		b = appendHeaders(b, 0, 1, newScript(discards{}).block(ordinary("/x/Echo")...))
		_, _ = here.Write(appendFrame(b, frameData, flagEndStream, 1, text("a")))
		time.Sleep(5 * time.Second)
		go p.GracefulStop()
		time.Sleep(6 * time.Second) // the call is answered while the goodbye is being written
		_, _ = here.Write(appendFrame(nil, framePing, flagAck, 0, goodbye[:]))
		synctest.Wait()
		_ = here.SetReadDeadline(time.Time{})
		if got, _ := io.ReadAll(here); bytes.Count(got, okTrailers) != 1 {
			t.Errorf("no answer to a caller that reads late: %q", got)
		}
		here.Close()
	})
	inTime(t, func(t *testing.T, _ *script, p *Port) { // without the drain
		late := greeted(p)
		time.Sleep(time.Second)
		p.Stop()
		l := newScript(late)
		l.head(1, false, ordinary("/x/Talk")...)
		l.endsAfter(t, 0, time.Second)
		late.Close()
	})
}

// A closed connection does not take back what it wrote: what its caller said meanwhile is read.
func TestLastAnswersArrive(t *testing.T) {
	p := NewPort(echoes(nil))
	l := listens(t)
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096)
		})
	}}
	here, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	there, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p.running.Go(func() { p.welcome(there) })
	const answers = 50
	caller := newScript(discards{})
	b := appendSettings([]byte(http2.ClientPreface), uint32(http2.SettingInitialWindowSize), 1<<20)
	b = appendFrame(b, frameWindow, 0, 0, be32(1<<20))
	for i := range uint32(answers) {
		b = appendHeaders(b, 0, 2*i+1, caller.block(ordinary("/x/Echo")...))
		b = appendFrame(b, frameData, flagEndStream, 2*i+1, text(string(bytes.Repeat([]byte("a"), 4001))))
	}
	_, _ = here.Write(b)
	var got bytes.Buffer
	for range 5 { // it has begun to read
		_, _ = io.CopyN(&got, here, 100)
	}
	stopped := make(chan struct{})
	go func() { p.GracefulStop(); close(stopped) }()
	time.Sleep(100 * time.Millisecond)
	// It answers the ping, and says more than that.
	_, _ = here.Write(appendFrame(nil, framePing, flagAck, 0, goodbye[:]))
	for range 100 {
		_, _ = here.Write(appendFrame(nil, frameWindow, 0, 0, be32(1)))
		time.Sleep(time.Millisecond)
	}
	_, err = io.Copy(&got, here)
	if n := bytes.Count(got.Bytes(), okTrailers); n != answers {
		t.Errorf("%d answers of %d arrived: %v", n, answers, err)
	}
	<-stopped
}

// A caller with TLS that does not read is closed without a farewell: the wait for it would be under a lock that all
// connections need when memory is short.
func TestSlowReadersHoldUpNoOther(t *testing.T) {
	security := certified(t)
	bubble(t, func(t *testing.T) {
		p := NewPort(Options{Caps: usual, Budget: NewBudget(1 << 20), Security: security})
		here, there := net.Pipe()
		p.running.Go(func() { p.welcome(&conn{Conn: there, of: Listen(nil, 0, nil)}) })
		caller := tls.Client(here, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec
		// It reads the greeting, and nothing later.
		if _, err := caller.Read(make([]byte, mostFrame)); err != nil {
			t.Fatal(err)
		}
		if _, err := caller.Write(appendSettings([]byte(http2.ClientPreface))); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p.mu.Lock()
		served := slices.Collect(maps.Keys(p.open))[0]
		p.mu.Unlock()
		for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(time.Second) {
			if synctest.Wait(); !served.mu.TryLock() {
				t.Errorf("after %v it keeps its lock", time.Since(begun))
				continue
			}
			served.mu.Unlock()
		}
		here.Close()
		p.GracefulStop()
	})
}

// Frames that begin no call and bring nothing end a connection when there are far more of them than its calls and
// its time explain. Calls that fail explain few.
func TestIdleFramesEndAConnection(t *testing.T) {
	for name, x := range map[string]struct {
		frame string
		fails uint32 // calls that have no request
	}{
		"pings":      {"raw PING 0 0 12345678", 0},
		"answers":    {"raw PING 1 0 12345678", 0},
		"settings":   {"raw SETTINGS 0 0", 0},
		"priorities": {`raw PRIORITY 0 5 \x00\x00\x00\x00\x01`, 0},
		"windows":    {`raw WINDOW_UPDATE 0 0 \x00\x00\x00\x01`, 0},
		"empty data": {"data 1", 0},
		"bytes":      {"data 1 x", 0},
		"resets":     {`raw RST_STREAM 0 1 \x00\x00\x00\x08`, 0},
		"failures":   {"raw PING 0 0 12345678", 100},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, s *script, p *Port) {
				s.head(1, false, ordinary("/x/Echo")...)
				for i := range x.fails {
					s.head(2*i+3, true, ordinary("/x/Echo")...)
				}
				synctest.Wait()
				stock, n := framesInStock+int(x.fails)*framesACall, 0
				for ; n < 3*stock && s.says(x.frame) == nil; n++ {
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
	for method, opens := range map[string]string{
		"/x/Echo":  `raw WINDOW_UPDATE 0 0 \x00\x00\x00\x01`,
		"/x/Other": `raw SETTINGS 0 0 \x00\x04\x00\x00\x00\x01; ` + noWindow,
	} {
		played(t, others(answers(200)), &slow{}, func(t *testing.T, s *script, p *Port) {
			s.windows(0)
			for i := range uint32(500) {
				s.call(2*i+1, method, "a")
			}
			for range framesInStock / 3 { // fewer than may be idle
				_ = s.says(opens)
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
	inTime(t, func(t *testing.T, s *script, _ *Port) {
		s.head(1, false, ordinary("/x/Talk")...)
		for range 10_000 { // a stream of reports, and 50 pings a second
			time.Sleep(20 * time.Millisecond)
			if err := s.says("data 1 <a_report_of_more_than_thirty-two_bytes>; raw PING 0 0 12345678"); err != nil {
				t.Fatalf("reports and pings: %v", err)
			}
			synctest.Wait()
		}
	})
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
