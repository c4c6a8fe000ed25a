package transport

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/http2"
)

// Frames of HTTP/2 (RFC 9113, 6).
const (
	frameData     = http2.FrameData
	frameHeaders  = http2.FrameHeaders
	frameReset    = http2.FrameRSTStream
	frameSettings = http2.FrameSettings
	framePing     = http2.FramePing
	frameGoAway   = http2.FrameGoAway
	frameWindow   = http2.FrameWindowUpdate

	flagEndStream  = http2.FlagDataEndStream
	flagAck        = http2.FlagPingAck
	flagEndHeaders = http2.FlagHeadersEndHeaders
	flagPadded     = http2.FlagDataPadded
	flagPriority   = http2.FlagHeadersPriority

	frameHeader   = 9
	mostFrame     = 16 << 10 // the default of the largest frame, which this side keeps
	defaultWindow = 65535
	mostWindow    = 1<<31 - 1
	messagePrefix = 5 // of a message of gRPC: whether it is compressed, and its length
)

// frame is the beginning of one. On the wire it has 9 bytes: 3 of the length, the kind, the flags, and 4 of the stream.
type frame struct {
	kind   http2.FrameType
	flags  http2.Flags
	length int
	stream uint32
}

// readFrame reads the beginning of a frame, which has frameHeader bytes.
func readFrame(b []byte) frame {
	return frame{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]), kind: http2.FrameType(b[3]), flags: http2.Flags(b[4]),
		// The highest bit of a stream's number is reserved (4.1).
		stream: binary.BigEndian.Uint32(b[5:]) &^ (1 << 31),
	}
}

// fault is an error of the caller's, which ends the connection (RFC 9113, 5.4.1).
type fault struct {
	code   http2.ErrCode
	reason string
}

// Error is the reason that the caller gets with GOAWAY.
func (f *fault) Error() string { return fmt.Sprintf("%v: %s", f.code, f.reason) }

func protocolError(reason string) error { return &fault{http2.ErrCodeProtocol, reason} }

// shapes are, by kind of frame, whether it is of the connection instead of a call, and its length; 0: any.
var shapes = [...]struct {
	connection bool
	length     int
}{
	http2.FramePriority: {length: 5}, frameReset: {length: 4}, frameSettings: {connection: true},
	framePing: {true, 8}, frameGoAway: {connection: true}, frameWindow: {length: 4}, http2.FrameContinuation: {},
}

// check compares a frame with what its kind is. It needs no state of the connection; frameLocked has the rules on the
// order of frames.
func (f *frame) check() error {
	if int(f.kind) >= len(shapes) {
		return nil // extensions are ignored
	}
	shape := shapes[f.kind]
	settings := f.length%6 == 0 && (f.length == 0 || !f.flags.Has(flagAck))
	switch {
	case f.kind == http2.FramePushPromise:
		return protocolError("a push from a caller")
	case f.kind != frameWindow && shape.connection != (f.stream == 0): // windows are of both
		return protocolError(fmt.Sprintf("a frame of kind %v for stream %d", f.kind, f.stream))
	case shape.length > 0 && f.length != shape.length, f.kind == frameSettings && !settings:
		return &fault{http2.ErrCodeFrameSize, fmt.Sprintf("a frame of kind %v with %d bytes", f.kind, f.length)}
	}
	return nil
}

// bare is a payload without its padding and priority. Padding says nothing, and its length counts for windows, which
// the caller of bare has added. A priority is obsolete (RFC 9113, 5.3).
func (f *frame) bare(payload []byte) ([]byte, error) {
	padding := 0
	if f.flags.Has(flagPadded) {
		if len(payload) == 0 {
			return nil, &fault{http2.ErrCodeFrameSize, "padding without a length"}
		}
		padding, payload = int(payload[0]), payload[1:]
	}
	if f.kind == frameHeaders && f.flags.Has(flagPriority) {
		if len(payload) < 5 {
			return nil, &fault{http2.ErrCodeFrameSize, "a priority that is cut off"}
		}
		payload = payload[5:]
	}
	if padding > len(payload) {
		return nil, protocolError("more padding than payload")
	}
	return payload[:len(payload)-padding], nil
}

func be32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// prefix is what gRPC has before a message of n bytes: 0 (no compression), and n in four bytes.
func prefix(n int) (b [messagePrefix]byte) {
	binary.BigEndian.PutUint32(b[1:], uint32(n))
	return b
}

// appendFrame adds a frame, whose payload may come in pieces.
func appendFrame(b []byte, kind http2.FrameType, flags http2.Flags, stream uint32, payload ...[]byte) []byte {
	length := 0
	for _, p := range payload {
		length += len(p)
	}
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	b = binary.BigEndian.AppendUint32(b, stream)
	for _, p := range payload {
		b = append(b, p...)
	}
	return b
}

// appendHeaders adds a header block, in as many frames as it needs. No other frame may come between them, so they are
// appended together.
func appendHeaders(b []byte, flags http2.Flags, stream uint32, block []byte) []byte {
	for kind := frameHeaders; ; kind, flags = http2.FrameContinuation, 0 {
		if len(block) <= mostFrame {
			return appendFrame(b, kind, flags|flagEndHeaders, stream, block)
		}
		b = appendFrame(b, kind, flags, stream, block[:mostFrame])
		block = block[mostFrame:]
	}
}

// appendSettings adds settings, given as pairs of a number and a value. Those that are 0 are left out.
func appendSettings(b []byte, settings ...uint32) []byte {
	var payload []byte
	for i := 0; i < len(settings); i += 2 {
		if settings[i+1] != 0 {
			payload = binary.BigEndian.AppendUint16(payload, uint16(settings[i]))
			payload = binary.BigEndian.AppendUint32(payload, settings[i+1])
		}
	}
	return appendFrame(b, frameSettings, 0, 0, payload)
}
