// Package resp bounds the answers of a Redis before the client reads them.
//
// Redis' protocol announces lengths, and client libraries allocate them: `$99999999999` ends the process that
// reads it. A [Conn] stands between the client and the connection, and follows the protocol of the answers
// (RESP2 and RESP3, Redis' serialization protocol) byte by byte.
//
// Guarantee: the client never reads an answer that announces more than the bounds allow, is nested deeper, or
// breaks the protocol: the connection ends with an [*Error]. The verdict does not depend on the pieces in
// which answers arrive. A read costs time in proportion to its bytes, and allocates nothing.
//
// It does not check the meaning of answers.
package resp

import (
	"bytes"
	"errors"
	"fmt"
)

// MostReply bounds a Redis' answer to the last written commands, in bytes. It is many times the answers to a
// full batch of claims (some 50 KB), and more than the description of a Cluster with the most scattered slots
// (1.6 MB).
const MostReply = 4 << 20

// Bounds that are not settings: no answer to what this service asks comes near.
const (
	// MaxDepth is how deep answers may be nested; COMMAND's are the deepest, with 7.
	MaxDepth = 16
	// MaxLine is the longest line: of errors and statuses.
	MaxLine = 4 << 10
	// ElementBytes is how many bytes of the bound an announced element is worth: a
	// client keeps some 40 bytes for each, however short it is.
	ElementBytes = 16
)

// Kind says which bound an answer went beyond.
type Kind uint8

// The kinds.
const (
	TooLong     Kind = iota // a bulk, longer than what may still be answered
	TooMany                 // elements of arrays, maps, sets, pushes and attributes
	TooDeep                 // nested
	TooLongLine             // of a status, an error, a number or a length
	TooMuch                 // in all, since the last write
	NoProtocol              // an unknown type, a bad length or line end, a streamed type
)

// Kinds are the names of the kinds, by value.
var Kinds = [...]string{
	TooLong: "length", TooMany: "elements", TooDeep: "depth", TooLongLine: "line", TooMuch: "size",
	NoProtocol: "protocol",
}

// Error says why a connection was ended.
type Error struct {
	Kind  Kind
	Found int64 // the announced or found value
	Bound int64
}

// Error describes the fault of the answer.
func (e *Error) Error() string {
	var what string
	switch e.Kind {
	case TooLong:
		what = fmt.Sprintf("announces a string of %d bytes, and may answer %d more", e.Found, e.Bound)
	case TooMany:
		what = fmt.Sprintf("announces %d elements, and may answer %d", e.Found, e.Bound)
	case TooDeep:
		what = fmt.Sprintf("nests its answer deeper than %d", e.Bound)
	case TooLongLine:
		what = fmt.Sprintf("has a line of more than %d bytes", e.Bound)
	case TooMuch:
		what = fmt.Sprintf("answers more than %d bytes to one pipeline", e.Bound)
	default:
		what = fmt.Sprintf("breaks its protocol with the byte %q", rune(e.Found))
	}
	return "the server " + what + ": the connection is closed (is it a Redis?)"
}

// ErrReply is what every [*Error] is.
var ErrReply = errors.New("the server's reply is out of bounds")

// Is tells that it is ErrReply.
func (e *Error) Is(target error) bool { return target == ErrReply }

// place is where in the protocol the next byte is.
//
//	atType --a line's--> inLine --\n--> (a value is complete) --> atType
//	   |---a length's--> inLength --\n--> inBulk --> atBulkEnd --> (complete)
//	   |                    |-- of elements --> atType, so many times
type place uint8

const (
	atType place = iota
	inLine
	inLength
	inBulk
	atBulkCR
	atBulkLF
)

// Checker follows a stream of answers. It is not safe for concurrent use; make one
// with NewChecker.
type Checker struct {
	most     int64 // bytes since Reset
	left     int64 // of them. Invariant: never negative
	elements int64 // announced since Reset. Invariant: at most most / ElementBytes
	err      *Error

	reading
	depth int
	rest  [MaxDepth]int64 // values still to come, at each depth. Invariant: positive below depth
}

// reading is where in a value the next byte is.
type reading struct {
	place  place
	cr     bool // the last byte of the line was \r
	minus  bool // the length begins with it
	digits bool // the length has one
	kind   byte
	line   int64 // bytes of the line so far
	n      int64 // the length so far, or what is left of the bulk
}

// NewChecker makes a checker of answers of at most most bytes between two Resets.
func NewChecker(most int64) *Checker {
	c := &Checker{most: most}
	c.Reset()
	return c
}

// Reset has what comes from here on be counted anew; what has begun goes on.
func (c *Checker) Reset() { c.left, c.elements = c.most, 0 }

// Feed takes in what came next. After an error it returns the same for ever.
func (c *Checker) Feed(p []byte) error {
	if c.err == nil {
		c.feed(p)
	}
	if c.err != nil { // not a nil *Error in an error
		return c.err
	}
	return nil
}

func (c *Checker) feed(p []byte) {
	for len(p) > 0 && c.err == nil {
		if c.left == 0 {
			c.fail(TooMuch, 0, c.most)
			return
		}
		n := 1
		switch c.place {
		case atType:
			c.begin(p[0])
		case inLine:
			n = c.lineOn(p)
		case inLength:
			c.lengthOn(p[0])
		case inBulk:
			n = int(min(c.n, int64(len(p)), c.left))
			if c.n -= int64(n); c.n == 0 {
				c.place = atBulkCR
			}
		case atBulkCR:
			c.expect(p[0], '\r')
			c.place = atBulkLF
		case atBulkLF:
			c.expect(p[0], '\n')
			c.complete()
		}
		c.left -= int64(n)
		p = p[n:]
	}
}

func (c *Checker) fail(kind Kind, found, bound int64) {
	if c.err == nil {
		c.err = &Error{Kind: kind, Found: found, Bound: bound}
	}
}

func (c *Checker) expect(got, want byte) {
	if got != want {
		c.fail(NoProtocol, int64(got), 0)
	}
}

// begin takes in the type of a value.
func (c *Checker) begin(kind byte) {
	c.kind, c.line, c.n, c.cr, c.minus, c.digits = kind, 1, 0, false, false, false
	switch kind {
	case '+', '-', ':', '_', ',', '#', '(':
		c.place = inLine
	case '$', '=', '!', '*', '~', '>', '%', '|':
		c.place = inLength
	default:
		c.fail(NoProtocol, int64(kind), 0)
	}
}

// lineOn takes in what there is of a line, and returns how much that is.
func (c *Checker) lineOn(p []byte) int {
	most := min(int64(len(p)), c.left, MaxLine-c.line)
	if most == 0 {
		c.fail(TooLongLine, c.line+1, MaxLine)
		return 0
	}
	end := bytes.IndexByte(p[:most], '\n')
	if end < 0 {
		c.line += most
		c.cr = p[most-1] == '\r'
		return int(most)
	}
	if end > 0 {
		c.cr = p[end-1] == '\r'
	}
	if !c.cr {
		c.fail(NoProtocol, '\n', 0)
	}
	c.complete()
	return end + 1
}

// lengthOn takes in a byte of a length.
func (c *Checker) lengthOn(b byte) {
	switch {
	case c.cr:
		if c.expect(b, '\n'); c.err == nil {
			c.announced()
		}
	case b == '\r' && c.digits:
		c.cr = true
	case b == '-' && !c.minus && !c.digits:
		c.minus = true
	case b < '0' || b > '9':
		c.fail(NoProtocol, int64(b), 0)
	default:
		c.digits = true
		if c.n = 10*c.n + int64(b-'0'); c.n > 1<<40 { // more than any bound; and it must not overflow
			c.fail(c.beyond(), c.n, c.most)
		}
	}
	if c.line++; c.line > 64 {
		c.fail(TooLongLine, c.line, 64) // zeros
	}
}

func (c *Checker) beyond() Kind {
	if c.strings() {
		return TooLong
	}
	return TooMany
}

// strings tells whether the length is one of bytes.
func (c *Checker) strings() bool { return c.kind == '$' || c.kind == '=' || c.kind == '!' }

// announced takes in a length, whose last byte is the one that is looked at.
func (c *Checker) announced() {
	switch {
	case c.minus:
		if c.n != 1 || c.kind != '$' && c.kind != '*' { // RESP2's two nulls
			c.fail(NoProtocol, '-', 0)
		}
		c.complete()
	case c.strings():
		if c.n > c.left-1 {
			c.fail(TooLong, c.n, c.left-1)
		}
		if c.place = inBulk; c.n == 0 {
			c.place = atBulkCR
		}
	default:
		c.open()
	}
}

// open begins a value that is made of others. An attribute is made of its pairs
// and of the value that it is about.
func (c *Checker) open() {
	values := c.n
	switch c.kind {
	case '%':
		values = 2 * c.n
	case '|':
		values = 2*c.n + 1
	}
	most := c.most / ElementBytes
	if values > most-c.elements {
		c.fail(TooMany, c.elements+values, most)
		return
	}
	c.elements += values
	if values == 0 {
		c.complete()
		return
	}
	if c.depth == MaxDepth {
		c.fail(TooDeep, MaxDepth+1, MaxDepth)
		return
	}
	c.rest[c.depth] = values
	c.depth++
	c.place = atType
}

// complete ends a value, and those which it was the last of.
func (c *Checker) complete() {
	c.place = atType
	for c.depth > 0 {
		if c.rest[c.depth-1]--; c.rest[c.depth-1] > 0 {
			return
		}
		c.depth--
	}
}
