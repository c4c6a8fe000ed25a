package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// bounded is a server with its default bounds, except those that a test changes.
func bounded(t *testing.T, change func(*Options)) *Server {
	t.Helper()
	o := local()
	o.Caps = transport.Caps{
		Streams: 1000, HeaderBytes: 8 << 10, MessageBytes: 256 << 10, RequestTimeout: 10 * time.Second,
	}
	o.Budget, o.HTTPBudget = transport.NewBudget(8<<20), transport.NewBudget(1<<20)
	o.HTTPConnections, o.DebugConnections = 16, 4
	if change != nil {
		change(&o)
	}
	v, err := newServer(t, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(run(t, v))
	return v
}

func client(t *testing.T, v *Server) *grpc.ClientConn {
	t.Helper()
	_, rpc, _ := v.Addresses()
	conn, err := grpc.NewClient("passthrough:///"+rpc.String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// eventually waits for what the server does in its own time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not within 10s: ", what)
		}
	}
}

var good = &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{{}}}

// What the bounds refuse is an error of the call, and the connection goes on.
func TestCallsBeyondTheBounds(t *testing.T) {
	v := bounded(t, nil)
	calls := rlsv3.NewRateLimitServiceClient(client(t, v))
	large := &rlsv3.RateLimitRequest{Domain: strings.Repeat("x", 300<<10), Descriptors: good.Descriptors}
	many := &rlsv3.RateLimitRequest{Domain: "d"}
	for range 101 {
		entries := make([]*common.RateLimitDescriptor_Entry, 100)
		for i := range entries {
			entries[i] = &common.RateLimitDescriptor_Entry{}
		}
		many.Descriptors = append(many.Descriptors, &common.RateLimitDescriptor{Entries: entries})
	}
	heavy := metadata.AppendToOutgoingContext(context.Background(), "x-large", strings.Repeat("x", 9<<10))
	packed := []grpc.CallOption{grpc.UseCompressor(gzip.Name)}
	for name, c := range map[string]struct {
		ctx     context.Context
		q       *rlsv3.RateLimitRequest
		options []grpc.CallOption
		want    codes.Code
	}{
		"good":          {context.Background(), good, nil, codes.OK},
		"large":         {context.Background(), large, nil, codes.ResourceExhausted},
		"entries":       {context.Background(), many, nil, codes.InvalidArgument},
		"headers":       {heavy, good, nil, codes.Internal},
		"packed":        {context.Background(), good, packed, codes.Unimplemented},
		"good as after": {context.Background(), good, nil, codes.OK},
	} {
		_, err := calls.ShouldRateLimit(c.ctx, c.q, c.options...)
		if status.Code(err) != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if name == "packed" && !strings.Contains(err.Error(), "send it without compression") {
			t.Errorf("it does not say why: %v", err)
		}
	}
	eventually(t, "when all calls have ended, nothing is held", func() bool { return v.options.Budget.Held() == 0 })
}

// Streams of reflection are few at a time.
func TestReflectionIsBounded(t *testing.T) {
	v := bounded(t, nil)
	refused := 0
	for range reflections + 3 {
		stream, err := grpc_reflection_v1.NewServerReflectionClient(client(t,
			v)).ServerReflectionInfo(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		list := &grpc_reflection_v1.ServerReflectionRequest{
			MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
		}
		if err := stream.Send(list); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) == codes.ResourceExhausted {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if refused != 3 {
		t.Errorf("%d streams were refused, want 3", refused)
	}
}

// An HTTP connection that says nothing, or half a header, is closed for one that has something to ask.
func TestHTTPConnectionsAreBounded(t *testing.T) {
	v := bounded(t, func(o *Options) { o.Caps.RequestTimeout = 400 * time.Millisecond })
	web, _, debug := v.Addresses()
	for _, address := range []string{web.String(), debug.String()} {
		var open []net.Conn
		for range 40 {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n")
			open = append(open, c)
		}
		r, err := http.Get("http://" + address + "/")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		for _, c := range open { // those that were not closed for others stall
			_, _ = io.ReadAll(c)
			c.Close()
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
