package xds

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// TypeURL is the resources' type.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// Options are how the server is reached, and what this node calls itself.
type Options struct {
	Server      string // host:port
	NodeID      string
	Metadata    map[string]any
	Headers     map[string]string // sent with the stream
	Credentials credentials.TransportCredentials
	MaxMessage  int // bytes of a push
	Backoff     Backoff
	Additions   *Additions
	// Interval is the least time between two loads; pushes that come faster share one.
	Interval time.Duration
	Caps     config.Caps // of all that is pushed at once; zero: the default
	// OnState, if set, is called when a stream opens (nil), and with the reason when it ends. It must not
	// block.
	OnState func(error)
}

// Backoff is how long to wait before the server is asked again.
type Backoff struct {
	// Connect is the wait until there was a stream at all. A node that starts has no rules yet, and
	// must not wait longer each time.
	Connect        time.Duration
	First, Longest time.Duration // after one has ended; each wait is twice the one before
	// Spread is the part, from 0 to 1, by which a wait is longer or shorter. Without it, nodes that lose a
	// server at once return to it at once.
	Spread float64
}

// pauses are the waits of one client, in their order.
type pauses struct {
	Backoff
	connected bool // there was a stream with a push
	failures  int  // attempts without one, since then
}

// after is the wait after an attempt with this many pushes; random is from 0 to 1. A stream counts as a success only
// when something came: a server that takes connections and ends them at once would otherwise be asked without a growing
// pause. Example: First 500ms, Longest 1s: 0.5, 1, 1, ... seconds, each with its spread.
func (p *pauses) after(pushes int, random float64) time.Duration {
	if pushes > 0 {
		p.connected, p.failures = true, 0
	}
	d := p.Connect
	if p.connected {
		d = min(p.Longest, p.First<<min(p.failures, 19)) // a longer shift would overflow
	}
	p.failures++
	return time.Duration(float64(d) * (1 + p.Spread*(2*random-1)))
}

// Client is a config.Source of the server's latest push. It is safe for concurrent use. Pushes arrive only
// while Watch runs.
type Client struct {
	options Options
	pace    config.Pace // of Watch alone
	mu      sync.Mutex
	texts   []config.Text // guarded by mu; nil: no push yet, which is not a push without resources
}

// NewClient makes a client; it does not connect yet.
func NewClient(o Options) *Client {
	o.Caps = o.Caps.OrDefault()
	if o.OnState == nil {
		o.OnState = func(error) {}
	}
	return &Client{options: o, pace: config.Pace{Interval: o.Interval}}
}

// Read implements [config.Source]. Before the first push there is nothing yet. It does not block on the server.
func (c *Client) Read() ([]config.Text, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.texts == nil {
		return nil, config.ErrNothingYet
	}
	return c.texts, nil
}

// String names the server.
func (c *Client) String() string { return "xds " + c.options.Server }

// Watch implements [config.Source]: it keeps a stream open until ctx is done, and
// has load put pushes in force. It blocks.
func (c *Client) Watch(ctx context.Context, load *config.Store) error {
	p := pauses{Backoff: c.options.Backoff}
	for ctx.Err() == nil {
		pushes := c.attempt(ctx, load)
		upkeep.Sleep(ctx, p.after(pushes, rand.Float64()))
	}
	return nil
}

// attempt keeps one stream open until it ends, reports why, and returns the number of its pushes.
func (c *Client) attempt(ctx context.Context, load *config.Store) int {
	pushes, err := c.stream(ctx, load)
	if ctx.Err() != nil {
		return pushes
	}
	// The error has no type of its own. Such a push counts as refused rules, so an operator sees it in the status of
	// the rules.
	if strings.Contains(err.Error(), "message larger than max") { // gRPC does not read such a push
		load.Refuse(err)
	}
	c.options.OnState(fmt.Errorf("the stream from %s ended: %w", c.options.Server, err))
	return pushes
}

const (
	maxHeaders = 64 << 10 // bytes that a server may send
	// pingEvery is more than five minutes, as servers of gRPC demand by default, and less than balancers keep a quiet
	// connection.
	pingEvery = 310 * time.Second
)

// dial makes a connection for one stream, which dials at once. A connection that fails again and again would wait for
// up to two minutes before it dials, whatever the back-off here is.
func (c *Client) dial(load *config.Store) (*grpc.ClientConn, error) {
	target := c.options.Server
	if !strings.Contains(target, ":///") { // the name is resolved at each dial, so that a server may move
		target = "passthrough:///" + target
	}
	return grpc.NewClient(
		target,
		grpc.WithTransportCredentials(c.options.Credentials),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.options.MaxMessage),
			grpc.ForceCodecV2(newCodec(c.options.Caps, load.Refuse))),
		grpc.WithMaxHeaderListSize(maxHeaders),
		// A stream on which nothing is pushed for hours looks like one whose server is gone; pings tell them apart.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: 10 * time.Second}),
	)
}

// stream subscribes to rules and answers pushes, until the stream ends. If pushes come faster than they may be loaded,
// the last one is loaded and answered. A nonce without an answer was overtaken by the next. Two goroutines share a
// stream: receive reads pushes, and this one loads and answers them.
func (c *Client) stream(ctx context.Context, load *config.Store) (pushes int, err error) {
	conn, err := c.dial(load)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ctx, end := context.WithCancel(ctx)
	defer end()
	for name, value := range c.options.Headers {
		ctx = metadata.AppendToOutgoingContext(ctx, name, value)
	}
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return 0, err
	}
	meta, err := structpb.NewStruct(c.options.Metadata)
	if err != nil {
		return 0, fmt.Errorf("CONFIG_GRPC_XDS_NODE_METADATA: %w", err)
	}
	request := &discovery.DiscoveryRequest{TypeUrl: TypeURL, Node: &core.Node{Id: c.options.NodeID, Metadata: meta}}
	refused := ""
	in := inbox{latest: make(chan *discovery.DiscoveryResponse, 1), ended: make(chan struct{})}
	go in.receive(ctx, stream, min(c.options.Interval/10, longestPause), load)
	// receive must have ended before the connection closes, so that no goroutine outlives the attempt.
	defer func() { end(); <-in.ended }()
	for {
		if err := stream.Send(request); err != nil {
			<-in.ended // Send says only that it has ended
			return pushes, in.why
		}
		push, err := c.next(ctx, &in)
		if err != nil {
			return pushes, err
		}
		// gRPC reports an open stream before any byte has come from the server. Only a push shows
		// that it is there.
		pushes++
		if pushes == 1 {
			c.options.OnState(nil)
		}
		request = &discovery.DiscoveryRequest{
			TypeUrl: TypeURL, ResponseNonce: push.GetNonce(),
			// After a refusal the version stays the last accepted one, as xDS requires.
			VersionInfo: request.VersionInfo,
		}
		if err := c.take(push, load); err != nil {
			if refused == push.GetVersionInfo() { // some servers push a refused version again at once
				upkeep.Sleep(ctx, c.options.Backoff.Connect)
			}
			refused = push.GetVersionInfo()
			// The cut may be within a character, and a string of a message has to be valid UTF-8.
			why := strings.ToValidUTF8(err.Error()[:min(len(err.Error()), longestDetail)], "")
			request.ErrorDetail = &status.Status{Code: int32(codes.InvalidArgument), Message: why}
			continue
		}
		request.VersionInfo = push.GetVersionInfo()
	}
}

// longestDetail bounds the error text for the server: it may have to fit a header.
const longestDetail = 4 << 10

// take puts a push in force. If it is bad, the previous rules stay the source's.
func (c *Client) take(push *discovery.DiscoveryResponse, load *config.Store) error {
	begun := time.Now()
	defer func() { c.pace.Done(begun, time.Now()) }()
	texts, err := textsOf(push.GetResources(), c.options.Additions, c.options.Caps)
	if err != nil {
		load.Refuse(err)
		return err
	}
	// load reads the source, so the new texts are in their place before it is called. If they are bad, the rules
	// before stay in force, and a later load for another reason must find their texts.
	before := c.swap(texts)
	err = load.Load()
	if err != nil {
		c.swap(before)
	}
	return err
}

// swap replaces the texts, and returns those before.
func (c *Client) swap(texts []config.Text) (before []config.Text) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.texts = c.texts, texts
	return before
}
