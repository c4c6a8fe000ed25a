package transport

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
)

// gRPC gets a hundred calls of one read in turns, in order and complete, with a screen or without.
func TestCallsComeInTurns(t *testing.T) {
	for _, gated := range []bool{false, true} {
		w := &line{}
		g := screenedGuard(w, &door{decide: func() bool { return true }})
		if !gated {
			g.screen = nil
		}
		in := clientWire()
		for id := range uint32(100) {
			in.headers(2*id+1, isLast)
		}
		all := bytes.Clone(in.Bytes())
		if len(all) > readBuffer {
			t.Fatalf("a hundred calls are %d bytes, more than a read", len(all))
		}
		w.pieces = [][]byte{all}
		var got []byte
		reads, before := 0, 0
		p := make([]byte, readBuffer)
		for {
			n, err := g.Read(p)
			got = append(got, p[:n]...)
			// A turn's last frame may be cut, and counts for the next.
			calls := frames(got[min(prefaceLen, len(got)):])
			if calls-before > g.turns.most+1 {
				t.Errorf("gated %v: %d calls in one turn, at most %d are wanted", gated, calls-before, g.turns.most)
			}
			before = calls
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			reads++
		}
		if !bytes.Equal(got, all) {
			t.Errorf("gated %v: %d bytes were read, of %d, or others", gated, len(got), len(all))
		}
		if least := 100 / g.turns.most; reads < least {
			t.Errorf("gated %v: %d turns, at least %d are wanted", gated, reads, least)
		}
	}
}

func frames(b []byte) (n int) {
	f := http2.NewFramer(nil, bytes.NewReader(b))
	for {
		if _, err := f.ReadFrame(); err != nil {
			return n
		}
		n++
	}
}

// What is no crowd of calls is handed over as it came: a body is not cut into turns.
func TestBodiesAreNotCut(t *testing.T) {
	g, there := testGuard(nil, Caps{HeaderBytes: 8 << 10})
	defer there.Close()
	defer g.Close()
	in := clientWire()
	in.headers(1, goesOn)
	_ = in.WriteData(1, true, make([]byte, 7<<10))
	go func() { _, _ = there.Write(in.Bytes()) }()
	all := len(in.Bytes())
	if n, err := g.Read(make([]byte, readBuffer)); n != all || err != nil {
		t.Errorf("%d bytes of %d were read at once: %v", n, all, err)
	}
}

// A crowd of calls that comes at once does not get a goroutine for each: those of a turn have
// been answered when the next begin. With one processor, so that nothing else runs them.
func TestACrowdIsAnsweredByFew(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const calls = 100
	var most, answered atomic.Int64
	done := make(chan struct{})
	server := grpc.NewServer(append(Options(Caps{HeaderBytes: 8 << 10}, nil, nil, nil),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			if n := int64(runtime.NumGoroutine()); n > most.Load() {
				most.Store(n)
			}
			if answered.Add(1) == calls {
				close(done)
			}
			return nil
		}))...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(Listen(l, 0, nil)) }()
	defer func() { server.Stop(); <-served }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := clientWire()
	_ = in.WriteSettings()
	_, _ = c.Write(in.Bytes())
	// The server's settings come when it has taken the connection.
	if _, err := http2.NewFramer(nil, c).ReadFrame(); err != nil {
		t.Fatal(err)
	}
	in.Reset()
	for id := range uint32(calls) {
		var block bytes.Buffer
		e := hpack.NewEncoder(&block)
		for _, f := range [][2]string{
			{":method", "POST"},
			{":scheme", "http"},
			{":path", "/a/b"},
			{":authority", "a"},
			{"content-type", "application/grpc"},
		} {
			_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true})
		}
		_ = in.WriteHeaders(http2.HeadersFrameParam{
			StreamID: 2*id + 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true,
		})
	}
	quiet := int64(runtime.NumGoroutine())
	if _, err := c.Write(in.Bytes()); err != nil {
		t.Fatal(err)
	}
	<-done
	if more := most.Load() - quiet; more > 3*callsATurn {
		t.Errorf("%d calls at once had %d goroutines more, of which %d begin in one turn", calls, more, callsATurn)
	}
}
