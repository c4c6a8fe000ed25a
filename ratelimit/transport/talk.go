package transport

import (
	"context"
	"encoding/binary"
	"reflect"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Talk is a call of many messages whose server needs to learn which of its own the caller has received.
// Behind each, a ping goes out on the connection, and the caller's HTTP/2 acknowledges it only after
// everything before it. Acknowledged says that the caller's process has read a message, and nothing more.
//
// Its request is never complete, so RequestTimeout does not apply. It costs talkCost, plus the received
// messages that the server has not processed. The server bounds its own memory for it. It is safe for
// concurrent use.
type Talk struct {
	guard  *guard
	stream uint32
	out    message // guarded by guard.mu: what has been written
	sent   uint64  // guarded by guard.mu: messages
	// due says that the last message sent is to be asked about. It is guarded by guard.mu.
	due    bool
	acked  atomic.Uint64
	notify chan struct{}
}

// talkCost is what a Talk costs while none of its messages is under way.
const talkCost = 2 << 10

// guarded is what is known of a caller, and its connection.
type guarded struct {
	credentials.AuthInfo
	guard *guard
}

// asked is what a connection has been asked, and is to be.
type asked struct {
	// talks counts the calls that are Talks: on a connection without any, what is written need not
	// be followed into its messages.
	talks int
	seq   uint32     // of the last ping
	wait  []question // by rising seq. Invariant: at most one for each Talk and message
	pong  [8]byte    // of the ping that is being read
	have  int
}

type question struct {
	seq  uint32
	talk *Talk
	sent uint64
}

// pingMark begins the data of our pings: gRPC has some of its own.
var pingMark = [4]byte{0x5b, 'q', 'u', 'o'}

// Converse makes the call of a stream's context a Talk, before it has sent anything. It is not ok if the
// connection did not come from a server with Options, or if a version of gRPC does not tell the stream
// (TestTalk).
func Converse(ctx context.Context) (t *Talk, ok bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, false
	}
	info, ok := p.AuthInfo.(*guarded)
	id := streamOf(ctx)
	if !ok || id == 0 {
		return nil, false
	}
	t = &Talk{guard: info.guard, stream: id, notify: make(chan struct{}, 1)}
	// The call may have been reset meanwhile, or the connection ended.
	if !info.guard.converse(t) {
		return nil, false
	}
	if !info.guard.timeLimit() { // the read that is under way has the call's own
		_ = info.guard.SetReadDeadline(time.Time{})
	}
	t.Received()
	return t, true
}

// streamOf is the number of a call's HTTP/2 stream; 0: it cannot be found. gRPC keeps it
// to itself, and nothing else that it says of a call tells two on a connection apart.
func streamOf(ctx context.Context) uint32 {
	v := reflect.Indirect(reflect.ValueOf(grpc.ServerTransportStreamFromContext(ctx)))
	if v.Kind() != reflect.Struct {
		return 0
	}
	if id := v.FieldByName("id"); id.IsValid() && id.Kind() == reflect.Uint32 {
		return uint32(id.Uint())
	}
	return 0
}

// Acked is how many of the messages that were sent the caller has acknowledged.
func (t *Talk) Acked() uint64 { return t.acked.Load() }

// Notify has a value when Acked has grown.
func (t *Talk) Notify() <-chan struct{} { return t.notify }

// Received says that the server has taken in a message: what came before is not kept
// any more.
func (t *Talk) Received() {
	g := t.guard
	g.mu.Lock()
	var change int64
	// Nothing is kept of a call that has ended.
	if c := g.callLocked(t.stream); c != nil && c.talk == t {
		change = talkCost - c.cost
		g.addLocked(c, change)
	}
	g.mu.Unlock()
	g.budget.charge(change)
}

func (g *guard) converse(t *Talk) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.callLocked(t.stream)
	if c == nil || c.talk != nil || g.ended {
		return false
	}
	// The request of a Talk never ends, and must not be taken for one that stalls.
	g.completeLocked(c, flagEndStream)
	c.talk = t
	g.asked.talks++
	return true
}

// toldLocked takes in a piece of what was written to a caller.
func (g *guard) toldLocked(stream uint32, piece []byte) {
	c := g.callLocked(stream)
	if c == nil || c.talk == nil {
		return
	}
	t := c.talk
	if _, completed := t.out.through(piece); !completed {
		return
	}
	t.sent++ // a Talk's server waits for one to be acknowledged before it sends another
	t.due = true
	g.asks.Store(true)
}

// ask sends a ping behind messages that have been written, if no frame of gRPC's is
// half written. It is called by the connection's one writer.
func (g *guard) ask() error {
	g.mu.Lock()
	// A ping within a frame would be read as part of it. The next write tries again, for asks stays
	// set.
	if !g.out.between() || g.ended {
		g.mu.Unlock()
		return nil
	}
	a := &g.asked
	a.seq++
	for i := range g.open {
		// One ping asks about all Talks that have written since the last.
		if t := g.open[i].talk; t != nil && t.due {
			t.due = false
			a.wait = append(a.wait, question{a.seq, t, t.sent})
		}
	}
	g.asks.Store(false)
	payload := binary.BigEndian.AppendUint32(pingMark[:4:4], a.seq)
	g.mu.Unlock()
	_, err := g.Conn.Write(appendFrame(nil, framePing, 0, 0, payload))
	return err
}

// pongLocked takes in a piece of a ping, and tells whether it is the end of an answer that was waited for.
func (g *guard) pongLocked(piece []byte) (answered bool) {
	a := &g.asked
	if g.in.flags&flagAck == 0 || g.in.length != len(a.pong) || a.have+len(piece) > len(a.pong) {
		return false
	}
	a.have += copy(a.pong[a.have:], piece)
	// gRPC's own pings are answered on the same connection.
	if a.have < len(a.pong) || [4]byte(a.pong[:4]) != pingMark {
		return false
	}
	seq := binary.BigEndian.Uint32(a.pong[4:])
	if seq > a.seq {
		return false // it was never asked
	}
	n := 0
	// HTTP/2 keeps the order on a connection: whoever has answered a ping has read all before it.
	for n < len(a.wait) && a.wait[n].seq <= seq {
		a.wait[n].talk.acknowledge(a.wait[n].sent)
		n++
	}
	a.wait = append(a.wait[:0], a.wait[n:]...)
	return n > 0
}

func (t *Talk) acknowledge(n uint64) {
	t.acked.Store(max(n, t.acked.Load()))
	select {
	case t.notify <- struct{}{}:
	// There is a value already, and whoever takes it sees the latest number.
	default:
	}
}
