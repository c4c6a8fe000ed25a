package transport

import (
	"encoding/binary"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// The part of HPACK (RFC 7541) that reads header blocks without unpacking them.

// How a field is written (RFC 7541, 6), by its first bits.
const (
	indexed  = 0x80 // all of it is in a table
	inserted = 0x40 // and is put into the dynamic table
	resize   = 0x20 // no field, but how large that may be
	never    = 0x10 // and is to be put into no table by anybody
	plain    = 0x00
)

// text is a string in a header block.
type text struct {
	all     []byte // with its length
	content []byte
	huffman bool
}

// field is one of a header block.
type field struct {
	how byte
	// index is that of the field, or of its name (0: it has a name of its own), or a table's size.
	index       int
	name, value text
}

// indexedField takes the first field off a block, if it is in a table as a whole. Index 0: it is not, or
// makes no sense.
func indexedField(b []byte) (index int, rest []byte) {
	switch {
	case b[0] <= indexed:
		return 0, b
	case b[0] < 0xff: // nearly always
		return int(b[0] & 0x7f), b[1:]
	}
	n, rest, ok := integer(b, 7)
	if !ok {
		return 0, b
	}
	return n, rest
}

// next takes the first field off a block, one that is not in a table as a whole. It is not ok if that makes
// no sense, or has a string of more than most bytes.
func (f *field) next(b []byte, most int) (rest []byte, ok bool) {
	first, bits := b[0], 4
	switch {
	case first&indexed != 0:
		return nil, false
	case first&inserted != 0:
		f.how, bits = inserted, 6
	case first&resize != 0:
		f.how, bits = resize, 5
	default:
		f.how = first & never
	}
	if f.index, rest, ok = integer(b, bits); !ok || f.how == resize {
		return rest, ok
	}
	f.name = text{}
	if f.index == 0 {
		if rest, ok = f.name.next(rest, most); !ok {
			return nil, false
		}
	}
	return f.value.next(rest, most)
}

func (t *text) next(b []byte, most int) (rest []byte, ok bool) {
	n, rest, ok := integer(b, 7)
	if !ok || n > len(rest) || n > most {
		return nil, false
	}
	all := len(b) - len(rest) + n
	t.all, t.content, t.huffman = b[:all], rest[:n], b[0]&0x80 != 0
	return rest[n:], true
}

// integer is a number in the last bits of the first byte, or if that is full in those that follow.
// None that makes sense here has more than 32 bits.
func integer(b []byte, bits int) (n int, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	full := 1<<bits - 1
	if n = int(b[0]) & full; n < full {
		return n, b[1:], true
	}
	// As gRPC's reader: a number may be written with zeros before it.
	for i, shift := 1, 0; i < len(b) && i <= 9; i, shift = i+1, shift+7 {
		if n += int(b[i]&0x7f) << shift; n > 1<<32 {
			return 0, nil, false
		}
		if b[i]&0x80 == 0 {
			return n, b[i+1:], true
		}
	}
	return 0, nil, false
}

func appendInteger(b []byte, how byte, bits, n int) []byte {
	full := 1<<bits - 1
	if n < full {
		return append(b, how|byte(n))
	}
	b = append(b, how|byte(full))
	for n -= full; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// is tells whether the text is s, whose code is huffman. A string has one code only.
func (t *text) is(s string, huffman []byte) bool {
	if t.huffman {
		return string(t.content) == string(huffman)
	}
	return string(t.content) == s
}

// unpacked is the text, of at most most bytes.
func (t *text) unpacked(most int) string {
	if !t.huffman {
		return string(t.content[:min(len(t.content), most)])
	}
	// No code is shorter than five bits, or longer than 30.
	s, err := hpack.HuffmanDecodeToString(t.content[:min(len(t.content), 4*most)])
	if err != nil {
		return ""
	}
	return s
}

// least is how long the text is at least when it is unpacked: no code is longer than 30 bits.
func (t *text) least() int {
	if t.huffman {
		return 8 * len(t.content) / 30
	}
	return len(t.content)
}

// length is that of the text when it is unpacked. It is not ok if it cannot be.
func (t *text) length() (n int, ok bool) {
	if !t.huffman {
		return len(t.content), true
	}
	if n, ok = t.codes(); ok {
		return n, true
	}
	s, err := hpack.HuffmanDecodeToString(t.content)
	return len(s), err == nil
}

// Codes of at most glance bits are looked up: those of all characters that headers are made of.
const glance = 12

// glances says of each glance bits how many whole codes they begin with, at most two, and how many bits
// these have: 16 times the number, and the bits. single says how many bits the first of them has.
var glances, single = lookAtCodes()

func lookAtCodes() (all, first *[1 << glance]uint8) {
	all, first = new([1 << glance]uint8), new([1 << glance]uint8)
	for c := range 256 {
		// Eight times the same code fill as many bytes as the code has bits.
		eight := hpack.AppendHuffmanString(nil, strings.Repeat(string([]byte{byte(c)}), 8))
		bits := len(eight)
		if bits > glance {
			continue
		}
		code := (int(eight[0])<<8 | int(eight[1])) >> (16 - bits)
		for rest := range 1 << (glance - bits) {
			first[code<<(glance-bits)|rest] = uint8(bits)
		}
	}
	for i, n := range first {
		if n == 0 {
			continue
		}
		all[i] = 1<<4 | n
		if m := first[i<<n&(1<<glance-1)]; m > 0 && n+m <= glance {
			all[i] = 2<<4 | (n + m)
		}
	}
	return all, first
}

// codes counts the text's codes. It is not ok where one of them is longer than glance, or the rest at the end
// is no padding.
func (t *text) codes() (n int, ok bool) {
	bits, have := uint64(0), uint(0) // the last have of bits are to be looked at, at most 11 of them and 32
	for b := t.content; len(b) > 0; {
		if len(b) >= 4 {
			bits, have, b = bits<<32|uint64(binary.BigEndian.Uint32(b)), have+32, b[4:]
		} else {
			bits, have, b = bits<<8|uint64(b[0]), have+8, b[1:]
		}
		for have >= glance {
			c := glances[bits>>((have-glance)&63)&(1<<glance-1)]
			if c == 0 {
				return 0, false
			}
			n, have = n+int(c>>4), have-uint(c&15)
		}
	}
	for have > 0 {
		// Ones behind the end: they are the beginning of no code that ends before it.
		c := uint(single[(bits<<(glance-have)|(1<<(glance-have)-1))&(1<<glance-1)])
		if c == 0 || c > have {
			break
		}
		n, have = n+1, have-c
	}
	// The padding is less than a byte, of ones.
	return n, have < 8 && bits&(1<<have-1) == 1<<have-1
}
