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
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
)

// bare is a codec of gRPC that leaves messages bytes.
type bareCodec struct{}

func (bareCodec) Name() string { return "proto" }

func (bareCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bareCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = bareCodec{}

// registerEchoes has a server answer two methods with their requests.
func registerEchoes(r grpc.ServiceRegistrar) {
	method := func(name string) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(
			_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor,
		) (any, error) {
			var message []byte
			err := decode(&message)
			return &message, err
		}}
	}
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: "x", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{method("Echo"), method("Other")},
	}, nil)
}

// grpcEchoes is a server of grpc-go that answers as a Port of echoes: the oracle.
func grpcEchoes(caps Caps) *grpc.Server {
	s := grpc.NewServer(grpc.ForceServerCodecV2(bareCodec{}), grpc.MaxRecvMsgSize(caps.MessageBytes),
		grpc.MaxConcurrentStreams(caps.Streams), grpc.MaxHeaderListSize(caps.HeaderBytes))
	registerEchoes(s)
	return s
}

// echoServices are the same as services of a Port.
func echoServices() *Services {
	s := &Services{Codec: bareCodec{}}
	registerEchoes(s)
	return s
}

// streams are the methods of a service, by name.
type streams map[string]func(grpc.ServerStream) error

// services are those of /x/.
func (m streams) services() *Services {
	s := &Services{Codec: bareCodec{}}
	desc := grpc.ServiceDesc{ServiceName: "x", HandlerType: (*any)(nil)}
	for name, handle := range m {
		desc.Streams = append(desc.Streams, grpc.StreamDesc{
			StreamName: name, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return handle(stream) },
		})
	}
	s.RegisterService(&desc, nil)
	return s
}

// script is a caller that says frames, and notes what becomes of them.
type script struct {
	*http2.Framer
	net.Conn
	fields  bytes.Buffer
	encoder *hpack.Encoder

	mu     sync.Mutex
	news   *sync.Cond
	became map[uint32]string // of each stream; of 0, the connection
	bodies map[uint32][]byte
	pongs  int
	ended  bool
}

// newScript begins a connection, with a preface and settings.
func newScript(c net.Conn, settings ...http2.Setting) *script {
	s := &script{Conn: c, Framer: http2.NewFramer(c, c), became: map[uint32]string{}, bodies: map[uint32][]byte{}}
	s.news = sync.NewCond(&s.mu)
	s.encoder = hpack.NewEncoder(&s.fields)
	s.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	s.AllowIllegalWrites = true
	_, _ = io.WriteString(c, http2.ClientPreface)
	_ = s.WriteSettings(settings...)
	return s
}

// read notes what comes, until the connection ends.
func (s *script) read() {
	for {
		f, err := s.ReadFrame()
		s.mu.Lock()
		if err != nil {
			s.ended = true
			if s.became[0] == "" {
				s.became[0] = "ended"
			}
			s.news.Broadcast()
			s.mu.Unlock()
			return
		}
		id, what := f.Header().StreamID, ""
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
			if f.ErrCode != http2.ErrCodeNo {
				what = "ended"
			}
		case *http2.PingFrame:
			if f.IsAck() {
				s.pongs++
			} else {
				pong := appendFrame(nil, framePing, flagAck, 0, f.Data[:]) // the Framer is another goroutine's
				go func() { _, _ = s.Write(pong) }()
			}
		}
		if what != "" && s.became[id] == "" {
			s.became[id] = what
		}
		s.news.Broadcast()
		s.mu.Unlock()
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

// block packs fields, given as pairs of a name and a value.
func (s *script) block(pairs ...string) []byte {
	s.fields.Reset()
	for i := 0; i < len(pairs); i += 2 {
		_ = s.encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return slices.Clone(s.fields.Bytes())
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

// text is a message of gRPC.
func text(content string) []byte {
	b := prefix(len(content))
	return append(b[:], content...)
}

// flagged is a message whose first byte is that.
func flagged(first byte) []byte {
	b := text("a")
	b[0] = first
	return b
}

// call says a whole call.
func (s *script) call(id uint32, method, content string) {
	s.head(id, false, ordinary(method)...)
	_ = s.WriteData(id, true, text(content))
}

// outcome waits until the streams and all frames have been dealt with, and tells what became of them.
func (s *script) outcome(streams ...uint32) string {
	for _, id := range streams {
		s.await(func() bool { return s.became[id] != "" })
	}
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

// variants are the ports that there are: of callers, with and without TLS, and of peers, which have no method of their
// own.
var variants = map[string]func(testing.TB, Caps) Options{
	"callers' port": callersPort,
	"callers' port with a gate and spans": func(t testing.TB, caps Caps) Options {
		o := callersPort(t, caps)
		o.Methods[0].Malformed, o.Methods[0].Spans = func(error) {}, noSpans{}
		o.Gate = gated(always(true))
		return o
	},
	"callers' port with TLS": func(t testing.TB, caps Caps) Options {
		o := callersPort(t, caps)
		o.Security = certified(t)
		return o
	},
	"peers' port": func(t testing.TB, caps Caps) Options {
		o := callersPort(t, caps)
		o.Methods, o.Security = nil, certified(t)
		return o
	},
}

func callersPort(_ testing.TB, caps Caps) Options {
	methods := []Method{{Name: "/x/Echo", Answer: echo}}
	return Options{Caps: caps, Budget: NewBudget(1 << 20), Methods: methods, Services: echoServices()}
}

// gated is a gate with a clock that stands still.
func gated(g Gate) *Gated {
	refusal := status.New(codes.Unavailable, "overloaded")
	return &Gated{Gate: g, Clock: func() ratelimit.Instant { return 1 }, Refusal: refusal}
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
	})
}

// onPort and onGRPC connect a script to a server of echoes.
func onPort(t testing.TB, caps Caps, settings ...http2.Setting) *script {
	return connectedTo(t, NewPort(variants["callers' port"](t, caps)), settings...)
}

// connectedTo connects a script to a port, whose calls must all have ended at the end.
func connectedTo(t testing.TB, p *Port, settings ...http2.Setting) *script {
	return connected(t, p.Security.Info().SecurityProtocol == "tls", p.Serve, p.Stop, func() {
		p.running.Wait()
		if held := p.Budget.Held(); held != 0 {
			t.Errorf("%d bytes are held when all has ended", held)
		}
	}, settings...)
}

func onGRPC(t testing.TB, caps Caps, settings ...http2.Setting) *script {
	s := grpcEchoes(caps)
	return connected(t, false, s.Serve, s.Stop, func() {}, settings...)
}

func connected(
	t testing.TB, secure bool, serve func(net.Listener) error, stop, after func(), settings ...http2.Setting,
) *script {
	l := listens(t)
	served := make(chan error, 1)
	go func() { served <- serve(Listen(l, 0, nil)) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if secure {
		caller := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // it plays a caller
		c = tls.Client(c, caller)
	}
	s := newScript(c, settings...)
	read := make(chan struct{})
	go func() { defer close(read); s.read() }()
	t.Cleanup(func() {
		c.Close()
		<-read
		stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
		after()
	})
	return s
}

// What becomes of frames is as with grpc-go, where the table does not say otherwise.
func TestFramesEndAsWithGRPC(t *testing.T) {
	const echoed, other, ignored = "/x/Echo", "/x/Other", "grpc-go ignores it"
	servers := map[string]func(testing.TB, Caps, ...http2.Setting) *script{"grpc-go": onGRPC}
	for name, variant := range variants {
		servers[name] = func(t testing.TB, caps Caps, settings ...http2.Setting) *script {
			return connectedTo(t, NewPort(variant(t, caps)), settings...)
		}
	}
	large := strings.Repeat("b", 5<<10)
	bad := func(kind http2.FrameType, id uint32, payload ...byte) func(*script) {
		return func(s *script) { _ = s.WriteRawFrame(kind, 0, id, payload) }
	}
	with := func(method string, more ...string) func(*script) {
		return func(s *script) {
			s.head(1, false, ordinary(method, more...)...)
			_ = s.WriteData(1, true, text("a"))
		}
	}
	headed := func(field int, value string) func(*script) {
		return func(s *script) {
			p := ordinary(echoed)
			p[field] = value
			s.head(1, true, p...)
		}
	}
	data := func(method string, end bool, b []byte) func(*script) {
		return func(s *script) {
			s.head(1, false, ordinary(method)...)
			_ = s.WriteData(1, end, b)
		}
	}
	for name, x := range map[string]struct {
		play    func(*script)
		streams []uint32
		want    string
		differs string // why the port differs from grpc-go
	}{
		"calls": {func(s *script) {
			for i := range uint32(5) {
				s.call(2*i+1, []string{echoed, other}[i%2], strings.Repeat("a", int(i)))
			}
		}, []uint32{1, 3, 5, 7, 9}, "1: status 0, 3: status 0, 5: status 0, 7: status 0, 9: status 0", ""},
		"pieces": {func(s *script) {
			s.head(1, false, ordinary(echoed)...)
			for i, b := range text("abc") {
				_ = s.WriteData(1, i == 7, []byte{b})
			}
		}, []uint32{1}, "1: status 0", ""},
		"padding and priority": {func(s *script) {
			_ = s.WriteHeaders(http2.HeadersFrameParam{
				StreamID: 1, BlockFragment: s.block(ordinary(echoed)...), EndHeaders: true, PadLength: 9,
				Priority: http2.PriorityParam{StreamDep: 0, Weight: 3},
			})
			_ = s.WriteDataPadded(1, true, text("a"), make([]byte, 200))
		}, []uint32{1}, "1: status 0", ""},
		"a block in pieces": {func(s *script) {
			b := s.block(ordinary(echoed)...)
			_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:3]})
			_ = s.WriteContinuation(1, false, b[3:9])
			_ = s.WriteContinuation(1, true, b[9:])
			_ = s.WriteData(1, true, text("a"))
		}, []uint32{1}, "1: status 0", ""},
		"a reset": {func(s *script) {
			s.head(1, false, ordinary(echoed)...)
			_ = s.WriteRSTStream(1, http2.ErrCodeCancel)
			_ = s.WriteData(1, true, text("a"))
			s.call(3, echoed, "b")
		}, []uint32{3}, "3: status 0", ""},
		"extensions": {func(s *script) {
			_ = s.WriteRawFrame(0xbe, 7, 9, []byte("x"))
			_ = s.WritePriority(5, http2.PriorityParam{Weight: 1})
			_ = s.WriteGoAway(0, http2.ErrCodeNo, nil)
			s.call(1, echoed, "a")
		}, []uint32{1}, "1: status 0", ""},
		"unknown method":                    {with("/x/None"), []uint32{1}, "1: status 12", ""},
		"unknown service":                   {with("/y/Echo"), []uint32{1}, "1: status 12", ""},
		"no method":                         {with("Echo"), []uint32{1}, "1: status 12", ""},
		"GET":                               {headed(1, "GET"), []uint32{1}, "1: http 405, status 13", ""},
		"a page":                            {headed(9, "text/html"), []uint32{1}, "1: http 415, status 3", ""},
		"a name that only begins as gRPC's": {headed(9, "application/grpcx"), []uint32{1}, "1: http 415, status 3", ""},
		"no content-type": {func(s *script) {
			s.head(1, true, ordinary(echoed)[:8]...)
		}, []uint32{1}, "1: http 415, status 3", ""},
		"a timeout of nonsense": {with(echoed, "grpc-timeout", "1x"), []uint32{1}, "1: http 400, status 13", ""},
		"an empty timeout":      {with(echoed, "grpc-timeout", ""), []uint32{1}, "1: http 400, status 13", ""},
		"a second content-type": {with(echoed, "content-type", "text/html"), []uint32{1}, "1: status 0", ""},
		"an empty path":         {with(""), []uint32{1}, "1: reset PROTOCOL_ERROR", "it is an unknown method"},
		"a path that is cut":    {with("/"), []uint32{1}, "1: status 12", ""},
		"an empty piece of a block": {func(s *script) {
			b := s.block(ordinary(echoed)...)
			_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b})
			_ = s.WriteContinuation(1, false, nil)
			_ = s.WriteContinuation(1, true, nil)
			_ = s.WriteData(1, true, text("a"))
		}, []uint32{1}, "1: status 0", ""},
		"a subtype": {func(s *script) {
			p := ordinary(echoed)
			p[9] = "application/grpc+proto"
			s.head(1, false, p...)
			_ = s.WriteData(1, true, text("a"))
		}, []uint32{1}, "1: status 0", ""},
		"compressed": {func(s *script) {
			s.head(1, false, ordinary(echoed, "grpc-encoding", "gzip")...)
			_ = s.WriteData(1, true, flagged(1))
		}, []uint32{1}, "1: status 12", ""},
		"compressed without a name": {data(echoed, true, flagged(1)), []uint32{1}, "1: status 13", ""},
		"an unknown flag":           {data(echoed, true, flagged(2)), []uint32{1}, "1: status 13", ""},
		"compressed for others": {func(s *script) {
			s.head(1, false, ordinary(other, "grpc-encoding", "gzip")...)
			_ = s.WriteData(1, true, flagged(1))
		}, []uint32{1}, "1: status 12", ""},
		"no message": {func(s *script) {
			s.head(1, true, ordinary(echoed)...)
		}, []uint32{1}, "1: status 13", ""},
		"half a message":       {data(echoed, true, text("abc")[:6]), []uint32{1}, "1: status 13", ""},
		"two messages":         {data(echoed, true, append(text("a"), text("b")...)), []uint32{1}, "1: status 13", ""},
		"too large a message":  {data(echoed, false, []byte{0, 0, 0x10, 0, 0}), []uint32{1}, "1: status 8", ""},
		"too large for others": {data(other, false, []byte{0, 0, 0x10, 0, 0}), []uint32{1}, "1: status 8", ""},
		"too many streams": {func(s *script) {
			_ = s.WriteSettingsAck()
			for i := range uint32(11) {
				s.head(2*i+1, false, ordinary(echoed)...)
			}
		}, []uint32{21}, "21: reset REFUSED_STREAM", ""},
		"too many fields":     {with(other, "a", large, "c", large), []uint32{1}, "1: reset FRAME_SIZE_ERROR", ""},
		"too large a field":   {with(other, "a", large+large), []uint32{1}, "1: reset FRAME_SIZE_ERROR", "it ends"},
		"a large name":        {with(other, "A", "b"), []uint32{1}, "1: reset PROTOCOL_ERROR", ""},
		"a value of nonsense": {with(other, "a", "b\x00"), []uint32{1}, "1: reset PROTOCOL_ERROR", ""},
		"a late pseudo field": {with(other, ":path", "/"), []uint32{1}, "1: reset PROTOCOL_ERROR", ""},
		"connection":          {with(other, "connection", "close"), []uint32{1}, "1: reset PROTOCOL_ERROR", ""},
		"no settings":         {nil, nil, "0: ended", ""},
		"an even stream":      {func(s *script) { s.call(2, echoed, "a") }, nil, "0: ended", ""},
		"an earlier stream": {func(s *script) {
			s.call(3, echoed, "a")
			s.await(func() bool { return s.became[3] != "" })
			s.call(1, echoed, "a")
		}, nil, "0: ended, 3: status 0", ""},
		"trailers of a request": {func(s *script) {
			s.head(1, false, ordinary(echoed)...)
			s.head(1, true, "a", "b")
		}, nil, "0: ended", ""},
		"data before headers":       {func(s *script) { _ = s.WriteData(5, true, nil) }, nil, "0: ended", ignored},
		"a reset before headers":    {func(s *script) { _ = s.WriteRSTStream(5, 0) }, nil, "0: ended", ignored},
		"data of the connection":    {bad(http2.FrameData, 0), nil, "0: ended", ""},
		"headers of the connection": {bad(http2.FrameHeaders, 0), nil, "0: ended", ""},
		"settings of a stream":      {bad(http2.FrameSettings, 1), nil, "0: ended", ""},
		"cut settings":              {bad(http2.FrameSettings, 0, 1, 2, 3), nil, "0: ended", ""},
		"a window of 2^31":          {bad(http2.FrameSettings, 0, 0, 4, 0x80, 0, 0, 0), nil, "0: ended", ""},
		"a cut ping":                {bad(http2.FramePing, 0, 1), nil, "0: ended", ""},
		"a ping of a stream":        {bad(http2.FramePing, 1, 1, 2, 3, 4, 5, 6, 7, 8), nil, "0: ended", ""},
		"a cut reset":               {bad(http2.FrameRSTStream, 1, 1), nil, "0: ended", ""},
		"a cut priority":            {bad(http2.FramePriority, 1, 1), nil, "0: ended", ""},
		"a push":                    {bad(http2.FramePushPromise, 1, 0, 0, 0, 2), nil, "0: ended", ignored},
		"no more window":            {func(s *script) { _ = s.WriteWindowUpdate(0, 0) }, nil, "0: ended", ""},
		"too much window": {func(s *script) {
			_ = s.WriteWindowUpdate(0, 1<<31-1)
		}, nil, "0: ended", ignored},
		"a block that did not begin": {bad(http2.FrameContinuation, 1, 0x82), nil, "0: ended", ""},
		"a ping within a block": {func(s *script) {
			_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.block(ordinary(echoed)...)[:3]})
			_ = s.WritePing(false, [8]byte{})
		}, nil, "0: ended", ""},
		"another stream within a block": {func(s *script) {
			b := s.block(ordinary(echoed)...)
			_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:3]})
			_ = s.WriteContinuation(3, true, b[3:])
		}, nil, "0: ended", ""},
		"a field that is in no table": {bad(http2.FrameHeaders, 1, 0xff, 0xff, 0x03), nil, "0: ended", ""},
		"more padding than payload": {func(s *script) {
			s.head(1, false, ordinary(echoed)...)
			_ = s.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{9, 1})
		}, nil, "0: ended", ""},
		"a large frame": {func(s *script) {
			s.head(1, false, ordinary(echoed)...)
			_ = s.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 17<<10))
		}, nil, "0: ended", ""},
	} {
		t.Run(name, func(t *testing.T) {
			caps := usual
			caps.Streams = 10
			for who, on := range servers {
				s := on(t, caps)
				if x.play == nil { // settings are first: a second preface is none
					_, _ = io.WriteString(s.Conn, http2.ClientPreface)
				} else {
					x.play(s)
				}
				got := s.outcome(x.streams...)
				if got != x.want && (who != "grpc-go" || x.differs == "") {
					t.Errorf("%s: %q, want %q", who, got, x.want)
				}
				if got == x.want && who == "grpc-go" && x.differs != "" {
					t.Errorf("grpc-go does not differ: %s", x.differs)
				}
			}
		})
	}
}

// Calls whose frames are mixed at random get their own answers, in any pieces and windows.
func TestMixedFramesFindTheirCalls(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		window := rapid.SampledFrom([]uint32{0, 10, 65535}).Draw(r, "window")
		s := onPort(t, usual, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
		left := map[uint32][]byte{}
		want := map[uint32][]byte{}
		for i := range uint32(rapid.IntRange(1, 8).Draw(r, "calls")) {
			id := 2*i + 1
			size := rapid.SampledFrom([]int{0, 1, 100, 5000, 20_000}).Draw(r, "size")
			want[id] = text(strings.Repeat(string(rune('a'+i)), size))
			left[id] = want[id]
			s.head(id, false, ordinary(rapid.SampledFrom([]string{"/x/Echo", "/x/Other"}).Draw(r, "method"))...)
		}
		for len(left) > 0 {
			id := rapid.SampledFrom(slices.Sorted(maps.Keys(left))).Draw(r, "call")
			n := min(len(left[id]), rapid.IntRange(1, 16_000).Draw(r, "piece"))
			padding := make([]byte, rapid.IntRange(0, 255).Draw(r, "padding"))
			_ = s.WriteDataPadded(id, n == len(left[id]), left[id][:n], padding)
			if left[id] = left[id][n:]; len(left[id]) == 0 {
				delete(left, id)
			}
		}
		_ = s.WriteWindowUpdate(0, 1<<24)
		for id := range want {
			_ = s.WriteWindowUpdate(id, 1<<20)
		}
		for id := range want {
			s.await(func() bool { return s.became[id] != "" })
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for id := range want {
			if s.became[id] != "status 0" || !bytes.Equal(s.bodies[id], want[id]) {
				r.Errorf("call %d: %s, %d bytes of %d", id, s.became[id], len(s.bodies[id]), len(want[id]))
			}
		}
		s.Close()
	})
}
