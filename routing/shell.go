package routing

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/transport"
	"github.com/sluice-gate/sluice/routing/wire"
)

// opening bounds hello, welcome and proof. A node that has not introduced itself by then
// may be a port that takes connections and sends nothing: the way to it is tried again.
const opening = 500 * time.Millisecond

type (
	callerStream = grpc.BidiStreamingClient[wire.Frame, wire.Frame]
	calledStream = grpc.BidiStreamingServer[wire.Frame, wire.Frame]
)

// converse keeps the way to a node open until ctx is done: it dials, introduces this node, sends its frames, and dials
// again. It is one goroutine for each other node. Each pair of nodes has two streams, one in each direction, with its
// own introduction.
func (r *Router) converse(ctx context.Context, m *member) {
	for ctx.Err() == nil {
		err := r.connect(ctx, m)
		r.closed(m)
		if ctx.Err() != nil {
			return
		}
		r.report(m.addr, err)
		select {
		case <-ctx.Done():
		case <-m.kick: // it is there
		// The pause grows with the failures, and is random.
		case <-time.After(r.pause(r.clock(), m)):
		}
	}
}

// connect holds one conversation, until it breaks. It dials, introduces this node within opening, reports the node as
// open, and then receives replies and sends frames in a goroutine each. It returns why the conversation ended.
func (r *Router) connect(ctx context.Context, m *member) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// An environment with a proxy must not send peers' messages through it.
	conn, err := grpc.NewClient(m.addr, grpc.WithTransportCredentials(r.options.TLS), grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(), // the name server may not answer for one
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxFrame), grpc.MaxCallSendMsgSize(maxFrame)))
	if err != nil {
		return err
	}
	defer conn.Close()
	// The stream ends with the context, so that a node which is silent in the middle of the
	// introduction does not keep this goroutine.
	late := time.AfterFunc(opening, func() { cancel(errSilent) })
	stream, err := wire.NewPeerClient(conn).Exchange(ctx)
	var welcome *wire.Hello
	if err == nil {
		welcome, err = r.introduce(stream, m.addr)
	}
	if !late.Stop() {
		err = fmt.Errorf("%w: it did not introduce itself within %v", errSilent, opening)
	}
	if err != nil {
		r.refuse("", err)
		return err
	}
	select { // of the last conversation
	// The bell of an earlier conversation must not end this one.
	case <-m.again:
	default:
	}
	r.opened(r.clock(), m, welcome)
	// Each side ends the other: a conversation with one broken direction would look open, and asks would wait
	// on it until their deadlines.
	var sides sync.WaitGroup
	sides.Go(func() { cancel(r.receiveReplies(stream, m)) })
	// The core had no message for too long (bury), although the stream is open. The send may wait for as long, because
	// the node does not read.
	sides.Go(func() {
		select {
		case <-m.again:
			cancel(errSilent)
		case <-ctx.Done():
		}
	})
	if err = r.sendFrames(ctx, stream, m); !errors.Is(err, io.EOF) { // then the other side ends with the fault
		cancel(err)
	}
	sides.Wait()
	return context.Cause(ctx)
}

// sendFrames sends what waits, as much as is there in one message. Only this goroutine sends on the stream. It returns
// nil when ctx is done, and else the error of the stream.
func (r *Router) sendFrames(ctx context.Context, stream callerStream, m *member) error {
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	table, look := r.tableStream(), time.NewTicker(tableEvery)
	defer look.Stop()
	if err := sendTable(table, stream.Send); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			if err := sendTable(table, stream.Send); err != nil {
				return err
			}
		// A ping is answered, so that both sides get messages while there are no asks.
		case <-ping.C:
			if err := stream.Send(m.ping(r.stamp())); err != nil {
				return err
			}
		case <-m.outgoing:
		}
		// Each frame takes with it all that waits, up to its bounds: the busier the way, the fewer
		// frames a call.
		for f := m.take(r.stamp()); f != nil; f = m.take(r.stamp()) {
			if err := stream.Send(f); err != nil {
				return err
			}
		}
	}
}

// receiveReplies handles replies until the stream ends, and returns its error.
func (r *Router) receiveReplies(stream callerStream, m *member) error {
	for {
		f, err := stream.Recv()
		if err != nil {
			return err
		}
		r.replied(r.clock(), m, f)
	}
}

// caps bound the peers' port, for strangers and for peers: a peer has one conversation of messages, which are
// processed as they arrive.
var caps = transport.Caps{
	Streams: 4, HeaderBytes: 4 << 10, MessageBytes: maxFrame, RequestTimeout: 10 * time.Second, Idle: time.Minute,
}

// NewServer makes the gRPC port on which peers reach a router. creds may be
// nil: then the connection is the node's own, and the secret is what guards it.
// Its listener should be a transport.Listener of the same budget, which bounds
// the unfinished messages of peers and strangers together.
func (r *Router) NewServer(creds credentials.TransportCredentials, budget *transport.Budget) *transport.Port {
	if creds == nil {
		creds = r.served
	}
	services := new(transport.Services)
	wire.RegisterPeerServer(services, exchange{Router: r})
	return transport.NewPort(transport.Options{
		Caps: caps, Budget: budget, Security: &door{creds, r.turnedAway}, Services: services, Bug: r.bug,
	})
}

// bug handles a panic that a caller caused. The port recovers it, so that one caller cannot end the process.
func (r *Router) bug(bug any) {
	r.reject(rejectedBug)
	r.report("a caller of the peers' port", fmt.Errorf("a bug in Sluice, please report it: %v\n%s", bug, debug.Stack()))
}

// contain keeps a panic that a peer's asks caused from ending the process. They are not answered. It is deferred.
func (r *Router) contain() {
	if bug := recover(); bug != nil {
		r.bug(bug)
	}
}

// turnedAway handles a connection of a stranger.
func (r *Router) turnedAway(from string, kind rejection, err error) {
	r.stats.refused.Add(1)
	r.reject(kind)
	r.report(from, err)
}

// refuse counts a failed introduction by its fault, and reports it if the peer has a name.
func (r *Router) refuse(from string, err error) {
	if fault, ok := errors.AsType[*refusal](err); ok {
		r.reject(fault.kind)
	}
	// A node that this one has dialled is reported by converse, with its address.
	if from != "" {
		r.stats.refused.Add(1)
		r.report(from, err)
	}
}

// remoteAddr names the other end of a stream, by its address there and by its stated one.
func remoteAddr(stream calledStream, hello *wire.Hello) string {
	from := "somebody"
	if p, ok := peer.FromContext(stream.Context()); ok {
		from = p.Addr.String()
	}
	// What a stranger calls itself is quoted and cut, for it goes into a log.
	if name := hello.GetAddr(); name != "" {
		from += fmt.Sprintf(" (which calls itself %q)", name[:min(len(name), maxAddr)])
	}
	return from
}

// exchange is the peers' service of a Router. It is apart from Router, whose other methods are not for the wire.
type exchange struct {
	wire.UnimplementedPeerServer
	*Router
}

// Exchange is the other end of a peer's conversation. It waits for Run, checks the introduction, and then handles one
// frame after the other until the stream ends. Asks wait in goroutines of their own, so that the frames behind them are
// read.
func (r exchange) Exchange(stream calledStream) error {
	talk, ok := transport.Converse(stream.Context())
	if !ok {
		return status.Error(codes.Internal, "the call did not come by the port of peers")
	}
	received := func() { talk.Received() }
	select {
	case <-r.runs:
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
	// A stranger may connect and not introduce itself. The caller gives up after opening. This side waits for twice as
	// long, so that it does not cut a caller off that is only slow to begin.
	late := time.AfterFunc(2*opening, talk.End)
	hello, err := r.welcome(stream, received)
	if !late.Stop() {
		err = errHello
	}
	if err != nil {
		r.refuse(remoteAddr(stream, hello), err)
		return status.Error(codes.PermissionDenied, err.Error())
	}
	received()
	// The identity of the node was checked in its introduction. Later frames do not repeat it.
	from := &inlet{addr: hello.GetAddr(), incarnation: hello.GetIncarnation()}
	r.applyHello(r.clock(), hello)
	// Replies come from as many goroutines as there are frames under way, and a stream may be
	// sent on by one at a time.
	var sending sync.Mutex
	answer := func(f *wire.Frame) {
		sending.Lock()
		defer sending.Unlock()
		_ = stream.Send(f) // a broken stream ends Recv too
	}
	// It bounds the asks under way, and with them the goroutines.
	room := semaphore.NewWeighted(peerPending)
	var working sync.WaitGroup
	// So no goroutine answers on a stream that has ended.
	defer working.Wait()
	ctx := stream.Context()
	later := func(asks []*wire.Ask) {
		n := int64(len(asks))
		if room.Acquire(ctx, n) != nil { // a peer that floods waits here
			return
		}
		working.Go(func() {
			defer room.Release(n)
			defer r.contain()
			r.answerTo(ctx, asks, answer)
		})
	}
	for {
		f, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.serve(r.clock(), from, f, answer, later)
		received()
	}
}

// introduce names this node, and proves that it has the secret, to the node known as addr, which then proves it too. It
// is the caller's side of the exchange in auth.go, and welcome is the other. It returns the other's hello.
func (r *Router) introduce(stream callerStream, addr string) (*wire.Hello, error) {
	hello := r.hello(newNonce())
	if err := stream.Send(&wire.Frame{Hello: hello}); err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("it refused the introduction: %w", err)
	}
	welcome := answer.GetWelcome()
	if err := check(welcome, r.options.Region); err != nil {
		return nil, err
	}
	// A node that answers for another's address would receive requests for keys that it does not own. It would
	// not find itself in the ring by the name that others use.
	if welcome.GetAddr() != addr {
		return nil, fmt.Errorf("%w: its address is %s, and its PEER_ADDR is %q", errName, addr,
			welcome.GetAddr())
	}
	bound, err := binding(stream.Context())
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&wire.Frame{Proof: prove(r.options.Secret, "caller", bound, hello, welcome)}); err != nil {
		return nil, err
	}
	answer, err = stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("it refused the introduction: %w", err)
	}
	if !hmac.Equal(answer.GetProof(), prove(r.options.Secret, "called", bound, hello, welcome)) {
		return nil, ErrSecret
	}
	return welcome, nil
}

// welcome handles a peer's introduction.
func (r *Router) welcome(stream calledStream, received func()) (*wire.Hello, error) {
	f, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	// The time for a message begins again with each one.
	received()
	hello := f.GetHello()
	if err := check(hello, r.options.Region); err != nil {
		return hello, err
	}
	// Two nodes with one name would take each other's keys for their own.
	if hello.GetAddr() == r.options.Addr {
		return hello, errSelf
	}
	bound, err := binding(stream.Context())
	if err != nil {
		return hello, err
	}
	own := r.hello(newNonce())
	if err := stream.Send(&wire.Frame{Welcome: own}); err != nil {
		return hello, err
	}
	f, err = stream.Recv()
	if err != nil {
		return hello, err
	}
	if !hmac.Equal(f.GetProof(), prove(r.options.Secret, "caller", bound, hello, own)) {
		return hello, ErrSecret
	}
	return hello, stream.Send(&wire.Frame{Proof: prove(r.options.Secret, "called", bound, hello, own)})
}

// New makes a router over the node's own limiter. The base says which kind of ring it is: over a local.Limiter,
// accounts are in the nodes, and over any other in a store.
func New(base ratelimit.Limiter, o Options, clock ratelimit.Clock, wall time.Time) *Router {
	dialled, served := anonymous()
	r := &Router{work: make(bell, 1), served: served, runs: make(chan struct{})}
	if o.TLS == nil {
		o.TLS = dialled
	}
	// The core's options are those with the credentials that are dialled with.
	r.core = newCore(o, clock, local.New(outageKeys, clock(), wall))
	// Gossip began before there was a router to count its refusals.
	if g, ok := o.Discovery.(*Gossip); ok {
		refused := func(from string, err error) { r.turnedAway(from, rejectedGossip, err) }
		g.reports.Store(&refused)
	}
	r.driver = r
	r.random = rand.Float64
	r.incarnation = rand.Uint64() | 1 // 0 is no life
	r.base = baseOf{base}
	// A key has one budget for outages on each node, whether its store or its owner cannot be
	// asked. With two of them, a node would admit twice what the rule declares.
	if f, ok := base.(interface{ Alone() *local.Limiter }); ok {
		r.fallback = f.Alone()
	}
	if local, ok := base.(*local.Limiter); ok {
		r.storeless(local)
	}
	return r
}

// dial implements driver. Nodes are known from Run on (find, exchange).
func (r *Router) dial(m *member) {
	work := make(bell, 1)
	// The link rings when a message is ready, and sendFrames waits for the bell.
	m.wake = work.ring
	m.outgoing = work
	m.again = make(bell, 1)
	ctx, cancel := context.WithCancel(r.ctx)
	m.stop = cancel
	r.running.Go(func() { r.converse(ctx, m) })
}
