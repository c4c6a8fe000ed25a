package routing

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/routing/wire"
)

// How long things take.
const (
	// TakeOver is how long a node may be out of reach before others own its
	// keys.
	TakeOver                = 2 * time.Second
	pingEvery               = 500 * time.Millisecond
	redialLeast, redialMost = 100 * time.Millisecond, time.Second
	opening                 = 500 * time.Millisecond // for hello, welcome and proof
)

// Bounds of what is under way.
const (
	peerQueue    = 4096 // asks that wait to be sent to one peer
	frameAsks    = 256  // in one message
	maxPeers     = 1000
	framesAtOnce = 64 // of one peer, being answered
	maxFrame     = 4 << 20
)

var (
	errPeerGone = errors.New("the peer cannot be reached")
	errName     = errors.New("the peer has another name")
	errPeerBusy = errors.New("too many asks wait for the peer")
)

// peer is this node's way to another. It dials, introduces itself, sends, and
// dials again.
type peer struct {
	addr  string
	creds credentials.TransportCredentials
	queue chan *call
	ready atomic.Bool   // introduced
	tried atomic.Bool   // to reach it, and perhaps in vain
	kick  chan struct{} // to dial at once
	heard atomic.Int64  // the instant of its last word

	mu      sync.Mutex
	pending map[uint64]*call // guarded by mu: sent, not answered
	next    uint64           // guarded by mu
}

// call is one message that is answered by one reply.
type call struct {
	frame func(f *wire.Frame, id uint64) // puts it into a frame
	reply *wire.Reply                    // read after done
	err   error                          // read after done
	done  chan struct{}
}

func newCall(frame func(*wire.Frame, uint64)) *call {
	return &call{frame: frame, done: make(chan struct{})}
}

// post queues a call; it fails at once where it cannot be sent.
func (p *peer) post(c *call) bool {
	if !p.ready.Load() {
		c.err = errPeerGone
		return false
	}
	select {
	case p.queue <- c:
		return true
	default:
		c.err = errPeerBusy
		return false
	}
}

// ask posts a call and waits for its reply, at most until ctx is done.
func (p *peer) ask(ctx context.Context, frame func(*wire.Frame, uint64)) (*wire.Reply, error) {
	c := newCall(frame)
	if !p.post(c) {
		return nil, c.err
	}
	select {
	case <-c.done:
		return c.reply, c.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// run keeps the way open until ctx is done. wait draws the pause before the
// next dial.
func (p *peer) run(ctx context.Context, r *Router) {
	pause := redialLeast
	for ctx.Err() == nil {
		err := p.connect(ctx, r)
		p.ready.Store(false)
		p.tried.Store(true)
		p.fail(errPeerGone)
		if ctx.Err() != nil {
			return
		}
		if p.heard.Load() > 0 && r.clock().Sub(instant(p.heard.Load())) < pingEvery {
			pause = redialLeast
		}
		r.tell(p.addr, err)
		select {
		case <-ctx.Done():
		case <-p.kick: // it is there
		case <-time.After(pause/2 + time.Duration(r.random()*float64(pause))):
		}
		pause = min(2*pause, redialMost)
	}
}

// connect holds one conversation, until it breaks.
func (p *peer) connect(ctx context.Context, r *Router) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(p.creds), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxFrame)))
	if err != nil {
		return err
	}
	defer conn.Close()
	late := time.AfterFunc(opening, cancel)
	stream, err := wire.NewPeerClient(conn).Exchange(ctx)
	if err != nil {
		return err
	}
	welcome, err := p.introduce(stream, r)
	if err != nil {
		return err
	}
	late.Stop()
	if welcome.GetAddr() != p.addr {
		return fmt.Errorf("%w: it is known as %s, and calls itself %s (its PEER_ADDR)", errName, p.addr, welcome.GetAddr())
	}
	p.heard.Store(int64(r.clock()))
	p.ready.Store(true)
	r.met(welcome)
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() { r.announceTo(ctx, p) }) // it may have changed since hello
	ended := make(chan error, 1)
	go func() { ended <- p.listen(stream, r); cancel() }()
	err = p.speak(ctx, stream)
	cancel()
	err = errors.Join(<-ended, err)
	p.ready.Store(false)
	p.fail(errPeerGone)
	return err
}

// introduce says hello, and proves to know the secret to one who does.
func (p *peer) introduce(stream grpc.BidiStreamingClient[wire.Frame, wire.Frame], r *Router) (*wire.Hello, error) {
	hello := r.hello()
	if err := stream.Send(&wire.Frame{Hello: hello}); err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("it refused the introduction: %w", err)
	}
	welcome := answer.GetWelcome()
	if err := check(welcome); err != nil {
		return nil, err
	}
	if !hmac.Equal(welcome.GetMac(), mac(r.options.Secret, "called", hello, welcome)) {
		return nil, errSecret
	}
	return welcome, stream.Send(&wire.Frame{Proof: mac(r.options.Secret, "caller", hello, welcome)})
}

// speak sends what is queued, as much as is there in one message.
func (p *peer) speak(ctx context.Context, stream grpc.BidiStreamingClient[wire.Frame, wire.Frame]) error {
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for {
		var f wire.Frame
		select {
		case <-ctx.Done():
			return nil
		case <-ping.C:
			p.put(&f, newCall(func(f *wire.Frame, id uint64) { f.Ping = id }))
		case c := <-p.queue:
			p.put(&f, c)
		more:
			for n := 1; n < frameAsks; n++ {
				select {
				case c := <-p.queue:
					p.put(&f, c)
				default:
					break more
				}
			}
		}
		if err := stream.Send(&f); err != nil {
			return err
		}
	}
}

func (p *peer) put(f *wire.Frame, c *call) {
	p.mu.Lock()
	p.next++
	id := p.next
	p.pending[id] = c
	p.mu.Unlock()
	c.frame(f, id)
}

// listen takes in replies.
func (p *peer) listen(stream grpc.BidiStreamingClient[wire.Frame, wire.Frame], r *Router) error {
	for {
		f, err := stream.Recv()
		if err != nil {
			return err
		}
		p.heard.Store(int64(r.clock()))
		for _, reply := range f.GetReplies() {
			p.mu.Lock()
			c := p.pending[reply.GetId()]
			delete(p.pending, reply.GetId())
			p.mu.Unlock()
			if c != nil {
				c.reply = reply
				close(c.done)
			}
		}
	}
}

// fail ends all that was sent or waits to be.
func (p *peer) fail(err error) {
	p.mu.Lock()
	pending := p.pending
	p.pending = map[uint64]*call{}
	p.mu.Unlock()
	for _, c := range pending {
		c.err = err
		close(c.done)
	}
	for {
		select {
		case c := <-p.queue:
			c.err = err
			close(c.done)
		default:
			return
		}
	}
}

// exchange is the other end of a peer.
func (r *Router) exchange(stream grpc.BidiStreamingServer[wire.Frame, wire.Frame]) error {
	hello, err := r.welcomeInTime(stream)
	from := hello.GetAddr()
	if err != nil {
		r.stats.refused.Add(1)
		r.tell(from, err)
		return status.Error(codes.PermissionDenied, err.Error())
	}
	r.greeted(hello)
	var sending sync.Mutex
	answer := func(replies []*wire.Reply) {
		sending.Lock()
		defer sending.Unlock()
		_ = stream.Send(&wire.Frame{Replies: replies}) // a broken stream ends Recv too
	}
	room := make(chan struct{}, framesAtOnce)
	var working sync.WaitGroup
	defer working.Wait()
	for {
		f, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.serve(stream.Context(), from, f, answer, func(work func()) {
			room <- struct{}{} // a peer that floods waits here
			working.Go(func() { work(); <-room })
		})
	}
}

// welcomeInTime gives up on one who connects and does not introduce itself.
func (r *Router) welcomeInTime(stream grpc.BidiStreamingServer[wire.Frame, wire.Frame]) (*wire.Hello, error) {
	type outcome struct {
		hello *wire.Hello
		err   error
	}
	done := make(chan outcome, 1)
	go func() { // it ends with the stream, at the latest
		h, err := r.welcome(stream)
		done <- outcome{h, err}
	}()
	select {
	case o := <-done:
		return o.hello, o.err
	case <-time.After(2 * opening):
		return nil, errHello
	}
}

// welcome takes in a peer's introduction, and proves to it first.
func (r *Router) welcome(stream grpc.BidiStreamingServer[wire.Frame, wire.Frame]) (*wire.Hello, error) {
	f, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	hello := f.GetHello()
	if err := check(hello); err != nil {
		return hello, err
	}
	own := r.hello()
	own.Mac = mac(r.options.Secret, "called", hello, own)
	if err := stream.Send(&wire.Frame{Welcome: own}); err != nil {
		return hello, err
	}
	f, err = stream.Recv()
	if err != nil {
		return hello, err
	}
	if !hmac.Equal(f.GetProof(), mac(r.options.Secret, "caller", hello, own)) {
		return hello, errSecret
	}
	return hello, nil
}
