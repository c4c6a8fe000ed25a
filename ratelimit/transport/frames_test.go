package transport

import (
	"bytes"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"pgregory.net/rapid"
)

// What becomes of frames is as with grpc-go, where the table does not say otherwise.
func TestFramesEndAsWithGRPC(t *testing.T) {
	caps := usual
	caps.Streams = 10
	oracle := grpc.NewServer(grpc.ForceServerCodecV2(bareCodec{}), grpc.MaxRecvMsgSize(caps.MessageBytes),
		grpc.MaxConcurrentStreams(caps.Streams), grpc.MaxHeaderListSize(caps.HeaderBytes))
	streams{}.register(oracle)
	servers, addr := map[string]server{"grpc-go": oracle}, map[string]string{}
	for name, change := range variants {
		o := echoes(NewBudget(1 << 20))
		o.Caps = caps
		change(t, &o)
		servers[name] = NewPort(o)
	}
	for name, s := range servers {
		addr[name] = serve(t, s)
	}
	const echoed, other, ended = "/x/Echo", "/x/Other", "0: ended"
	const differs = "unlike grpc-go " // which ignores what ends a connection here, and the other way around
	large := strings.Repeat("b", 5<<10)
	whole, end := http2.FlagHeadersEndHeaders, http2.FlagDataEndStream
	raw := func(kind http2.FrameType, flags http2.Flags, id uint32, payload ...byte) func(*script) {
		return func(s *script) { _ = s.WriteRawFrame(kind, flags, id, payload) }
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
	data := func(method string, flags http2.Flags, b []byte, more ...string) func(*script) {
		return func(s *script) {
			s.head(1, false, ordinary(method, more...)...)
			_ = s.WriteRawFrame(http2.FrameData, flags, 1, b)
		}
	}
	flagged := func(first byte) []byte { return append([]byte{first}, text("a")[1:]...) }
	pieces := func(after func(*script), cuts ...int) func(*script) { // of a header block
		return func(s *script) {
			b := s.block(ordinary(echoed)...)
			_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: b[:cuts[0]]})
			for i, cut := range cuts[1:] {
				_ = s.WriteContinuation(1, false, b[cuts[i]:cut])
			}
			after(s)
			_ = s.WriteContinuation(1, true, b[cuts[len(cuts)-1]:])
			_ = s.WriteData(1, true, text("a"))
		}
	}
	for name, x := range map[string]struct {
		want string
		play func(*script)
	}{
		"calls": {"1: status 0, 3: status 0, 5: status 0, 7: status 0, 9: status 0", func(s *script) {
			for i := range uint32(5) {
				s.call(2*i+1, []string{echoed, other}[i%2], strings.Repeat("a", int(i)))
			}
		}},
		"pieces": {"1: status 0", func(s *script) {
			s.head(1, false, ordinary(echoed)...)
			for i, b := range text("abc") {
				_ = s.WriteData(1, i == 7, []byte{b})
			}
		}},
		"padding and priority": {"1: status 0", func(s *script) {
			_ = s.WriteHeaders(http2.HeadersFrameParam{
				StreamID: 1, BlockFragment: s.block(ordinary(echoed)...), EndHeaders: true, PadLength: 9,
				Priority: http2.PriorityParam{StreamDep: 0, Weight: 3},
			})
			_ = s.WriteDataPadded(1, true, text("a"), make([]byte, 200))
		}},
		"a reset": {"3: status 0", func(s *script) {
			s.head(1, false, ordinary(echoed)...)
			_ = s.WriteRSTStream(1, http2.ErrCodeCancel)
			_ = s.WriteData(1, true, text("a"))
			s.call(3, echoed, "b")
		}},
		"an answer behind one without a window": {"3: status 0", func(s *script) {
			s.windows(0)
			s.call(1, echoed, "a")
			s.call(3, echoed, "a")
			_ = s.WriteWindowUpdate(3, 100)
		}},
		"extensions": {"1: status 0", func(s *script) {
			_ = s.WriteRawFrame(0xbe, 7, 9, []byte("x"))
			_ = s.WritePriority(5, http2.PriorityParam{Weight: 1})
			_ = s.WriteGoAway(0, http2.ErrCodeNo, nil)
			s.call(1, echoed, "a")
		}},
		"a block in pieces":                 {"1: status 0", pieces(func(*script) {}, 3, 9)},
		"an empty piece of a block":         {"1: status 0", pieces(func(*script) {}, 3, 3)},
		"unknown method":                    {"1: status 12", with("/x/None")},
		"unknown service":                   {"1: status 12", with("/y/Echo")},
		"no method":                         {"1: status 12", with("Echo")},
		"GET":                               {"1: http 405, status 13", headed(1, "GET")},
		"a page":                            {"1: http 415, status 3", headed(9, "text/html")},
		"a name that only begins as gRPC's": {"1: http 415, status 3", headed(9, "application/grpcx")},
		"no content-type": {"1: http 415, status 3", func(s *script) {
			s.head(1, true, ordinary(echoed)[:8]...)
		}},
		"a subtype, and no message": {"1: status 13", headed(9, "application/grpc+proto")},
		"a timeout of nonsense":     {"1: http 400, status 13", with(echoed, "grpc-timeout", "1x")},
		"an empty timeout":          {"1: http 400, status 13", with(echoed, "grpc-timeout", "")},
		"a second content-type":     {"1: status 0", with(echoed, "content-type", "text/html")},
		"an empty path":             {differs + "1: reset PROTOCOL_ERROR", with("")}, // there, an unknown method
		"a path that is cut":        {"1: status 12", with("/")},
		"compressed":                {"1: status 12", data(echoed, end, flagged(1), "grpc-encoding", "gzip")},
		"compressed without a name": {"1: status 13", data(echoed, end, flagged(1))},
		"an unknown flag":           {"1: status 13", data(echoed, end, flagged(2))},
		"compressed for others":     {"1: status 12", data(other, end, flagged(1), "grpc-encoding", "gzip")},
		"half a message":            {"1: status 13", data(echoed, end, text("abc")[:6])},
		"two messages":              {"1: status 13", data(echoed, end, append(text("a"), text("b")...))},
		"too large a message":       {"1: status 8", data(echoed, 0, []byte{0, 0, 0x10, 0, 0})},
		"too large for others":      {"1: status 8", data(other, 0, []byte{0, 0, 0x10, 0, 0})},
		"too many streams": {"21: reset REFUSED_STREAM", func(s *script) {
			_ = s.WriteSettingsAck()
			for i := range uint32(11) {
				s.head(2*i+1, false, ordinary(echoed)...)
			}
		}},
		"too many fields":     {"1: reset FRAME_SIZE_ERROR", with(other, "a", large, "c", large)},
		"too large a field":   {differs + "1: reset FRAME_SIZE_ERROR", with(other, "a", large+large)}, // there, it ends
		"a large name":        {"1: reset PROTOCOL_ERROR", with(other, "A", "b")},
		"a value of nonsense": {"1: reset PROTOCOL_ERROR", with(other, "a", "b\x00")},
		"a late pseudo field": {"1: reset PROTOCOL_ERROR", with(other, ":path", "/")},
		"connection":          {"1: reset PROTOCOL_ERROR", with(other, "connection", "close")},
		// Settings are first: a second preface is none.
		"no settings":    {ended, func(s *script) { _, _ = io.WriteString(s.Conn, http2.ClientPreface) }},
		"an even stream": {ended, func(s *script) { s.call(2, echoed, "a") }},
		"an earlier stream": {"0: ended, 3: status 0", func(s *script) {
			s.call(3, echoed, "a")
			s.awaits(3)
			s.call(1, echoed, "a")
		}},
		"trailers of a request": {ended, func(s *script) {
			s.head(1, false, ordinary(echoed)...)
			s.head(1, true, "a", "b")
		}},
		"data before headers":           {differs + ended, raw(http2.FrameData, end, 5)},
		"a reset before headers":        {differs + ended, raw(http2.FrameRSTStream, 0, 5, 0, 0, 0, 0)},
		"data of the connection":        {ended, raw(http2.FrameData, 0, 0)},
		"headers of the connection":     {ended, raw(http2.FrameHeaders, 0, 0)},
		"settings of a stream":          {ended, raw(http2.FrameSettings, 0, 1)},
		"cut settings":                  {ended, raw(http2.FrameSettings, 0, 0, 1, 2, 3)},
		"a window of 2^31":              {ended, raw(http2.FrameSettings, 0, 0, 0, 4, 0x80, 0, 0, 0)},
		"a cut ping":                    {ended, raw(http2.FramePing, 0, 0, 1)},
		"a ping of a stream":            {ended, raw(http2.FramePing, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8)},
		"a cut reset":                   {ended, raw(http2.FrameRSTStream, 0, 1, 1)},
		"a cut priority":                {ended, raw(http2.FramePriority, 0, 1, 1)},
		"a push":                        {differs + ended, raw(http2.FramePushPromise, 0, 1, 0, 0, 0, 2)},
		"no more window":                {ended, raw(http2.FrameWindowUpdate, 0, 0, 0, 0, 0, 0)},
		"too much window":               {differs + ended, raw(http2.FrameWindowUpdate, 0, 0, 0x7f, 0xff, 0xff, 0xff)},
		"a block that did not begin":    {ended, raw(http2.FrameContinuation, 0, 1, 0x82)},
		"a ping within a block":         {ended, pieces(func(s *script) { _ = s.WritePing(false, [8]byte{}) }, 3)},
		"another stream within a block": {ended, pieces(raw(http2.FrameContinuation, whole, 3, 0x82), 3)},
		"a field that is in no table":   {ended, raw(http2.FrameHeaders, whole, 1, 0xff, 0xff, 0x03)},
		"more padding than payload":     {ended, data(echoed, http2.FlagDataPadded, []byte{9, 1})},
		"a large frame":                 {ended, data(echoed, 0, make([]byte, 17<<10))},
	} {
		want, unlike := strings.CutPrefix(x.want, differs)
		var ids []uint32 // of streams of which something becomes
		for part := range strings.SplitSeq(want, ", ") {
			var id uint32
			if n, _ := fmt.Sscanf(part, "%d:", &id); n > 0 && id > 0 {
				ids = append(ids, id)
			}
		}
		t.Run(name, func(t *testing.T) {
			for who, server := range servers {
				s := dialed(t, addr[who], server)
				x.play(s)
				if got := s.outcome(ids...); (got == want) == (unlike && who == "grpc-go") {
					t.Errorf("%s: %q, and the table has %q", who, got, x.want)
				}
			}
		})
	}
}

// Calls whose frames are mixed at random get their own answers, in any pieces and windows.
func TestMixedFramesFindTheirCalls(t *testing.T) {
	p := NewPort(echoes(NewBudget(1 << 20)))
	addr := serve(t, p)
	rapid.Check(t, func(r *rapid.T) {
		window := rapid.SampledFrom([]uint32{0, 10, 65535}).Draw(r, "window")
		s := dialed(t, addr, p, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
		left := map[uint32][]byte{}
		for i := range uint32(rapid.IntRange(1, 8).Draw(r, "calls")) {
			size := rapid.SampledFrom([]int{0, 1, 100, 5000, 20_000}).Draw(r, "size")
			left[2*i+1] = text(strings.Repeat(string(rune('a'+i)), size))
			method := rapid.SampledFrom([]string{"/x/Echo", "/x/Other"}).Draw(r, "method")
			s.head(2*i+1, false, ordinary(method)...)
		}
		want := maps.Clone(left)
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
		s.awaits(slices.Collect(maps.Keys(want))...)
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

// Nonsense ends a connection, and nothing else.
func FuzzPort(f *testing.F) {
	names := slices.Sorted(maps.Keys(variants))
	f.Add([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0})
	f.Add(appendHeaders(nil, 0, 1, []byte{0x83, 0x86}))
	f.Add(append(appendHeaders(nil, 0, 1, []byte{0x83}), appendFrame(nil, frameData, 1, 1, make([]byte, 9))...))
	f.Add(append([]byte{0, 0, 4, 8, 0, 0, 0, 0, 0}, 0x7f, 0xff, 0xff, 0xff))
	f.Add(append([]byte{2}, appendHeaders(appendSettings(nil), flagEndStream, 1, []byte{0x83, 0x86, 4, 0})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		o := echoes(NewBudget(1 << 20))
		if len(b) > 0 {
			variants[names[int(b[0])%len(names)]](t, &o)
			b = b[1:]
		}
		o.Security = nil // of TLS, Go has targets
		o.Bug = func(bug any) { panic(bug) }
		p := NewPort(o)
		here := greeted(p)
		go func() { _, _ = io.Copy(io.Discard, here) }()
		_ = here.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(here, http2.ClientPreface)
		_, _ = here.Write(b)
		here.Close()
		p.running.Wait()
		if held := p.Budget.Held(); held != 0 {
			t.Fatalf("%d bytes are held", held)
		}
	})
}

var h2spec = flag.Bool("h2spec", false, "whether h2spec plays its cases against a port; make h2spec")

// A port speaks HTTP/2 as the cases of h2spec ask, except those that testdata/h2spec.txt lists, with the reasons.
func TestH2Spec(t *testing.T) {
	if !*h2spec {
		t.Skip("make h2spec runs it")
	}
	_, port, _ := net.SplitHostPort(serve(t, NewPort(echoes(NewBudget(1<<20)))))
	report := filepath.Join(t.TempDir(), "report.xml")
	// Its exit code is that of a failure, for there are some.
	play := exec.Command("go", "tool", "-modfile=../../tools.mod", "h2spec", "-p", port, "-o", "1", "-j", report)
	out, _ := play.CombinedOutput()
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var all struct {
		Cases []struct {
			Package string    `xml:"package,attr"`
			Name    string    `xml:"classname,attr"`
			Failure string    `xml:"failure"`
			Error   string    `xml:"error"`
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	listed, err := os.ReadFile("testdata/h2spec.txt")
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{} // whether those that are listed fail
	for line := range strings.Lines(string(listed)) {
		if name := strings.TrimSpace(line); name != "" && name[0] != '#' {
			left[name] = false
		}
	}
	passed := 0
	for _, c := range all.Cases {
		name := c.Package + ": " + c.Name
		failed := c.Failure+c.Error != ""
		_, known := left[name]
		if known {
			left[name] = failed
		}
		if !failed && c.Skipped == nil {
			passed++
		}
		if failed && !known {
			t.Errorf("%q fails: %s%s", name, c.Failure, c.Error)
		}
	}
	for name, failed := range left {
		if !failed {
			t.Errorf("%q passes, or is none: take it off the list", name)
		}
	}
	t.Logf("%d cases pass", passed)
}
