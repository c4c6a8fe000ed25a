package transport

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Frames that begin no call and bring nothing end a connection when there are far more of them than its calls and
// its time explain.
func TestIdleFramesEndAConnection(t *testing.T) {
	for name, write := range map[string]func(*script, int) error{
		"pings":         func(s *script, _ int) error { return s.WritePing(false, [8]byte{}) },
		"answers":       func(s *script, _ int) error { return s.WritePing(true, [8]byte{}) },
		"settings":      func(s *script, _ int) error { return s.WriteSettings() },
		"priorities":    func(s *script, _ int) error { return s.WritePriority(5, http2.PriorityParam{}) },
		"windows":       func(s *script, _ int) error { return s.WriteWindowUpdate(0, 1) },
		"empty data":    func(s *script, _ int) error { return s.WriteData(1, false, nil) },
		"bytes of data": func(s *script, _ int) error { return s.WriteData(1, false, []byte{0}) },
		"resets":        func(s *script, _ int) error { return s.WriteRSTStream(1, http2.ErrCodeCancel) },
	} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, s *script, p *Port) {
				s.head(1, false, ordinary("/x/Echo")...)
				n := 0
				for err := error(nil); err == nil && n < 3*framesInStock; n++ {
					err = write(s, n)
					synctest.Wait()
				}
				if n < framesInStock || n > framesInStock+2*framesACall || p.Budget.Excess.Load() != 1 {
					t.Errorf("the connection ended after %d, %d are counted", n, p.Budget.Excess.Load())
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
	o := echoes(NewBudget(64 << 20))
	o.Services = streams{"Other": func(stream grpc.ServerStream) error {
		m := make([]byte, 200<<10)
		return stream.SendMsg(&m)
	}}.services()
	conn, err := grpc.NewClient(servePort(t, o), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialConnWindowSize(65535), grpc.WithInitialWindowSize(65535),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bareCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
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
