package transport

import (
	"bytes"
	"context"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Streams that are begun and reset do not add up to more handlers than a connection may have calls.
func TestResetCallsKeepTheirPlaceUntilTheirHandlerEnds(t *testing.T) {
	o := echoes(NewBudget(1 << 20))
	o.Caps.Streams = 10
	var running, most atomic.Int32
	o.Services = streams{"Other": func(grpc.ServerStream) error {
		most.Store(max(most.Load(), running.Add(1)))
		time.Sleep(time.Second) // as one that does not look at its context
		running.Add(-1)
		return nil
	}}.services()
	played(t, o, slow{}, func(t *testing.T, s *script, p *Port) {
		_ = s.WriteSettingsAck()
		for i := range uint32(500) {
			s.head(2*i+1, false, ordinary("/x/Other")...)
			_ = s.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}
		s.outcome()
		if n := most.Load(); n > 10 {
			t.Errorf("%d handlers ran at once, of a connection with %d calls", n, o.Caps.Streams)
		}
		if p.Budget.Held() < int64(running.Load())*exchangeCost {
			t.Errorf("%d bytes are held for %d handlers", p.Budget.Held(), running.Load())
		}
		time.Sleep(2 * time.Second)
		if p.Budget.Held() != 0 {
			t.Errorf("%d bytes are held", p.Budget.Held())
		}
		s.call(1001, "/x/Other", "a")
		if got := s.outcome(); s.became[1001] != "" {
			t.Errorf("a later call: %s", got[max(0, len(got)-50):])
		}
	})
}

// Settings that change the windows cost the same, however many calls are open.
func TestSettingsCostTheirSize(t *testing.T) {
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
		begun := time.Now()
		for i := range uint32(20_000) {
			c.idle = idle{}
			change := appendSettings(nil, uint32(http2.SettingInitialWindowSize), 1+i%2)
			if _, err := c.framesLocked(change); err != nil {
				t.Fatal(err)
			}
			c.out.frames = c.out.frames[:0]
		}
		return time.Since(begun)
	}
	// The least of several: a busy machine takes the processor from one.
	one, many := min(took(1), took(1), took(1)), min(took(1000), took(1000), took(1000))
	t.Logf("20,000 frames took %v with a call, %v with a thousand", one, many)
	if many > 5*one {
		t.Errorf("with a thousand calls, it is %v instead of %v", many, one)
	}
}

// A caller whose answers wait for windows, and who gives none, cannot have them looked at again and again.
func TestLooksAtBlockedAnswersAreFewer(t *testing.T) {
	o := echoes(NewBudget(64 << 20))
	p := NewPort(o)
	s := connectedTo(t, p, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	for i := range uint32(500) {
		s.call(2*i+1, "/x/Echo", "a")
	}
	for range 1000 {
		if s.WriteWindowUpdate(0, 1) != nil {
			break
		}
	}
	if got := s.outcome(); got != "0: ended" || p.Budget.Excess.Load() != 1 {
		t.Errorf("%q, %d are counted", got, p.Budget.Excess.Load())
	}
}

// What handlers hold whose calls have ended counts until they find that. It keeps a connection from having more than
// one call of services, and no rate limit call.
func TestEndedHandlersCount(t *testing.T) {
	o := echoes(NewBudget(1 << 20))
	goOn := make(chan struct{})
	o.Services = streams{"Other": func(grpc.ServerStream) error { <-goOn; return nil }}.services()
	p := NewPort(o)
	first, second := connectedTo(t, p), script1(t, p)
	const calls = 1 << 20 / 8 / exchangeCost
	for i := range uint32(calls + 1) {
		first.call(2*i+1, "/x/Other", "a")
	}
	first.outcome()
	first.Close()
	for p.Budget.ending.Load() < calls*exchangeCost {
		runtime.Gosched()
	}
	for id, method := range []string{0: "/x/Other", 1: "/x/Other", 2: "/x/Echo"} {
		second.call(2*uint32(id)+1, method, "a")
	}
	if got := second.outcome(3, 5); got != "3: status 8, 5: status 0" {
		t.Error(got)
	}
	close(goOn)
	for p.Budget.Held() > 0 {
		runtime.Gosched()
	}
	second.call(7, "/x/Other", "a")
	if got := second.outcome(1, 7); got != "1: status 0, 3: status 8, 5: status 0, 7: status 0" {
		t.Error(got)
	}
}

// script1 is one more connection to a port.
func script1(t *testing.T, p *Port) *script {
	here, there := net.Pipe()
	p.running.Go(func() { p.welcome(there) })
	s := newScriptRead(here)
	t.Cleanup(func() { s.Close() })
	return s
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
	s := connectedTo(t, NewPort(o), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	expect := func(what string, arrived int) {
		t.Helper()
		s.outcome()
		gate.mu.Lock()
		defer gate.mu.Unlock()
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
}

// A Talk that has ended is not kept for a ping without an answer.
func TestEndedTalksLeaveNoReceipts(t *testing.T) {
	c := newConnection(NewPort(echoes(nil)), discards{}, nil, nil)
	for id := uint32(1); id < 200; id += 2 {
		s := c.newStreamLocked(id)
		s.exchange = &exchange{of: c, stream: s, ctx: t.Context(), cancel: func() {}, news: sync.NewCond(&c.mu)}
		talk, _ := Converse(context.WithValue(t.Context(), exchangeKey{}, s.exchange))
		talk.Receipts()
		if err := s.exchange.SendMsg(&[]byte{1}); err != nil {
			t.Fatal(err)
		}
		c.closeLocked(s)
	}
	if n := len(c.receipts.wait); n > 0 {
		t.Errorf("%d receipts are kept", n)
	}
}

// A caller with the longest deadline there is, as grpc-java says it, is not late.
func TestTheLongestDeadline(t *testing.T) {
	o := echoes(nil)
	o.Caps.Idle = 0
	o.Methods[0].Answer = func(ctx context.Context, _, out []byte) ([]byte, error) { return out, ctx.Err() }
	played(t, o, slow{}, func(t *testing.T, s *script, _ *Port) {
		time.Sleep(time.Hour) // since the process began
		s.head(1, false, ordinary("/x/Echo", "grpc-timeout", "2562047H")...)
		_ = s.WriteData(1, true, text("a"))
		if got := s.outcome(1); got != "1: status 0" {
			t.Error(got)
		}
	})
}

// A Drain writes the answers that were given while another goroutine wrote.
func TestDrainWaitsForTheWriter(t *testing.T) {
	o := echoes(nil)
	o.Methods[0].Answer = func(ctx context.Context, in, out []byte) ([]byte, error) {
		out = append(out, in...)
		ratelimit.Waits(ctx)
		time.Sleep(time.Duration(out[0]) * 10 * time.Millisecond)
		return out, nil
	}
	played(t, o, slow{before: 100 * time.Millisecond}, func(t *testing.T, s *script, p *Port) {
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

// failing is a listener that fails once, as one without a file descriptor does.
type failing struct {
	net.Listener
	failed atomic.Bool
}

func (l *failing) Accept() (net.Conn, error) {
	if !l.failed.Swap(true) {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// A port goes on when there was no file descriptor for a connection.
func TestPortOutlivesALackOfDescriptors(t *testing.T) {
	l := listens(t)
	p := NewPort(echoes(nil))
	served := make(chan error, 1)
	go func() { served <- p.Serve(Listen(&failing{Listener: l}, 0, nil)) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, http2.ClientPreface)
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	p.Stop()
	select {
	case err := <-served:
		t.Log(err)
	case <-time.After(5 * time.Second):
		t.Error("it serves after Stop")
	}
}

// goAways notes the last stream of each GOAWAY.
func goAways(r io.Reader) (all []uint32) {
	for f := http2.NewFramer(io.Discard, r); ; {
		frame, err := f.ReadFrame()
		if err != nil {
			return all
		}
		if g, ok := frame.(*http2.GoAwayFrame); ok {
			all = append(all, g.LastStreamID)
		}
	}
}

// The last stream never rises from one GOAWAY to the next (RFC 9113, 6.8), whatever the caller begins meanwhile.
func TestLastStreamNeverRises(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := NewPort(echoes(nil))
		here := greeted(p)
		var all []uint32
		var reads sync.WaitGroup
		reads.Go(func() { all = goAways(here) })
		s := newScript(here)
		s.head(1, false, ordinary("/x/Echo")...)
		go p.GracefulStop()
		time.Sleep(lastCalls + time.Second) // its pings are not answered
		s.call(3, "/x/Echo", "a")
		s.call(5, "/x/Echo", "a")
		_ = s.WriteData(1, true, text("a"))
		reads.Wait()
		here.Close()
		for i := 1; i < len(all); i++ {
			if all[i] > all[i-1] {
				t.Errorf("the last streams are %v", all)
			}
		}
	})
}

// inside counts the calls and callers of a gate.
type inside struct {
	mu                      sync.Mutex
	calls, callers, arrived int
	waits                   atomic.Int64
}

func (g *inside) Arrive(_ ratelimit.Instant, own int, _ time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls++
	g.arrived++
	if own == 0 {
		g.callers++
	}
	return true
}

func (g *inside) Leave(_ ratelimit.Instant, own, calls int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls -= calls
	if own == 0 {
		g.callers--
	}
}
func (g *inside) Begin() { g.waits.Add(1) }
func (g *inside) End()   { g.waits.Add(-1) }

// All calls leave the gate, also those whose answers are being written when their connection ends.
func TestCallsLeaveTheGateWhenTheirConnectionEnds(t *testing.T) {
	o, gate := echoes(nil), &inside{}
	o.Gate = &Gated{Gate: gate, Clock: func() ratelimit.Instant { return 1 }}
	played(t, o, slow{after: 100 * time.Millisecond}, func(t *testing.T, s *script, p *Port) {
		time.Sleep(time.Second)
		s.call(1, "/x/Echo", "b") // it waits, so that its own goroutine writes
		s.await(func() bool { return s.became[1] != "" })
		s.Close()
		p.GracefulStop()
		synctest.Wait()
		if gate.calls != 0 || gate.callers != 0 {
			t.Errorf("%d calls and %d callers are inside", gate.calls, gate.callers)
		}
	})
}

// An answer of the handler that its caller does not take ends the connection in time.
func TestAnswersOfTheHandlerAreTaken(t *testing.T) {
	o := echoes(nil)
	answer := make([]byte, 100)
	o.Services = streams{"Other": func(stream grpc.ServerStream) error { return stream.SendMsg(&answer) }}.services()
	played(t, o, slow{}, func(t *testing.T, s *script, _ *Port) {
		_ = s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		s.call(1, "/x/Other", "a")
		s.endsAfter(t, 9*time.Second, 12*time.Second)
	})
}

// An answer that waits for its own window does not hold up others.
func TestBlockedAnswersDoNotBlockOthers(t *testing.T) {
	s := onPort(t, usual, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	s.call(1, "/x/Echo", "a")
	s.call(3, "/x/Echo", "a")
	_ = s.WriteWindowUpdate(3, 100)
	if got := s.outcome(3); got != "3: status 0" {
		t.Error(got)
	}
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
	s := newScript(here, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	_ = s.WriteWindowUpdate(0, 1<<20)
	const answers = 50
	for i := range uint32(answers) {
		s.call(2*i+1, "/x/Echo", string(bytes.Repeat([]byte("a"), 4001)))
	}
	var got bytes.Buffer
	chunk := make([]byte, 100)
	for range 5 { // it has begun to read
		n, _ := here.Read(chunk)
		got.Write(chunk[:n])
	}
	stopped := make(chan struct{})
	go func() { p.GracefulStop(); close(stopped) }()
	pong := appendFrame(nil, framePing, flagAck, 0, goodbye[:])
	time.Sleep(100 * time.Millisecond)
	// It answers the ping, and says more than that.
	_, _ = here.Write(pong)
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

// What the handler's own gRPC keeps of a request counts, in however small pieces it comes.
func TestSmallPiecesCount(t *testing.T) {
	caps := usual
	budget := NewBudget(16 << 20)
	c, err := net.Dial("tcp", servePort(t, Options{Caps: caps, Budget: budget, Services: echoServices()}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := newScript(c)
	read := make(chan struct{})
	go func() { defer close(read); s.read() }()
	s.head(1, false, ordinary("/x/Other")...)
	all := text(string(make([]byte, 200<<10)))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for ; len(all) > 64; all = all[32:] {
		if s.WriteData(1, false, all[:32]) != nil {
			break // it was ended
		}
		time.Sleep(20 * time.Microsecond) // each is read on its own
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	grew := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("the heap grew by %d KB, of a budget of 16 MB, which counts %d KB; %d were ended",
		grew>>10, budget.Held()>>10, budget.Heaviest.Load())
	if grew > 32<<20 {
		t.Error("more than twice the budget")
	}
	c.Close()
	<-read
}

// A message of the largest size finds a window, though it comes behind a small one.
func TestTalksHaveRoomForTheLargestMessage(t *testing.T) {
	s, _, conn, _ := serveTalks(t, 1)
	stream, _ := s.opens(t, conn)
	for _, size := range []int{60 << 10, 250 << 10, 60 << 10, 250 << 10} {
		report := &rlqs.RateLimitQuotaUsageReports{Domain: string(bytes.Repeat([]byte("d"), size))}
		if err := stream.Send(report); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(size, err)
		}
	}
}

// A large request that is decided with others counts.
func TestLargeRequestsThatWaitCount(t *testing.T) {
	inTime(t, func(t *testing.T, s *script, p *Port) {
		for id := uint32(1); id < 20; id += 2 {
			s.call(id, "/x/Echo", string(make([]byte, 10<<10)))
		}
		s.outcome()
		if held := p.Budget.Held(); held < 100<<10 {
			t.Errorf("10 calls of 10 KB hold %d bytes", held)
		}
	})
}

// A connection that shakes hands while the port is stopped ends.
func TestStopEndsConnectionsThatBegin(t *testing.T) {
	inTime(t, func(t *testing.T, _ *script, p *Port) {
		late := greeted(p)
		time.Sleep(time.Second)
		p.Stop()
		l := newScriptRead(late)
		l.head(1, false, ordinary("/x/Talk")...)
		l.endsAfter(t, 0, time.Second)
		late.Close()
	})
}

// A connection that had a large frame, and has begun a small one, keeps no room for another large one.
func TestBeginningsOfFramesKeepLittle(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	c := newConnection(NewPort(Options{}), ours, ours, nil)
	large := appendFrame(nil, 0xee, 0, 0, make([]byte, mostFrame)) // an extension
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	go func() {
		_, _ = theirs.Write(appendSettings(nil))
		for ; len(large) > 1; large = large[1:] {
			_, _ = theirs.Write(large[:1])
		}
		_, _ = theirs.Write(append(large, 0, 0))
		_, _ = theirs.Write([]byte{9})
	}()
	for most := 0; len(c.in.rest) != 3 || most < mostFrame; most = max(most, len(c.in.rest)) {
		if err := c.read(); err != nil {
			t.Fatal(err)
		}
	}
	if got := cap(c.in.batch); got > 2*smallBytes {
		t.Errorf("for 3 bytes, it keeps %d", got)
	}
}

// An answer without data brings its caller no idle frames beyond those of the call.
func TestFailedCallsEarnLittle(t *testing.T) {
	c := newConnection(NewPort(Options{Methods: []Method{{Name: "/m", Answer: echo}}}), nil, nil, nil)
	var block bytes.Buffer
	pack := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":path", "/m"}, {"content-type", "application/grpc"}} {
		_ = pack.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	b := appendFrame(appendSettings(nil), frameHeaders, flagEndHeaders|flagEndStream, 1, block.Bytes())
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.framesLocked(b); err != nil || len(c.calls.open) > 0 || c.idle.credit != framesACall {
		t.Errorf("a call without a request earned %d frames: %v", c.idle.credit, err)
	}
}

// notes is a connection that notes how many bytes its last write has.
type notes struct {
	net.Conn
	writes atomic.Int64
}

func (n *notes) Write(b []byte) (int, error) {
	n.writes.Store(int64(len(b)))
	return n.Conn.Write(b)
}

// What is written to a caller that does not read counts, also what answers no open call. For a few bytes of a header
// block, the answer can have a name that is sixty times as long. After a moment, such a caller ends before others.
func TestUnreadAnswersCount(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := NewPort(echoes(NewBudget(16 << 20)))
		here, there := net.Pipe()
		written := &notes{Conn: there}
		p.running.Go(func() { p.welcome(written) })
		b := append([]byte(http2.ClientPreface), appendSettings(nil)...)
		caller, path := newScript(discards{}), "/"+strings.Repeat("\U000e0001", 100)
		for id := uint32(1); len(b) < smallBytes-100; id += 2 {
			b = appendHeaders(b, flagEndStream, id, caller.block(ordinary(path)...))
		}
		go func() { _, _ = io.CopyN(io.Discard, here, frameHeader+3*6+frameHeader+4) }()
		_, _ = here.Write(b)
		synctest.Wait()
		if held, size := p.Budget.Held(), written.writes.Load(); size < 20*smallBytes || held != size {
			t.Errorf("%d bytes wait to be written, %d are held", size, held)
		}
		for c := range p.open {
			time.Sleep(moment)
			if _, long := c.holds(nanotime() - int64(moment)); long != written.writes.Load() {
				t.Errorf("%d bytes are held for long", long)
			}
		}
		here.Close()
		p.GracefulStop()
		if held := p.Budget.Held(); held != 0 {
			t.Errorf("%d bytes are held when all has ended", held)
		}
	})
}

// A message of a service that waits for a window counts, as those of the port's own method do.
func TestMessagesWithoutAWindowCount(t *testing.T) {
	o, size := echoes(NewBudget(16<<20)), 200<<10
	o.Services = streams{"Other": func(stream grpc.ServerStream) error {
		m := make([]byte, size)
		return stream.SendMsg(&m)
	}}.services()
	played(t, o, slow{}, func(t *testing.T, s *script, p *Port) {
		_ = s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		s.call(1, "/x/Other", "a")
		synctest.Wait()
		if held := p.Budget.Held(); held < int64(size) {
			t.Errorf("%d bytes are held", held)
		}
		_ = s.WriteWindowUpdate(0, 1<<20)
		_ = s.WriteWindowUpdate(1, 1<<20)
		s.outcome(1)
		synctest.Wait()
		if held := p.Budget.Held(); held != 0 {
			t.Errorf("%d bytes are held when all is written", held)
		}
	})
}

// Talks that wait keep no room of the messages that they have had: they may be as many as callers open.
func TestWaitingTalksKeepLittle(t *testing.T) {
	const size, talks = 30 << 10, 400
	o := echoes(NewBudget(16 << 20))
	o.Services = streams{"Other": func(stream grpc.ServerStream) error {
		talk, _ := Converse(stream.Context())
		for {
			var m []byte
			if err := stream.RecvMsg(&m); err != nil {
				return err
			}
			talk.Received()
			if err := stream.SendMsg(&m); err != nil {
				return err
			}
		}
	}}.services()
	s := connectedTo(t, NewPort(o), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	_ = s.WriteWindowUpdate(0, 1<<30)
	message := text(strings.Repeat("a", size))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for id := uint32(1); id < 2*talks; id += 2 {
		s.head(id, false, ordinary("/x/Other")...)
		_ = s.WriteData(id, false, message[:mostFrame])
		_ = s.WriteData(id, false, message[mostFrame:])
		s.await(func() bool { return len(s.bodies[id]) == len(message) })
		s.mu.Lock()
		delete(s.bodies, id)
		s.mu.Unlock()
	}
	runtime.GC()
	runtime.GC() // of pools
	runtime.ReadMemStats(&after)
	if each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / talks; each > 2*talkCost {
		t.Errorf("each talk keeps %d bytes, and counts %d", each, talkCost)
	}
}

// Several parts of a decision may wait, each in a goroutine of its own: one other goroutine leads, and no more.
func TestPartsOfADecisionWait(t *testing.T) {
	o, gate := echoes(nil), &inside{}
	o.Gate = &Gated{Gate: gate, Clock: func() ratelimit.Instant { return 1 }}
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
	const calls = 2000
	s := connectedTo(t, NewPort(o))
	for id := uint32(1); id < 2*calls; id += 2 {
		s.call(id, "/x/Echo", "a")
		s.await(func() bool { return s.became[id] != "" })
	}
	if n := gate.waits.Load(); n > 0 {
		t.Errorf("%d of %d calls had two goroutines lead", n, calls)
	}
}

// A caller cannot have handlers whose messages wait for a window wake again and again, by windows of a byte.
func TestWakesOfHandlersAreFewer(t *testing.T) {
	o := echoes(NewBudget(64 << 20))
	o.Services = streams{"Other": func(stream grpc.ServerStream) error {
		m := make([]byte, 200)
		return stream.SendMsg(&m)
	}}.services()
	played(t, o, slow{}, func(t *testing.T, s *script, p *Port) {
		_ = s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for i := range uint32(500) {
			s.call(2*i+1, "/x/Other", "a")
		}
		again := appendFrame(nil, frameSettings, 0, 0, []byte{0, 4, 0, 0, 0, 1})
		again = appendFrame(again, frameSettings, 0, 0, []byte{0, 4, 0, 0, 0, 0})
		for range 100 { // far fewer frames than may be idle
			_, _ = s.Write(again)
			synctest.Wait() // all handlers wait again
		}
		if n := p.Budget.Excess.Load(); n != 1 {
			t.Errorf("%d are counted", n)
		}
	})
}
