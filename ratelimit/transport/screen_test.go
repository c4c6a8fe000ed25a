package transport

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
)

const gatedMethod, otherMethod = "/s/gated", "/s/other"

// door is a gate whose decisions are drawn, and which counts.
type door struct {
	decide       func() bool
	asked, in    int
	refused      int
	lastPatience time.Duration
}

func (d *door) Arrive(_ ratelimit.Instant, own int, patience time.Duration) bool {
	d.asked++
	d.lastPatience = patience
	if own != d.in { // all of a test's calls are of one connection
		d.in = -1 << 30
	}
	if d.decide() {
		d.in++
		return true
	}
	d.refused++
	return false
}

func (d *door) Leave(_ ratelimit.Instant, own int, arrived ...ratelimit.Instant) {
	d.in -= len(arrived)
	if own != d.in {
		d.in = -1 << 30
	}
	for _, at := range arrived {
		if at != 1 {
			d.in = -1 << 30
		}
	}
}

func gatedBy(gate Gate) *Gated {
	return &Gated{
		Gate:    gate,
		Method:  gatedMethod,
		Clock:   func() ratelimit.Instant { return 1 },
		Code:    codes.Unavailable,
		Message: "not now",
	}
}

// line is a connection from which pieces are read, and to which all is written.
type line struct {
	net.Conn
	pieces  [][]byte
	written bytes.Buffer
}

func (w *line) Read(p []byte) (int, error) {
	if len(w.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, w.pieces[0])
	if w.pieces[0] = w.pieces[0][n:]; len(w.pieces[0]) == 0 {
		w.pieces = w.pieces[1:]
	}
	return n, nil
}

func (w *line) Write(p []byte) (int, error)     { return w.written.Write(p) }
func (w *line) SetReadDeadline(time.Time) error { return nil }
func (w *line) Close() error                    { return nil }

func screenedGuard(w *line, gate Gate) *guard {
	g := newGuard(w, w, &Caps{HeaderBytes: 8 << 10}, nil)
	g.screen = newScreen(gatedBy(gate), 8<<10)
	return g
}

// dialogue is what a caller sends, frame by frame, and what it meant.
type dialogue struct {
	bytes.Buffer
	framer  *http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
	next    uint32
	calls   map[uint32]*meant
	asks    int // calls that the gate must decide
}

type meant struct {
	fields []string
	gated  bool
	data   int // bytes, in frames
}

func newDialogue() *dialogue {
	d := &dialogue{next: 1, calls: map[uint32]*meant{}}
	d.framer = http2.NewFramer(d, nil)
	d.encoder = hpack.NewEncoder(&d.block)
	d.WriteString(http2.ClientPreface)
	_ = d.framer.WriteSettings()
	return d
}

// call adds a call whose header block refers to earlier ones, and adds to what later
// ones can refer to, as drawn.
func (d *dialogue) call(t *rapid.T) {
	id := d.next
	d.next += 2 * rapid.Uint32Range(1, 3).Draw(t, "gap")
	c := &meant{gated: rapid.IntRange(0, 9).Draw(t, "method") > 0}
	d.calls[id] = c
	d.block.Reset()
	method := otherMethod
	if c.gated {
		method = gatedMethod
	}
	fields := [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", method},
		{"grpc-timeout", rapid.SampledFrom([]string{"20m", "21m", "5S"}).Draw(t, "timeout")},
	}
	if rapid.IntRange(0, 3).Draw(t, "traced") == 0 {
		fields = append(
			fields,
			[2]string{"traceparent", fmt.Sprintf(
				"%0*d", rapid.SampledFrom([]int{1, 50, 1500, 6000}).Draw(t, "length"), id)},
		)
	}
	for _, f := range fields {
		x := hpack.HeaderField{
			Name:      f[0],
			Value:     f[1],
			Sensitive: f[0] == "traceparent" && rapid.Bool().Draw(t, "never indexed"),
		}
		_ = d.encoder.WriteField(x)
		c.fields = append(c.fields, f[0]+"="+f[1])
	}
	p := http2.HeadersFrameParam{
		StreamID:      id,
		BlockFragment: d.block.Bytes(),
		EndHeaders:    true,
		EndStream:     rapid.IntRange(0, 9).Draw(t, "empty") == 0,
	}
	switch rapid.IntRange(0, 19).Draw(t, "shape") {
	case 0:
		p.PadLength = rapid.Uint8().Draw(t, "padding")
		_ = d.framer.WriteHeaders(p)
	case 1:
		p.Priority = http2.PriorityParam{Weight: 7, StreamDep: 0}
		_ = d.framer.WriteHeaders(p)
	case 2:
		cut := rapid.IntRange(0, d.block.Len()).Draw(t, "cut")
		p.EndHeaders, p.BlockFragment = false, d.block.Bytes()[:cut]
		_ = d.framer.WriteHeaders(p)
		_ = d.framer.WriteContinuation(id, true, d.block.Bytes()[cut:])
	default:
		_ = d.framer.WriteHeaders(p)
	}
	if c.gated {
		d.asks++
	}
	d.body(t, id, p.EndStream)
}

func (d *dialogue) body(t *rapid.T, id uint32, ended bool) {
	for !ended {
		if rapid.IntRange(0, 9).Draw(t, "between") == 0 {
			_ = d.framer.WritePing(false, [8]byte{1})
		}
		if rapid.IntRange(0, 9).Draw(t, "reset") == 0 {
			_ = d.framer.WriteRSTStream(id, http2.ErrCodeCancel)
			return
		}
		n := rapid.IntRange(0, 300).Draw(t, "data")
		ended = rapid.IntRange(0, 3).Draw(t, "more") > 0
		_ = d.framer.WriteData(id, ended, make([]byte, n))
		d.calls[id].data += n
	}
}

// The output of a screen is the input of gRPC without the refused calls. The written bytes are gRPC's, with
// answers to these calls. The gate gets the end of each call that it admitted.
func TestScreen(t *testing.T) {
	refusals := 0
	rapid.Check(t, func(t *rapid.T) {
		d := newDialogue()
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			d.call(t)
		}
		w := &line{}
		for all := d.Bytes(); len(all) > 0; {
			n := rapid.IntRange(1, min(len(all), 4000)).Draw(t, "piece")
			w.pieces, all = append(w.pieces, all[:n]), all[n:]
		}
		often := rapid.IntRange(0, 10).Draw(t, "refused of ten")
		gate := &door{decide: func() bool { return rapid.IntRange(1, 10).Draw(t, "decision") > often }}
		g := screenedGuard(w, gate)
		inner := newInner(t, g)
		inner.serve()
		if gate.asked != d.asks {
			t.Fatalf("the gate was asked %d times, for %d calls", gate.asked, d.asks)
		}
		refused := answers(t, w.written.Bytes(), inner.answered)
		if len(refused) != gate.refused {
			t.Fatalf("the gate refused %d calls, %d were told so", gate.refused, len(refused))
		}
		taken := 0
		for id, c := range d.calls {
			got, known := inner.calls[id]
			_, no := refused[id]
			if known == no || no && !c.gated {
				t.Fatalf("call %d: passed on %v, refused %v, gated %v", id, known, no, c.gated)
			}
			if no {
				taken += c.data
			} else if !slices.Equal(got.fields, c.fields) || got.data > c.data {
				t.Fatalf("call %d: %v, %d bytes, were passed on as %v, %d bytes",
					id, c.fields, c.data, got.fields, got.data)
			}
		}
		refusals += len(refused)
		// Data that comes when a call is over, for gRPC, is given back too.
		if back := inner.window(w.written.Bytes()) + g.screen.credit; back < taken {
			t.Fatalf("of %d bytes that were taken out, %d are given back", taken, back)
		}
		_ = g.Close()
		if gate.in != 0 {
			t.Fatalf("the gate believes that %d calls have not left", gate.in)
		}
	})
	if refusals == 0 {
		t.Error("no call was refused in any of the dialogues")
	}
}

// inner is gRPC: it reads frames, and answers some of the calls now and then.
type inner struct {
	*rapid.T
	guard    *guard
	read     bytes.Buffer
	framer   *http2.Framer
	calls    map[uint32]*meant
	resets   map[uint32]bool // what it found malformed
	answered map[uint32]bool
	out      bytes.Buffer
	block    bytes.Buffer
	encoder  *hpack.Encoder
	writer   *http2.Framer
}

func newInner(t *rapid.T, g *guard) *inner {
	i := &inner{T: t, guard: g, calls: map[uint32]*meant{}, resets: map[uint32]bool{}, answered: map[uint32]bool{}}
	i.framer = http2.NewFramer(nil, &i.read)
	i.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	i.framer.MaxHeaderListSize = 8 << 10
	i.encoder = hpack.NewEncoder(&i.block)
	i.writer = http2.NewFramer(&i.out, nil)
	return i
}

func (i *inner) serve() {
	p := make([]byte, readBuffer)
	if _, err := io.ReadFull(i.guard, p[:prefaceLen]); err != nil {
		i.Fatal(err)
	}
	var last uint32
	for {
		n, err := i.guard.Read(p)
		if n == 0 && err == nil {
			i.Fatal("a read brings nothing, and gRPC asks again at once")
		}
		i.read.Write(p[:n])
		if err != nil && !errors.Is(err, io.EOF) {
			i.Fatal(err)
		}
		if err != nil {
			break
		}
		i.answer()
	}
	if _, err := i.guard.Write(i.out.Bytes()); err != nil {
		i.Fatal(err)
	}
	for i.read.Len() > 0 {
		f, err := i.framer.ReadFrame()
		var bad http2.StreamError
		switch {
		case errors.As(err, &bad):
			i.resets[bad.StreamID] = true
			continue
		case err != nil:
			i.Fatalf("gRPC reads: %v", err)
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamID <= last {
				i.Fatalf("stream %d follows %d", f.StreamID, last)
			}
			last = f.StreamID
			c := &meant{}
			for _, x := range f.Fields {
				c.fields = append(c.fields, x.Name+"="+x.Value)
			}
			i.calls[f.StreamID] = c
		case *http2.DataFrame:
			c := i.calls[f.StreamID]
			if c == nil {
				i.Fatalf("data of call %d, of which nothing is known", f.StreamID)
			}
			c.data += len(f.Data())
		}
	}
	for id := range i.resets {
		if i.calls[id] != nil {
			i.Fatalf("call %d was passed on, and reset", id)
		}
	}
}

// answer ends some of the calls that are open, in writes that end anywhere. Answers to
// refused calls must not come between.
func (i *inner) answer() {
	for n := len(i.guard.open); n > 0 && rapid.Bool().Draw(i.T, "answer one"); n = len(i.guard.open) {
		id := i.guard.open[rapid.IntRange(0, n-1).Draw(i.T, "which")].stream
		// gRPC sees nothing of a call whose headers are incomplete.
		if s := i.guard.screen; i.answered[id] || s.piecing && s.first.stream == id {
			break
		}
		i.answered[id] = true
		i.block.Reset()
		_ = i.encoder.WriteField(hpack.HeaderField{Name: "grpc-status", Value: "0"})
		_ = i.encoder.WriteField(hpack.HeaderField{Name: "of", Value: fmt.Sprint(id)})
		_ = i.writer.WriteHeaders(
			http2.HeadersFrameParam{StreamID: id, BlockFragment: i.block.Bytes(), EndHeaders: true, EndStream: true},
		)
	}
	for i.out.Len() > 0 {
		n := rapid.IntRange(1, i.out.Len()).Draw(i.T, "written at once")
		if _, err := i.guard.Write(i.out.Next(n)); err != nil {
			i.Fatal(err)
		}
		if rapid.IntRange(0, 3).Draw(i.T, "the rest later") == 0 {
			return
		}
	}
}

// answers are the calls that a caller reads UNAVAILABLE for. It checks that all that was written
// can be read.
func answers(t *rapid.T, written []byte, answered map[uint32]bool) map[uint32]bool {
	refused := map[uint32]bool{}
	f := http2.NewFramer(nil, bytes.NewReader(written))
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := f.ReadFrame()
		if errors.Is(err, io.EOF) {
			return refused
		}
		if err != nil {
			t.Fatalf("the caller reads: %v", err)
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			id, status := frame.StreamID, ""
			for _, x := range frame.Fields {
				if x.Name == "grpc-status" {
					status = x.Value
				}
			}
			if !frame.StreamEnded() || refused[id] || (status == "14") == answered[id] {
				t.Fatalf("call %d is answered %v", id, frame.Fields)
			}
			if status == "14" {
				refused[id] = true
			}
		case *http2.RSTStreamFrame:
			if !refused[frame.StreamID] || frame.ErrCode != http2.ErrCodeNo {
				t.Fatalf("call %d is reset: %v", frame.StreamID, frame.ErrCode)
			}
		}
	}
}

// window is how many bytes were given back.
func (i *inner) window(written []byte) (n int) {
	f := http2.NewFramer(nil, bytes.NewReader(written))
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return n
		}
		if w, ok := frame.(*http2.WindowUpdateFrame); ok && w.StreamID == 0 {
			n += int(w.Increment)
		}
	}
}

// BenchmarkRefused is the cost of a refused call without system calls, of which there are two for all calls of
// one read. It is the work of the screen, and of gRPC's framer with the output of the screen.
func BenchmarkRefused(b *testing.B) {
	for _, traced := range []bool{false, true} {
		b.Run(fmt.Sprintf("traced=%v", traced), func(b *testing.B) {
			d := &dialogue{next: 1}
			d.framer, d.encoder = http2.NewFramer(d, nil), hpack.NewEncoder(&d.block)
			read := func(id uint32) {
				d.block.Reset()
				for _, f := range [][2]string{
					{":method", "POST"},
					{":scheme", "http"},
					{":path", gatedMethod},
					{"grpc-timeout", "20m"},
					{"te", "trailers"},
					{"content-type", "application/grpc"},
					{"user-agent", "bench"},
				} {
					_ = d.encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
				}
				if traced {
					_ = d.encoder.WriteField(
						hpack.HeaderField{Name: "traceparent", Value: fmt.Sprintf("00-%032x-%016x-01", id, id)},
					)
				}
				_ = d.framer.WriteHeaders(
					http2.HeadersFrameParam{StreamID: id, BlockFragment: d.block.Bytes(), EndHeaders: true},
				)
				_ = d.framer.WriteData(id, true, make([]byte, 45))
			}
			w := &line{}
			g := screenedGuard(w, &door{decide: func() bool { return false }})
			g.in.skip = 0
			grpc := http2.NewFramer(nil, bufio.NewReaderSize(g, readBuffer))
			grpc.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				if n%10_000 == 0 {
					b.StopTimer()
					for range 100 {
						d.Reset()
						for range 100 {
							read(d.next)
							d.next += 2
						}
						w.pieces = append(w.pieces, bytes.Clone(d.Bytes()))
					}
					w.written.Reset()
					b.StartTimer()
					for err := error(nil); !errors.Is(err, io.EOF); { // malformed headers are an error of their stream
						_, err = grpc.ReadFrame()
					}
				}
				n++
			}
		})
	}
}

// talk is a connection that is fed by hand.
type talk struct {
	*guard
	testing.TB
	line  *line
	gate  *door
	admit bool
	said  *dialogue
}

func newTalk(t testing.TB, caps *Caps) *talk {
	v := &talk{TB: t, line: &line{}, admit: true, said: &dialogue{}}
	v.gate = &door{decide: func() bool { return v.admit }}
	v.guard = newGuard(v.line, v.line, caps, nil)
	v.screen = newScreen(gatedBy(v.gate), caps.HeaderBytes)
	v.in.skip = 0
	v.said.framer, v.said.encoder = http2.NewFramer(v.said, nil), hpack.NewEncoder(&v.said.block)
	return v
}

// headers adds those of a call, with the same fields each time.
func (v *talk) headers(id uint32) {
	v.said.block.Reset()
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", gatedMethod}, {"grpc-timeout", "20m"},
	} {
		_ = v.said.encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	_ = v.said.framer.WriteHeaders(
		http2.HeadersFrameParam{StreamID: id, BlockFragment: v.said.block.Bytes(), EndHeaders: true},
	)
}

// read has what was added read at once, and returns the kinds of frames that gRPC gets, and
// of those that are written.
func (v *talk) read() (passed, written string) {
	if v.said.Len() == 0 {
		return "", ""
	}
	v.line.pieces = append(v.line.pieces, bytes.Clone(v.said.Bytes()))
	v.said.Reset()
	v.line.written.Reset()
	p := make([]byte, readBuffer)
	n, err := v.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		v.Fatal(err)
	}
	return kinds(p[:n]), kinds(v.line.written.Bytes())
}

// drain has all that was added be read, and fails if the connection ends.
func (v *talk) drain(what string) {
	v.Helper()
	v.line.pieces = append(v.line.pieces, bytes.Clone(v.said.Bytes()))
	v.said.Reset()
	for p := make([]byte, readBuffer); ; {
		if _, err := v.Read(p); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			v.Fatalf("%s: %v", what, err)
		}
	}
}

func kinds(b []byte) (s string) {
	f := http2.NewFramer(nil, bytes.NewReader(b))
	for {
		h, err := f.ReadFrameHeader()
		if err != nil {
			return s
		}
		if _, err := f.ReadFrameForHeader(h); err != nil {
			return s + "?"
		}
		s += fmt.Sprintf("%v(%d) ", h.Type, h.StreamID)
	}
}

func (v *talk) expect(passed, written string) {
	v.Helper()
	if gotPassed, gotWritten := v.read(); gotPassed != passed || gotWritten != written {
		v.Fatalf("gRPC gets %q, want %q; written %q, want %q", gotPassed, passed, gotWritten, written)
	}
}

// A refused call whose request has not ended is reset, once, and its later frames are dropped. One that has
// ended is only answered.
func TestRefusedRequestsThatGoOn(t *testing.T) {
	v := newTalk(t, &Caps{HeaderBytes: 8 << 10})
	f := v.said.framer
	v.headers(1)
	_ = f.WriteData(1, true, make([]byte, 10))
	v.expect("HEADERS(1) DATA(1) ", "")
	v.admit = false
	v.headers(3) // the first block that changes nothing
	_ = f.WriteData(3, true, make([]byte, 10))
	v.expect("", "HEADERS(3) WINDOW_UPDATE(0) ")
	v.headers(5)
	_ = f.WriteData(5, false, make([]byte, 10))
	v.headers(7)
	_ = f.WriteData(7, true, make([]byte, 10))
	v.headers(9)
	v.expect("", "HEADERS(5) HEADERS(7) HEADERS(9) RST_STREAM(5) RST_STREAM(9) WINDOW_UPDATE(0) ")
	_ = f.WriteData(5, true, make([]byte, 10))
	_ = f.WriteWindowUpdate(5, 7)
	_ = f.WriteRSTStream(9, http2.ErrCodeCancel)
	_ = f.WriteRSTStream(1, http2.ErrCodeCancel) // which was let in
	v.expect("RST_STREAM(1) ", "")
	if v.gate.in != 0 {
		t.Errorf("%d calls are inside, says the gate", v.gate.in)
	}
	if v.gate.lastPatience != 20*time.Millisecond {
		t.Errorf("the callers wait 20 ms, %v the gate is told", v.gate.lastPatience)
	}
}

// A caller without window updates cannot send more: a little waits for an answer, much does not.
func TestWindowIsGivenBack(t *testing.T) {
	v := newTalk(t, &Caps{HeaderBytes: 8 << 10})
	v.headers(1)
	_ = v.said.framer.WriteData(1, true, nil)
	v.read()
	v.admit = false
	v.headers(3)
	v.expect("", "HEADERS(3) RST_STREAM(3) ")
	_ = v.said.framer.WriteData(3, false, make([]byte, 1000))
	v.expect("", "")
	for range 2 {
		_ = v.said.framer.WriteData(3, false, make([]byte, 3800))
		_ = v.said.framer.WriteData(3, false, make([]byte, 3800))
		v.read()
	}
	_ = v.said.framer.WriteData(3, true, make([]byte, 1000))
	v.expect("", "WINDOW_UPDATE(0) ")
	if v.screen.credit != 0 {
		t.Errorf("%d bytes are not given back", v.screen.credit)
	}
}

// What cannot be understood, or would make gRPC take a refused call for a new one, ends the
// connection; and then nothing is left inside.
func TestNonsenseEndsTheConnection(t *testing.T) {
	for name, say := range map[string]func(v *talk, f *http2.Framer){
		"a block that refers to nothing": func(_ *talk, f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0xfe}, EndHeaders: true})
		},
		"a frame between headers": func(_ *talk, f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x83}})
			_ = f.WritePing(false, [8]byte{})
		},
		"headers without an end": func(_ *talk, f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: make([]byte, 8<<10)})
			for range 10 {
				_ = f.WriteContinuation(3, false, make([]byte, 8<<10))
			}
		},
		"headers of a refused call again": func(v *talk, _ *http2.Framer) {
			v.admit = false
			v.headers(3)
			v.headers(3)
		},
		"trailers": func(v *talk, f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{
				StreamID: 1, BlockFragment: []byte{0x83}, EndHeaders: true, EndStream: true,
			})
		},
		"headers that go on in a frame of 16 MB": func(_ *talk, f *http2.Framer) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x83}})
			_ = f.WriteRawFrame(http2.FrameContinuation, 0, 3, make([]byte, 1<<20))
		},
		"data of a call that has not begun": func(_ *talk, f *http2.Framer) {
			_ = f.WriteData(99, false, make([]byte, 100))
		},
		"more calls than any caller opens": func(v *talk, _ *http2.Framer) {
			for id := uint32(3); id < 3000; id += 2 {
				v.headers(id)
			}
		},
	} {
		v := newTalk(t, &Caps{HeaderBytes: 8 << 10, Streams: 1})
		v.headers(1)
		v.read()
		say(v, v.said.framer)
		v.line.pieces = append(v.line.pieces, v.said.Bytes())
		var err error
		p := make([]byte, readBuffer)
		for err == nil {
			_, err = v.Read(p)
		}
		if !errors.Is(err, errEnded) {
			t.Errorf("%s: %v", name, err)
		}
		_ = v.Close()
		if v.gate.in != 0 {
			t.Errorf("%s: %d calls are inside, says the gate", name, v.gate.in)
		}
	}
}

// Blocks that resize the table again and again are not packed anew as whole fields each time.
func TestResizesDoNotGrow(t *testing.T) {
	v := newTalk(t, &Caps{HeaderBytes: 8 << 10, Streams: 1000})
	v.admit = false
	v.said.block.Reset()
	_ = v.said.encoder.WriteField(hpack.HeaderField{Name: ":path", Value: gatedMethod})
	_ = v.said.encoder.WriteField(hpack.HeaderField{Name: "x", Value: string(bytes.Repeat([]byte{'x'}, 3900))})
	_ = v.said.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: v.said.block.Bytes(), EndHeaders: true, EndStream: true,
	})
	v.read()
	for id := uint32(3); v.said.Len() < readBuffer-100; id += 2 {
		_ = v.said.framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: id, BlockFragment: []byte{0x3f, 0xe1, 0x1f, 0xbe}, EndHeaders: true, EndStream: true,
		})
		_ = v.said.framer.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	v.line.pieces = [][]byte{bytes.Clone(v.said.Bytes())}
	got := 0
	for p := make([]byte, readBuffer); ; {
		n, err := v.Read(p)
		if got += n; errors.Is(err, io.EOF) {
			break
		}
	}
	if got > 3*readBuffer {
		t.Errorf("%d bytes became %d", readBuffer, got)
	}
}

// No refusal, nor a ping, comes between the frames of one of gRPC's header blocks.
func TestNothingWithinABlock(t *testing.T) {
	v := newTalk(t, &Caps{HeaderBytes: 8 << 10})
	v.headers(1)
	v.read()
	v.admit = false
	v.headers(3) // it puts nothing into the table
	v.line.written.Reset()
	var out bytes.Buffer
	f := http2.NewFramer(&out, nil)
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, 100), EndStream: true})
	_, _ = v.Write(out.Bytes())
	v.line.pieces = append(v.line.pieces, bytes.Clone(v.said.Bytes()))
	_, _ = v.Read(make([]byte, readBuffer))
	out.Reset()
	_ = f.WriteContinuation(1, true, make([]byte, 10))
	_, _ = v.Write(out.Bytes())
	if got := kinds(v.line.written.Bytes()); got != "HEADERS(1) CONTINUATION(1) HEADERS(3) RST_STREAM(3) " {
		t.Errorf("written %q", got)
	}
}

// Frames that begin no call and bring nothing end a connection when there are far more of them than its calls and
// its time explain.
func TestIdleFramesEndAConnection(t *testing.T) {
	for name, write := range map[string]func(f *http2.Framer, n int){
		"pings":         func(f *http2.Framer, _ int) { _ = f.WritePing(false, [8]byte{}) },
		"answers":       func(f *http2.Framer, _ int) { _ = f.WritePing(true, [8]byte{}) },
		"settings":      func(f *http2.Framer, _ int) { _ = f.WriteSettings() },
		"priorities":    func(f *http2.Framer, _ int) { _ = f.WritePriority(5, http2.PriorityParam{}) },
		"windows":       func(f *http2.Framer, _ int) { _ = f.WriteWindowUpdate(0, 1) },
		"empty data":    func(f *http2.Framer, _ int) { _ = f.WriteData(1, false, nil) },
		"bytes of data": func(f *http2.Framer, _ int) { _ = f.WriteData(1, false, []byte{0}) },
		"resets":        func(f *http2.Framer, n int) { _ = f.WriteRSTStream(uint32(2*n+1), http2.ErrCodeCancel) },
		"empty pieces of headers": func(f *http2.Framer, n int) {
			if n == 0 {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x83}})
			}
			_ = f.WriteContinuation(3, false, nil)
		},
	} {
		v := newTalk(t, &Caps{HeaderBytes: 8 << 10})
		budget := NewBudget(1 << 20)
		v.budget = budget
		v.headers(1)
		v.read()
		n, p := 0, make([]byte, readBuffer)
		for err := error(nil); err == nil && n < 3*framesInStock; n++ {
			write(v.said.framer, n)
			v.line.pieces = append(v.line.pieces, bytes.Clone(v.said.Bytes()))
			v.said.Reset()
			_, err = v.Read(p)
			if errors.Is(err, io.EOF) { // nothing for gRPC to read
				err = nil
			}
		}
		if n < framesInStock || n > framesInStock+framesACall+10*framesASecond || budget.Excess.Load() != 1 {
			t.Errorf("%s: the connection ended after %d, %d are counted", name, n, budget.Excess.Load())
		}
	}
}

// Callers whose frames their calls and their time explain go on.
func TestIdleFramesOfHonestCallers(t *testing.T) {
	for name, write := range map[string]func(f *http2.Framer, id uint32){
		"all given up at once": func(f *http2.Framer, id uint32) {
			_ = f.WriteRSTStream(id, http2.ErrCodeCancel)
		},
		"all given back a little window": func(f *http2.Framer, id uint32) { _ = f.WriteWindowUpdate(id, 10) },
	} {
		v := newTalk(t, &Caps{HeaderBytes: 8 << 10, Streams: 1000})
		for id := uint32(1); id < 2000; id += 2 {
			v.headers(id)
			_ = v.said.framer.WriteData(id, true, make([]byte, 60))
		}
		v.drain(name)
		for id := uint32(1); id < 2000; id += 2 {
			write(v.said.framer, id)
		}
		v.drain(name)
	}
	var i idle
	now := int64(0)
	take := func(kind byte, length int) {
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

// A caller that does not go on within a frame of headers has as much time for it as for a
// request.
func TestHalfAFrameOfHeadersIsTimed(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	caps := Caps{HeaderBytes: 8 << 10, RequestTimeout: 20 * time.Millisecond}
	g := newGuard(here, here, &caps, nil)
	g.screen = newScreen(gatedBy(&door{decide: func() bool { return true }}), 8<<10)
	g.in.skip = 0
	go func() { _, _ = there.Write([]byte{0, 0, 50, frameHeaders, flagEndHeaders, 0, 0, 0, 1, 0x83}) }()
	if _, err := g.Read(make([]byte, readBuffer)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it ends with %v", err)
	}
	g.Close()
}
