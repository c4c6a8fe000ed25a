package transport

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// converse is a handler that answers each message with itself. It tells of its Talk, which has receipts.
func converse(talks chan<- *Talk) func(grpc.ServerStream) error {
	return func(stream grpc.ServerStream) error {
		talk, _ := Converse(stream.Context())
		if talks != nil {
			talk.Receipts()
			talks <- talk
		}
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
	}
}

// Each message is acknowledged when its caller has read it, and not sooner, for any size, and with any other
// traffic on the connection. What looks like the answer to a ping, and is none, acknowledges nothing.
func TestTalk(t *testing.T) {
	var talks chan *Talk
	o := others(func(stream grpc.ServerStream) error { return converse(talks)(stream) })
	played(t, o, &slow{}, func(t *testing.T, s *script, p *Port) {
		talks = make(chan *Talk, 100) // of this bubble
		s.windows(1 << 20)
		_ = s.WriteWindowUpdate(0, 1<<30)
		large := text(strings.Repeat("a", 40_000))
		var all []*Talk
		exchange := func(i int) {
			for rest := large; len(rest) > 0; rest = rest[min(len(rest), mostFrame):] {
				_ = s.WriteData(uint32(2*i+1), false, rest[:min(len(rest), mostFrame)])
			}
			synctest.Wait()
		}
		for i := range uint32(3) {
			s.head(2*i+1, false, ordinary("/x/Other")...)
			all = append(all, <-talks)
		}
		for n, i := range []int{0, 1, 0, 2, 0, 1} {
			exchange(i)
			<-all[i].Receipts()
			if got, want := all[i].Acked(), uint64([]int{1, 1, 2, 1, 3, 2}[n]); got != want {
				t.Fatalf("stream %d: %d messages are acknowledged, want %d", i, got, want)
			}
		}
		if held := p.Budget.Held(); held != 3*talkCost {
			t.Errorf("three talks hold %d bytes, want %d each", held, talkCost)
		}
		goOn := s.stands() // and its kernel reads what comes
		exchange(1)
		for _, data := range [][8]byte{{}, {0x5b, 'q', 'u', 'x', 0, 0, 0, 7}, {0x5b, 'q', 'u', 'o', 0, 0, 0, 8}} {
			_ = s.WritePing(true, data)
		}
		s.outcome()
		synctest.Wait()
		if got := all[1].Acked(); got != 2 || len(all[1].Receipts()) > 0 {
			t.Errorf("a caller that does not read has acknowledged %d messages of 3", got)
		}
		goOn()
		<-all[1].Receipts()
		if got := all[1].Acked(); got != 3 {
			t.Errorf("%d messages are acknowledged, want 3", got)
		}
		goOn = s.stands()
		for id := uint32(7); id < 200; id += 2 {
			s.head(id, false, ordinary("/x/Other")...)
			_ = s.WriteData(id, false, text("a"))
			synctest.Wait()
			_ = s.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		s.outcome()
		for c := range p.open {
			if n := len(c.receipts.wait); n > 0 {
				t.Errorf("%d receipts are kept of talks that have ended", n)
			}
		}
		goOn()
	})
}

// Received reports whether a message came before the server read it.
func TestTalkSaysWhatWaits(t *testing.T) {
	var goOn chan struct{}
	var said []bool
	o := others(func(stream grpc.ServerStream) error {
		talk, _ := Converse(stream.Context())
		for range 2 {
			var m []byte
			if err := stream.RecvMsg(&m); err != nil {
				return err
			}
			<-goOn
			said = append(said, talk.Received())
		}
		return nil
	})
	played(t, o, &slow{}, func(t *testing.T, s *script, _ *Port) {
		goOn = make(chan struct{}) // of this bubble
		s.head(1, false, ordinary("/x/Other")...)
		_ = s.WriteData(1, false, append(text("a"), text(strings.Repeat("b", 9000))...))
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		if want := []bool{true, false}; !slices.Equal(said, want) {
			t.Errorf("after each of two messages it says that more waits: %v, want %v", said, want)
		}
	})
}

// A message of the largest size finds a window, though it comes behind a small one.
func TestTalksHaveRoomForTheLargestMessage(t *testing.T) {
	conn := client(t, others(converse(nil)), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bareCodec{})))
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/x/Other")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{60 << 10, 250 << 10, 60 << 10, 250 << 10} {
		sent, got := make([]byte, size), []byte(nil)
		if err := stream.SendMsg(&sent); err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(&got); err != nil || len(got) != size {
			t.Fatalf("%d bytes of %d: %v", len(got), size, err)
		}
	}
}

// A Talk can be ended while its handler waits, and its caller gets the handler's answer.
func TestTalksEnd(t *testing.T) {
	s := connected(t, NewPort(others(func(stream grpc.ServerStream) error {
		talk, _ := Converse(stream.Context())
		talk.End()
		if err := stream.RecvMsg(new([]byte)); status.Code(err) != codes.Canceled {
			return err
		}
		return status.Error(codes.OutOfRange, "")
	})))
	s.head(1, false, ordinary("/x/Other")...)
	if got := s.outcome(1); got != "1: status 11" {
		t.Error(got)
	}
}
