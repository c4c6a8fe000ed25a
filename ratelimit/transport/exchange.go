package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// exchange is a call of one of the Services, and the grpc.ServerStream of its handler.
//
// Three goroutines meet here, under of.mu. The lead appends to body. The handler's goroutine takes messages out of it
// (receive), writes answers (send), and ends the call (finish). A handler may send in one goroutine and receive in
// another, as grpc.ServerStream allows.
//
// A call ends for its caller when stream.gone is set: by finish, a reset, or the end of the connection. In the last two
// cases the handler goes on, until a receive, a send or its context says so. What it holds counts in Budget.ending
// meanwhile.
type exchange struct {
	of     *connection
	stream *stream
	ctx    context.Context
	cancel context.CancelFunc

	// news is signaled when there may be something to be received, a window, or an end. Its lock is of.mu. Each
	// exchange has its own: with one for the connection, a frame of data would wake the handlers of all calls.
	news *sync.Cond

	// Guarded by of.mu:
	body bytes.Buffer // received, and not taken by the handler
	talk *Talk        // nil: it is none
	// ending is what the call costs after it has ended, while its handler goes on. Budget.ending contains it.
	ending int64
	// unsent is the part of the call's cost that is a message that waits for a window.
	unsent int64

	// Of the goroutine that sends:
	header, trailer metadata.MD
	headed          bool // the headers are sent
}

// scratch are buffers for messages. A call that waits for one has none: thousands of calls may wait.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// scrap lets another call have a buffer.
func scrap(b *[]byte) {
	if cap(*b) <= mostSpare {
		scratch.Put(b)
	}
}

var _ grpc.ServerStream = (*exchange)(nil)

// exchangeKey is the key of an exchange in the context of its handler.
type exchangeKey struct{}

// exchangeCost is what an open call costs, in addition to its fields: its goroutines, and what they have.
const exchangeCost = 32 << 10

// handLocked begins a call of the services in a goroutine of its own, or refuses it. The gate is for the port's own
// methods alone.
func (c *connection) handLocked(id uint32, ended bool) {
	f := &c.in.fields
	handle, refusal := c.Services.find(f.path)
	// Callers of whose calls none goes on have one all the same: another's resets must not fail their health checks.
	if refusal == nil && c.calls.handlers > 0 && c.Budget.full() {
		refusal = status.New(codes.ResourceExhausted, "too many calls go on whose callers gave up: try again")
	}
	if refusal != nil {
		c.abortLocked(id, ended, http.StatusOK, refusal)
		return
	}
	s := &stream{of: c, id: id, since: c.in.at, ended: ended, complete: ended}
	s.shared, s.encoding = true, f.encoding
	x := &exchange{of: c, stream: s, news: sync.NewCond(&c.mu)}
	s.exchange = x
	c.calls.open[id] = s
	c.calls.handlers++
	if !ended {
		c.calls.incomplete++
		c.waitsSinceLocked(s.since)
	}
	c.addLocked(s, int64(f.size)+exchangeCost)
	caller := &peer.Peer{Addr: c.RemoteAddr(), LocalAddr: c.LocalAddr(), AuthInfo: c.proof}
	// The context is no child of a connection's: closeLocked cancels it, for a reset and for an end alike.
	x.ctx = metadata.NewIncomingContext(peer.NewContext(context.Background(), caller), f.metadata())
	x.ctx = context.WithValue(x.ctx, exchangeKey{}, x)
	if f.patience == forever {
		x.ctx, x.cancel = context.WithCancel(x.ctx)
	} else {
		x.ctx, x.cancel = context.WithTimeout(x.ctx, f.patience)
		// A handler that waits for news does not see the deadline otherwise. Who cancels wakes it by itself.
		context.AfterFunc(x.ctx, x.wake)
	}
	path := f.path // f has the next call's by then
	c.running.Go(func() { x.finish(x.handled(handle, path)) })
}

// handled has the handler answer the call, within its span.
func (x *exchange) handled(handle grpc.StreamHandler, method string) (err error) {
	defer x.of.failed(&err)
	spans := x.of.Services.Spans
	if spans == nil {
		return handle(nil, x)
	}
	begun := time.Now()
	x.ctx = spans.TagRPC(x.ctx, &stats.RPCTagInfo{FullMethodName: method})
	spans.HandleRPC(x.ctx, &stats.Begin{BeginTime: begun})
	err = handle(nil, x)
	spans.HandleRPC(x.ctx, &stats.End{BeginTime: begun, EndTime: time.Now(), Error: err})
	return err
}

// wake has the handler look whether its call has ended.
func (x *exchange) wake() {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	x.news.Broadcast()
}

// dataLocked handles a piece of the request. Its bytes are held until the call ends, or its Talk has received them.
func (x *exchange) dataLocked(piece []byte) {
	x.of.addLocked(x.stream, int64(len(piece)))
	x.body.Write(piece)
	if x.stream.ended {
		x.of.completesLocked(x.stream)
	}
	x.news.Broadcast()
}

// overLocked is why the call has ended for its handler; nil: it goes on. The context says whether the caller's deadline
// has passed or the call was cancelled.
func (x *exchange) overLocked() error {
	err := x.ctx.Err()
	if err == nil && x.stream.gone {
		err = context.Canceled
	}
	if err == nil {
		return nil
	}
	return status.FromContextError(err).Err()
}

// Context implements grpc.ServerStream.
func (x *exchange) Context() context.Context { return x.ctx }

// RecvMsg implements grpc.ServerStream. It waits for a message.
func (x *exchange) RecvMsg(m any) error {
	message, err := x.receive()
	if err != nil {
		return err
	}
	defer scrap(message)
	if err := x.of.Services.codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(*message)}, m); err != nil {
		return status.Errorf(codes.Internal, "the message cannot be decoded: %v", err)
	}
	return nil
}

// receive waits for a message, and takes it out of the body. The message is a copy in a buffer of scratch, which its
// caller gives back: the body's bytes are overwritten by what comes next. At the end of the request the error is
// io.EOF.
func (x *exchange) receive() (message *[]byte, err error) {
	c, s := x.of, x.stream
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := x.overLocked(); err != nil {
			return nil, err
		}
		b := x.body.Bytes()
		if st := c.malformed(b, s.encoding); st != nil {
			return nil, st.Err()
		}
		if len(b) >= messagePrefix && len(b) >= messagePrefix+int(binary.BigEndian.Uint32(b[1:])) {
			break
		}
		if s.ended && len(b) == 0 {
			return nil, io.EOF
		}
		if s.ended {
			return nil, status.Errorf(codes.Internal, "the request ends within a message, after %d bytes", len(b))
		}
		x.news.Wait()
	}
	whole := x.body.Next(messagePrefix + int(binary.BigEndian.Uint32(x.body.Bytes()[1:])))
	message = scratch.Get().(*[]byte)
	*message = append((*message)[:0], whole[messagePrefix:]...)
	if x.body.Len() == 0 && x.body.Cap() > talkCost { // it keeps no room of a large message
		x.body = bytes.Buffer{}
	}
	return message, nil
}

// SetHeader implements grpc.ServerStream.
func (x *exchange) SetHeader(md metadata.MD) error {
	if x.headed {
		return errors.New("the headers of the answer are sent")
	}
	x.header = metadata.Join(x.header, md)
	return nil
}

// SendHeader implements grpc.ServerStream.
func (x *exchange) SendHeader(md metadata.MD) error {
	if err := x.SetHeader(md); err != nil {
		return err
	}
	x.head()
	x.of.flush()
	return nil
}

// SetTrailer implements grpc.ServerStream.
func (x *exchange) SetTrailer(md metadata.MD) { x.trailer = metadata.Join(x.trailer, md) }

// head says the headers, once.
func (x *exchange) head() {
	if x.headed {
		return
	}
	x.headed = true
	block := appendMetadata(okHeaders[:len(okHeaders):len(okHeaders)], x.header)
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	if !x.stream.gone {
		x.of.headersLocked(0, x.stream.id, block)
	}
}

// SendMsg implements grpc.ServerStream. It waits for the caller's windows. It returns when the message is in the output
// of the connection, not when the caller has it: a Talk has receipts for that.
func (x *exchange) SendMsg(m any) error {
	data, err := x.of.Services.codec().Marshal(m)
	if err != nil {
		return status.Errorf(codes.Internal, "the answer cannot be encoded: %v", err)
	}
	defer data.Free()
	out := scratch.Get().(*[]byte)
	defer scrap(out)
	before := prefix(data.Len())
	*out = append((*out)[:0], before[:]...)
	for _, part := range data {
		*out = append(*out, part.ReadOnlyData()...)
	}
	x.head()
	if err := x.send(*out); err != nil {
		return err
	}
	x.of.flush()
	return nil
}

// send says a message, as the windows let it, and a ping for its receipt. It waits while the windows are used up, and
// fails if the call ends meanwhile.
//
// A round says what fits. If something is left, that counts in the budget from the first round on, and what has been
// said is flushed. Only a round that could say nothing waits: for a window of the call, of the connection (goOnLocked),
// or for the end. A call that waits so for RequestTimeout is stalled, and ends its connection.
func (x *exchange) send(data []byte) error {
	c, s := x.of, x.stream
	begun, whole := nanotime(), int64(cap(data))
	c.mu.Lock()
	defer c.mu.Unlock()
	defer x.sentLocked()
	for {
		if err := x.overLocked(); err != nil {
			return err
		}
		n := c.sendLocked(s, data)
		// The caller will answer the frame with windows, and they must not count as idle. A byte at a time earns
		// nothing: with windows of a byte, a caller would have all its handlers wake for ever.
		if n >= leastData || n > 0 && n == len(data) {
			c.idle.earn(framesAnAnswer)
		}
		data = data[n:]
		if len(data) == 0 {
			break
		}
		if n > 0 || x.unsent == 0 { // what has been said goes out before it waits, and the message counts
			c.addLocked(s, whole-x.unsent)
			x.unsent = whole
			c.flushLocked()
			c.chargeLocked()
			continue
		}
		c.waitsLocked(s, begun)
		c.calls.blocked[s] = struct{}{}
		x.news.Wait()
		// The call goes on, and does not wait for its caller any more. One whose request has not ended waits for that,
		// as before.
		if s.ended || x.talk != nil {
			c.completesLocked(s)
		}
	}
	x.askLocked(c)
	return nil
}

// sentLocked gives back what a message cost that waited for a window.
func (x *exchange) sentLocked() {
	if !x.stream.gone { // else it has been given back with all of the call
		x.of.addLocked(x.stream, -x.unsent)
	}
	x.unsent = 0
}

// finish ends the answer, and gives back what the handler held. Where no message was sent, headers and trailers are one
// block (Trailers-Only). An error that is no status becomes one of its context, or of code Unknown.
func (x *exchange) finish(err error) {
	c, s := x.of, x.stream
	st, known := status.FromError(err)
	if !known {
		st = status.FromContextError(err)
	}
	c.mu.Lock()
	c.calls.handlers--
	if !s.gone {
		var block []byte
		if !x.headed {
			block = appendMetadata(okHeaders[:len(okHeaders):len(okHeaders)], x.header)
		}
		c.failsLocked(s, appendMetadata(appendOutcome(block, st), x.trailer))
	}
	c.Budget.ended(x.ending)
	c.mu.Unlock()
	x.cancel()
	c.flush()
}
