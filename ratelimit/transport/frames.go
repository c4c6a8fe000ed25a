package transport

import "encoding/binary"

// The part of HTTP/2 that shows when calls begin and end.
const (
	prefaceLen  = 24
	frameHeader = 9

	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	framePing         = 6
	frameWindow       = 8
	frameContinuation = 9

	flagEndStream  = 1
	flagAck        = 1
	flagEndHeaders = 4
	flagPadded     = 8
	flagPriority   = 32
)

// walker follows frames through a stream of bytes, in pieces of any size. It keeps only a frame's header of
// them. It does not judge them: the transport refuses other protocols. Until then, bytes that look like a
// frame are charged, and let go with the connection.
type walker struct {
	// skip counts the bytes that are still to come before the first frame: the connection's
	// preface.
	skip   int
	header [frameHeader]byte
	have   int // bytes of header
	// left counts the bytes of the frame's payload that are still to come.
	left int
	// block says that a header block goes on in another frame, before which no other may come.
	block bool
	frame
}

type frame struct {
	kind, flags byte
	length      int
	stream      uint32
}

// next consumes bytes until a frame begins, or a piece of a payload is there; rest is
// what follows. begun says that w.frame has begun, piece is of its payload.
func (w *walker) next(b []byte) (begun bool, piece, rest []byte) {
	// The preface of a connection is no frame.
	if n := min(w.skip, len(b)); n > 0 {
		w.skip -= n
		return false, nil, b[n:]
	}
	if n := min(w.left, len(b)); n > 0 {
		w.left -= n
		return false, b[:n], b[n:]
	}
	// A frame's header may come in pieces, one read at a time.
	n := copy(w.header[w.have:], b)
	w.have += n
	if w.have < frameHeader {
		return false, nil, b[n:]
	}
	w.have = 0
	h := &w.header
	w.length = int(h[0])<<16 | int(h[1])<<8 | int(h[2])
	// The highest bit of a stream's number is reserved (RFC 9113, 4.1).
	w.kind, w.flags, w.stream = h[3], h[4], binary.BigEndian.Uint32(h[5:])&^(1<<31)
	w.left = w.length
	if w.kind == frameHeaders || w.kind == frameContinuation {
		w.block = w.flags&flagEndHeaders == 0
	}
	return true, nil, b[n:]
}

// frameCost is what the transport keeps for the payload of a data frame: a
// buffer of the next larger kind, and its place in a queue.
func frameCost(length int) int64 {
	// queued is about what a place in the transport's queue takes, in bytes.
	const queued = 128
	switch {
	case length <= 1<<10:
		return int64(length) + queued
	case length <= 4<<10:
		return 4<<10 + queued
	case length <= 16<<10:
		return 16<<10 + queued
	default:
		return int64(length) + 16<<10 + queued
	}
}

// pieceCost is its cost of a piece of a conversation's message, which may have come in frames of any size.
func pieceCost(length int) int64 { return 2*int64(length) + 128 }

// message follows the messages of a conversation through the payloads of its
// data frames: each has a byte of flags and four of its length before it.
type message struct {
	prefix [5]byte
	have   int
	left   uint32
}

// through takes in a piece, and returns how many bytes at its end belong to a
// message that is not complete, and whether one was completed.
func (m *message) through(b []byte) (tail int, completed bool) {
	for len(b) > 0 {
		if m.have < len(m.prefix) {
			n := copy(m.prefix[m.have:], b)
			m.have += n
			tail += n
			if b = b[n:]; m.have < len(m.prefix) {
				return tail, completed
			}
			m.left = binary.BigEndian.Uint32(m.prefix[1:])
		}
		n := min(int(m.left), len(b))
		m.left -= uint32(n)
		tail += n
		if b = b[n:]; m.left == 0 {
			m.have, tail, completed = 0, 0, true
		}
	}
	return tail, completed
}

// ends tells whether a frame is the last of a reply.
func (f *frame) ends() bool {
	return f.kind == frameReset || f.flags&flagEndStream != 0 && (f.kind == frameHeaders || f.kind == frameData)
}

// bare is the header block in the payload of a frame of headers.
func bare(payload []byte, flags byte) []byte {
	padding := 0
	if flags&flagPadded != 0 && len(payload) > 0 {
		padding, payload = int(payload[0]), payload[1:]
	}
	// A priority takes five bytes before the block.
	if flags&flagPriority != 0 {
		payload = payload[min(5, len(payload)):]
	}
	// Padding that is longer than the payload is an error of the caller's, which gRPC refuses.
	return payload[:max(0, len(payload)-padding)]
}

func appendFrame(b []byte, kind, flags byte, stream uint32, payload ...[]byte) []byte {
	length := 0
	for _, p := range payload {
		length += len(p)
	}
	b = append(b, byte(length>>16), byte(length>>8), byte(length), kind, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	for _, p := range payload {
		b = append(b, p...)
	}
	return b
}

// mostFrame is the default of the largest frame.
const mostFrame = 16 << 10

// appendHeaders adds a header block, in as many frames as it needs.
func appendHeaders(b []byte, flags byte, stream uint32, block []byte) []byte {
	for kind := byte(frameHeaders); ; kind, flags = frameContinuation, 0 {
		if len(block) <= mostFrame {
			return appendFrame(b, kind, flags|flagEndHeaders, stream, block)
		}
		b = appendFrame(b, kind, flags, stream, block[:mostFrame])
		block = block[mostFrame:]
	}
}
