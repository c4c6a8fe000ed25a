package transport

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/ratelimit"
)

// guarding are credentials that put a guard on each connection, above TLS.
type guarding struct {
	credentials.TransportCredentials
	caps   Caps
	budget *Budget
	gated  *Gated // nil: all calls are begun
}

// ServerHandshake implements [credentials.TransportCredentials].
func (g *guarding) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := g.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return c, info, err
	}
	// The guard is above TLS, because it has to see frames. It has the connection below, which it may have to
	// close without a message.
	guard := newGuard(c, raw, &g.caps, g.budget)
	if g.gated != nil {
		guard.screen = newScreen(g.gated, g.caps.HeaderBytes)
	}
	if !g.caps.Conversations { // there, who the other side is depends on what info is
		info = &guarded{info, guard}
	}
	return guard, info, nil
}

// ClientHandshake implements [credentials.TransportCredentials].
func (g *guarding) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	return g.TransportCredentials.ClientHandshake(ctx, authority, raw)
}

// Clone implements [credentials.TransportCredentials].
func (g *guarding) Clone() credentials.TransportCredentials {
	return &guarding{g.TransportCredentials.Clone(), g.caps, g.budget, g.gated}
}

var errEnded = errors.New("the connection was ended: it held more than its share of the memory for unfinished calls " +
	"(MAX_MEMORY)")

// guard is a connection whose calls are reckoned as their frames pass. It is
// safe for one reader and one writer at a time.
//
// A call costs from its first frame until the last of its reply has been
// written, or either side has reset it.
type guard struct {
	net.Conn
	caps   *Caps
	budget *Budget
	// raw is the connection as the listener has it, below TLS; nil: it did not come from a
	// Listener.
	raw    *conn
	screen *screen // nil: all calls are begun
	in     walker
	out    walker
	turns  turns
	// timed says that a read has a deadline, which has to be taken away when no request is
	// incomplete any more. It is the reader's alone.
	timed bool
	// wrote is when writes last got a deadline: to set one costs, and a write may well go by that of the write before.
	wrote time.Time

	mu   sync.Mutex
	open []call // guarded by mu, by rising stream
	// latest is the highest stream so far. Callers number their streams upwards, so that headers of
	// a lower one are trailers, or an error. It is guarded by mu.
	latest uint32
	// unfinished are calls whose request is not complete; it is changed under mu.
	unfinished atomic.Int32
	held       int64 // guarded by mu. Invariant: the sum of the costs of open
	// ended says that the connection has been given up. Frames that still come are not charged, so that
	// released bytes are not charged once more. It is guarded by mu.
	ended bool
	now   int64 // guarded by mu: the arrival of the bytes in progress
	asked asked // guarded by mu
	// asks says that a Talk has something to ask about; it is changed under mu.
	asks atomic.Bool
}

// call is one that is open.
type call struct {
	stream   uint32
	complete bool // its request
	// blind says that the call's messages cannot be followed, so that it is charged for its frames.
	blind   bool
	arrived ratelimit.Instant // as the gate counts it; 0: it does not
	since   int64
	cost    int64
	message message
	talk    *Talk // what works on the call has asked what its caller has received; nil: it has not
}

func newGuard(c, raw net.Conn, caps *Caps, budget *Budget) *guard {
	g := &guard{Conn: c, caps: caps, budget: budget, turns: newTurns()}
	g.raw, _ = raw.(*conn)
	g.in.skip = prefaceLen
	budget.join(g)
	return g
}

// callCost is what an open call costs before any data: its headers as they are
// kept, and what works on it.
func (g *guard) callCost() int64 { return int64(g.caps.HeaderBytes) + 8<<10 }

// Read implements net.Conn.
func (g *guard) Read(p []byte) (int, error) {
	if n, ok := g.turns.next(p); ok {
		return n, nil
	}
	if g.screen == nil {
		n, err := g.readPlain(p)
		// What came with an error is the last that comes.
		if err == nil {
			n = g.turns.first(p, n, nil)
		}
		return n, err
	}
	n, err := g.readScreened(p)
	if s := g.screen; err == nil {
		n = g.turns.first(p, n, s.spill)
		s.spill = spare(s.spill, readBuffer)
	}
	return n, err
}

func (g *guard) readPlain(p []byte) (int, error) {
	g.await()
	n, err := g.Conn.Read(p)
	if n > 0 {
		// The budget is charged without mu: it may end any connection, this one too
		// (Budget.charge).
		change, ok := g.arrived(p[:n])
		g.budget.charge(change)
		if !ok {
			return 0, errEnded
		}
	}
	g.stalled(err)
	return n, err
}

// Write implements net.Conn.
func (g *guard) Write(p []byte) (int, error) {
	if g.screen != nil {
		return g.writeScreened(p)
	}
	return g.writeOwn(p)
}

func (g *guard) writeOwn(p []byte) (int, error) {
	g.hurry()
	n, err := g.Conn.Write(p)
	if n > 0 {
		g.budget.charge(g.left(p[:n]))
	}
	// The answer to a Talk has just been written, and the ping goes behind it.
	if err == nil && g.asks.Load() {
		err = g.ask()
	}
	if g.stalled(err) {
		g.Conn.Close() // the reader may wait for more of the same
	}
	return n, err
}

// Close implements net.Conn.
func (g *guard) Close() error {
	// First, so that the budget does not choose a connection that is ended already.
	g.budget.leave(g)
	g.let()
	return g.Conn.Close()
}

// end implements holder.
func (g *guard) end() {
	g.let()
	if g.raw != nil { // under TLS, an orderly end would wait for the other side
		_ = g.raw.Close()
		return
	}
	_ = g.Conn.Close()
}

// let takes all that is held off the budget.
func (g *guard) let() {
	g.mu.Lock()
	held := g.held
	for i := range g.open {
		g.forgetLocked(&g.open[i])
	}
	g.open, g.held, g.ended = nil, 0, true
	g.unfinished.Store(0)
	if s := g.screen; s != nil {
		g.leaveLocked(s.Clock())
	}
	g.mu.Unlock()
	g.budget.charge(-held)
}

// holds implements holder.
func (g *guard) holds(since int64) (now, long int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.open {
		// Calls are by rising stream, and so by the time at which they began. What follows is
		// younger.
		if g.open[i].since > since {
			break
		}
		long += g.open[i].cost
	}
	return g.held, long
}

// stalled counts a deadline that has passed.
func (g *guard) stalled(err error) bool {
	if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	if g.budget != nil {
		g.budget.Stalled.Add(1)
	}
	return true
}

// await gives the next read the time that the oldest incomplete request has left.
func (g *guard) await() {
	// Requests of conversations need never be complete.
	if g.caps.Conversations || g.caps.RequestTimeout == 0 || g.raw != nil && g.raw.shaking.Load() {
		return
	}
	// The beginning of a frame of headers belongs to no call yet, but keeps memory as one.
	if s := g.screen; s != nil && len(s.kept) > 0 {
		g.timed = true
		_ = g.SetReadDeadline(started.Add(time.Duration(s.since) + g.caps.RequestTimeout))
		return
	}
	if g.unfinished.Load() == 0 {
		// The deadline of a request that is complete by now must not end an idle connection.
		if g.timed {
			g.timed = false
			_ = g.SetReadDeadline(time.Time{})
		}
		return
	}
	g.timed = g.timeLimit() || g.timed
	if g.unfinished.Load() == 0 { // a Talk has just begun, and may not have seen the deadline
		_ = g.SetReadDeadline(time.Time{})
	}
}

// timeLimit sets the deadline of reads, if there is an incomplete request.
func (g *guard) timeLimit() bool {
	g.mu.Lock()
	// The first is the oldest, and its time is over first.
	i := slices.IndexFunc(g.open, func(c call) bool { return !c.complete })
	var since int64
	if i >= 0 {
		since = g.open[i].since
	}
	g.mu.Unlock()
	if i >= 0 {
		_ = g.SetReadDeadline(started.Add(time.Duration(since) + g.caps.RequestTimeout))
	}
	return i >= 0
}

// hurry gives writes a time after which the caller counts as not reading. It is set anew once a second at
// most.
func (g *guard) hurry() {
	if g.caps.RequestTimeout == 0 {
		return
	}
	now := time.Now()
	// gRPC sets deadlines of its own at the handshake, which take the place of this one.
	if g.raw != nil && g.raw.untimed.Swap(false) || now.Sub(g.wrote) > min(time.Second, g.caps.RequestTimeout/4) {
		g.wrote = now
		_ = g.SetWriteDeadline(now.Add(g.caps.RequestTimeout))
	}
}

// arrived reckons what has been read. It is not ok if the connection has ended.
func (g *guard) arrived(b []byte) (change int64, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.held
	g.lookLocked()
	for len(b) > 0 && !g.ended {
		var begun bool
		var piece []byte
		begun, piece, b = g.in.next(b)
		switch {
		case begun:
			g.beganLocked(&g.in.frame)
		case piece != nil && g.caps.Conversations && g.in.kind == frameData:
			g.messageLocked(g.in.stream, piece)
		case piece != nil && g.in.kind == framePing:
			g.pongLocked(piece)
		}
	}
	return g.held - before, !g.ended
}

// lookLocked takes the arrival time of the bytes in progress.
func (g *guard) lookLocked() {
	if g.raw != nil {
		g.now = g.raw.last.Load()
	} else {
		g.now = nanotime()
	}
}

// beganLocked takes in the header of a frame of the caller's.
func (g *guard) beganLocked(f *frame) {
	switch f.kind {
	case frameHeaders:
		g.headersLocked(f)
	case frameData:
		if c := g.callLocked(f.stream); c != nil {
			// Behind padding the beginnings of messages are not where they are looked for: from
			// here on the call is charged for its frames.
			if !g.caps.Conversations || f.flags&flagPadded != 0 {
				c.blind = true
				g.addLocked(c, frameCost(f.length))
			}
			g.completeLocked(c, f.flags)
		}
	// The caller has given up the call, and the transport lets go of it.
	case frameReset:
		g.closeLocked(f.stream)
	case framePing:
		// A ping may come in pieces, and this is the first.
		g.asked.have = 0
	}
}

func (g *guard) headersLocked(f *frame) {
	if c := g.callLocked(f.stream); c != nil { // trailers
		g.completeLocked(c, f.flags)
		return
	}
	if f.stream <= g.latest {
		return // the transport will not have it
	}
	g.latest = f.stream
	// gRPC refuses calls beyond Streams, but only after it has read their headers, and each refused one is
	// open until its reset is written. A caller who continues that far ignores the settings.
	if uint32(len(g.open)) >= 2*g.caps.Streams+1000 && g.caps.Streams > 0 {
		if g.budget != nil {
			g.budget.Excess.Add(1)
		}
		g.ended = true
		return
	}
	g.turns.begun++
	g.open = append(g.open, call{stream: f.stream, since: g.now})
	g.unfinished.Add(1)
	c := &g.open[len(g.open)-1]
	g.addLocked(c, g.callCost())
	g.completeLocked(c, f.flags)
}

func (g *guard) addLocked(c *call, cost int64) {
	c.cost += cost
	g.held += cost
}

func (g *guard) completeLocked(c *call, flags byte) {
	// Trailers may end a request that has ended.
	if flags&flagEndStream != 0 && !c.complete {
		c.complete = true
		g.unfinished.Add(-1)
	}
}

// messageLocked reckons a piece of a conversation.
func (g *guard) messageLocked(stream uint32, piece []byte) {
	c := g.callLocked(stream)
	if c == nil || c.blind {
		return
	}
	tail, completed := c.message.through(piece)
	if completed { // what came before is taken in
		g.addLocked(c, g.callCost()-c.cost)
		// A conversation's age is that of its message under way. Otherwise the longest conversation
		// would be the first to be ended.
		c.since = g.now
	}
	if tail > 0 {
		g.addLocked(c, pieceCost(tail))
	}
}

func (g *guard) indexLocked(stream uint32) (int, bool) {
	return slices.BinarySearchFunc(g.open, stream, func(c call, stream uint32) int {
		// Numbers of streams are 31 bits: their difference fits.
		return int(int64(c.stream) - int64(stream))
	})
}

func (g *guard) callLocked(stream uint32) *call {
	if i, ok := g.indexLocked(stream); ok {
		return &g.open[i]
	}
	return nil
}

func (g *guard) closeLocked(stream uint32) {
	i, ok := g.indexLocked(stream)
	if !ok {
		return
	}
	c := &g.open[i]
	// A call that ends is not waited for any more, complete or not.
	g.completeLocked(c, flagEndStream)
	g.held -= c.cost
	g.forgetLocked(c)
	g.open = slices.Delete(g.open, i, i+1)
}

// forgetLocked has the gate told that a call has ended.
func (g *guard) forgetLocked(c *call) {
	if c.talk != nil {
		g.asked.talks--
	}
	// The gate gets all calls that ended in this piece at once, after its frames.
	if c.arrived != 0 {
		g.screen.leaving = append(g.screen.leaving, c.arrived)
	}
}

// left reckons what has been written.
func (g *guard) left(b []byte) (change int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.held
	for len(b) > 0 && !g.ended {
		var begun bool
		var piece []byte
		begun, piece, b = g.out.next(b)
		if begun && g.screen != nil {
			g.screen.wroteLocked(&g.out.frame)
		}
		switch {
		// The end of the reply is the end of the call: gRPC keeps nothing of it any more.
		case begun && g.out.ends():
			g.closeLocked(g.out.stream)
		case piece != nil && g.asked.talks > 0 && g.out.kind == frameData:
			g.toldLocked(g.out.stream, piece)
		}
	}
	if s := g.screen; s != nil && len(s.leaving) > 0 {
		g.leaveLocked(s.Clock())
	}
	return g.held - before
}
