// Frames that come: framesLocked cuts a batch, frameLocked checks the order of frames, and each kind has a function. A
// header block begins a call (beginLocked). The data of its request completes it (completeLocked), and the gate decides
// whether the lead answers it. Errors that end a stream are written here; a fault ends the connection.

package transport

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// block is a header block that goes on in another frame.
type block struct {
	// stream is 0 if there is none. Until the block is complete, only its continuations may come (RFC 9113, 6.10).
	stream uint32
	flags  http2.Flags
	bytes  []byte // a copy: the batch is read into again
	since  int64  // when it began
}

// enoughCredit is when a caller is given back its window though nothing else is sent. It is far less than connWindow,
// so that a caller with a large request does not wait for its window.
const enoughCredit = 16 << 10

// framesLocked handles frames, and returns the beginning of one that is not complete. It returns at an end: the rest of
// a batch must not begin calls on a connection that is over.
func (c *connection) framesLocked(b []byte) (rest []byte, err error) {
	for len(b) >= frameHeader && !c.life.over {
		f := readFrame(b)
		if f.length > mostFrame {
			return nil, &fault{http2.ErrCodeFrameSize, fmt.Sprintf("a frame of %d bytes, of %d", f.length, mostFrame)}
		}
		end := frameHeader + f.length
		if len(b) < end {
			return b, nil
		}
		if err := c.frameLocked(&f, b[frameHeader:end]); err != nil {
			return nil, err
		}
		b = b[end:]
	}
	return b, nil
}

// frameLocked handles a frame. Priorities, extensions, and a caller's GOAWAY have no effect.
func (c *connection) frameLocked(f *frame, payload []byte) error {
	in := &c.in
	if err := f.check(); err != nil {
		return err
	}
	if !in.begun && f.kind != frameSettings {
		return protocolError("a connection begins with settings")
	}
	in.begun = true
	// s is nil for a call that has ended: its caller may have sent data, windows or a reset before it read that.
	s := c.calls.open[f.stream]
	if !c.idle.afford(f, s != nil, in.at) {
		c.Budget.Excess.Add(1)
		return &fault{http2.ErrCodeEnhanceYourCalm, "too many frames that bring nothing"}
	}
	goesOn := in.block.stream != 0
	if goesOn != (f.kind == http2.FrameContinuation) || goesOn && f.stream != in.block.stream {
		return protocolError("a header block that does not go on, or did not begin")
	}
	// A stream with a higher number never began, and a frame for it is an error (RFC 9113, 5.1).
	if f.stream > c.calls.latest && (f.kind == frameData || f.kind == frameReset || f.kind == frameWindow) {
		return protocolError(fmt.Sprintf("a frame of kind %v for stream %d, which did not begin", f.kind, f.stream))
	}
	switch f.kind {
	case frameHeaders, http2.FrameContinuation:
		return c.blockLocked(f, payload)
	case frameData:
		return c.dataLocked(s, f, payload)
	case frameReset:
		if s != nil {
			c.closeLocked(s)
		}
	case frameSettings:
		return c.settingsLocked(f, payload)
	case framePing:
		c.pingLocked(f, [8]byte(payload))
	case frameWindow:
		return c.windowLocked(s, f.stream, int64(binary.BigEndian.Uint32(payload)&^(1<<31)))
	}
	return nil
}

// blockLocked handles a piece of a header block.
func (c *connection) blockLocked(f *frame, payload []byte) error {
	in := &c.in
	if f.kind == frameHeaders {
		// gRPC has neither trailers of requests, nor streams that go before others.
		if f.stream <= c.calls.latest || f.stream%2 == 0 {
			return protocolError(fmt.Sprintf("headers for stream %d after %d", f.stream, c.calls.latest))
		}
		payload, err := f.bare(payload)
		if err != nil {
			return err
		}
		c.calls.latest = f.stream
		if f.flags.Has(flagEndHeaders) {
			return c.beginLocked(f.stream, f.flags, payload)
		}
		in.block = block{f.stream, f.flags, append([]byte(nil), payload...), in.at}
		return nil
	}
	b := &in.block
	if len(b.bytes)+len(payload) > mostBlock(c.Caps.HeaderBytes) {
		c.Budget.Excess.Add(1)
		return &fault{http2.ErrCodeEnhanceYourCalm, fmt.Sprintf("headers of more than %d bytes", c.Caps.HeaderBytes)}
	}
	b.bytes = append(b.bytes, payload...)
	if !f.flags.Has(flagEndHeaders) {
		return nil
	}
	whole := *b
	*b = block{}
	return c.beginLocked(whole.stream, whole.flags, whole.bytes)
}

// mostBlock is how many bytes of a header block are kept. Fields become larger when they are unpacked.
func mostBlock(headerBytes uint32) int { return max(mostFrame, int(headerBytes)) }

// beginLocked begins the call whose header block is complete, or refuses it.
//
// The block is decoded first, also of calls that are refused: it changes the table for all later blocks (RFC 7541,
// 2.2). Later cases read fields that earlier ones have checked: large ones are not complete.
func (c *connection) beginLocked(id uint32, flags http2.Flags, block []byte) error {
	f := &c.in.fields
	if err := f.read(block); err != nil {
		return err
	}
	ended := flags.Has(flagEndStream)
	switch {
	// The caller was given the number of the last call: it repeats this one elsewhere (RFC 9113, 6.8).
	case c.life.lastStream:
		return nil
	// Handlers count that go on after a reset, or callers would have any number of them run. Clients repeat a call that
	// was refused.
	case c.Caps.Streams > 0 && max(len(c.calls.open), c.calls.handlers) >= c.mostStreams():
		c.resetLocked(id, http2.ErrCodeRefusedStream)
		return nil
	case f.large():
		c.resetLocked(id, http2.ErrCodeFrameSize)
		return nil
	// The fields of own calls are not kept, and so not checked: nothing reads them but the few in call.
	case f.own == nil && !f.valid():
		c.resetLocked(id, http2.ErrCodeProtocol)
		return nil
	}
	if code, st := f.refusal(); st != nil {
		c.abortLocked(id, ended, code, st)
		return nil
	}
	if f.own == nil {
		c.handLocked(id, ended)
		return nil
	}
	s := c.newStreamLocked(id)
	if f.patience != forever {
		s.until = c.in.at + int64(f.patience)
	}
	s.method = f.own
	// Spans continue a trace of the caller, which is in the fields. Without spans no metadata is made.
	if f.own.Spans != nil {
		s.metadata = f.metadata()
		c.addLocked(s, int64(f.size))
	}
	s.ended = ended
	if ended {
		c.completeLocked(s)
	}
	return nil
}

// unbound is how many times more calls a caller may begin before it has read the bound. A client that connects with
// many calls waiting sends all of them, and does not repeat those that are refused.
const unbound = 8

// mostStreams is how many calls may be open.
func (c *connection) mostStreams() int {
	if !c.in.acked {
		return unbound * int(c.Caps.Streams)
	}
	return int(c.Caps.Streams)
}

// abortLocked answers a call that does not begin. If its request goes on, the reset says that the rest is not needed
// (RFC 9113, 8.1).
func (c *connection) abortLocked(id uint32, ended bool, code int, st *status.Status) {
	block := appendStatus(code)
	block = appendField(block, "content-type", "application/grpc")
	c.headersLocked(flagEndStream, id, appendOutcome(block, st))
	if !ended {
		c.resetLocked(id, http2.ErrCodeNo)
	}
}

// dataLocked handles data of a call. An own call's request that comes whole in one frame is not copied: it stays in the
// batch until it is decided. Pieces are copied, because the next read overwrites the batch.
func (c *connection) dataLocked(s *stream, f *frame, payload []byte) error {
	// Each byte counts for the connection's window (RFC 9113, 6.9), padding too, and also of calls that have ended.
	c.in.credit += f.length
	payload, err := f.bare(payload)
	if err != nil || s == nil || s.ended { // it was refused, or has been answered
		return err
	}
	// The window of a stream is as large as a message may be.
	s.received += f.length
	if s.received > c.Caps.MessageBytes+messagePrefix {
		if s.exchange != nil { // whose answer may have begun
			c.resetLocked(s.id, http2.ErrCodeFlowControl)
			c.closeLocked(s)
			return nil
		}
		c.malformedLocked(s, c.tooLarge(s.received))
		return nil
	}
	s.ended = f.flags.Has(flagEndStream)
	if s.exchange != nil {
		s.exchange.dataLocked(payload)
		return nil
	}
	if s.ended && len(s.pieces) == 0 {
		s.request = payload // until the next read
	} else {
		c.addLocked(s, int64(len(payload)))
		s.pieces = append(s.pieces, payload...)
		s.request = s.pieces
	}
	if st := c.malformed(s.request, s.encoding); st != nil {
		c.malformedLocked(s, st)
		return nil
	}
	if s.ended {
		c.completeLocked(s)
	}
	return nil
}

// tooLarge is the status of a message beyond MessageBytes.
func (c *connection) tooLarge(bytes int) *status.Status {
	return status.Newf(codes.ResourceExhausted, "the message has %d bytes or more, at most %d are accepted", bytes,
		c.Caps.MessageBytes)
}

// malformed says why bytes do not begin a message that the port accepts; nil: they do, as far as they have come. It is
// asked as soon as the prefix has come, so that a message of 4 GB is refused by its first five bytes.
func (c *connection) malformed(b []byte, encoding string) *status.Status {
	if len(b) < messagePrefix {
		return nil
	}
	size := binary.BigEndian.Uint32(b[1:])
	packed := b[0]
	switch {
	case int64(size) > int64(c.Caps.MessageBytes):
		return c.tooLarge(int(size))
	case packed == 0:
		return nil
	case packed > 1:
		return status.Newf(codes.Internal, "the first byte of the message is %d, must be 0 or 1", packed)
	case encoding == "" || encoding == "identity":
		return status.New(codes.Internal, "the message is marked as compressed, and the call has no grpc-encoding")
	}
	// A few bytes can become the size of a message. Envoy compresses none.
	return status.Newf(codes.Unimplemented, "the message is compressed (%.100q): send it without compression", encoding)
}

// malformedLocked refuses an own call whose request is no message. Malformed counts it, because Answer never gets it.
func (c *connection) malformedLocked(s *stream, st *status.Status) {
	if s.method.Malformed != nil {
		s.method.Malformed(st.Err())
	}
	c.failLocked(s, st)
}

// completeLocked puts a call whose request is complete among those to be answered, if the gate lets it in. The gate is
// asked only now: a call that never becomes complete costs no processor, and must not make others be refused.
func (c *connection) completeLocked(s *stream) {
	c.completesLocked(s)
	b := s.request
	if len(b) < messagePrefix || int64(binary.BigEndian.Uint32(b[1:])) != int64(len(b)-messagePrefix) {
		c.malformedLocked(s, status.New(codes.Internal, "the request is not one message"))
		return
	}
	s.request = b[messagePrefix:]
	if g := c.Gate; g != nil && !s.method.Free {
		if !g.Gate.Arrive(c.in.now, c.calls.inside, s.patience(c.in.at)) {
			c.failsLocked(s, c.refusal)
			return
		}
		s.inside = true
		c.calls.inside++
	}
	c.in.turn = append(c.in.turn, s)
}

// settingsLocked applies a caller's settings, and acknowledges them; or notes that the caller has acknowledged this
// side's. Of all settings, only the initial window has an effect here.
func (c *connection) settingsLocked(f *frame, p []byte) error {
	if f.flags.Has(flagAck) {
		c.in.acked = true
		return nil
	}
	// A stream's window is relative to the initial one, so that a change costs the same for any number of calls.
	initial := c.out.initial
	for ; len(p) > 0; p = p[6:] {
		// This side has no table, and its frames are not larger than the least bound.
		s := http2.Setting{ID: http2.SettingID(binary.BigEndian.Uint16(p)), Val: binary.BigEndian.Uint32(p[2:])}
		if bad, ok := errors.AsType[http2.ConnectionError](s.Valid()); ok {
			return &fault{http2.ErrCode(bad), s.String()}
		}
		if s.ID == http2.SettingInitialWindowSize {
			initial = int64(s.Val)
		}
	}
	if initial != c.out.initial {
		c.out.initial = initial
		// Nothing is paid for the looks at blocked calls: the next settings may take the window back.
		c.unblockLocked(0)
	}
	c.writeFrameLocked(frameSettings, flagAck, 0, nil)
	return nil
}

// pingLocked answers a ping, or handles the answer to one: to goodbye, or to a ping behind a message of a Talk. The
// ping after a silence has zeros, and its answer needs no handling: any bytes reset pinged.
func (c *connection) pingLocked(f *frame, p [8]byte) {
	switch {
	case !f.flags.Has(flagAck):
		c.writeFrameLocked(framePing, flagAck, 0, p[:])
	case p == goodbye:
		c.lastCallsLocked()
	default:
		c.receipts.pong(p)
	}
}

// windowLocked adds to a window. One of the connection lets all blocked answers go on, and one of a stream only its
// own.
func (c *connection) windowLocked(s *stream, id uint32, n int64) error {
	if id == 0 {
		c.out.window += n
		switch {
		case n == 0: // RFC 9113, 6.9
			return &fault{http2.ErrCodeProtocol, "a window that grows by 0"}
		case c.out.window > mostWindow:
			return &fault{http2.ErrCodeFlowControl, fmt.Sprintf("a window of %d, by %d", c.out.window, n)}
		}
		c.unblockLocked(n / bytesALook)
		return nil
	}
	if s == nil {
		return nil
	}
	s.window += n
	if n == 0 || c.out.initial+s.window > mostWindow {
		code := http2.ErrCodeFlowControl
		if n == 0 {
			code = http2.ErrCodeProtocol
		}
		c.resetLocked(id, code)
		c.closeLocked(s)
		return nil
	}
	if _, waits := c.calls.blocked[s]; waits {
		c.goOnLocked(s)
	}
	return nil
}

func (c *connection) resetLocked(id uint32, code http2.ErrCode) {
	c.writeFrameLocked(frameReset, 0, id, be32(uint32(code)))
}
