package transport

import (
	"bytes"
	"time"

	"golang.org/x/net/http2/hpack"
)

// forever is the patience of a caller that does not say how long it waits.
const forever = time.Duration(1<<63 - 1)

// fields reads the header blocks of one connection, all of them and in their order, because each may refer to
// table entries of earlier ones.
//
// It unpacks as little as possible. Fields that only one call has, such as a traceparent, only count by their
// length, and are kept unchanged.
//
// gRPC has a table, too. While it reads every block, it equals the caller's. The two differ after a block that
// changed the caller's table was kept from gRPC. From then on blocks are packed again for gRPC (repack), and
// fields of only one call are no longer put into its table.
type fields struct {
	method  string
	huffman []byte // the method's code
	most    int    // bytes of a string
	caller  table
	grpc    shelf
	apart   bool      // the two tables are
	recent  []meaning // of what the block that is being looked at puts into the table
	reading field     // of a block
	timeout struct {  // the last that was unpacked
		packed   []byte
		patience time.Duration
	}
}

// sight is what a block says, before it has changed anything.
type sight struct {
	gated    bool
	patience time.Duration
	changes  bool // it changes the table
	size     int  // of its fields, as HTTP/2 counts them: at least so much, because packed fields are not unpacked
}

func newFields(method string, most int) *fields {
	return &fields{
		method: method, huffman: hpack.AppendHuffmanString(nil, method), most: most,
		caller: newTable(), grpc: newShelf(),
	}
}

// look reads a block, and changes nothing. It is not ok if nothing on the connection can be understood
// from here on.
func (f *fields) look(block []byte) (s sight, ok bool) {
	s.patience = forever
	x := &f.reading
	for len(block) > 0 {
		index, rest := indexedField(block)
		var m meaning
		if index > 0 {
			m, ok = f.means(index)
		} else if rest, ok = x.next(block, f.most); ok && x.how != resize {
			m, ok = f.names(x)
		}
		if !ok {
			return s, false
		}
		block = rest
		s.size += m.size
		switch m.kind {
		case path:
			s.gated = m.gated
		case patient:
			s.patience = m.patience
		}
		if index > 0 {
			continue
		}
		s.changes = s.changes || x.how == resize || x.how == inserted
		if x.how == inserted {
			f.recent = append(f.recent, m)
		}
	}
	f.recent = spare(f.recent, tableSize/32)
	return s, true
}

// spare is what a connection keeps of a buffer for the next block: nothing of one that an absurd block
// has grown to more than most.
func spare[E any](b []E, most int) []E {
	if cap(b) > most {
		return nil
	}
	return b[:0]
}

// means is what the field of an index is, for the block that is being looked at.
func (f *fields) means(index int) (m meaning, ok bool) {
	i := index - staticFields
	switch {
	case index == staticPath || index == staticPath+1:
		return meaning{kind: path, size: staticNames[index] + 32}, true // it is / or /index.html
	case i <= 0:
		return meaning{size: staticNames[index] + 32}, true
	case i <= len(f.recent):
		return f.recent[len(f.recent)-i], true
	}
	if e := f.caller.at(i - len(f.recent)); e != nil {
		m = e.meaning
		m.size = int(e.size)
		return m, true
	}
	return meaning{}, false
}

// names is what a field is that has a value of its own.
func (f *fields) names(x *field) (m meaning, ok bool) {
	name := 0
	if x.index == 0 {
		m, ok = meaning{kind: kindOf(&x.name)}, true
		name = x.name.least()
	} else if m, ok = f.means(x.index); x.index <= staticFields {
		name = staticNames[x.index]
	}
	m = f.valued(m.kind, &x.value)
	m.size = name + x.value.least() + 32
	return m, ok
}

func (f *fields) valued(k kind, value *text) meaning {
	m := meaning{kind: k}
	switch k {
	case path:
		m.gated = value.is(f.method, f.huffman)
	case patient:
		m.patience = f.patienceOf(value)
	}
	return m
}

// patienceOf is what a timeout says. Callers have the same again and again.
func (f *fields) patienceOf(value *text) time.Duration {
	last := &f.timeout
	// Eight digits and a unit are shorter, packed or not.
	if len(value.all) > 16 {
		return forever
	}
	if len(last.packed) == 0 || !bytes.Equal(last.packed, value.all) {
		// Ten bytes are one more than a timeout has.
		last.packed, last.patience = append(last.packed[:0], value.all...), timeout(value.unpacked(10))
	}
	return last.patience
}

const timeoutName = "grpc-timeout"

var (
	pathCode    = hpack.AppendHuffmanString(nil, ":path")
	timeoutCode = hpack.AppendHuffmanString(nil, timeoutName)
)

func kindOf(name *text) kind {
	switch {
	case name.is(":path", pathCode):
		return path
	case name.is(timeoutName, timeoutCode):
		return patient
	default:
		return other
	}
}

// audience reads a block as well as the screen.
type audience int

const (
	nobody   audience = iota // its call is refused
	original                 // gRPC, as it came
	repacked                 // gRPC, packed anew
)

// take applies a block's changes, after it was looked at; packed has it packed anew. It is not ok if the rest
// of the connection cannot be decoded.
func (f *fields) take(block []byte, by audience, packed []byte) (_ []byte, ok bool) {
	x := &f.reading
	for len(block) > 0 {
		index, rest := indexedField(block)
		switch {
		case index == 0:
			if rest, ok = x.next(block, f.most); !ok {
				return packed, false
			}
			if x.how != resize {
				index = x.index
			}
		case by == repacked:
			x.how, x.index = indexed, index
		default: // it changes nothing
			block = rest
			continue
		}
		block = rest
		var named *entry // the field of the table that x is, or whose name it has
		if index > staticFields {
			if named = f.caller.at(index - staticFields); named == nil {
				return packed, false
			}
		}
		if by == repacked {
			packed = f.repack(packed, x, named)
		}
		switch {
		case x.how == resize && !f.resize(x.index, by):
			return packed, false
		case x.how == inserted && !f.insert(x, named, by):
			return packed, false
		}
	}
	return packed, true
}

func (f *fields) resize(most int, by audience) bool {
	if most > tableSize {
		return false
	}
	f.caller.resize(most)
	switch by {
	case original:
		f.grpc.resize(most)
	case nobody: // gRPC's table is as large as it was
		f.apart = true
	case repacked:
	}
	return true
}

// insert puts a field into the caller's table, and says whether it could be read.
func (f *fields) insert(x *field, named *entry, by audience) bool {
	value, ok := x.value.length()
	if !ok || value > f.most {
		return false
	}
	// The room that is made for the field may be that of the one that has its name.
	e := entry{static: uint8(x.index), meaning: meaning{kind: other}}
	var own []byte // the name, packed
	var name int   // its length
	switch {
	case named != nil:
		e.static, e.kind, own, name = named.static, named.kind, named.packed[:named.value], int(named.name)
	case x.index > 0:
		name = staticNames[x.index]
		if x.index == staticPath || x.index == staticPath+1 {
			e.kind = path
		}
	default:
		if name, ok = x.name.length(); !ok || name > f.most {
			return false
		}
		e.kind, own = kindOf(&x.name), x.name.all
	}
	size := name + value + 32
	switch by {
	case original:
		e.told = f.grpc.add(size)
	case nobody:
		f.apart = true
	}
	e.meaning, e.name, e.value, e.size = f.valued(e.kind, &x.value), uint16(name), uint16(len(own)), uint16(size)
	if at := f.caller.put(size); at != nil {
		e.packed = append(append(at.packed[:0], own...), x.value.all...)
		*at = e
	}
	return true
}

// repack adds a field for gRPC, whose table has some of the fields that the caller's has.
func (f *fields) repack(b []byte, x *field, named *entry) []byte {
	switch {
	case x.how == resize:
		// Fields for gRPC are packed here, by a table that need not be as small as the caller's.
		if x.index <= f.grpc.most {
			return b
		}
		f.grpc.resize(tableSize)
		return appendInteger(b, resize, 5, tableSize)
	case x.how != indexed:
		// It is put into no table before another block refers to it.
		return append(f.repackName(b, x, named), x.value.all...)
	case named == nil:
		return appendInteger(b, indexed, 7, x.index)
	case named.told > 0 && f.grpc.has(named.told):
		return appendInteger(b, indexed, 7, f.grpc.index(named.told))
	}
	b = append(appendInteger(b, inserted, 6, int(named.static)), named.packed...)
	named.told = f.grpc.add(int(named.size))
	return b
}

func (f *fields) repackName(b []byte, x *field, named *entry) []byte {
	how := x.how & never
	switch {
	case named == nil:
		return append(appendInteger(b, how, 4, x.index), x.name.all...)
	case named.static > 0:
		return appendInteger(b, how, 4, int(named.static))
	case named.told > 0 && f.grpc.has(named.told):
		return appendInteger(b, how, 4, f.grpc.index(named.told))
	}
	return append(append(b, how), named.packed[:named.value]...)
}

// timeout is the value of a grpc-timeout: at most eight digits and a unit. The transport refuses others.
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
