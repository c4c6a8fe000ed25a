package transport

import "encoding/binary"

// lowered follows how small a caller has made the table of the header blocks that it is sent
// (SETTINGS_HEADER_TABLE_SIZE). gRPC acknowledges it, and begins its next block with the new size
// (RFC 7541, 4.2). Where a refusal is written before that block, it has to begin so instead: a caller ends
// the connection otherwise. gRPC's table never becomes larger again.
type lowered struct {
	entry [6]byte // of the settings that are being read
	have  int
	read  int     // frames of settings so far
	acked int     // of these, those that gRPC has acknowledged
	asked []lower // not acknowledged. Invariant: each is less than those before it
	least uint32  // of the requested sizes so far, plus 1; 0: none was
	owed  uint32  // the size that the next block has to begin with, plus 1; 0: it need not
}

type lower struct {
	frame int // the settings in which it came, by number
	size  uint32
}

// The identifier of that setting.
const settingTableSize = 1

// readLocked takes in the beginning of a frame of settings, or a piece of one.
func (l *lowered) readLocked(begun bool, piece []byte) {
	if begun {
		l.read, l.have = l.read+1, 0
		return
	}
	for len(piece) > 0 {
		n := copy(l.entry[l.have:], piece)
		l.have, piece = l.have+n, piece[n:]
		if l.have < len(l.entry) {
			return
		}
		l.have = 0
		size := binary.BigEndian.Uint32(l.entry[2:])
		if binary.BigEndian.Uint16(l.entry[:]) == settingTableSize && size < tableSize &&
			(l.least == 0 || size+1 < l.least) {
			l.least = size + 1
			l.asked = append(l.asked, lower{l.read, size})
		}
	}
}

// wroteLocked takes in a frame of gRPC's.
func (s *screen) wroteLocked(f *frame) {
	l := &s.lowered
	switch {
	case f.kind == frameData:
		s.idle.earn(framesAnAnswer)
	case f.kind == framePing && f.flags&flagAck == 0:
		s.idle.earn(1) // its answer
	case f.kind == frameHeaders:
		l.owed = 0 // gRPC has said it
	case f.kind == frameSettings && f.flags&flagAck != 0:
		l.acked++
		for len(l.asked) > 0 && l.asked[0].frame <= l.acked {
			l.owed = l.asked[0].size + 1
			l.asked = l.asked[1:]
		}
	}
}

// tellLocked has the first header block of frames begin with the size that is owed.
func (l *lowered) tellLocked(frames []byte) []byte {
	if l.owed == 0 {
		return frames
	}
	var w walker
	for rest := frames; len(rest) > 0; {
		var begun bool
		begun, _, rest = w.next(rest)
		if !begun || w.kind != frameHeaders {
			continue
		}
		at := len(frames) - len(rest) - frameHeader
		size := appendInteger(nil, resize, 5, int(l.owed-1))
		l.owed = 0
		whole := appendFrame(nil, frameHeaders, w.flags, w.stream, size, rest[:w.length])
		return append(append(frames[:at:at], whole...), rest[w.length:]...)
	}
	return frames
}
