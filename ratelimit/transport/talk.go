package transport

import (
	"context"
	"encoding/binary"
	"sync/atomic"
)

// Talk is a call of many messages. Its request need never be complete, so RequestTimeout does not apply. It costs
// talkCost, plus the received messages that the server has not processed, and its caller can send at most one message
// of MessageBytes ahead. The server bounds its own memory for it. It is safe for concurrent use.
//
// After each message that the server has handled, Received gives the caller a window for the next. The RLQS stream
// (ratelimit/rlqs) and the streams of peers (routing) are Talks.
//
// With Receipts, it tells which of its messages the caller has received. Behind each, a ping goes out on the
// connection, which the caller's HTTP/2 acknowledges only after everything before it. Acked says that the caller's
// process has read a message, and nothing more.
type Talk struct {
	on *exchange
	// sent counts messages that had a ping. It is guarded by on.of.mu.
	sent uint64
	// acked is the highest of their numbers that was acknowledged.
	acked atomic.Uint64
	// notify has room for one value. nil: there are no receipts, and no pings. It is guarded by on.of.mu.
	notify chan struct{}
}

// talkCost is what a Talk costs while none of its messages is under way.
const talkCost = 2 << 10

// receipts are the pings of a connection that were not acknowledged.
type receipts struct {
	seq  uint32    // of the last ping
	wait []receipt // by rising seq. Invariant: at most one for each message of a Talk that goes on
}

type receipt struct {
	seq  uint32
	talk *Talk
	sent uint64
}

// pingMark begins the data of pings behind messages. The other four bytes are the number of the ping. Others' pings,
// such as goodbye, have other data.
var pingMark = [4]byte{0x5b, 'q', 'u', 'o'}

// Converse makes the call of a request's context a Talk. It is not ok if the call did not come by a Port, has ended, or
// is a Talk. From then on RequestTimeout does not apply to its request, and what it costs is counted anew after each
// message.
func Converse(ctx context.Context) (t *Talk, ok bool) {
	x, ok := ctx.Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, false
	}
	c := x.of
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.stream.gone || x.talk != nil {
		return nil, false
	}
	x.talk = &Talk{on: x}
	c.completesLocked(x.stream)
	// Its window has room for a message though up to a quarter of one is not given back.
	c.writeFrameLocked(frameWindow, 0, x.stream.id, be32(uint32(c.Caps.MessageBytes/4)))
	x.stream.received -= c.Caps.MessageBytes / 4
	c.addLocked(x.stream, talkCost-exchangeCost)
	return x.talk, true
}

// End has the handler find that its call has ended. The caller gets what the handler returns then.
func (t *Talk) End() {
	t.on.cancel()
	t.on.wake()
}

// Receipts has a value when Acked has grown. It is called before the first message is sent.
func (t *Talk) Receipts() <-chan struct{} {
	c := t.on.of
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.notify == nil {
		t.notify = make(chan struct{}, 1)
	}
	return t.notify
}

// Acked is how many of the messages that were sent the caller has acknowledged.
func (t *Talk) Acked() uint64 { return t.acked.Load() }

// Received says that the server has handled a message. Bytes before it are not kept any more. It reports whether some
// of the next message are there, which may have come at any time since the one before.
func (t *Talk) Received() (more bool) {
	c := t.on.of
	c.mu.Lock()
	more = t.on.body.Len() > 0
	t.receivedLocked()
	change := c.memory.book()
	c.mu.Unlock()
	c.Budget.charge(change)
	c.flush()
	return more
}

// receivedLocked sets the cost of the call to what it holds now, and gives back the window of what was handled. Bytes
// of the next message, and a message that waits for a window, still count.
func (t *Talk) receivedLocked() {
	c, s := t.on.of, t.on.stream
	if s.gone {
		return
	}
	c.addLocked(s, talkCost+int64(t.on.body.Len())+t.on.unsent-s.cost)
	c.idle.earn(framesACall) // a message of a stream is as a call: its caller sends windows and pings for it
	s.since = nanotime()     // what comes now is not held for long
	// The window is given back in few frames.
	if back := s.received + c.Caps.MessageBytes/4 - t.on.body.Len(); back > c.Caps.MessageBytes/4 {
		c.writeFrameLocked(frameWindow, 0, s.id, be32(uint32(back)))
		s.received -= back
	}
}

// askLocked sends a ping behind a message. HTTP/2 keeps the order of frames, and a caller answers a ping after it has
// read all before it (RFC 9113, 6.7).
func (x *exchange) askLocked(c *connection) {
	t := x.talk
	if t == nil || t.notify == nil {
		return
	}
	t.sent++
	r := &c.receipts
	r.seq++
	r.wait = append(r.wait, receipt{r.seq, t, t.sent})
	c.writeFrameLocked(framePing, 0, 0, binary.BigEndian.AppendUint32(pingMark[:4:4], r.seq))
}

// pong handles the answer to a ping. A caller that has answered one has read all before it.
func (r *receipts) pong(p [8]byte) {
	seq := binary.BigEndian.Uint32(p[4:])
	if [4]byte(p[:4]) != pingMark || seq > r.seq {
		return // it was never asked
	}
	for len(r.wait) > 0 && r.wait[0].seq <= seq {
		r.wait[0].talk.acknowledge(r.wait[0].sent)
		r.wait = r.wait[1:]
	}
}

func (t *Talk) acknowledge(n uint64) {
	t.acked.Store(max(n, t.acked.Load()))
	select {
	case t.notify <- struct{}{}:
	// There is a value already, and its receiver sees the latest number.
	default:
	}
}
