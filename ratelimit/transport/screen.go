package transport

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Gate decides which calls are begun. It is safe for concurrent use.
type Gate interface {
	// Arrive decides on a call whose caller waits for patience; own calls of the same connection
	// were let in and have not left. If it says yes, Leave must follow.
	Arrive(now ratelimit.Instant, own int, patience time.Duration) bool
	// Leave says that calls of one connection have been answered or reset, which arrived then, and
	// that own are left.
	Leave(now ratelimit.Instant, own int, arrived ...ratelimit.Instant)
}

// Gated is a method with a gate for its calls, where frames are read, before gRPC. It must not be changed
// once it is used.
type Gated struct {
	Gate    Gate
	Method  string // as in :path
	Clock   ratelimit.Clock
	Code    codes.Code // of the answer to a refused call
	Message string
}

// screen keeps refused calls of a connection from gRPC, and answers them.
//
// A call costs gRPC much of its price as soon as its headers are read, refused or not.
// So the frames of a refused call are taken out of what gRPC reads, and its answer is
// put between the frames that gRPC writes. gRPC hears nothing of it, although its header block may have
// put fields into the connection's table, which later blocks refer to: from then on those that gRPC
// is to read are packed anew, by a table that gRPC has (fields). The window for data that was taken out
// is given back here.
//
// The gate is asked when all of a call's headers are there, for they say how patient its caller is. gRPC
// gets none of them before.
type screen struct {
	*Gated
	refusal []byte // the header block of an answer to a refused call
	fields  *fields

	// Of the reader alone:
	now   ratelimit.Instant // of the bytes that are being reckoned
	kept  []byte            // the beginning of a frame that is decided on when it is whole
	since int64             // when it came
	known known             // what was understood last of a caller who repeats itself
	// piecing says that a header block goes on that is larger than mostKept, or comes in several frames.
	piecing bool
	pieces  []byte // of that block: what came
	first   frame  // of it
	// drop says that the frame under way is taken out of what gRPC reads.
	drop    bool
	instead []byte // what gRPC is to read in the place of frames that were taken out
	packed  []byte // a block that is packed anew
	spill   []byte // what gRPC is to read and had no room for; it is read before anything else
	idle    idle   // frames that begin no call and bring nothing
	// cut has the calls that were refused in this read and whose requests go on.
	cut []uint32
	// credit counts bytes of data that were taken out, and whose window was not given back yet.
	credit int

	lowered lowered             // guarded by guard.mu
	said    *[]byte             // guarded by guard.mu: frames that are to be written between gRPC's; nil: none
	inside  int                 // guarded by guard.mu: calls that the gate let in, and was not told of since
	leaving []ratelimit.Instant // guarded by guard.mu: when calls arrived that the gate is to be told of

	writing sync.Mutex // held while frames are written
}

// known is a gated header block that changes nothing of the table, and has not been read
// since the table was changed: the same bytes mean the same again.
type known struct {
	block []byte // empty: none
	sight sight
}

// Frames of headers up to mostKept are decided on when they are whole. It is less than
// what gRPC reads at once (readBuffer), so that there is always room for more.
const mostKept = 4 << 10

// enoughCredit is when a caller is given back its window though nothing else is said.
const enoughCredit = 16 << 10

func newScreen(g *Gated, headerBytes uint32) *screen {
	if headerBytes == 0 {
		headerBytes = 1 << 20
	}
	return &screen{Gated: g, refusal: refusal(g.Code, g.Message), fields: newFields(g.Method, int(headerBytes))}
}

// refusal is a header block that changes nothing of the table, so that it can stand
// between any two of gRPC's.
func refusal(code codes.Code, message string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range [][2]string{
		{":status", "200"},
		{"content-type", "application/grpc"},
		{"grpc-status", strconv.Itoa(int(code))},
		{"grpc-message", message},
	} {
		// A buffer takes all; what is sensitive stays out of tables.
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: f[0] != ":status"})
	}
	return b.Bytes()
}

// readScreened reads until there is something that gRPC is to know of. What has no room in p is spilled.
func (g *guard) readScreened(p []byte) (int, error) {
	for {
		g.await()
		// What was kept of the last read comes first. There is room, for it is at most mostKept
		// bytes and p at least readBuffer.
		n := copy(p, g.screen.kept)
		m, err := g.Conn.Read(p[n:])
		g.stalled(err)
		if m == 0 {
			return 0, err
		}
		n, change, ok := g.screenArrived(p[:n+m])
		g.budget.charge(change)
		if !ok {
			return 0, errEnded
		}
		if failed := g.answerRefused(); failed != nil {
			return n, failed
		}
		// Where all that came was of refused calls, gRPC has nothing to read, and the next read waits here.
		if n > 0 || err != nil || len(g.screen.spill) > 0 {
			return n, err
		}
	}
}

// screenArrived reckons what has been read, as arrived does, and moves what gRPC is
// to know of to its front.
func (g *guard) screenArrived(b []byte) (passed int, change int64, ok bool) {
	s := g.screen
	// The clock is read once for all calls of this read.
	s.now = s.Clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.held
	g.lookLocked()
	older := len(s.kept) > 0
	s.kept = s.kept[:0]
	for rest := b; len(rest) > 0 && !g.ended; {
		if g.in.between() && !whole(rest) {
			if s.kept = append(s.kept, rest...); !older || len(rest) < len(b) {
				s.since = g.now
			}
			break
		}
		begun, piece, after := g.in.next(rest)
		if begun {
			s.drop = !g.screenFrameLocked(&g.in.frame, after)
		}
		switch {
		case s.piecing && !begun && piece == nil: // a part of a frame's header
		case s.piecing:
			g.pieceLocked(piece)
		case g.in.kind == framePing:
			if g.pongLocked(piece) {
				s.idle.credit++ // the answer to a ping of ours is no idle frame
			}
		case g.in.kind == frameSettings && g.in.flags&flagAck == 0:
			s.lowered.readLocked(begun, piece)
		}
		// All that was consumed so far is room for what is passed on.
		consumed := len(b) - len(after)
		if g.in.left == 0 {
			passed = s.pass(b[:consumed], passed, s.instead)
			s.instead = spare(s.instead, mostKept)
		}
		if !s.drop {
			passed = s.pass(b[:consumed], passed, rest[:len(rest)-len(after)])
		}
		rest = after
	}
	s.settleLocked()
	g.leaveLocked(s.now)
	return passed, g.held - before, !g.ended
}

// pass has gRPC read some bytes behind the first passed of b, or behind what is spilled.
func (s *screen) pass(b []byte, passed int, more []byte) int {
	if len(s.spill) == 0 && len(more) <= len(b)-passed {
		return passed + copy(b[passed:], more)
	}
	s.spill = append(s.spill, more...)
	return passed
}

// between tells whether what comes next is a frame, and any.
func (w *walker) between() bool { return w.skip == 0 && w.left == 0 && w.have == 0 && !w.block }

// whole tells whether b begins with a frame that can be decided on.
func whole(b []byte) bool {
	if len(b) < frameHeader {
		return false
	}
	n := frameHeader + (int(b[0])<<16 | int(b[1])<<8 | int(b[2]))
	return b[3] != frameHeaders || len(b) >= n || n > mostKept
}

// screenFrameLocked takes in the header of a frame of the caller's, and tells whether
// gRPC is to have it. after is what follows.
func (g *guard) screenFrameLocked(f *frame, after []byte) bool {
	s := g.screen
	known := g.callLocked(f.stream) != nil
	// Data of no call would be free; HTTP/2 knows none of a call that has not begun.
	if !s.idle.afford(f, known, g.now) || f.kind == frameData && f.stream > g.latest {
		if g.budget != nil {
			g.budget.Excess.Add(1)
		}
		g.ended = true
	}
	switch {
	case s.piecing:
		if f.kind != frameContinuation || f.stream != s.first.stream || f.length > mostFrame {
			g.ended = true // gRPC would say the same
		}
		return false
	case f.kind == frameHeaders:
		return g.screenHeadersLocked(f, after)
	// Frames of the connection itself, and of calls that gRPC knows of.
	case f.stream == 0 || f.stream > g.latest || known:
		g.beganLocked(f)
		return true
	// The call was refused, or is over: of what still comes, gRPC would count the bytes.
	case f.kind == frameData:
		s.credit += f.length
		if i := slices.Index(s.cut, f.stream); i >= 0 && f.flags&flagEndStream != 0 {
			s.cut = slices.Delete(s.cut, i, i+1)
		}
		return false
	default:
		return f.kind != frameReset && f.kind != frameWindow
	}
}

// screenHeadersLocked takes in the first frame of a header block.
func (g *guard) screenHeadersLocked(f *frame, after []byte) bool {
	s := g.screen
	// gRPC would say the same of a frame that is too large, and of headers behind a call's first: its requests have no
	// trailers. Those of a refused call it would take for a new one.
	if f.length > mostFrame || f.stream <= g.latest {
		g.ended = true
		return true
	}
	if f.flags&flagEndHeaders != 0 && len(after) >= f.length {
		return g.decideLocked(f, bare(after[:f.length], f.flags))
	}
	s.piecing, s.pieces, s.first = true, s.pieces[:0], *f
	// It is charged from here on, and its request is not complete before its headers are.
	incomplete := *f
	incomplete.flags &^= flagEndStream
	g.headersLocked(&incomplete)
	return false
}

// decideLocked decides on a call whose first frame was f, and tells whether gRPC is to read its header block as it
// came.
func (g *guard) decideLocked(f *frame, block []byte) bool {
	s := g.screen
	says, ok := s.understand(block)
	switch {
	case !ok:
		g.ended = true // gRPC would say the same
		return true
	// Of such a block gRPC reads no more than that it is too large: twice, for fields named trailer have a bound of
	// their own. Packed anew, or cut anew, it might end the connection.
	case says.size > 2*s.fields.most && (s.fields.apart || len(block) > mostFrame):
		g.withholdLocked(f, block, says.changes)
		s.sayLocked(frameReset, 0, f.stream, []byte{0, 0, 0, byte(http2.ErrCodeFrameSize)})
		return false
	case !says.gated:
		g.letInLocked(f, unasked)
	case s.Gate.Arrive(s.now, s.inside, says.patience):
		s.inside++
		g.letInLocked(f, letIn)
	default:
		g.withholdLocked(f, block, says.changes)
		s.sayLocked(frameHeaders, flagEndHeaders|flagEndStream, f.stream, s.refusal)
		// The caller goes on to send its request, until it is told to stop (settleLocked).
		if f.flags&flagEndStream == 0 {
			s.cut = append(s.cut, f.stream)
		}
		return false
	}
	return g.readByBothLocked(f, block, says.changes)
}

// understand reads a header block. It is not ok if nothing on the connection can be understood any
// more.
func (s *screen) understand(block []byte) (says sight, ok bool) {
	// A proxy sends the same headers again and again. To compare them costs less than to read them.
	if len(s.known.block) > 0 && bytes.Equal(block, s.known.block) {
		return s.known.sight, true
	}
	if says, ok = s.fields.look(block); !ok {
		return says, false
	}
	// After a change of the table the same bytes may refer to other fields.
	if says.changes {
		s.known.block = s.known.block[:0]
	} else if says.gated {
		s.known = known{append(s.known.block[:0], block...), says}
	}
	return says, true
}

// readByBothLocked takes in a block that gRPC is to read, too, and tells whether it is to read it as it
// came. f is the first frame of it.
func (g *guard) readByBothLocked(f *frame, block []byte, changes bool) bool {
	s, ok := g.screen, true
	if !s.fields.apart {
		if changes {
			_, ok = s.fields.take(block, original, nil)
		}
		g.ended = g.ended || !ok
		return true
	}
	s.packed, ok = s.fields.take(block, repacked, s.packed[:0])
	g.ended = g.ended || !ok
	s.instead = appendHeaders(s.instead, f.flags&flagEndStream, f.stream, s.packed)
	s.packed = spare(s.packed, mostKept)
	return false
}

// throughGate is whether the gate was asked about a frame: whether it has to be told when
// the call has ended, for it counts the calls that it let in.
type throughGate bool

const (
	unasked throughGate = false
	letIn   throughGate = true
)

// letInLocked has gRPC know of a call, or of what ends one.
func (g *guard) letInLocked(f *frame, counted throughGate) {
	s := g.screen
	g.headersLocked(f)
	if !counted {
		return
	}
	if c := g.callLocked(f.stream); c != nil {
		c.arrived = s.now
	} else {
		s.leaving = append(s.leaving, s.now) // the connection is ended
	}
}

// withholdLocked keeps a call from gRPC, and takes in what its header block changes.
func (g *guard) withholdLocked(f *frame, block []byte, changes bool) {
	if changes {
		_, ok := g.screen.fields.take(block, nobody, nil)
		g.ended = g.ended || !ok
	}
	g.closeLocked(f.stream) // a block in pieces was charged
	g.latest = f.stream
}

// pieceLocked takes in a piece of a header block, and decides on the call when it is the last.
func (g *guard) pieceLocked(piece []byte) {
	s := g.screen
	s.pieces = append(s.pieces, piece...)
	if g.in.left > 0 {
		return
	}
	if g.in.kind == frameHeaders {
		s.pieces = bare(s.pieces, g.in.flags)
	}
	if len(s.pieces) > 4*s.fields.most {
		g.ended = true // gRPC would say the same
		return
	}
	if g.in.flags&flagEndHeaders != 0 {
		s.piecing = false
		if g.decideLocked(&s.first, s.pieces) {
			s.instead = appendHeaders(s.instead, s.first.flags&flagEndStream, s.first.stream, s.pieces)
		}
		s.pieces = spare(s.pieces, mostKept)
	}
}

// settleLocked ends what has been read: calls whose request goes on are told that it
// need not, and the window for what was taken out is given back.
func (s *screen) settleLocked() {
	for _, stream := range s.cut {
		s.sayLocked(frameReset, 0, stream, []byte{0, 0, 0, 0}) // NO_ERROR
	}
	s.cut = s.cut[:0]
	// The connection's window has to be given back here, because gRPC does not know of the bytes.
	// It goes along with whatever is said anyway, so that it rarely costs a write of its own.
	if s.credit >= enoughCredit || s.credit > 0 && s.said != nil {
		s.sayLocked(frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, uint32(s.credit)))
		s.credit = 0
	}
}

// spoken are buffers of frames.
var spoken = sync.Pool{New: func() any { return new([]byte) }}

// sayLocked adds a frame to those that are to be written.
func (s *screen) sayLocked(kind, flags byte, stream uint32, payload []byte) {
	if s.said == nil {
		s.said = spoken.Get().(*[]byte)
		*s.said = (*s.said)[:0]
	}
	*s.said = appendFrame(*s.said, kind, flags, stream, payload)
}

// answerRefused writes what refused calls are told. Within a frame of gRPC's it does
// not: the writer does, when that has ended.
func (g *guard) answerRefused() error {
	g.mu.Lock()
	nothing := g.screen.said == nil
	g.mu.Unlock()
	if nothing {
		return nil
	}
	g.screen.writing.Lock()
	defer g.screen.writing.Unlock()
	return g.writeSaid()
}

func (g *guard) writeSaid() error {
	s := g.screen
	g.mu.Lock()
	b := s.said
	// Frames must not be put into the middle of one of gRPC's.
	if b == nil || !g.out.between() {
		g.mu.Unlock()
		return nil
	}
	// A refusal from here on goes into another buffer, while this one is written without mu.
	s.said = nil
	*b = s.lowered.tellLocked(*b)
	g.mu.Unlock()
	defer spoken.Put(b)
	g.hurry()
	_, err := g.Conn.Write(*b)
	return err
}

// writeScreened writes gRPC's frames, and what refused calls are told after them.
func (g *guard) writeScreened(p []byte) (int, error) {
	g.screen.writing.Lock()
	defer g.screen.writing.Unlock()
	n, err := g.writeOwn(p)
	if err != nil {
		return n, err
	}
	return n, g.writeSaid()
}

// leaveLocked tells the gate of calls that ended.
func (g *guard) leaveLocked(now ratelimit.Instant) {
	if s := g.screen; len(s.leaving) > 0 {
		s.inside -= len(s.leaving)
		s.Gate.Leave(now, s.inside, s.leaving...)
		s.leaving = s.leaving[:0]
	}
}
