package transport

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// forever is the patience of a caller that does not say how long it waits.
const forever = time.Duration(1<<63 - 1)

// fields reads the header blocks of a connection. Between two blocks it has the fields of the last one.
type fields struct {
	method  *Method
	most    int // bytes of a block's fields, as HTTP/2 counts them
	decoder *hpack.Decoder

	size     int
	path     string
	own      bool // it is a well-formed call of method
	other    bool // it is no POST
	typed    bool // and its content-type has come
	patience time.Duration
	all      []hpack.HeaderField // without those behind the path of own calls, unless they have spans
}

func newFields(method *Method, most uint32) fields {
	return fields{method: method, most: int(most)}
}

// read decodes a block. The fields are valid until the next one. An error is one of the table, which ends the
// connection.
func (f *fields) read(block []byte) error {
	if f.decoder == nil {
		f.decoder = hpack.NewDecoder(tableSize, f.emit)
	}
	clear(f.all)
	f.size, f.path, f.own, f.other, f.typed, f.patience, f.all = 0, "", false, false, false, forever, f.all[:0]
	if _, err := f.decoder.Write(block); err != nil {
		return &fault{http2.ErrCodeCompression, err.Error()}
	}
	if err := f.decoder.Close(); err != nil {
		return &fault{http2.ErrCodeCompression, err.Error()}
	}
	f.own = f.own && f.typed
	return nil
}

func (f *fields) emit(h hpack.HeaderField) {
	if f.size += int(h.Size()); f.size > f.most {
		return
	}
	// A call that is not well-formed is not the port's own, and the handler has an answer to it.
	switch h.Name {
	case ":method":
		f.other = f.other || h.Value != http.MethodPost
		f.own = f.own && !f.other
	case ":path":
		// Without a method of the port's own, its name is empty, as a path may be.
		f.own, f.path = f.method.Answer != nil && h.Value == f.method.Name && !f.other, h.Value
	case "content-type":
		subtype, ok := strings.CutPrefix(h.Value, "application/grpc")
		f.typed = ok && (subtype == "" || subtype[0] == '+' || subtype[0] == ';')
	case "grpc-timeout":
		var ok bool
		f.patience, ok = timeout(h.Value)
		f.own = f.own && ok
	}
	if !f.own || f.method.Spans != nil || h.Name == "content-type" {
		f.all = append(f.all, h)
	}
}

// large tells whether the fields are more than the port's bound. Then they are not complete.
func (f *fields) large() bool { return f.size > f.most }

// metadata are the fields of an own call with spans.
func (f *fields) metadata() metadata.MD {
	if f.method.Spans == nil {
		return nil
	}
	md := make(metadata.MD, len(f.all))
	for _, h := range f.all {
		md.Append(h.Name, h.Value)
	}
	return md
}

// request makes the handler's request of a block (RFC 9113, 8.3).
func (f *fields) request() (*http.Request, error) {
	r := &http.Request{ProtoMajor: 2, Proto: "HTTP/2.0", Header: http.Header{}}
	pseudo := map[string]string{}
	for _, h := range f.all {
		if !httpguts.ValidHeaderFieldValue(h.Value) {
			return nil, fmt.Errorf("the value of the field %q is no text", h.Name)
		}
		if h.IsPseudo() {
			if _, twice := pseudo[h.Name]; twice || len(r.Header) > 0 {
				return nil, fmt.Errorf("the field %q comes twice, or late", h.Name)
			}
			pseudo[h.Name] = h.Value
			continue
		}
		if !httpguts.ValidHeaderFieldName(h.Name) || strings.ToLower(h.Name) != h.Name || h.Name == "connection" {
			return nil, fmt.Errorf("the field %q has no name of HTTP/2", h.Name)
		}
		r.Header.Add(h.Name, h.Value)
	}
	r.Method, r.Host, r.RequestURI = pseudo[":method"], pseudo[":authority"], f.path
	return r, nil
}

// timeout is the value of grpc-timeout. It is not ok if that is none.
func timeout(s string) (d time.Duration, ok bool) {
	if len(s) < 2 || len(s) > 9 {
		return forever, false
	}
	n := int64(0)
	for _, c := range []byte(s[:len(s)-1]) {
		if c < '0' || c > '9' {
			return forever, false
		}
		n = 10*n + int64(c-'0')
	}
	of := strings.IndexByte("numSMH", s[len(s)-1])
	if of < 0 {
		return forever, false
	}
	unit := [...]time.Duration{
		time.Nanosecond, time.Microsecond, time.Millisecond, time.Second, time.Minute, time.Hour,
	}[of]
	// Eight digits of hours may be more than the 292 years that a Duration holds. Half of it, so that the time of the
	// process can be added: grpc-java says 2562047 hours for the longest deadline.
	if n > int64(forever/unit)/2 {
		return forever, true
	}
	return time.Duration(n) * unit, true
}

// Header blocks that use no table, so that they can stand between any two others (RFC 7541).
const (
	tableSize  = 4096 // of the caller's fields
	noTable    = 0x20 // before the first block: this side has a table of no bytes
	status200  = 0x88
	statusName = 8 // of a field :status
)

var (
	okHeaders  = appendField([]byte{status200}, "content-type", "application/grpc")
	okTrailers = appendField(nil, "grpc-status", "0")
)

// appendStatus is the beginning of a header block (RFC 7541, 6.1 and A).
func appendStatus(code int) []byte {
	if code == http.StatusOK {
		return []byte{status200}
	}
	return appendText([]byte{statusName}, strconv.Itoa(code))
}

// failure is the header block of an answer that is a status alone.
func failure(s *status.Status) []byte {
	b := appendField(okHeaders[:len(okHeaders):len(okHeaders)], "grpc-status", strconv.Itoa(int(s.Code())))
	return appendField(b, "grpc-message", percent(s.Message()))
}

// appendField adds a field that stays out of tables (RFC 7541, 6.2.2).
func appendField(b []byte, name, value string) []byte {
	return appendText(appendText(append(b, 0), name), value)
}

// appendText adds a text without Huffman's code (RFC 7541, 5.2).
func appendText(b []byte, s string) []byte {
	const most = 1<<7 - 1
	n := len(s)
	if n < most {
		return append(append(b, byte(n)), s...)
	}
	b = append(b, most)
	for n -= most; n >= 1<<7; n >>= 7 {
		b = append(b, byte(n)|1<<7)
	}
	return append(append(b, byte(n)), s...)
}

// percent is the encoding of grpc-message.
func percent(s string) string {
	var b []byte
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b = append(b, c)
		} else {
			b = fmt.Appendf(b, "%%%02X", c)
		}
	}
	return string(b)
}
