package transport

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
)

// stream is one call, and the context of its decision.
type stream struct {
	of       *connection
	id       uint32
	since    int64
	window   int64 // of the caller, for the answer
	cost     int64 // of the connection's memory
	received int   // bytes of the request, with padding
	ended    bool  // the request
	complete bool  // its caller is not waited for: the request has ended, or never does
	gone     bool  // it was answered, reset, or its connection has ended
	exchange *exchange
	call
}

// call is a call of the port's own method.
type call struct {
	until    int64             // when its caller gives up; 0: it does not
	arrived  ratelimit.Instant // at the gate; 0: there is none
	pieces   []byte            // of the request
	request  []byte            // in pieces, or in the batch that was read
	metadata metadata.MD       // where calls have spans
	waits    bool
	began    ratelimit.Instant // to wait; 0: not, or there is no gate
	shared   bool              // the context may be read after the decision
	done     chan struct{}     // guarded by of.mu, as what follows
	over     bool              // done is closed
	timer    *time.Timer
	answer   []byte // that waits for a window
}

// streams are ended calls without a reference.
var streams = sync.Pool{New: func() any { return new(stream) }}

var _ context.Context = (*stream)(nil)

// streamCost is what an open call costs, without its request.
const streamCost = 1 << 10

// waitCost is what a call costs in addition that waits for its decision: a goroutine, and what that has.
const waitCost = 4 << 10

func (c *connection) newStreamLocked(id uint32) *stream {
	s := streams.Get().(*stream)
	*s = stream{of: c, id: id, since: c.in.at, window: c.out.initial, call: call{pieces: s.pieces[:0]}}
	c.calls.open[id] = s
	c.calls.incomplete++
	c.addLocked(s, streamCost)
	return s
}

// completesLocked notes that a call does not wait for its caller.
func (c *connection) completesLocked(s *stream) {
	if !s.complete {
		s.complete = true
		c.calls.incomplete--
	}
}

// waitsLocked notes that a call waits for its caller since then.
func (c *connection) waitsLocked(s *stream, since int64) {
	if s.complete {
		s.complete, s.since = false, since
		c.calls.incomplete++
		c.soonerLocked(since + int64(c.Caps.RequestTimeout))
	}
}

func (c *connection) addLocked(s *stream, cost int64) {
	s.cost += cost
	c.memory.add(cost)
}

// grow notes that a call costs more, unless it has ended.
func (c *connection) grow(s *stream, cost int64) {
	c.mu.Lock()
	if !s.gone {
		c.addLocked(s, cost)
	}
	change := c.memory.book()
	c.mu.Unlock()
	c.Budget.charge(change)
}

// Deadline implements context.Context.
func (s *stream) Deadline() (time.Time, bool) {
	return started.Add(time.Duration(s.until)), s.until != 0
}

// Done implements context.Context.
func (s *stream) Done() <-chan struct{} {
	c := s.of
	c.mu.Lock()
	defer c.mu.Unlock()
	s.shared = true
	if s.done == nil {
		s.done = make(chan struct{})
		switch {
		case s.gone:
			s.cancelLocked()
		case s.until != 0:
			s.timer = time.AfterFunc(time.Duration(s.until-nanotime()), func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				s.cancelLocked()
			})
		}
	}
	return s.done
}

// cancelLocked ends the context of a decision.
func (s *stream) cancelLocked() {
	if s.done != nil && !s.over {
		s.over = true
		close(s.done)
	}
	if s.timer != nil {
		s.timer.Stop()
	}
}

// Err implements context.Context.
func (s *stream) Err() error {
	if s.until != 0 && nanotime() >= s.until {
		return context.DeadlineExceeded
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.gone {
		return context.Canceled
	}
	return nil
}

// Value implements context.Context.
func (s *stream) Value(key any) any {
	if _, ok := key.(ratelimit.WaitsKey); ok {
		return s
	}
	return nil
}

// largeRequest is from which size on a request is not decided between others.
const largeRequest = 4 << 10

// answer decides a call. It is false if another goroutine leads now.
func (c *connection) answer(s *stream) (leads bool) {
	c.mu.Lock()
	gone := s.gone
	c.mu.Unlock()
	if gone {
		return true
	}
	out := c.in.answer[:0]
	if len(s.request) >= largeRequest {
		if len(s.pieces) == 0 { // it lies in the batch
			s.request = append([]byte(nil), s.request...)
			c.grow(s, int64(len(s.request)))
		}
		s.Waits()
	}
	out, err := s.decide(out)
	waited := s.waits
	c.finish(s, out, err)
	if waited {
		c.flush()
		return false
	}
	if cap(out) <= mostFrame {
		c.in.answer = out
	}
	return true
}

// decide is the call's answer, within its span.
func (s *stream) decide(out []byte) (_ []byte, err error) {
	m := &s.of.Method
	if m.Spans == nil {
		return m.Answer(s, s.request, out)
	}
	begun := time.Now()
	ctx := m.Spans.TagRPC(metadata.NewIncomingContext(s, s.metadata), &stats.RPCTagInfo{FullMethodName: m.Name})
	m.Spans.HandleRPC(ctx, &stats.Begin{BeginTime: begun})
	out, err = m.Answer(ctx, s.request, out)
	m.Spans.HandleRPC(ctx, &stats.End{BeginTime: begun, EndTime: time.Now(), Error: err})
	return out, err
}

// Waits says that the decision waits: another goroutine leads. It is called by the one that decides.
func (s *stream) Waits() {
	if s.waits {
		return
	}
	s.waits, s.shared = true, true
	c := s.of
	c.mu.Lock()
	if !s.gone {
		c.addLocked(s, waitCost)
	}
	c.mu.Unlock()
	if g := c.Gate; g != nil {
		s.began = c.in.now
		g.Gate.Begin(s.began)
	}
	c.in.answer = nil
	c.running.Go(c.lead)
}

// finish says the answer to a call.
func (c *connection) finish(s *stream, out []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.began != 0 {
		c.Gate.Gate.End(s.began)
	}
	switch {
	case s.gone:
	case err != nil:
		st, _ := status.FromError(err)
		c.failLocked(s, st)
	default:
		c.headersLocked(0, s.id, okHeaders)
		before := prefix(len(out))
		n := int64(messagePrefix + len(out))
		if len(c.calls.blocked) == 0 && n <= min(c.out.window, s.window, mostFrame) {
			c.out.window -= n
			c.out.frames = appendFrame(c.out.frames, frameData, 0, s.id, before[:], out)
			c.trailLocked(s)
			return
		}
		s.answer = append(before[:], out...)
		c.addLocked(s, int64(len(s.answer)))
		c.calls.blocked = append(c.calls.blocked, s)
		c.soonerLocked(s.since + int64(c.Caps.RequestTimeout))
		c.unblockLocked() // afterwards, s may be another call
	}
}

// unblockLocked says answers as far as the windows let it.
func (c *connection) unblockLocked() {
	all := c.calls.blocked
	c.calls.blocked = all[:0]
	for _, s := range all {
		s.answer = s.answer[c.sendLocked(s, s.answer):]
		if len(s.answer) > 0 {
			c.calls.blocked = append(c.calls.blocked, s)
			continue
		}
		c.trailLocked(s)
	}
	clear(all[len(c.calls.blocked):])
	if c.out.senders > 0 {
		for _, s := range c.calls.open {
			if s.exchange != nil && s.window > 0 {
				s.exchange.news.Broadcast()
			}
		}
	}
}

// trailLocked ends an answer with data, for whose frames the caller gives back windows.
func (c *connection) trailLocked(s *stream) {
	c.headersLocked(flagEndStream, s.id, okTrailers)
	c.idle.earn(framesAnAnswer)
	c.answeredLocked(s)
}

// answeredLocked lets go of a call. Its memory is given back when the answer is written.
func (c *connection) answeredLocked(s *stream) {
	c.out.release += s.cost
	s.cost = 0
	c.closeLocked(s)
	if !s.shared && cap(s.pieces) <= streamCost { // a pooled call counts as one without a request
		streams.Put(s)
	}
}

// failLocked answers with a status alone.
func (c *connection) failLocked(s *stream, st *status.Status) {
	c.headersLocked(flagEndStream, s.id, failure(st))
	if !s.ended {
		c.resetLocked(s.id, http2.ErrCodeNo)
	}
	c.answeredLocked(s)
}

// closeLocked removes a call.
func (c *connection) closeLocked(s *stream) {
	s.gone = true
	delete(c.calls.open, s.id)
	c.completesLocked(s)
	c.calls.blocked = slices.DeleteFunc(c.calls.blocked, func(b *stream) bool { return b == s })
	if s.arrived != 0 {
		c.calls.leaving = append(c.calls.leaving, s.arrived)
	}
	if s.exchange == nil { // a handler goes on until it finds that its call has ended
		c.memory.add(-s.cost)
		s.cost = 0
	}
	if len(c.calls.open) == 0 {
		c.life.quiet = nanotime()
	}
	s.cancelLocked()
	if x := s.exchange; x != nil {
		x.cancel()
		c.receipts.wait = slices.DeleteFunc(c.receipts.wait, func(r receipt) bool { return r.talk == x.talk })
		x.news.Broadcast()
	}
}
