package rlqs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// HolderHeader is the key of initial_metadata under which an operator may give an Envoy a
// name, for people to read.
const HolderHeader = "x-sluice-holder"

// Service serves streams. It is safe for concurrent use.
type Service struct {
	node  *Node
	clock ratelimit.Clock
	log   *slog.Logger
	// slots bounds the streams that are served at once, and draining is closed when they are to
	// end.
	slots    chan struct{}
	draining chan struct{}
	drain    sync.Once
	// owing counts the debts of streams that have ended.
	owing atomic.Int64
	// messages are unused ones.
	messages sync.Pool
}

// mostDebts is how many debts of ended streams a process remembers; those beyond are
// counted as uncovered.
const mostDebts = 100_000

// NewService makes a service that serves until Drain.
func NewService(n *Node, clock ratelimit.Clock, log *slog.Logger) *Service {
	return &Service{
		node: n, clock: clock, log: log, slots: make(chan struct{}, n.options.Streams), draining: make(chan struct{}),
		messages: sync.Pool{New: func() any { return new(incoming) }},
	}
}

// Register adds the service to the server behind a transport.Port, made with wire.ServerCodec.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	of := rlqs.RateLimitQuotaService_ServiceDesc
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: of.ServiceName,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: of.Streams[0].StreamName, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.serve(stream) },
		}},
		Metadata: of.Metadata,
	}, s)
}

// Drain ends all streams, and later ones. Their Envoys connect to another node within seconds, and use their
// leases until then. Drain does not take leases back first: Envoys would refuse everything in those seconds.
// It does not wait for them.
func (s *Service) Drain() { s.drain.Do(func() { close(s.draining) }) }

// serve serves one stream, until that ends.
func (s *Service) serve(stream grpc.ServerStream) (err error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	// One more stream would cost memory for its buckets; its Envoy asks again, perhaps another
	// node.
	default:
		s.node.stats.Refused.Add(1)
		return status.Errorf(codes.ResourceExhausted, "the node serves %d streams, which is its maximum", cap(s.slots))
	}
	// An answer counts as granted only once the Envoy has acknowledged it, which only the
	// connection can tell.
	talk, ok := transport.Converse(stream.Context())
	if !ok {
		return status.Error(codes.Internal,
			"the receipts of this connection cannot be observed, so that it gets no leases")
	}
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("an RLQS stream hit a bug in Sluice: please report it", "panic", r, "stack",
				string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error, see the log")
		}
	}()
	s.node.stats.Streams.Add(1)
	defer s.node.stats.Streams.Add(-1)
	e := &exchange{service: s, stream: stream, talk: talk, session: s.node.NewSession()}
	e.session.Name = nameOf(stream.Context())
	defer e.close()
	return e.run()
}

// nameOf is what people are shown of an Envoy: the name that it was given, or its address.
func nameOf(ctx context.Context) string {
	// The name comes from outside and is shown to people, so that it is made one line.
	if name := metadata.ValueFromIncomingContext(ctx, HolderHeader); len(name) > 0 {
		return ratelimit.OneLine(name[0])
	}
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// exchange is one stream that is being served.
type exchange struct {
	service *Service
	stream  grpc.ServerStream
	talk    *transport.Talk
	session *Session
}

// run takes in what comes, in one goroutine; another reads.
func (e *exchange) run() error {
	ctx, stop := context.WithCancel(e.stream.Context())
	defer stop()
	// ended has room for one, so that the reader ends even without a receiver.
	reports, ended := make(chan *incoming), make(chan error, 1)
	// The session is not safe for concurrent use. One goroutine drives it, and another one waits in Recv,
	// which cannot be part of a select.
	go func() { ended <- e.read(ctx, reports) }() // it ends with the stream, which ends when this returns
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	receipts := e.talk.Receipts()
	for {
		e.wakeIn(timer)
		select {
		case m := <-reports:
			now := e.service.clock()
			e.session.Waited = now.Sub(m.came)
			err := e.session.Reports(ctx, now, m.bytes)
			if e.service.release(m); err != nil {
				return asStatus(err)
			}
		case <-receipts:
			e.session.Acked(ctx, e.service.clock(), e.talk.Acked())
		case <-timer.C:
			now := e.service.clock()
			// What has been granted and not acknowledged is charged and cannot be spent. An Envoy
			// that does not read must not keep it.
			if e.session.Stuck(now) {
				e.service.node.stats.Stuck.Add(1)
				return status.Errorf(codes.DeadlineExceeded, "an answer was not acknowledged within %v", StuckAfter)
			}
			e.session.Wake(ctx, now)
		case err := <-ended:
			return err
		// Envoy asks another node only when its stream ends.
		case <-e.service.draining:
			return status.Error(codes.Unavailable, "this node is shutting down: connect to another")
		}
		// Whatever happened may have been what an answer was waiting for.
		if m := e.session.Answer(e.service.clock()); m != nil {
			if err := e.stream.SendMsg(&outgoing{m}); err != nil {
				return err
			}
		}
	}
}

// read passes on what comes, no faster than a stream may ask.
func (e *exchange) read(ctx context.Context, reports chan<- *incoming) error {
	o := &e.service.node.options
	pace := rate.NewLimiter(rate.Limit(o.Messages), max(1, int(o.Messages)))
	came := e.service.clock()
	for waits := false; ; {
		m := e.service.messages.Get().(*incoming)
		if err := e.stream.RecvMsg(m); err != nil {
			return err
		}
		// What was there before it was waited for may have come with the last message.
		if !waits {
			came = e.service.clock()
		}
		m.came = came
		// A stream that reports too fast is slowed by its own HTTP/2 window, and not refused: its reports are
		// still needed.
		if err := pace.Wait(ctx); err != nil {
			return err
		}
		select {
		case reports <- m:
			// From here on the message counts no more in the budget of bytes in flight.
			waits = e.talk.Received()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// release lets another stream read into a message, unless it has grown far beyond the typical size.
func (s *Service) release(m *incoming) {
	if cap(m.bytes) <= mostBytes {
		s.messages.Put(m)
	}
}

func (e *exchange) wakeIn(timer *time.Timer) {
	// There is nothing to wake up for; an hour is only a value for the timer.
	d := time.Hour
	if next := e.session.Next(); next != 0 {
		d = max(0, next.Sub(e.service.clock()))
	}
	timer.Reset(d)
}

func asStatus(err error) error {
	// A message that makes no sense would be repeated in vain at another node. Other errors pass,
	// or are this node's: there Unavailable has the Envoy ask another.
	if _, ok := errors.AsType[*BadReportError](err); ok {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.Error(codes.Unavailable, err.Error())
}

// close keeps the due corrections of the stream's budgets.
func (e *exchange) close() {
	s, now := e.service, e.service.clock()
	for _, d := range e.session.Close(now) {
		// The debt is not remembered, so that its tokens may be spent once more. They are counted
		// as such.
		if s.owing.Add(1) > mostDebts {
			s.owing.Add(-1)
			s.node.stats.Uncovered.Add(uint64(d.Tokens()))
			continue
		}
		time.AfterFunc(max(0, d.At.Sub(now)), func() {
			defer s.owing.Add(-1)
			// The stream and its context are gone by then.
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			s.node.Settle(ctx, s.clock(), &d)
		})
	}
}

// Reason tells why a rule is not served, or what of it Envoys need not ask about; "": its
// budget is divided.
func Reason(r *ratelimit.Rule) string {
	switch err := sublease.Servable(r); {
	case err != nil:
		return fmt.Sprintf("DENY_ALL: %v", err)
	case r.Unlimited:
		return "ALLOW_ALL: it is unlimited"
	case r.Shadow:
		return "ALLOW_ALL: it is in shadow_mode; hits are counted, and nothing is charged"
	case r.RefusesAll():
		return "DENY_ALL: requests_per_unit is 0"
	}
	return ""
}
