// Package caller stands where Envoy does: it asks the nodes of a fleet in turn, at
// the instants that a load says.
package caller

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/bench/load"
)

// Pool is connections to nodes, which are asked in turn. Its zero value has none. It is safe for concurrent use. It
// does what a load balancer does: round robin over the nodes that are up. Nodes do not choose their requests, so each
// gets all keys.
type Pool struct {
	mu    sync.Mutex
	nodes []*grpc.ClientConn // guarded by mu
	turn  int                // guarded by mu
}

// Timeout is the longest time of a call: more than any decision takes, so that the count is that of the
// service.
const Timeout = time.Second

// Add has a node asked, too, or over one connection more. passthrough hands the address over as it is: gRPC's default
// would resolve it by DNS. The connection is made by the first call.
func (p *Pool) Add(address string, more ...grpc.DialOption) error {
	conn, err := grpc.NewClient("passthrough:///"+address, append(more, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return fmt.Errorf("dialling %s: %w", address, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes = append(p.nodes, conn)
	return nil
}

// Drop takes a node out, as a balancer does with an absent one. Calls that are under way there may end. The connection
// stays open for the longest time of a call.
func (p *Pool) Drop(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes = slices.DeleteFunc(p.nodes, func(conn *grpc.ClientConn) bool {
		is := conn.Target() == "passthrough:///"+address
		if is {
			time.AfterFunc(Timeout, func() { conn.Close() })
		}
		return is
	})
}

// Close ends all connections.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.nodes {
		conn.Close()
	}
}

// Next is the node whose turn it is; nil if there is none.
func (p *Pool) Next() *grpc.ClientConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.nodes) == 0 {
		return nil
	}
	p.turn++
	return p.nodes[p.turn%len(p.nodes)]
}

// Request is one with one descriptor, of keys and values in turn.
func Request(domain string, entries ...string) *rls.RateLimitRequest {
	d := &common.RateLimitDescriptor{}
	for i := 0; i+1 < len(entries); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: entries[i], Value: entries[i+1]})
	}
	return &rls.RateLimitRequest{Domain: domain, Descriptors: []*common.RateLimitDescriptor{d}}
}

// Encoded is a message of our own, whose texts are valid, as it goes over a wire.
func Encoded(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("encoding %v: %v", m, err))
	}
	return b
}

// inFlight bounds the calls of an open loop. With more, a hung server would take all memory of the caller. Calls beyond
// it are late, and their latencies count from their intended times.
const inFlight = 4096

// Open makes the calls of a load at their times, whatever became of earlier ones, each in a goroutine of its
// own, and waits for all.
func Open(ctx context.Context, l load.Load, seed uint64, start time.Time, call func(r load.Request, intended time.Time)) {
	var calls errgroup.Group
	calls.SetLimit(inFlight)
	stream := l.Stream(seed)
	for r, ok := stream.Next(); ok && ctx.Err() == nil; r, ok = stream.Next() {
		intended := start.Add(r.At)
		if wait := time.Until(intended); wait > 0 && Sleep(ctx, wait) != nil {
			break
		}
		calls.Go(func() error {
			call(r, intended)
			return nil
		})
	}
	_ = calls.Wait() // none fails
}

// Closed has so many callers make calls one after the other for the length of the load, each its own sequence of keys.
// The instants of the load are ignored: a caller does not reach the end of its keys, however much faster it is than the
// rate. Each caller has a seed of its own, or all would ask for the same keys in step.
func Closed(ctx context.Context, callers int, l load.Load, seed uint64, start time.Time, call func(r load.Request, intended time.Time)) {
	end := start.Add(l.Length)
	l.Length = math.MaxInt64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			stream := l.Stream(seed + uint64(i))
			for time.Now().Before(end) && ctx.Err() == nil {
				r, _ := stream.Next()
				call(r, time.Now())
			}
		})
	}
	wg.Wait()
}

// Sleep sleeps, unless ctx is done before.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Bytes is a codec of messages that are encoded already: []byte, and *[]byte for answers. It takes the name of the
// standard codec, so that the content-type is the one that servers expect.
type Bytes struct{}

// Raw has a connection send encoded messages: a caller's cost is the same for every server.
func Raw() grpc.DialOption { return grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Bytes{})) }

// Name implements encoding.CodecV2.
func (Bytes) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (Bytes) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (Bytes) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
