package transport

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/ratelimit"
)

// connection is one HTTP/2 connection of a Port.
//
// One goroutine leads at a time: it alone uses in, reads the socket, and handles frames. A decision that waits hands
// the lead over in Waits, under mu. All else is shared: handlers of services, decisions that waited, timers, and the
// Budget, which ends it. Each of them may write; output says how they take turns.
//
// The path of a batch: lead, read, take, framesLocked (arrive.go), answer (stream.go), flush (output.go).
type connection struct {
	*Port
	net.Conn                      // above TLS
	beneath  *conn                // of a Listener, below TLS; nil: it came from another
	proof    credentials.AuthInfo // of the caller
	in       input                // of the goroutine that leads

	mu       sync.Mutex
	calls    calls    // guarded by mu
	out      output   // guarded by mu
	memory   memory   // guarded by mu
	life     life     // guarded by mu
	idle     idle     // guarded by mu
	receipts receipts // guarded by mu
}

// input is the state of the goroutine that leads. Invariant: turn is empty when a read begins, because the requests of
// its calls lie in batch.
type input struct {
	batch  []byte // for reads; requests lie in it
	rest   []byte // in batch: the beginning of the next frame
	block  block  // the header block under way
	fields fields
	at     int64             // when the last bytes came
	now    ratelimit.Instant // the same, by the gate's clock
	turn   []*stream         // calls to be answered
	next   int               // of them
	answer []byte            // space for an answer
	// credit is how many bytes of data the caller was not given back as a window of the connection. They are given back
	// when they are handled, whether their call keeps them or not: the Budget bounds memory, not the window.
	credit int
	begun  bool // the caller's settings have come
	// acked reports whether the caller has acknowledged this side's settings, and so has read the bound on calls.
	acked bool
}

// calls are the open calls of a connection. Each own call of open is incomplete, in input.turn, being decided, or in
// blocked.
type calls struct {
	open   map[uint32]*stream
	latest uint32 // the highest stream so far
	// incomplete counts those that wait for their caller: !stream.complete. Stalled calls are looked for only if there
	// are some.
	incomplete int
	// handlers are exchanges whose handler has not returned, also of calls that were reset. So len(open) can be less.
	handlers int
	blocked  map[*stream]struct{} // whose answers wait for a window
	// inside counts calls that the gate let in. leaving are those of them whose leaving the gate has not been given
	// yet: one Leave for all of a batch takes the gate's lock once.
	inside  int
	leaving int
}

// memory is the part of the budget that a connection holds. Invariant: the budget counts bytes less unbooked. Changes
// are booked under the connection's lock, and charged after it is released.
type memory struct {
	bytes, unbooked int64
	partial         int64 // of bytes: frames and header blocks that are not complete
	// since is when the first byte of what is partial came. A caller that sends a frame byte by byte does not renew it.
	since int64
}

func (m *memory) add(bytes int64) {
	m.bytes += bytes
	m.unbooked += bytes
}

// book returns the change that the budget lacks. It is charged without the connection's lock.
func (m *memory) book() int64 {
	change := m.unbooked
	m.unbooked = 0
	return change
}

// life is the age of a connection, in nanoseconds since the process began.
type life struct {
	end      int64 // of its Age
	received int64 // when bytes came last
	// quiet is since when the connection has no open call. It counts only while there is none.
	quiet  int64
	pinged int64 // 0: not since bytes came
	// deadline is the read deadline that the socket has now. Others than the leader bring it forward, so that its read
	// returns and it looks again: soonerLocked.
	deadline int64
	look     int64 // when to look for calls that their caller has stalled; 0: none wait for it
	asked    int64 // when it was asked to end; 0: it was not
	// lastStream is set once the caller was given the number of the last call, which is last. Later calls are ignored.
	lastStream bool
	last       uint32
	// over is set by let, for good: all calls are closed, and memory is given back. Then nothing more is written, and
	// the leader ends when it finds it.
	over bool
}

const (
	// smallBytes is the room for a read, at least. It holds dozens of rate limit calls, and each connection keeps that
	// much.
	smallBytes = 8 << 10
	// connWindow is how many bytes of requests may be under way on a connection, before this side has read them.
	connWindow = 1 << 20
)

// prefaced reads the caller's preface, and reports whether it is that of HTTP/2. It blocks, at most for the time of
// handshake.
func prefaced(c net.Conn) bool {
	preface := make([]byte, len(http2.ClientPreface))
	_, err := io.ReadFull(c, preface)
	return err == nil && string(preface) == http2.ClientPreface
}

// newConnection makes the state of a connection. It reads and writes nothing.
func newConnection(p *Port, secured, accepted net.Conn, info credentials.AuthInfo) *connection {
	now := nanotime()
	c := &connection{
		Port: p, Conn: secured, proof: info, calls: calls{open: map[uint32]*stream{}, blocked: map[*stream]struct{}{}},
		out:  output{window: defaultWindow, initial: defaultWindow},
		life: life{received: now, quiet: now},
	}
	c.out.room = sync.NewCond(&c.mu)
	c.beneath, _ = accepted.(*conn)
	// Connections that began at once do not end at once.
	c.life.end = now + int64(float64(p.Caps.Age)*(0.9+0.2*rand.Float64()))
	c.in.fields = newFields(p.Methods, p.Caps.HeaderBytes)
	return c
}

// greet says this side's settings, before anything is read: callers keep the bounds that they have read.
func (c *connection) greet() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.frames = appendSettings(c.out.frames,
		// A stream's window is the largest message, so that a unary call needs no frames for its window. Settings of 0
		// are left out, which means no bound.
		uint32(http2.SettingMaxConcurrentStreams), c.Caps.Streams,
		uint32(http2.SettingInitialWindowSize), uint32(c.Caps.MessageBytes)+messagePrefix,
		uint32(http2.SettingMaxHeaderListSize), c.Caps.HeaderBytes)
	// Settings do not change the window of the connection, which begins at 65535 (RFC 9113, 6.9.2).
	c.writeFrameLocked(frameWindow, 0, 0, be32(connWindow-65535))
	c.flushLocked()
}

// lead answers calls and reads, until the connection ends, or a call waits: then another goroutine leads, and goes on
// with the next call of turn.
//
// All calls of a batch are answered before one write, so that they share its price. Answers are appended to out.frames.
func (c *connection) lead() {
	defer c.contain(c.abandon)
	in := &c.in
	for {
		for in.next < len(in.turn) {
			s := in.turn[in.next]
			in.next++
			if leads := c.answer(s); !leads {
				return
			}
		}
		clear(in.turn)
		in.turn, in.next = in.turn[:0], 0
		// A caller that does not read blocks here if much waits: then this connection reads nothing more either.
		c.flush()
		if err := c.read(); err != nil {
			c.bye(err)
			return
		}
		// Other connections handle what has come for them, so that the gate counts all calls that wait.
		if len(in.turn) > 0 {
			runtime.Gosched()
		}
	}
}

// read handles what comes next. The beginning of a frame moves to the front of the buffer, which grows while the frame
// does not fit. A timeout of the read is no error: await has set it for the time when something is due.
func (c *connection) read() error {
	in := &c.in
	// The room was for a large frame. A caller must not have a node keep it for three bytes of the next one.
	if len(in.rest) <= smallBytes && cap(in.batch) > 2*smallBytes {
		in.batch = make([]byte, 0, len(in.rest)+smallBytes)
	}
	in.batch = slices.Grow(append(in.batch[:0], in.rest...), smallBytes)
	for {
		if err := c.await(); err != nil {
			return err
		}
		n, err := c.Read(in.batch[len(in.batch):cap(in.batch)])
		if n > 0 {
			return c.take(in.batch[:len(in.batch)+n])
		}
		if timeout := net.Error(nil); err != nil && (!errors.As(err, &timeout) || !timeout.Timeout()) {
			return err
		}
	}
}

// await does what is due, and sets the time of the next read. It writes outside of the lock of lookAhead: a ping, or a
// GOAWAY.
func (c *connection) await() error {
	waiting, err := c.lookAhead()
	if waiting {
		c.flush()
	}
	return err
}

// lookAhead is await, and reports whether something is to be written.
func (c *connection) lookAhead() (writes bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := nanotime()
	until, err := c.dueLocked(now)
	// To set a deadline costs. One that is a little too early does no harm, unless it has passed.
	if l := &c.life; until < l.deadline || until > l.deadline+int64(time.Second) || l.deadline <= now {
		l.deadline = until
		_ = c.SetReadDeadline(started.Add(time.Duration(until)))
	}
	writes = len(c.out.frames) > 0
	if !writes && len(c.calls.open) <= c.calls.handlers { // a burst leaves large buffers, and others may wait for long
		c.out.frames, c.out.spare = small(c.out.frames), small(c.out.spare)
	}
	return writes, err
}

// small drops the room of a buffer, unless it is little.
func small(b []byte) []byte {
	if cap(b) > smallBytes {
		return nil
	}
	return b
}

// take handles a batch. The clocks are read once for all its frames.
func (c *connection) take(all []byte) error {
	in := &c.in
	in.at = nanotime()
	if c.beneath != nil {
		c.beneath.last.Store(in.at)
	}
	if c.Gate != nil {
		in.now = c.Gate.Clock()
	}
	change, err := c.takeFrames(all)
	c.Budget.charge(change)
	return err
}

// takeFrames is take, and returns the change of the budget. It holds the lock for the whole batch. It returns the
// change because the budget may end this connection, which takes the lock.
func (c *connection) takeFrames(all []byte) (change int64, err error) {
	in := &c.in
	c.mu.Lock()
	defer c.mu.Unlock()
	c.life.received, c.life.pinged = in.at, 0
	rest, err := c.framesLocked(all)
	// The beginning of a frame counts from when its first byte came.
	if len(in.rest) == 0 || len(rest) < len(all) {
		c.memory.since = in.at
	}
	in.rest = rest
	c.keepLocked()
	// A frame for each piece of data would cost more than the data. It goes along where a write is due anyway.
	if credit := &in.credit; *credit >= enoughCredit || *credit > 0 && len(c.out.frames) > 0 {
		c.writeFrameLocked(frameWindow, 0, 0, be32(uint32(*credit)))
		*credit = 0
	}
	// The budget, or Stop, ended it. What keepLocked has just booked is given back by bye.
	if c.life.over {
		err = net.ErrClosed
	}
	return c.memory.book(), err
}

// keepLocked counts the bytes of frames and header blocks that are not complete.
func (c *connection) keepLocked() {
	partial := int64(len(c.in.rest))
	if c.in.block.stream != 0 {
		partial += int64(len(c.in.block.bytes))
		c.memory.since = min(c.memory.since, c.in.block.since)
	}
	c.memory.add(partial - c.memory.partial)
	c.memory.partial = partial
}

// Instants in the life of a connection. noPong and lastCalls are those of grpc-go's server.
const (
	silence   = time.Minute      // before a ping
	noPong    = 20 * time.Second // after it
	lastCalls = 5 * time.Second  // for calls under way when the caller is asked to end
	ageless   = time.Hour        // between two looks, at most
)

// dueLocked does what is due, and returns when the next thing is. With an error the connection ends: it stalled,
// answered no ping, is too old, or has no call left after it was asked to end.
//
// due reports whether an instant has come, and else makes it a candidate for next. So it is asked only where the event
// can happen.
func (c *connection) dueLocked(now int64) (next int64, err error) {
	l, caps := &c.life, &c.Caps
	next = now + int64(ageless)
	due := func(since int64, after time.Duration) bool {
		// An instant that has passed and leads to no end must not make the reads spin.
		next = min(next, max(since+int64(after), now+1))
		return now >= since+int64(after)
	}
	if c.memory.partial > 0 && due(c.memory.since, caps.RequestTimeout) || c.stalledLocked(now) {
		c.Budget.Stalled.Add(1)
		return next, os.ErrDeadlineExceeded // a request, or the reading of an answer, did not go on
	}
	// stalledLocked has found none, and has set when to look next.
	if l.look != 0 {
		next = min(next, l.look)
	}
	if l.pinged == 0 && due(l.received, silence) {
		l.pinged = now
		c.writeFrameLocked(framePing, 0, 0, make([]byte, 8))
	}
	if l.pinged != 0 && due(l.pinged, noPong) {
		return next, os.ErrDeadlineExceeded
	}
	quiet := len(c.calls.open) == 0
	if l.asked == 0 && (quiet && due(l.quiet, caps.Idle) || due(l.end, 0)) {
		c.goAwayLocked(now)
	}
	if due(l.end, caps.AgeGrace) {
		return next, os.ErrDeadlineExceeded
	}
	if l.asked != 0 && !l.lastStream && due(l.asked, lastCalls) {
		c.lastCallsLocked()
	}
	// While another goroutine writes the last answers, the lead waits: flushLocked wakes it when they are written.
	if l.over || l.lastStream && quiet && !c.out.writing {
		return next, io.EOF
	}
	return next, nil
}

// soonerLocked has the goroutine that leads look at the latest then. It may be blocked in a read, which ends at its
// deadline.
func (c *connection) soonerLocked(at int64) {
	if l := &c.life; at < l.deadline {
		l.deadline = at
		_ = c.SetReadDeadline(started.Add(time.Duration(at)))
	}
}

// waitsSinceLocked notes that a call has waited for its caller since that instant: RequestTimeout later the connection
// looks for stalled calls.
func (c *connection) waitsSinceLocked(since int64) {
	at := since + int64(c.Caps.RequestTimeout)
	if c.life.look == 0 || at < c.life.look {
		c.life.look = at
	}
}

// looks is how often in a RequestTimeout all calls are looked at, at most. A look costs as much as there are calls, and
// without the bound each frame would bring one.
const looks = 64

// stalledLocked reports whether a call has waited for its caller for too long. It looks when one may have. One stalled
// call ends the connection, because a caller that leaves one unfinished can leave all. Calls are in no order of age,
// which each of them would pay for, so a look visits all.
func (c *connection) stalledLocked(now int64) bool {
	l, most := &c.life, int64(c.Caps.RequestTimeout)
	if l.look == 0 || now < l.look {
		return false
	}
	oldest := c.oldestLocked()
	// The call that the look was for has gone on.
	if oldest == 0 {
		l.look = 0
		return false
	}
	l.look = max(oldest+most, now+most/looks)
	return now >= oldest+most
}

// oldestLocked is when the oldest of the calls began that wait for their caller; 0: there is none.
func (c *connection) oldestLocked() (oldest int64) {
	older := func(s *stream) {
		if oldest == 0 || s.since < oldest {
			oldest = s.since
		}
	}
	if c.calls.incomplete > 0 {
		for _, s := range c.calls.open {
			if !s.complete {
				older(s)
			}
		}
	}
	for s := range c.calls.blocked {
		older(s)
	}
	return oldest
}

// bye ends the connection and all that is open on it, and tells the caller why.
//
// The order: GOAWAY is written while there is still an output, then all calls are let go of, so that neither the budget
// nor the gate waits for the caller. Only an end in order (EOF: no call is left, or the caller closed) waits for the
// caller to close, for a second.
func (c *connection) bye(err error) {
	c.mu.Lock()
	code, reason := http2.ErrCodeNo, ""
	if f, ok := errors.AsType[*fault](err); ok {
		code, reason = f.code, f.reason
	}
	last := c.calls.latest
	if c.life.lastStream { // the number never rises
		last = c.life.last
	}
	c.writeFrameLocked(frameGoAway, 0, 0, append(be32(last), append(be32(uint32(code)), reason...)...))
	// A caller that does not read is not waited for.
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	c.out.timed = time.Now() // or writeLocked would set a later deadline
	c.mu.Unlock()
	c.flush()
	c.let()
	// A socket that is closed while bytes of its caller's are unread drops what its caller has not read. Callers
	// close when they have read that it ends.
	if errors.Is(err, io.EOF) {
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.Copy(io.Discard, c.Conn)
	}
	_ = c.Close() // in good order
	c.abandon()
}

// abandon ends the connection at once, and removes it from the budget and the port. It leaves the budget first: that
// must not choose it again, and count it twice.
func (c *connection) abandon() {
	c.Budget.leave(c)
	c.end()
	c.Port.mu.Lock()
	delete(c.open, c)
	c.Port.mu.Unlock()
}

// let lets go of all calls, their place in the gate, and their memory. The budget counts what is not in unbooked, and
// gets that back. It may be called again: after takeFrames has booked a partial frame.
func (c *connection) let() {
	c.mu.Lock()
	c.life.over = true
	for _, s := range c.calls.open {
		c.closeLocked(s)
	}
	m := &c.memory
	charged := m.bytes - m.unbooked
	*m = memory{}
	c.leaveLocked()
	c.out.release = 0
	c.out.room.Broadcast()
	c.mu.Unlock()
	c.Budget.charge(-charged)
}

// leaveLocked tells the gate of calls that have left. Each flush does it, before it can block.
func (c *connection) leaveLocked() {
	l := &c.calls
	if l.leaving > 0 {
		l.inside -= l.leaving
		c.Gate.Gate.Leave(c.Gate.Clock(), l.inside, l.leaving)
		l.leaving = 0
	}
}

// end implements holder. Its caller may hold the lock of the Budget or of the Port. It charges a negative number, so
// that it ends no other holder.
func (c *connection) end() {
	c.let()
	c.cut()
}

// cut closes the connection. It does not block: under TLS, an orderly end would wait for the other side.
func (c *connection) cut() {
	if c.beneath != nil {
		_ = c.beneath.Close()
	}
	_ = c.Close()
}

// holds implements holder. What the writing goroutine holds counts as held for long once the write has lasted since
// then. What waits behind it counts as well.
func (c *connection) holds(since int64) (now, long int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.memory.partial > 0 && c.memory.since <= since {
		long = c.memory.partial
	}
	if o := &c.out; o.writing && o.since <= since { // its caller does not read
		long += o.size + o.counted
	}
	for _, s := range c.calls.open {
		if s.since <= since {
			long += s.cost
		}
	}
	return c.memory.bytes, long
}
