// Package wire reads and writes protobuf messages as bytes, for the most frequent calls of the gRPC port. A
// message of objects and maps costs more than its decision, and leaves garbage.
//
// Guarantee: Each finds the fields that the protobuf library finds, and refuses the messages that it refuses,
// except strings that are not UTF-8: its callers check these. It allocates nothing.
package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field is one field of a message. Body lies in the message's bytes.
type Field struct {
	Number protowire.Number
	Type   protowire.Type
	Body   []byte // of a BytesType
	Value  uint64 // of a VarintType
}

// IsBytes reports whether it is the field of a number, and a string, bytes or message.
func (f Field) IsBytes(number protowire.Number) bool {
	return f.Number == number && f.Type == protowire.BytesType
}

// IsVarint reports whether it is the field of a number, and a number, truth or enum of any size.
func (f Field) IsVarint(number protowire.Number) bool {
	return f.Number == number && f.Type == protowire.VarintType
}

// Each calls f with each field of a message, in their order, until f fails. An error is f's, or what malformed makes
// of a format and its arguments, with the name of the message.
func Each(message []byte, name string, malformed func(string, ...any) error, f func(Field) error) error {
	for b := message; len(b) > 0; {
		field, size, reason := next(b)
		if reason != "" {
			return malformed("malformed %s: %s", name, reason)
		}
		b = b[size:]
		if err := f(field); err != nil {
			return err
		}
	}
	return nil
}

// next is the first field, and how many bytes it takes; or why there is none.
func next(b []byte) (f Field, size int, reason string) {
	var n int
	f.Number, f.Type, size = protowire.ConsumeTag(b)
	switch {
	case size < 0:
		return f, 0, protowire.ParseError(size).Error()
	case f.Number > protowire.MaxValidNumber: // which ConsumeTag lets pass, and no message may have
		return f, 0, fmt.Sprintf("the field number %d is more than %d", f.Number, protowire.MaxValidNumber)
	}
	switch b = b[size:]; f.Type {
	case protowire.BytesType:
		f.Body, n = protowire.ConsumeBytes(b)
	case protowire.VarintType:
		f.Value, n = protowire.ConsumeVarint(b)
	default:
		n = protowire.ConsumeFieldValue(f.Number, f.Type, b)
	}
	if n < 0 {
		return f, 0, protowire.ParseError(n).Error()
	}
	return f, size + n, ""
}

// AppendVarint writes a field that is a number.
func AppendVarint(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

// AppendString writes a field that is a string, bytes, or a message as bytes.
func AppendString[T string | []byte](b []byte, field protowire.Number, s T) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return append(protowire.AppendVarint(b, uint64(len(s))), s...)
}

// AppendMessage writes a field whose body appends itself. Bodies are short: one byte is left for
// the length, and the rare longer body is moved.
func AppendMessage(b []byte, field protowire.Number, body func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	at := len(b)
	b = body(append(b, 0))
	n := len(b) - at - 1
	if n < 1<<7 {
		b[at] = byte(n)
		return b
	}
	size := protowire.SizeVarint(uint64(n))
	// The length takes more than the byte that was left for it: the body is moved behind it.
	for range size - 1 {
		b = append(b, 0)
	}
	copy(b[at+size:], b[at+1:at+1+n])
	protowire.AppendVarint(b[at:at], uint64(n))
	return b
}
