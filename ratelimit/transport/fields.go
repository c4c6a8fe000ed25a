package transport

import (
	"time"

	"golang.org/x/net/http2/hpack"
)

// forever is the patience of a caller that does not say how long it waits.
const forever = time.Duration(1<<63 - 1)

// fields reads the header blocks of one connection, all of them and in their order,
// for each may refer to what those before it have put into the table.
type fields struct {
	decoder *hpack.Decoder
	// most is how many bytes of a block are looked at, unpacked: what is behind them only goes into the table.
	most int

	// Of the block that was read last:
	method   string
	patience time.Duration
	size     int
}

// tableSize is how much of earlier blocks a caller may refer to: HTTP/2's default,
// which gRPC's server does not change.
const tableSize = 4096

func newFields(most int) *fields {
	f := &fields{most: most}
	f.decoder = hpack.NewDecoder(tableSize, f.field)
	f.decoder.SetMaxStringLength(most)
	return f
}

// read takes in a block. After an error nothing on the connection can be understood.
func (f *fields) read(block []byte) error {
	f.method, f.patience, f.size = "", forever, 0
	// An earlier block that was too long has switched it off (field).
	f.decoder.SetEmitEnabled(true)
	if _, err := f.decoder.Write(block); err != nil {
		return err
	}
	return f.decoder.Close()
}

func (f *fields) field(x hpack.HeaderField) {
	// The block is still decoded to its end, for its fields may go into the table that later blocks
	// refer to. They are only not looked at any more.
	if f.size += int(x.Size()); f.size > f.most {
		f.decoder.SetEmitEnabled(false)
		return
	}
	switch x.Name {
	case ":path":
		f.method = x.Value
	case "grpc-timeout":
		f.patience = timeout(x.Value)
	}
}

// timeout is what a grpc-timeout says: at most eight digits and a unit. What is none
// is the transport's to refuse.
func timeout(s string) time.Duration {
	if len(s) < 2 || len(s) > 9 {
		return forever
	}
	n := int64(0)
	for _, c := range []byte(s[:len(s)-1]) {
		if c < '0' || c > '9' {
			return forever
		}
		n = 10*n + int64(c-'0')
	}
	unit := time.Duration(0)
	switch s[len(s)-1] {
	case 'n':
		unit = time.Nanosecond
	case 'u':
		unit = time.Microsecond
	case 'm':
		unit = time.Millisecond
	case 'S':
		unit = time.Second
	case 'M':
		unit = time.Minute
	case 'H':
		unit = time.Hour
	}
	// Eight digits of hours may be more than the 292 years that a Duration holds.
	if unit == 0 || n > int64(forever/unit) {
		return forever
	}
	return time.Duration(n) * unit
}

// tableChanges are the parts of a header block that put fields into the table (RFC
// 7541, 6), in their order: a block of these alone changes it as the whole does. It is
// not ok if the block is malformed, or changes the table's size.
func tableChanges(block []byte) (changes []byte, ok bool) {
	for len(block) > 0 {
		rest, puts, ok := afterField(block)
		if !ok {
			return nil, false
		}
		if puts {
			changes = append(changes, block[:len(block)-len(rest)]...)
		}
		block = rest
	}
	return changes, true
}

// afterField is what follows the first field of a block, and tells whether that is
// put into the table.
func afterField(b []byte) (rest []byte, puts, ok bool) {
	first, name := b[0], 4 // the bits in which it names its name
	switch {
	case first&0x80 != 0: // both name and value are in the table
		_, rest, ok = integer(b, 7)
		return rest, false, ok
	case first&0x40 != 0:
		puts, name = true, 6
	// An instruction to change the table's size. It is allowed, and rare: the block is then passed
	// on as a whole.
	case first&0x20 != 0:
		return nil, false, false
	}
	index, rest, ok := integer(b, name)
	if ok && index == 0 {
		rest, ok = afterString(rest)
	}
	if ok {
		rest, ok = afterString(rest)
	}
	return rest, puts, ok
}

func afterString(b []byte) ([]byte, bool) {
	n, rest, ok := integer(b, 7)
	if !ok || n > len(rest) {
		return nil, false
	}
	return rest[n:], true
}

// integer is a number in the last bits of the first byte, or if that is full in those
// that follow. No number here needs more than four of these.
func integer(b []byte, bits int) (n int, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	full := 1<<bits - 1
	if n = int(b[0]) & full; n < full {
		return n, b[1:], true
	}
	for i, shift := 1, 0; i < len(b) && i <= 4; i, shift = i+1, shift+7 {
		n += int(b[i]&0x7f) << shift
		if b[i]&0x80 == 0 {
			return n, b[i+1:], true
		}
	}
	return 0, nil, false
}
