package transport

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// Method is a unary method that a Port answers itself.
type Method struct {
	Name string // as in :path
	// Answer appends the answer to out. The request is valid until Answer returns, or calls ratelimit.Waits with ctx,
	// which it does before it waits. Its error is a status, or of code Unknown.
	Answer    func(ctx context.Context, request, out []byte) ([]byte, error)
	Malformed func(error)   // gets the errors of requests that are no message, and do not reach Answer; nil: unused
	Spans     stats.Handler // of its calls; nil: none
	Free      bool          // the gate has no part in its calls
}

// Options are what a Port serves, and within which bounds.
type Options struct {
	Caps     Caps
	Budget   *Budget                          // nil: no bound
	Security credentials.TransportCredentials // nil: none
	Methods  []Method                         // that the port answers itself
	Gate     *Gated                           // of calls of the methods; nil: all start
	Services *Services                        // other methods; nil: none
	// Bug gets the panic that a caller caused. It ended a call or a connection. The goroutine is the one that panicked,
	// so that debug.Stack shows where. nil: unused.
	Bug func(bug any)
}

// Port serves gRPC. It is safe for concurrent use.
type Port struct {
	Options
	refusal []byte // the header block of an answer to a refused call

	mu       sync.Mutex
	listener net.Listener             // guarded by mu
	open     map[*connection]struct{} // guarded by mu
	draining bool                     // guarded by mu
	stopped  bool                     // guarded by mu
	running  sync.WaitGroup           // connections, and calls that may outlive theirs
}

// never is the time for a cap of 0. Age and AgeGrace are added to the time of the process, and the sum fits into an
// int64 of nanoseconds, which end after 292 years.
const never = 100 * 365 * 24 * time.Hour

// NewPort makes a port. It replaces sizes and times of 0, so that no later code has to look for them.
func NewPort(o Options) *Port {
	if o.Security == nil {
		o.Security = insecure.NewCredentials()
	}
	if o.Caps.MessageBytes == 0 {
		o.Caps.MessageBytes = 4 << 20 // as gRPC
	}
	if o.Caps.HeaderBytes == 0 {
		o.Caps.HeaderBytes = 1 << 20
	}
	if o.Services == nil {
		o.Services = new(Services)
	}
	if o.Bug == nil {
		o.Bug = func(any) {}
	}
	o.Budget = o.Budget.orAll()
	// A time of 0 has no bound.
	for _, d := range []*time.Duration{&o.Caps.RequestTimeout, &o.Caps.Idle, &o.Caps.Age, &o.Caps.AgeGrace} {
		*d = cmp.Or(*d, never)
	}
	p := &Port{Options: o, open: map[*connection]struct{}{}}
	if o.Gate != nil {
		p.refusal = failure(o.Gate.Refusal)
	}
	return p
}

// Serve accepts connections until the port is stopped, and then returns grpc.ErrServerStopped. Connections
// should come from a Listener of the same Budget.
func (p *Port) Serve(l net.Listener) error {
	p.mu.Lock()
	p.listener = l
	// A Drain or a Stop that came before Serve has found no listener to close.
	stopped := p.draining
	p.mu.Unlock()
	if stopped {
		_ = l.Close()
		return grpc.ErrServerStopped
	}
	for {
		accepted, err := l.Accept()
		// Other calls end and give back their descriptors. The port must not end with the process short of them. A
		// closed listener is not temporary.
		if lack, ok := errors.AsType[temporary](err); ok && lack.Temporary() {
			time.Sleep(lackOfDescriptors)
			continue
		}
		p.mu.Lock()
		switch {
		case p.draining:
			err = grpc.ErrServerStopped
			if accepted != nil {
				_ = accepted.Close()
			}
		case err == nil:
			p.running.Go(func() { p.welcome(accepted) }) // under mu, so that GracefulStop waits for it
		}
		p.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// temporary is an error of Accept that other connections explain, such as too many open files.
type temporary interface {
	error
	Temporary() bool
}

// lackOfDescriptors is how long a port waits for one.
const lackOfDescriptors = 100 * time.Millisecond

// handshake bounds TLS and the preface. It is set before the first byte, so that a caller that connects and is silent
// costs a goroutine for no longer.
const handshake = 10 * time.Second

// welcome begins a connection, and serves it until it ends. The steps: TLS, this side's settings, the caller's preface,
// then the entry among the connections that the Budget and Stop may end. Until that entry the connection holds nothing
// but its goroutine and buffers.
func (p *Port) welcome(accepted net.Conn) {
	defer p.contain(func() { _ = accepted.Close() })
	_ = accepted.SetDeadline(time.Now().Add(handshake))
	secured, info, err := p.Security.ServerHandshake(accepted)
	if err != nil {
		_ = accepted.Close()
		return
	}
	c := newConnection(p, secured, accepted, info)
	c.greet()
	// Who speaks another protocol could not read a frame with the reason.
	if !prefaced(secured) {
		_ = secured.Close()
		return
	}
	// Reads have deadlines of lookAhead from here on, writes those of writeLocked.
	_ = accepted.SetReadDeadline(time.Time{})
	p.Budget.join(c)
	p.mu.Lock()
	p.open[c] = struct{}{}
	draining, stopped := p.draining, p.stopped
	p.mu.Unlock()
	// Stop and GracefulStop visit the open connections once, and may have done so before this one was among them.
	if stopped {
		_ = c.Close()
	}
	if draining {
		c.goAway()
	}
	c.lead()
}

// contain keeps a bug that a caller met from ending the process: it ends the caller's connection. It is deferred.
func (p *Port) contain(end func()) {
	if bug := recover(); bug != nil {
		p.Bug(bug)
		end()
	}
}

// failed makes a bug that a call met its error. It is deferred.
func (p *Port) failed(err *error) {
	if bug := recover(); bug != nil {
		p.Bug(bug)
		*err = status.Error(codes.Internal, "internal error, see the log")
	}
}

// GracefulStop asks all callers to end, and waits until they have, and all calls. A caller that does not end has
// lastCalls to answer the ping of goAwayLocked, and then finishes its open calls. GracefulStop has no time limit of its
// own: its caller sets one, and calls Stop then.
func (p *Port) GracefulStop() {
	p.mu.Lock()
	p.stopLocked()
	for c := range p.open {
		// In a goroutine of its own: goAway writes, and one caller that does not read would keep mu, and with it all
		// others.
		p.running.Go(c.goAway)
	}
	p.mu.Unlock()
	p.running.Wait()
}

// Stop ends all connections. It does not wait for calls.
func (p *Port) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopLocked()
	p.stopped = true
	for c := range p.open {
		// end does not block: see cut.
		c.end()
	}
}

// stopLocked ends Serve: its Accept fails, and what it has accepted meanwhile is closed.
func (p *Port) stopLocked() {
	p.draining = true
	if p.listener != nil {
		_ = p.listener.Close()
	}
}
