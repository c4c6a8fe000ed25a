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
//
//	newStreamLocked -> incomplete -> completeLocked -> in.turn -> answer -> finish -> (blocked) -> answeredLocked
//	handLocked      -> an exchange, with a goroutine of its own, until its finish
//
// A reset, or the end of the connection, closes it in any state (closeLocked). Then gone is set, and who still has the
// stream finds that: the decision ends by its context, and its answer is dropped.
//
// A call of the port's own method is its own context, so that a decision which does not wait allocates nothing. It goes
// back to the pool when it is answered, unless its context may still be read (shared). Its lock is that of the
// connection.
type stream struct {
	of *connection
	id uint32
	// since is since when it counts as held, or its caller is waited for. At first, that is when it began.
	since int64
	// window is how much larger the caller's window for the answer is than output.initial; below 0: it is smaller.
	window   int64
	cost     int64 // of the connection's memory
	received int   // bytes of the request, with padding
	ended    bool  // the request
	complete bool  // its caller is not waited for: the request has ended, or never does
	gone     bool  // it was answered, reset, or its connection has ended
	encoding string
	exchange *exchange
	decision
}

// decision is a call of the port's own method.
type decision struct {
	method   *Method
	until    int64       // when its caller gives up; 0: it does not
	inside   bool        // the gate let it in, and it has not left
	pieces   []byte      // of the request
	request  []byte      // in pieces, or in the batch that was read
	metadata metadata.MD // where calls have spans
	// waits is set when the decision waits, and another goroutine leads. It is guarded by of.mu until the decision has
	// returned, as all below.
	waits bool
	// shared is set when another goroutine may have the context after the decision, as a timer or the one that leads.
	// Such a stream is never pooled.
	shared bool
	done   chan struct{}
	over   bool // done is closed
	timer  *time.Timer
	// answer is the rest of an answer that waits for a window.
	answer []byte
}

// pooled are answered calls to which no reference is left. They keep the room of pieces.
var pooled = sync.Pool{New: func() any { return new(stream) }}

var _ context.Context = (*stream)(nil)

// streamCost is what an open call costs, without its request.
const streamCost = 1 << 10

// waitCost is what a call costs in addition that waits for its decision: a goroutine, and what that has.
const waitCost = 4 << 10

// newStreamLocked begins a call of an own method, from the fields of its header block. Its space for pieces is that of
// an earlier call.
func (c *connection) newStreamLocked(id uint32) *stream {
	s := pooled.Get().(*stream)
	*s = stream{of: c, id: id, since: c.in.at, encoding: c.in.fields.encoding, decision: decision{pieces: s.pieces[:0]}}
	c.calls.open[id] = s
	c.calls.incomplete++
	c.waitsSinceLocked(s.since)
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

// waitsLocked notes that a call whose request is complete waits for its caller since then: the answer finds no window.
func (c *connection) waitsLocked(s *stream, since int64) {
	if s.complete {
		s.complete, s.since = false, since
		c.calls.incomplete++
		c.waitsSinceLocked(since)
		c.soonerLocked(c.life.look)
	}
}

// addLocked notes that a call costs more. The caller has the budget charged after it has released the lock.
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

// patience is how long the caller waits from now on; at most 0: it has given up.
func (s *stream) patience(now int64) time.Duration {
	if s.until == 0 {
		return forever
	}
	return time.Duration(s.until - now)
}

// Deadline implements context.Context.
func (s *stream) Deadline() (time.Time, bool) {
	return started.Add(time.Duration(s.until)), s.until != 0
}

// Done implements context.Context. The channel and the timer are made by the first call: most decisions have an answer
// without one.
func (s *stream) Done() <-chan struct{} {
	c := s.of
	c.mu.Lock()
	defer c.mu.Unlock()
	s.shared = true
	if s.done == nil {
		s.done = make(chan struct{})
		switch {
		case s.gone: // it had ended before anything waited for that
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

// Err implements context.Context. It compares the clock with the deadline, so that it is right without a timer.
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

// Value implements context.Context. A decision that is about to wait finds the stream by ratelimit.Waits. There is
// nothing else: metadata is in the context of spans.
func (s *stream) Value(key any) any {
	if _, ok := key.(ratelimit.WaitsKey); ok {
		return s
	}
	return nil
}

// largeRequest is from which size on a request is not decided between others: it has many descriptors, and the calls
// behind it on the connection would wait. It gets a goroutine, as one that waits.
const largeRequest = 4 << 10

// answer decides a call. It is false if another goroutine leads now: then this one must not touch c.in any more, and
// ends after it has written its answer.
//
// The request belongs to the decision until it returns or waits, and the space of c.in.answer until it returns.
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

// decide is the call's answer, within its span. A panic in it becomes an error of code Internal.
func (s *stream) decide(out []byte) (_ []byte, err error) {
	defer s.of.failed(&err)
	m := s.method
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

// Waits says that the decision waits: another goroutine leads. It implements ratelimit.Waiter. Goroutines that decide
// parts of a call may each call it, and the first one counts.
func (s *stream) Waits() {
	c := s.of
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.waits { // else two would lead
		return
	}
	s.waits, s.shared = true, true
	if !s.gone {
		c.addLocked(s, waitCost)
	}
	// The call needs no processor until the store answers. The gate counts it apart from those inside.
	c.leavesLocked(s)
	if g := c.Gate; g != nil {
		g.Gate.Begin()
	}
	c.in.answer = nil // this decision still appends to it
	c.running.Go(c.lead)
}

// finish says the answer to a call. It flushes nothing: the lead does, for a whole batch. An answer that fits into one
// frame and into the windows is appended at once. Another is copied, because out is used again, and waits in blocked
// for its windows.
func (c *connection) finish(s *stream, out []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.waits && c.Gate != nil {
		c.Gate.Gate.End()
	}
	c.leavesLocked(s)
	switch {
	case s.gone:
	case err != nil:
		st, _ := status.FromError(err)
		c.failLocked(s, st)
	default:
		c.headersLocked(0, s.id, okHeaders)
		before := prefix(len(out))
		n := int64(messagePrefix + len(out))
		if len(c.calls.blocked) == 0 && n <= min(c.windowOf(s), mostFrame) {
			c.out.window -= n
			c.out.frames = appendFrame(c.out.frames, frameData, 0, s.id, before[:], out)
			c.trailLocked(s)
			return
		}
		s.answer = append(before[:], out...)
		c.addLocked(s, int64(len(s.answer)))
		c.calls.blocked[s] = struct{}{}
		c.waitsSinceLocked(s.since)
		c.soonerLocked(c.life.look)
		c.goOnLocked(s) // afterwards, s may be another call
	}
}

// windowOf is how many bytes of a call's answer its caller takes now, by both windows. It is below 0 after settings
// made windows smaller.
func (c *connection) windowOf(s *stream) int64 { return min(c.out.window, c.out.initial+s.window) }

// goOnLocked says a blocked answer as far as the windows let it, and reports whether they did. A handler writes in its
// own goroutine, and is only woken: another call may have used the window before it runs.
func (c *connection) goOnLocked(s *stream) (goesOn bool) {
	if c.windowOf(s) <= 0 {
		return false
	}
	if s.exchange != nil { // its handler says it
		delete(c.calls.blocked, s)
		s.exchange.news.Broadcast()
		return true
	}
	s.answer = s.answer[c.sendLocked(s, s.answer):]
	if len(s.answer) == 0 {
		c.trailLocked(s)
	}
	return true
}

// unblockLocked says blocked answers after a frame that gave all of them a window. Those that it gave none, and
// handlers, which may find that others have taken it, are looked at for the caller. Beyond those that it has paid for
// by a large window, they count as frames of its that bring nothing.
func (c *connection) unblockLocked(paid int64) {
	looks := int64(0)
	for s := range c.calls.blocked {
		if c.out.window <= 0 {
			break
		}
		handler := s.exchange != nil
		if goesOn := c.goOnLocked(s); handler || !goesOn {
			looks++
		}
	}
	c.idle.used += int(max(0, looks-paid) / looksAFrame)
}

// trailLocked ends an answer with data, for whose frames the caller gives back windows.
func (c *connection) trailLocked(s *stream) {
	c.headersLocked(flagEndStream, s.id, okTrailers)
	c.idle.earn(framesAnAnswer)
	c.answeredLocked(s)
}

// answeredLocked lets go of a call. Its memory is given back when the answer is written. Afterwards s may be another
// call: the pool has it.
func (c *connection) answeredLocked(s *stream) {
	c.out.release += s.cost
	s.cost = 0
	c.closeLocked(s)
	if !s.shared && cap(s.pieces) <= streamCost { // a pooled call counts as one without a request
		pooled.Put(s)
	}
}

// failLocked answers with a status alone.
func (c *connection) failLocked(s *stream, st *status.Status) { c.failsLocked(s, failure(st)) }

// failsLocked answers with a header block alone. A reset follows if the request goes on, so that the caller stops (RFC
// 9113, 8.1).
func (c *connection) failsLocked(s *stream, block []byte) {
	c.headersLocked(flagEndStream, s.id, block)
	if !s.ended {
		c.resetLocked(s.id, http2.ErrCodeNo)
	}
	c.answeredLocked(s)
}

// leavesLocked notes that a call leaves the gate, once: when it is decided, begins to wait, or is closed.
func (c *connection) leavesLocked(s *stream) {
	if s.inside {
		s.inside = false
		c.calls.leaving++
	}
}

// closeLocked removes a call from all that has it. Its cost is given back here, unless answeredLocked has moved it to
// the output, or its handler goes on.
func (c *connection) closeLocked(s *stream) {
	s.gone = true
	delete(c.calls.open, s.id)
	delete(c.calls.blocked, s)
	c.completesLocked(s)
	c.leavesLocked(s)
	if s.exchange != nil {
		c.leaveHandlerLocked(s)
	} else {
		c.memory.add(-s.cost)
	}
	s.cost = 0
	if len(c.calls.open) == 0 {
		c.life.quiet = nanotime()
	}
	s.cancelLocked()
}

// leaveHandlerLocked ends a call for its handler, which goes on until it finds that. Until then the budget counts what
// it costs, and not for the connection, which may end.
func (c *connection) leaveHandlerLocked(s *stream) {
	x := s.exchange
	x.ending = s.cost
	// Not by add: the budget goes on counting these bytes.
	c.memory.bytes -= s.cost
	c.Budget.ending.Add(s.cost)
	x.cancel()
	if x.talk != nil && x.talk.notify != nil {
		c.receipts.wait = slices.DeleteFunc(c.receipts.wait, func(r receipt) bool { return r.talk == x.talk })
	}
	x.news.Broadcast()
}
