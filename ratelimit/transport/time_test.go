package transport

import (
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
)

// bubble runs f in a time of its own, in which the process has just begun.
func bubble(t *testing.T, f func(*testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		defer func(then time.Time) { started = then }(started)
		started = time.Now().Add(-time.Second)
		f(t)
	})
}

// inTime plays a script against a port, in the time of a bubble. Calls wait for ten seconds, and others talk until
// their callers end them.
func inTime(t *testing.T, play func(*testing.T, *script, *Port)) {
	o := echoes(NewBudget(16 << 20))
	o.Methods[0].Answer = func(ctx context.Context, request, out []byte) ([]byte, error) {
		out = append(out, request...)
		if ratelimit.Waits(ctx); len(request) == 0 {
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-time.After(10 * time.Second):
		}
		return out, nil
	}
	read := func(stream grpc.ServerStream) error {
		var m []byte
		for stream.RecvMsg(&m) == nil {
		}
		return nil
	}
	talk := func(stream grpc.ServerStream) error {
		Converse(stream.Context())
		return read(stream)
	}
	o.Services = streams{"Other": read, "Talk": talk}.services()
	played(t, o, slow{}, play)
}

// played plays a script against a port with a slow connection, in the time of a bubble.
func played(t *testing.T, o Options, as slow, play func(*testing.T, *script, *Port)) {
	bubble(t, func(t *testing.T) {
		p := NewPort(o)
		here, there := net.Pipe()
		as.Conn = there
		p.running.Go(func() { p.welcome(as) })
		s := newScriptRead(here)
		defer time.Sleep(2 * time.Second) // who says something each second finds that it has ended
		defer p.GracefulStop()
		defer s.Close()
		play(t, s, p)
	})
}

// slow is a connection whose writes take a while, before they begin or after.
type slow struct {
	net.Conn
	before, after time.Duration
}

func (s slow) Write(p []byte) (int, error) {
	time.Sleep(s.before)
	defer time.Sleep(s.after)
	return s.Conn.Write(p)
}

// greeted begins a connection to a port.
func greeted(p *Port) (here net.Conn) {
	here, there := net.Pipe()
	p.running.Go(func() { p.welcome(there) })
	return here
}

// newScriptRead begins a script whose peer need not wait for it to read.
func newScriptRead(c net.Conn) *script {
	from := make(chan []byte, 64)
	go func() {
		defer close(from)
		for {
			b := make([]byte, mostFrame)
			n, err := c.Read(b)
			if err != nil {
				return
			}
			from <- b[:n]
		}
	}()
	s := newScript(&piped{Conn: c, from: from})
	go s.read()
	return s
}

// piped is a connection whose reads come from a queue.
type piped struct {
	net.Conn
	from <-chan []byte
	rest []byte
}

func (p *piped) Read(b []byte) (n int, err error) {
	for len(p.rest) == 0 {
		var open bool
		if p.rest, open = <-p.from; !open {
			return 0, io.EOF
		}
	}
	n = copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// endsAfter waits until the connection ends, and checks how long that took.
func (s *script) endsAfter(t *testing.T, least, most time.Duration) {
	t.Helper()
	begun := time.Now()
	s.await(func() bool { return false })
	if took := time.Since(begun); took < least || took > most {
		t.Errorf("it ended after %v, want %v to %v", took, least, most)
	}
}

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
		"an answer without a window": func(s *script) {
			_ = s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			s.call(1, "/x/Echo", "")
		},
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
	inTime(t, func(t *testing.T, s *script, p *Port) {
		s.head(1, false, ordinary("/x/Talk")...)
		time.Sleep(time.Hour) // its pings are answered
		if got := s.outcome(); got != "" {
			t.Errorf("a caller that answers pings: %s", got)
		}
	})
	bubble(t, func(t *testing.T) {
		p := NewPort(echoes(nil))
		here, begun := greeted(p), time.Now()
		go func() { _, _ = io.WriteString(here, http2.ClientPreface) }()
		_, _ = io.Copy(io.Discard, here)
		if took := time.Since(begun); took < 75*time.Second || took > 85*time.Second {
			t.Errorf("a caller that answers none was given up after %v", took)
		}
		p.GracefulStop()
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

// Draining answers the calls that are under way, and takes no later ones.
func TestDrainAnswersCallsUnderWay(t *testing.T) {
	inTime(t, func(t *testing.T, s *script, p *Port) {
		s.call(1, "/x/Echo", "a")
		late := greeted(p) // it has not begun to speak yet
		time.Sleep(time.Second)
		go p.GracefulStop()
		s.call(3, "/x/Echo", "b") // on its way
		time.Sleep(time.Second)
		s.call(5, "/x/Echo", "c")
		l := newScriptRead(late)
		l.endsAfter(t, 0, time.Second)
		s.endsAfter(t, 7*time.Second, 9*time.Second)
		if got := s.outcome(1, 3); got != "0: ended, 1: status 0, 3: status 0" {
			t.Error(got)
		}
		late.Close()
	})
}

// A decision ends with its caller's patience, and when its call is reset or its connection ends.
func TestDecisionsEndWithTheirCall(t *testing.T) {
	inTime(t, func(t *testing.T, s *script, p *Port) {
		begun := time.Now()
		s.head(1, false, ordinary("/x/Echo", "grpc-timeout", "100m")...)
		_ = s.WriteData(1, true, text("a"))
		if got := s.outcome(1); got != "1: status 4" || time.Since(begun) != 100*time.Millisecond {
			t.Errorf("a caller that waits 100ms: %s after %v", got, time.Since(begun))
		}
		s.call(3, "/x/Echo", "a")
		_ = s.WriteRSTStream(3, http2.ErrCodeCancel)
		s.call(5, "/x/Echo", "a")
		s.outcome()
		s.Close()
		p.GracefulStop()
		if took := time.Since(begun); took > time.Second {
			t.Errorf("decisions went on for %v", took)
		}
	})
}

// A caller with TLS that does not read is closed without a farewell: the wait for it would be under a lock that all
// connections need when memory is short.
func TestSlowReadersHoldUpNoOther(t *testing.T) {
	other := httptest.NewTLSServer(nil) // for its certificate
	other.Close()
	c := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: other.TLS.Certificates, NextProtos: []string{"h2"},
		SessionTicketsDisabled: true,
	}
	bubble(t, func(t *testing.T) {
		p := NewPort(Options{Caps: usual, Budget: NewBudget(1 << 20), Security: credentials.NewTLS(c)})
		here, there := net.Pipe()
		p.running.Go(func() { p.welcome(&conn{Conn: there, of: Listen(nil, 0, nil)}) })
		caller := tls.Client(here, &tls.Config{InsecureSkipVerify: true, NextProtos: c.NextProtos}) //nolint:gosec
		greeting := make([]byte, mostFrame)
		if _, err := caller.Read(greeting); err != nil { // and nothing later
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
