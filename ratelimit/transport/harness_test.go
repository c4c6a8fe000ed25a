package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bareCodec is a codec of gRPC that leaves messages bytes.
type bareCodec struct{}

func (bareCodec) Name() string { return "proto" }

func (bareCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bareCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// streams are the methods of /x/ with a handler of their own, by name. Echo and Other answer with their requests.
type streams map[string]func(grpc.ServerStream) error

func (m streams) register(r grpc.ServiceRegistrar) {
	desc := grpc.ServiceDesc{ServiceName: "x", HandlerType: (*any)(nil)}
	for _, name := range []string{"Echo", "Other"} {
		desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: name, Handler: func(
			_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor,
		) (any, error) {
			var message []byte
			err := decode(&message)
			return &message, err
		}})
	}
	for name, handle := range m {
		desc.Streams = append(desc.Streams, grpc.StreamDesc{
			StreamName: name, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return handle(stream) },
		})
	}
	r.RegisterService(&desc, nil)
}

func (m streams) services() *Services {
	s := &Services{Codec: bareCodec{}}
	m.register(s)
	return s
}

// usual are the caps of a node.
var usual = Caps{
	Streams: 1000, HeaderBytes: 8 << 10, MessageBytes: 256 << 10, RequestTimeout: 10 * time.Second,
	Idle: 5 * time.Minute, Age: 24 * time.Hour, AgeGrace: time.Hour,
}

// echoes is a port that answers /x/Echo itself, some calls after a wait.
func echoes(budget *Budget) Options {
	return Options{
		Caps: usual, Budget: budget, Methods: []Method{{Name: "/x/Echo", Answer: echo}}, Services: streams{}.services(),
	}
}

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

// others is a port of echoes whose method /x/Other is that.
func others(handle func(grpc.ServerStream) error) Options {
	o := echoes(NewBudget(64 << 20))
	o.Services = streams{"Other": handle}.services()
	return o
}

// answers is a handler that sends one message.
func answers(size int) func(grpc.ServerStream) error {
	return func(stream grpc.ServerStream) error {
		m := make([]byte, size)
		return stream.SendMsg(&m)
	}
}

// variants make a port of echoes each of the ports that there are. Peers' have no method of their own.
var variants = map[string]func(testing.TB, *Options){
	"callers' port": func(testing.TB, *Options) {},
	"callers' port with a gate and spans": func(_ testing.TB, o *Options) {
		o.Methods[0].Malformed, o.Methods[0].Spans = func(error) {}, noSpans{}
		o.Gate = gated(new(inside))
	},
	"callers' port with TLS": func(t testing.TB, o *Options) { o.Security = certified(t) },
	"peers' port":            func(t testing.TB, o *Options) { o.Methods, o.Security = nil, certified(t) },
}

// noSpans is a handler of spans that makes none.
type noSpans struct{ stats.Handler }

func (noSpans) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (noSpans) HandleRPC(context.Context, stats.RPCStats)                       {}

// certified are credentials for TLS with some certificate.
func certified(t testing.TB) credentials.TransportCredentials {
	other := httptest.NewTLSServer(nil)
	t.Cleanup(other.Close)
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: other.TLS.Certificates, NextProtos: []string{"h2"},
		SessionTicketsDisabled: true,
	})
}

// inside is a gate that counts calls and callers. It refuses all if it is shut.
type inside struct {
	shut                    bool
	mu                      sync.Mutex
	calls, callers, arrived int
	waits                   atomic.Int64
}

// gated is a gate with a clock that stands still.
func gated(g Gate) *Gated {
	refusal := status.New(codes.Unavailable, "overloaded")
	return &Gated{Gate: g, Clock: func() ratelimit.Instant { return 1 }, Refusal: refusal}
}

func (g *inside) Arrive(_ ratelimit.Instant, own int, _ time.Duration) bool {
	if g.shut {
		return false
	}
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

// server is a Port, or a grpc.Server.
type server interface {
	Serve(net.Listener) error
	Stop()
}

// serve has a server serve until the test ends. All calls of a port have ended then.
func serve(t testing.TB, s server) (addr string) {
	t.Helper()
	l := listens(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(Listen(l, 0, nil)) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
		if p, is := s.(*Port); is {
			p.running.Wait()
			if held := p.Budget.Held(); held != 0 {
				t.Errorf("%d bytes are held when all has ended", held)
			}
		}
	})
	return l.Addr().String()
}

// client is a client of grpc-go of a port.
func client(t testing.TB, o Options, more ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	addr := serve(t, NewPort(o))
	conn, err := grpc.NewClient("passthrough:///"+addr,
		append(more, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// connected serves, and connects a script.
func connected(t testing.TB, s server, settings ...http2.Setting) *script {
	t.Helper()
	return dialed(t, serve(t, s), s, settings...)
}

// dialed connects a script to a server, until the test ends.
func dialed(t testing.TB, addr string, s server, settings ...http2.Setting) *script {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if p, is := s.(*Port); is && p.Security.Info().SecurityProtocol == "tls" {
		caller := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // it plays a caller
		c = tls.Client(c, caller)
	}
	script := newScript(c, settings...)
	t.Cleanup(func() { c.Close() })
	return script
}

// bubble runs f in a time of its own, in which the process has just begun.
func bubble(t *testing.T, f func(*testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		defer func(then time.Time) { started = then }(started)
		started = time.Now().Add(-time.Second)
		f(t)
	})
}

// played plays a script against a port, in the time of a bubble. The port's end of the connection may be slow.
func played(t *testing.T, o Options, as *slow, play func(*testing.T, *script, *Port)) {
	bubble(t, func(t *testing.T) {
		p := NewPort(o)
		here, there := net.Pipe()
		as.Conn = there
		p.running.Go(func() { p.welcome(as) })
		s := newScript(here)
		defer time.Sleep(2 * time.Second) // who says something each second finds that it has ended
		defer p.GracefulStop()
		defer s.Close()
		play(t, s, p)
	})
}

// inTime plays a script against a port whose calls wait for ten seconds. Others talk until their callers end them.
func inTime(t *testing.T, play func(*testing.T, *script, *Port)) {
	read := func(stream grpc.ServerStream) error {
		var m []byte
		for stream.RecvMsg(&m) == nil {
		}
		return nil
	}
	o := echoes(NewBudget(16 << 20))
	o.Services = streams{"Other": read, "Answer": answers(100), "Talk": func(stream grpc.ServerStream) error {
		Converse(stream.Context())
		return read(stream)
	}, "Watch": func(stream grpc.ServerStream) error {
		Converse(stream.Context())
		_ = answers(100)(stream)
		return read(stream)
	}}.services()
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
	played(t, o, &slow{}, play)
}

// greeted begins a connection to a port.
func greeted(p *Port) (here net.Conn) {
	here, there := net.Pipe()
	p.running.Go(func() { p.welcome(there) })
	return here
}

// slow is a connection whose writes take a while, before they begin or after. It notes the size of the last one.
type slow struct {
	net.Conn
	before, after time.Duration
	last          atomic.Int64
}

func (s *slow) Write(p []byte) (int, error) {
	s.last.Store(int64(len(p)))
	time.Sleep(s.before)
	defer time.Sleep(s.after)
	return s.Conn.Write(p)
}

// discards is a connection whose writes go nowhere.
type discards struct{ net.Conn }

func (discards) Read([]byte) (int, error)         { return 0, io.EOF }
func (discards) Write(b []byte) (int, error)      { return len(b), nil }
func (discards) SetWriteDeadline(time.Time) error { return nil }

// script is a caller that says frames, and notes what becomes of them.
type script struct {
	*http2.Framer
	net.Conn
	fields  bytes.Buffer
	encoder *hpack.Encoder
	rest    []byte // of a block of headers

	mu     sync.Mutex
	news   *sync.Cond
	became map[uint32]string // of each stream; of 0, the connection
	bodies map[uint32][]byte
	away   []uint32      // the last stream of each GOAWAY
	reads  chan struct{} // pings are answered once it is closed; nil: at once
	pongs  int
	ended  bool
}

// inTurn is a connection that one goroutine after the other writes to. The mutex of a pipe would stop a bubble's time.
type inTurn struct {
	net.Conn
	turn chan struct{}
}

func (c inTurn) Write(b []byte) (int, error) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	return c.Conn.Write(b)
}

// newScript begins a connection, with a preface and settings.
func newScript(c net.Conn, settings ...http2.Setting) *script {
	c = inTurn{c, make(chan struct{}, 1)}
	s := &script{Conn: c, Framer: http2.NewFramer(c, c), became: map[uint32]string{}, bodies: map[uint32][]byte{}}
	s.news = sync.NewCond(&s.mu)
	s.encoder = hpack.NewEncoder(&s.fields)
	s.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	s.AllowIllegalWrites = true
	go func() {
		for {
			f, err := s.ReadFrame()
			if s.note(f, err); err != nil {
				return
			}
		}
	}()
	_, _ = io.WriteString(c, http2.ClientPreface)
	_ = s.WriteSettings(settings...)
	return s
}

// note notes a frame that comes, or the connection's end.
func (s *script) note(f http2.Frame, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.news.Broadcast()
	var id uint32
	what := ""
	if err != nil {
		s.ended, what = true, "ended"
	} else {
		id = f.Header().StreamID
	}
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		for _, h := range f.Fields {
			if h.Name == ":status" && h.Value != "200" {
				what = "http " + h.Value + ", "
			}
			if h.Name == "grpc-status" {
				what += "status " + h.Value
			}
		}
	case *http2.DataFrame:
		s.bodies[id] = append(s.bodies[id], f.Data()...)
	case *http2.RSTStreamFrame:
		if f.ErrCode != http2.ErrCodeNo {
			what = "reset " + f.ErrCode.String()
		}
	case *http2.GoAwayFrame:
		s.away = append(s.away, f.LastStreamID)
		if f.ErrCode != http2.ErrCodeNo {
			what = "ended"
		}
	case *http2.PingFrame:
		if f.IsAck() {
			s.pongs++
			break
		}
		pong, reads := appendFrame(nil, framePing, flagAck, 0, f.Data[:]), s.reads
		go func() { // the Framer is another goroutine's
			if reads != nil {
				<-reads
			}
			_, _ = s.Write(pong)
		}()
	}
	if what != "" && s.became[id] == "" {
		s.became[id] = what
	}
}

// await waits until something holds of what has come, or the connection ends.
func (s *script) await(held func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.ended && !held() {
		s.news.Wait()
	}
}

// awaits waits until something has become of each stream.
func (s *script) awaits(streams ...uint32) {
	for _, id := range streams {
		s.await(func() bool { return s.became[id] != "" })
	}
}

// outcome waits until the streams and all frames have been dealt with, and tells what became of them.
func (s *script) outcome(streams ...uint32) string {
	s.awaits(streams...)
	s.mu.Lock()
	pongs := s.pongs
	s.mu.Unlock()
	_ = s.WritePing(false, [8]byte{'e', 'n', 'd'})
	s.await(func() bool { return s.pongs > pongs })
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, id := range slices.Sorted(maps.Keys(s.became)) {
		all = append(all, fmt.Sprintf("%d: %s", id, s.became[id]))
	}
	return strings.Join(all, ", ")
}

// stands has the caller read nothing, so that its pings are not answered, until the returned function is called.
func (s *script) stands() (goOn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reads := make(chan struct{})
	s.reads = reads
	return func() { close(reads) }
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

// block packs fields, given as pairs of a name and a value.
func (s *script) block(pairs ...string) []byte {
	s.fields.Reset()
	for i := 0; i < len(pairs); i += 2 {
		_ = s.encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return bytes.Clone(s.fields.Bytes())
}

func ordinary(method string, more ...string) []string {
	return append([]string{
		":method", "POST", ":scheme", "http", ":path", method, ":authority", "a", "content-type", "application/grpc",
		"te", "trailers",
	}, more...)
}

// head says the headers of a call.
func (s *script) head(id uint32, end bool, pairs ...string) {
	_ = s.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: s.block(pairs...), EndHeaders: true, EndStream: end,
	})
}

// call says a whole call.
func (s *script) call(id uint32, method, content string) {
	s.head(id, false, ordinary(method)...)
	_ = s.WriteData(id, true, text(content))
}

// windows lets each stream answer so many bytes.
func (s *script) windows(bytes uint32) {
	_ = s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: bytes})
}

// says sends frames, with ; between two, until one cannot be written. Streams come first, methods and fields then:
//
//	call 1 METHOD BYTES        a whole call, of one message
//	head 1 METHOD FIELDS       its usual headers, where -NAME leaves out one, NAME=VALUE changes or adds one, and
//	                           +NAME=VALUE adds one; "only" ends the stream by them, "trailers" are only these
//	piece 1 METHOD N           N bytes of its block of headers; "more 1 N" of the rest, and "rest 1"
//	data 1 BYTES, end 1 BYTES  of its body, the last ones with the end of the stream
//	raw TYPE FLAGS 1 BYTES     any frame; "bytes BYTES", what is none
//	await 1                    until something has become of a stream
//
// BYTES and VALUE are as in Go, without quotes. <TEXT> is a message of gRPC, and TEXT*N is N times a text.
func (s *script) says(frames string) (err error) {
	for said := range strings.SplitSeq(strings.TrimSuffix(frames, "; "), "; ") {
		words := append(strings.Fields(said), "", "", "", "", "")
		number := func(i int) uint32 {
			n, _ := strconv.ParseUint(words[i], 0, 32)
			return uint32(n)
		}
		id := number(1)
		switch words[0] {
		case "call":
			s.call(id, words[2], string(bytesOf(words[3])))
		case "head", "only":
			s.head(id, words[0] == "only", fieldsOf(ordinary(words[2]), words[3:])...)
		case "trailers":
			s.head(id, true, fieldsOf(nil, words[2:])...)
		case "piece":
			b := s.block(ordinary(words[2])...)
			s.rest = b[number(3):]
			err = s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b[:number(3)]})
		case "more":
			n := number(2)
			err = s.WriteContinuation(id, false, s.rest[:n])
			s.rest = s.rest[n:]
		case "rest":
			err = s.WriteContinuation(id, true, s.rest)
		case "data":
			err = s.WriteRawFrame(http2.FrameData, 0, id, bytesOf(words[2]))
		case "end":
			err = s.WriteRawFrame(http2.FrameData, http2.FlagDataEndStream, id, bytesOf(words[2]))
		case "raw":
			var kind http2.FrameType
			for kind.String() != words[1] {
				kind++
			}
			err = s.WriteRawFrame(kind, http2.Flags(number(2)), number(3), bytesOf(words[4]))
		case "bytes":
			_, err = s.Write(bytesOf(words[1]))
		case "await":
			s.awaits(id)
		default:
			panic("what is " + said)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

const noWindow = `raw SETTINGS 0 0 \x00\x04\x00\x00\x00\x00; `

func bytesOf(word string) []byte {
	if once, times, many := strings.Cut(word, "*"); many {
		n, _ := strconv.Atoi(times)
		return bytes.Repeat(bytesOf(once), n)
	}
	inner, message := strings.CutPrefix(word, "<")
	said, err := strconv.Unquote(`"` + strings.TrimSuffix(inner, ">") + `"`)
	switch {
	case err != nil:
		panic(word)
	case message:
		return text(said)
	}
	return []byte(said)
}

func fieldsOf(pairs, words []string) []string {
	for _, word := range words {
		name, value, set := strings.Cut(word, "=")
		at := slices.Index(pairs, strings.TrimPrefix(name, "-"))
		switch {
		case word == "":
		case !set:
			pairs = slices.Delete(pairs, at, at+2)
		case at >= 0:
			pairs[at+1] = string(bytesOf(value))
		default:
			pairs = append(pairs, strings.TrimPrefix(name, "+"), string(bytesOf(value)))
		}
	}
	return pairs
}

// text is a message of gRPC.
func text(content string) []byte {
	b := prefix(len(content))
	return append(b[:], content...)
}

// grown is by how many bytes the heap grows.
func grown(do func()) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	do()
	runtime.GC()
	runtime.GC() // of pools
	runtime.ReadMemStats(&after)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}
