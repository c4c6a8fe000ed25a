package transport

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// talker answers each message with one, and tells what was acknowledged.
type talker struct {
	rlqs.UnimplementedRateLimitQuotaServiceServer
	answer *rlqs.RateLimitQuotaResponse
	talks  chan *Talk
	takes  chan chan<- bool // nil, or what tells it to take a message in, and gets whether more waits
}

func (s *talker) StreamRateLimitQuotas(
	stream grpc.BidiStreamingServer[rlqs.RateLimitQuotaUsageReports, rlqs.RateLimitQuotaResponse],
) error {
	t, ok := Converse(stream.Context())
	if !ok {
		s.talks <- nil
		return nil
	}
	t.Receipts()
	s.talks <- t
	for {
		if _, err := stream.Recv(); err != nil {
			return nil //nolint:nilerr // the caller has ended it
		}
		if s.takes != nil {
			more := <-s.takes
			more <- t.Received()
			continue
		}
		t.Received()
		if err := stream.Send(s.answer); err != nil {
			return nil //nolint:nilerr // the caller has ended it
		}
	}
}

// stoppable is a connection whose reader can be made to stand still.
type stoppable struct {
	net.Conn
	mu sync.Mutex
}

func (c *stoppable) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	return n, err
}

// serveTalks serves until the test ends. Its answers are size bytes.
func serveTalks(t *testing.T, size int) (*talker, *stoppable, *grpc.ClientConn, *Budget) {
	t.Helper()
	s := &talker{talks: make(chan *Talk, 16), answer: &rlqs.RateLimitQuotaResponse{
		BucketAction: []*rlqs.RateLimitQuotaResponse_BucketAction{{
			BucketId: &rlqs.BucketId{Bucket: map[string]string{"k": strings.Repeat("v", size)}},
		}},
	}}
	budget := NewBudget(1 << 20)
	others := new(Services)
	rlqs.RegisterRateLimitQuotaServiceServer(others, s)
	made := make(chan *stoppable, 1)
	addr := servePort(t, Options{Caps: usual, Budget: budget, Services: others})
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			x := &stoppable{Conn: c}
			made <- x
			return x, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.Connect()
	return s, <-made, conn, budget
}

// opens begins a talk.
func (s *talker) opens(
	t *testing.T, conn *grpc.ClientConn,
) (rlqs.RateLimitQuotaService_StreamRateLimitQuotasClient, *Talk) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	stream, err := rlqs.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	talk := <-s.talks
	if talk == nil {
		t.Fatal("the call is no talk")
	}
	return stream, talk
}

// Each message is acknowledged when its caller has read it, and not sooner, for any size, and with any other
// traffic on the connection.
func TestTalk(t *testing.T) {
	s, client, conn, budget := serveTalks(t, 40_000)
	var talks []*Talk
	var streams []rlqs.RateLimitQuotaService_StreamRateLimitQuotasClient
	for range 3 {
		stream, talk := s.opens(t, conn)
		streams, talks = append(streams, stream), append(talks, talk)
	}
	exchange := func(i int) {
		if err := streams[i].Send(&rlqs.RateLimitQuotaUsageReports{Domain: "d"}); err != nil {
			t.Fatal(err)
		}
		if _, err := streams[i].Recv(); err != nil {
			t.Fatal(err)
		}
	}
	for n, i := range []int{0, 1, 0, 2, 0, 1} {
		exchange(i)
		<-talks[i].Receipts()
		if got, want := talks[i].Acked(), uint64([]int{1, 1, 2, 1, 3, 2}[n]); got != want {
			t.Fatalf("stream %d: %d messages are acknowledged, want %d", i, got, want)
		}
	}
	for budget.Held() != 3*talkCost && streams[0].Context().Err() == nil { // the writer finds that it has written
		runtime.Gosched()
	}
	if held := budget.Held(); held != 3*talkCost {
		t.Errorf("three talks hold %d bytes, want %d each", held, talkCost)
	}
	client.mu.Lock() // it stands still, and its kernel reads what comes
	if err := streams[1].Send(&rlqs.RateLimitQuotaUsageReports{Domain: "d"}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-talks[1].Receipts():
		t.Error("a caller that does not read has acknowledged a message")
	case <-time.After(100 * time.Millisecond):
	}
	client.mu.Unlock()
	<-talks[1].Receipts()
	if got := talks[1].Acked(); got != 3 {
		t.Errorf("%d messages are acknowledged, want 3", got)
	}
}

// Received reports whether a message came before the server read it.
func TestTalkSaysWhatWaits(t *testing.T) {
	s, _, conn, budget := serveTalks(t, 10)
	s.takes = make(chan chan<- bool)
	stream, _ := s.opens(t, conn)
	const large = 200_000 // far more than the reads of a small one cost
	for _, size := range []int{1, large} {
		if err := stream.Send(&rlqs.RateLimitQuotaUsageReports{Domain: strings.Repeat("d", size)}); err != nil {
			t.Fatal(err)
		}
	}
	for budget.Held() < large && stream.Context().Err() == nil {
		runtime.Gosched()
	}
	for i, want := range []bool{true, false} {
		more := make(chan bool)
		s.takes <- more
		if got := <-more; got != want {
			t.Errorf("after message %d of 2, it says that more waits: %t", i+1, got)
		}
	}
}

// A Talk can be ended while its handler waits, and its caller gets the handler's answer.
func TestTalksEnd(t *testing.T) {
	o := echoes(nil)
	o.Services = streams{"Other": func(stream grpc.ServerStream) error {
		talk, _ := Converse(stream.Context())
		talk.End()
		if err := stream.RecvMsg(new([]byte)); status.Code(err) != codes.Canceled {
			return err
		}
		return status.Error(codes.OutOfRange, "")
	}}.services()
	s := connectedTo(t, NewPort(o))
	s.head(1, false, ordinary("/x/Other")...)
	if got := s.outcome(1); got != "1: status 11" {
		t.Error(got)
	}
}

// What looks like an answer to a ping, and is none, acknowledges nothing.
func TestForgedPongs(t *testing.T) {
	talk := &Talk{notify: make(chan struct{}, 1)}
	r := receipts{seq: 1, wait: []receipt{{1, talk, 1}}}
	for _, data := range [][8]byte{{}, {0x5b, 'q', 'u', 'x', 0, 0, 0, 1}, {0x5b, 'q', 'u', 'o', 0, 0, 0, 2}} {
		if r.pong(data); talk.Acked() != 0 {
			t.Errorf("%v acknowledged a message", data)
		}
	}
	if r.pong([8]byte{0x5b, 'q', 'u', 'o', 0, 0, 0, 1}); talk.Acked() != 1 || len(r.wait) != 0 {
		t.Errorf("the answer acknowledged %d messages, and %d pings wait", talk.Acked(), len(r.wait))
	}
}
