// Package wire reads and writes protobuf messages as bytes, for the most frequent calls of the gRPC port. A
// message of objects and maps costs more than its decision, and leaves garbage.
//
// Guarantee: Each finds the fields that the protobuf library finds, and refuses the messages that it refuses,
// except strings that are not UTF-8: its callers check these. It allocates nothing.
package wire

import (
	"errors"
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

// IsBytes tells whether it is the field of a number, and a string, bytes or message.
func (f Field) IsBytes(number protowire.Number) bool {
	return f.Number == number && f.Type == protowire.BytesType
}

// IsVarint tells whether it is the field of a number, and a number, truth or enum of any size.
func (f Field) IsVarint(number protowire.Number) bool {
	return f.Number == number && f.Type == protowire.VarintType
}

// MalformedError says why bytes are no message.
type MalformedError struct{ reason string }

// Error describes the fault, without the place, which the caller adds.
func (e *MalformedError) Error() string { return e.reason }

// Each calls f with each field of a message, in their order, until f fails. An error is
// f's, or a *MalformedError.
func Each(message []byte, f func(Field) error) error {
	for b := message; len(b) > 0; {
		field, size, err := next(b)
		if err != nil {
			return err
		}
		b = b[size:]
		if err := f(field); err != nil {
			return err
		}
	}
	return nil
}

// EachIn is Each for a message with a name. Of a malformed one it returns what bad makes of a format and its arguments.
func EachIn(message []byte, name string, bad func(string, ...any) error, f func(Field) error) error {
	err := Each(message, f)
	if _, ok := errors.AsType[*MalformedError](err); ok { // of this one: those within have said so
		return bad("malformed %s: %v", name, err)
	}
	return err
}

// next is the first field, and how many bytes it takes.
func next(b []byte) (f Field, size int, err error) {
	var n int
	f.Number, f.Type, size = protowire.ConsumeTag(b)
	switch {
	case size < 0:
		return f, 0, &MalformedError{protowire.ParseError(size).Error()}
	case f.Number > protowire.MaxValidNumber: // which ConsumeTag lets pass, and no message may have
		reason := fmt.Sprintf("the field number %d is more than %d", f.Number, protowire.MaxValidNumber)
		return f, 0, &MalformedError{reason}
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
		return f, 0, &MalformedError{protowire.ParseError(n).Error()}
	}
	return f, size + n, nil
}

// AppendVarint writes a field that is a number.
func AppendVarint(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

// AppendString writes a field that is a string.
func AppendString(b []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
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
