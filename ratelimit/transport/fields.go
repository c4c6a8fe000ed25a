package transport

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// forever is the patience of a caller that does not say how long it waits.
const forever = time.Duration(1<<63 - 1)

// fields reads the header blocks of a connection, all with one table. Between two blocks it has the fields of the last
// one. The goroutine that leads owns it.
type fields struct {
	methods []Method
	most    int // bytes of a block's fields, as HTTP/2 counts them
	decoder *hpack.Decoder
	all     []hpack.HeaderField // without those behind the path of own calls, unless they have spans
	call
}

// call is what a block says of its call.
type call struct {
	size        int
	path        string
	own         *Method // that the port answers itself; nil: none
	verb        string
	contentType string
	typed       bool   // a content-type is gRPC's
	deadline    string // its grpc-timeout
	patience    time.Duration
	timed       bool   // there is no grpc-timeout, or a valid one
	encoding    string // its grpc-encoding
}

func newFields(methods []Method, most uint32) fields {
	return fields{methods: methods, most: int(most)}
}

// read decodes a block. The fields are valid until the next one. An error is one of the table, which ends the
// connection.
func (f *fields) read(block []byte) error {
	if f.decoder == nil {
		f.decoder = hpack.NewDecoder(tableSize, f.emit)
	}
	clear(f.all)
	f.all, f.call = f.all[:0], call{patience: forever, timed: true}
	if _, err := f.decoder.Write(block); err != nil {
		return &fault{http2.ErrCodeCompression, err.Error()}
	}
	if err := f.decoder.Close(); err != nil {
		return &fault{http2.ErrCodeCompression, err.Error()}
	}
	return nil
}

// emit gets each field of a block from the decoder. Fields beyond the bound are decoded, for the table, and dropped. A
// second :path replaces the first; valid refuses it, unless it names an own method.
func (f *fields) emit(h hpack.HeaderField) {
	f.size += int(h.Size())
	if f.size > f.most {
		return
	}
	switch h.Name {
	case ":method":
		f.verb = h.Value
	case ":path":
		f.path, f.own = h.Value, nil
		for i := range f.methods { // one or two
			if f.methods[i].Name == h.Value {
				f.own = &f.methods[i]
			}
		}
	case "content-type":
		subtype, ok := strings.CutPrefix(h.Value, "application/grpc")
		f.typed = f.typed || ok && (subtype == "" || subtype[0] == '+' || subtype[0] == ';')
		f.contentType = h.Value
	case "grpc-timeout":
		f.deadline = h.Value
		f.patience, f.timed = timeout(h.Value)
	case "grpc-encoding":
		f.encoding = h.Value
	}
	if f.own == nil || f.own.Spans != nil {
		f.all = append(f.all, h)
	}
}

// large reports whether the fields are more than the port's bound. Then they are not complete.
func (f *fields) large() bool { return f.size > f.most }

// refusal is the answer to a call that is none of gRPC, with its status of HTTP; nil: it is one. The order, the codes
// and the HTTP statuses are those of grpc-go.
func (f *fields) refusal() (code int, st *status.Status) {
	switch {
	case !f.typed:
		return http.StatusUnsupportedMediaType, status.Newf(codes.InvalidArgument,
			"the content-type is %.100q, must be application/grpc", f.contentType)
	case !f.timed:
		return http.StatusBadRequest, status.Newf(codes.Internal,
			"the grpc-timeout is %.100q, must be up to 8 digits and a unit, one of HMSmun", f.deadline)
	case f.verb != http.MethodPost:
		return http.StatusMethodNotAllowed, status.Newf(codes.Internal,
			"the method is %.100q, must be POST", f.verb)
	}
	return 0, nil
}

// metadata are the fields of a call of the services, or of an own one with spans. Pseudo-fields such as :authority are
// among them.
func (f *fields) metadata() metadata.MD {
	md := make(metadata.MD, len(f.all))
	for _, h := range f.all {
		md.Append(h.Name, h.Value)
	}
	return md
}

// pseudo are the fields of a request that have to come once, before all others.
var pseudo = [...]string{":method", ":scheme", ":path", ":authority"}

// valid reports whether a request's fields are as HTTP/2 has them (RFC 9113, 8.2 and 8.3). It is not asked of own
// calls, whose fields are not read.
func (f *fields) valid() bool {
	var came [len(pseudo)]bool
	ordinary := false
	for _, h := range f.all {
		if !httpguts.ValidHeaderFieldValue(h.Value) {
			return false
		}
		if h.IsPseudo() {
			i := slices.Index(pseudo[:], h.Name)
			if i < 0 || came[i] || ordinary {
				return false
			}
			came[i] = true
			continue
		}
		ordinary = true
		if !httpguts.ValidHeaderFieldName(h.Name) || strings.ToLower(h.Name) != h.Name {
			return false
		}
		switch h.Name {
		case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
			return false
		case "te":
			if h.Value != "trailers" {
				return false
			}
		}
	}
	return came[0] && came[1] && f.path != ""
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
	noTable    = 0x20 // before the first block: this side has a table of no bytes (6.3)
	status200  = 0x88 // entry 8 of the static table: the field and its value
	statusName = 8    // the name alone, with a value behind it
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
	return appendOutcome(okHeaders[:len(okHeaders):len(okHeaders)], s)
}

// appendOutcome adds the fields of a status.
func appendOutcome(b []byte, s *status.Status) []byte {
	b = appendField(b, "grpc-status", strconv.Itoa(int(s.Code())))
	if s.Message() == "" {
		return b
	}
	return appendField(b, "grpc-message", percent(s.Message()))
}

// appendMetadata adds fields of an application.
func appendMetadata(b []byte, md metadata.MD) []byte {
	for name, values := range md {
		for _, v := range values {
			if strings.HasSuffix(name, "-bin") {
				v = base64.RawStdEncoding.EncodeToString([]byte(v))
			}
			b = appendField(b, name, v)
		}
	}
	return b
}

// appendField adds a field that stays out of tables (RFC 7541, 6.2.2).
func appendField(b []byte, name, value string) []byte {
	return appendText(appendText(append(b, 0), name), value)
}

// appendText adds a text without Huffman's code (RFC 7541, 5.2). Lengths below 127 are a byte. Longer ones are 127 and
// the rest in groups of seven bits, lowest first.
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

// percent is the encoding of grpc-message. Bytes outside of printable ASCII, and the percent sign, become %XX (gRPC
// over HTTP/2, Percent-Encoded).
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
