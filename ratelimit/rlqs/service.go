// The gRPC side. A stream has two goroutines: run drives the session, and read waits for one message at a time. When a
// stream ends, close hands its debts to one goroutine of the process, which settles them when they are due.

package rlqs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/internal/wire"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// HolderHeader is the key of initial_metadata under which an operator may give an Envoy a name, for people to read.
const HolderHeader = "x-sluice-holder"

// Service serves streams. It is safe for concurrent use.
type Service struct {
	node  *Node
	clock ratelimit.Clock
	// slots bounds the streams that are served at once, and large the large messages that are handled. draining is
	// closed when streams are to end.
	slots, large, draining chan struct{}
	drain                  sync.Once
	owed                   debts
	// messages are unused ones, *incoming. A reader takes one before it waits, so each open stream has one, which the
	// budget of callers does not count: keptBytes bounds it.
	messages sync.Pool
}

// debts are those of streams that have ended.
type debts struct {
	mu      sync.Mutex
	all     []*Debt // guarded by mu
	settles bool    // guarded by mu: a goroutine settles them
}

// mostDebts is how many debts of ended streams a process remembers; those beyond are counted as uncovered. debtsAtOnce
// are settled by one call of the limiter, and debtsEvery is the longest time between two looks. It bounds how late a
// debt is that comes while the goroutine sleeps.
const mostDebts, debtsAtOnce, debtsEvery = 100_000, 256, 100 * time.Millisecond

// NewService makes a service that serves until Drain.
func NewService(n *Node, clock ratelimit.Clock) *Service {
	return &Service{
		node: n, clock: clock, slots: make(chan struct{}, n.options.Streams), draining: make(chan struct{}),
		large:    make(chan struct{}, largeAtOnce),
		messages: sync.Pool{New: func() any { return new(incoming) }},
	}
}

// Register adds the service to the server behind a transport.Port, with wire.Codec.
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
func (s *Service) serve(stream grpc.ServerStream) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	// One more stream would cost memory for its buckets; its Envoy asks again, perhaps another node.
	default:
		s.node.stats.Refused.Add(1)
		return status.Errorf(codes.ResourceExhausted, "the node serves %d streams, which is its maximum", cap(s.slots))
	}
	// An answer counts as granted only once the Envoy has acknowledged it, which only the connection can tell.
	talk, ok := transport.Converse(stream.Context())
	if !ok {
		return status.Error(codes.Internal,
			"the receipts of this connection cannot be observed, so that it gets no leases")
	}
	s.node.stats.Streams.Add(1)
	defer s.node.stats.Streams.Add(-1)
	most := s.node.options.Messages
	e := &exchange{
		service: s, stream: stream, talk: talk, session: s.node.NewSession(), came: s.clock(),
		pace: rate.NewLimiter(rate.Limit(most), max(1, int(most))),
	}
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

// exchange is one stream that is being served. read writes came while run waits for its message; the channel orders
// them.
type exchange struct {
	service *Service
	stream  grpc.ServerStream
	talk    *transport.Talk
	session *Session
	pace    *rate.Limiter
	// came is when the last message came, at the earliest. A report counts as sent after an acknowledgement only if it
	// came after that.
	came instant
	// waits reports whether bytes of the next message were there before it was read. Then it may have come with the
	// last one, and came stays.
	waits bool
}

// run handles what comes, in one goroutine; another reads.
func (e *exchange) run() error {
	ctx, stop := context.WithCancel(e.stream.Context())
	defer stop()
	reads := make(chan *incoming, 1) // with room, so that the reader ends even without a receiver
	// The session is not safe for concurrent use. One goroutine drives it, and another one waits in Recv,
	// which cannot be part of a select.
	go e.read(ctx, reads) // it ends with the stream, which ends when this returns
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	receipts := e.talk.Receipts()
	for {
		e.wakeIn(timer)
		select {
		// The reader of the next message begins when this one is handled: at most one is in memory.
		case m := <-reads:
			if m.err != nil {
				return m.err
			}
			if err := e.take(ctx, m); err != nil {
				return asStatus(err)
			}
			// From here on the message counts no more in the budget of bytes in flight.
			e.waits = e.talk.Received()
			go e.read(ctx, reads)
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
		// Envoy asks another node only when its stream ends.
		case <-e.service.draining:
			return status.Error(codes.Unavailable, "this node is shutting down: connect to another")
		}
		// Whatever happened may have been what an answer was waiting for.
		if m := e.session.Answer(e.service.clock()); m != nil {
			if err := e.stream.SendMsg(&wire.Message{Bytes: m}); err != nil {
				return err
			}
		}
	}
}

// take handles a message. A large one waits for its turn, so that a few of them do not keep all processors from calls
// of RLS.
func (e *exchange) take(ctx context.Context, m *incoming) error {
	s := e.service
	defer s.release(m)
	if len(m.Bytes) >= largeBytes {
		select {
		case s.large <- struct{}{}:
			defer func() { <-s.large }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	now := s.clock()
	e.session.Waited = now.Sub(e.came)
	return e.session.Reports(ctx, now, m.Bytes)
}

// read reads a message, no faster than a stream may ask. A stream that reports too fast is slowed by its own HTTP/2
// window, and not refused: its reports are still needed.
func (e *exchange) read(ctx context.Context, reads chan<- *incoming) {
	m := e.service.messages.Get().(*incoming)
	m.err = e.stream.RecvMsg(&m.Message)
	// What was there before it was waited for may have come with the last message.
	if !e.waits {
		e.came = e.service.clock()
	}
	if m.err == nil {
		m.err = e.pace.Wait(ctx)
	}
	reads <- m
}

// A message of largeBytes or more may have thousands of reports. Only largeAtOnce are handled at a time. The others
// wait, and count in the budget of bytes in flight.
const largeBytes, largeAtOnce = 4 << 10, 4

// keptBytes is the largest buffer of a message that is kept for later ones. Reports of some ten buckets fit.
const keptBytes = 2 << 10

// release lets another stream read into a message, unless it has grown beyond the typical size.
func (s *Service) release(m *incoming) {
	if cap(m.Bytes) <= keptBytes {
		s.messages.Put(m)
	}
}

// wakeIn sets the timer to the session's next event.
func (e *exchange) wakeIn(timer *time.Timer) {
	d := time.Hour // only a value for the timer: there is nothing to wake up for
	if next := e.session.Next(); next != 0 {
		d = max(0, next.Sub(e.service.clock()))
	}
	timer.Reset(d)
}

// asStatus is the status with which a stream ends.
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
	s := e.service
	all, o := e.session.Close(s.clock()), &s.owed
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range all {
		if len(o.all) < mostDebts {
			o.all = append(o.all, &all[i])
		} else { // its tokens may be spent once more
			s.node.stats.Uncovered.Add(uint64(all[i].ask.Cost))
		}
	}
	if !o.settles {
		o.settles = true
		go s.settle()
	}
}

// settle settles debts when they are due, until there are none. Those of streams that end together are mostly due at
// the end of the same window. A goroutine for each would take the memory of the node.
func (s *Service) settle() {
	for now := s.clock(); ; now = s.clock() {
		due, next := s.owed.due(now)
		switch {
		case len(due) > 0:
			// The streams and their contexts are gone by then.
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			s.node.Settle(ctx, now, due)
			cancel()
		case next == 0:
			return
		default:
			time.Sleep(next.Sub(now))
		}
	}
}

// due takes out debts that are due, and returns when to look again; 0: there are no debts.
func (o *debts) due(now instant) (due []*Debt, next instant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settles = len(o.all) > 0
	if !o.settles {
		return nil, 0
	}
	next = now.Add(debtsEvery)
	o.all = slices.DeleteFunc(o.all, func(d *Debt) bool {
		if d.At > now || len(due) == debtsAtOnce {
			next = min(next, d.At)
			return false
		}
		due = append(due, d)
		return true
	})
	return due, next
}
