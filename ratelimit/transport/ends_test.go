package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A request that is not complete in time ends its connection, and so does an answer that is not taken.
func TestStalledCallsEndTheirConnection(t *testing.T) {
	b := func(s *script) []byte { return s.block(ordinary("/x/Echo")...) }
	for name, play := range map[string]func(*script){
		"half a frame": func(s *script) {
			_, _ = s.Write(appendFrame(nil, frameHeaders, flagEndHeaders, 1, b(s))[:12])
		},
		"half a block": func(s *script) {
			_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b(s)})
		},
		"half a request": func(s *script) {
			s.head(1, false, ordinary("/x/Echo")...)
			_ = s.WriteData(1, false, text("abc")[:6])
		},
		"half a request of another method": func(s *script) { s.head(1, false, ordinary("/x/Other")...) },
		"an answer without a window":       func(s *script) { s.windows(0); s.call(1, "/x/Echo", "") },
		"a handler's without a window":     func(s *script) { s.windows(0); s.call(1, "/x/Answer", "a") },
		"a request that goes on": func(s *script) {
			s.head(1, false, ordinary("/x/Echo")...)
			go func() {
				for range 30 { // each second, a byte
					if s.WriteData(1, false, []byte{0}) != nil {
						return
					}
					time.Sleep(time.Second)
				}
			}()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, s *script, p *Port) {
				play(s)
				s.endsAfter(t, 9*time.Second, 12*time.Second)
				synctest.Wait()
				if n := p.Budget.Stalled.Load(); n != 1 {
					t.Errorf("%d connections are counted as stalled", n)
				}
			})
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

// A drain writes the answers that were given while another goroutine wrote.
func TestDrainWaitsForTheWriter(t *testing.T) {
	o := echoes(nil)
	o.Methods[0].Answer = func(ctx context.Context, in, out []byte) ([]byte, error) {
		out = append(out, in...)
		ratelimit.Waits(ctx)
		time.Sleep(time.Duration(out[0]) * 10 * time.Millisecond)
		return out, nil
	}
	played(t, o, &slow{before: 100 * time.Millisecond}, func(t *testing.T, s *script, p *Port) {
		time.Sleep(time.Second)
		s.call(1, "/x/Echo", "\x64") // 1 s
		s.call(3, "/x/Echo", "\x69") // 50 ms later, while the first is written
		go p.GracefulStop()
		s.await(func() bool { return false })
		if s.became[1] != "status 0" || s.became[3] != "status 0" {
			t.Errorf("calls under way: %q, %q", s.became[1], s.became[3])
		}
	})
}

// The last stream never rises from one GOAWAY to the next (RFC 9113, 6.8), whatever the caller begins meanwhile.
func TestLastStreamNeverRises(t *testing.T) {
	played(t, echoes(nil), &slow{}, func(t *testing.T, s *script, p *Port) {
		defer s.stands()()
		s.head(1, false, ordinary("/x/Echo")...)
		go p.GracefulStop()
		time.Sleep(lastCalls + time.Second)
		s.call(3, "/x/Echo", "a")
		s.call(5, "/x/Echo", "a")
		_ = s.WriteData(1, true, text("a"))
		s.await(func() bool { return false })
		falls := slices.IsSortedFunc(s.away, func(a, b uint32) int { return int(b) - int(a) })
		if !falls || len(s.away) < 2 {
			t.Errorf("the last streams are %v", s.away)
		}
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
