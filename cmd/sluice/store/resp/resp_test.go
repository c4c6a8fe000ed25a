package resp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

const testMost = 64 << 10

func verdict(t testing.TB, stream string, pieces func(left int) int) error {
	t.Helper()
	c := NewChecker(testMost)
	for p := []byte(stream); len(p) > 0; {
		n := pieces(len(p))
		if err := c.Feed(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func whole(left int) int { return left }
func bytewise(int) int   { return 1 }

// What Redis answers passes, under both protocols; what announces or holds more
// than the bounds does not, and the error says which.
func TestBounds(t *testing.T) {
	big := strings.Repeat("x", testMost)
	for _, c := range []struct {
		name, stream string
		want         string // "" passes
	}{
		{"a status", "+OK\r\n", ""},
		{"an error", "-NOSCRIPT No matching script.\r\n", ""},
		{"a status with a return", "+a\rb\r\n", ""},
		{"a grant", "*4\r\n:0\r\n:-7\r\n$3\r\nabc\r\n$-1\r\n", ""},
		{"nulls", "$-1\r\n*-1\r\n_\r\n", ""},
		{"empty ones", "$0\r\n\r\n*0\r\n%0\r\n~0\r\n", ""},
		{"a map of a set, a double, a truth and a big number", "%2\r\n+a\r\n~1\r\n,1.5\r\n#t\r\n(3492890328409238509324850943850943825024385\r\n", ""},
		{"a verbatim string and a blob error", "=15\r\ntxt:Some string\r\n!21\r\nSYNTAX invalid syntax\r\n", ""},
		{"an attribute of a reply", "|1\r\n+ttl\r\n:3600\r\n*2\r\n:1\r\n|1\r\n+a\r\n+b\r\n:2\r\n+next\r\n", ""},
		{"a push between replies", "+OK\r\n>2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n+OK\r\n", ""},
		{"a reply that has not ended", "*2\r\n:1\r\n", ""},
		{"a long string", "$99999999999\r\n", "length"},
		{"a string beyond what is left", "$65530\r\n", "length"},
		{"a long verbatim string", "=99999999\r\n", "length"},
		{"a long error", "!99999999\r\n", "length"},
		{"a long array", "*2000000000\r\n", "elements"},
		{"a long map", "%2049\r\n", "elements"},
		{"a long set", "~4097\r\n", "elements"},
		{"a long push", ">4097\r\n", "elements"},
		{"a long attribute", "|2048\r\n", "elements"},
		{"arrays that are long together", "*2\r\n*4000\r\n" + strings.Repeat("_\r\n", 4000) + "*95\r\n", "elements"},
		{"an overflow", "*" + strings.Repeat("9", 30) + "\r\n", "elements"},
		{"a length of zeros", "$" + strings.Repeat("0", 100) + "\r\n", "line"},
		{"deep", strings.Repeat("*1\r\n", MaxDepth+1), "depth"},
		{"attributes of attributes", strings.Repeat("|0\r\n", MaxDepth+1), "depth"},
		{"a long line", "+" + big[:MaxLine], "line"},
		{"a long number", "(" + strings.Repeat("9", MaxLine), "line"},
		{"replies without end", strings.Repeat("+a\r\n", testMost/4) + "+", "size"},
		{"a streamed string", "$?\r\n", "protocol"},
		{"a streamed array", "*?\r\n", "protocol"},
		{"a chunk", ";4\r\n", "protocol"},
		{"the end of a stream", ".\r\n", "protocol"},
		{"HTTP", "HTTP/1.1 400 Bad Request\r\n", "protocol"},
		{"a line end without return", "+OK\n", "protocol"},
		{"a string that is longer than it says", "$2\r\nabc\r\n", "protocol"},
		{"a negative length", "$-2\r\n", "protocol"},
		{"a negative map", "%-1\r\n", "protocol"},
		{"no length", "*\r\n", "protocol"},
		{"a return in a length", "*1\r1\n", "protocol"},
	} {
		for _, pieces := range []func(int) int{whole, bytewise} {
			err := verdict(t, c.stream, pieces)
			if got := kindOf(err); got != c.want {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
			if err != nil && !errors.Is(err, ErrReply) {
				t.Errorf("%s: %v is not ErrReply", c.name, err)
			}
		}
	}
}

func kindOf(err error) string {
	if e, ok := AsError(err); ok {
		return Kinds[e.Kind]
	}
	return ""
}

// simple is the same judgement, of a whole buffer: by recursion, and without any
// care for speed. It returns what is left; done is false when a value has not ended.
type simple struct {
	all      []byte
	elements int
}

var errMore = errors.New("more is to come")

func (s *simple) replies() error {
	at := 0
	for at < len(s.all) {
		end, err := s.value(at, 0)
		if errors.Is(err, errMore) {
			return s.size(len(s.all))
		}
		if err != nil {
			return err
		}
		at = end
	}
	return s.size(at)
}

func (s *simple) size(n int) error {
	if n > testMost {
		return &Error{Kind: TooMuch}
	}
	return nil
}

// within is whether the byte at may be looked at.
func (s *simple) within(at int) error {
	if at >= testMost {
		return s.size(min(len(s.all), at+1))
	}
	return nil
}

func (s *simple) lineEnd(at int) (int, error) {
	for i := at + 1; i < len(s.all); i++ {
		if err := s.within(i); err != nil {
			return 0, err
		}
		if i-at >= MaxLine {
			return 0, &Error{Kind: TooLongLine}
		}
		if s.all[i] == '\n' {
			if s.all[i-1] != '\r' || i-at == 1 {
				return 0, &Error{Kind: NoProtocol}
			}
			return i + 1, nil
		}
	}
	return 0, errMore
}

// length reads digits, as far as there are.
func (s *simple) length(at int) (n, end int, err error) {
	kind, minus, digits := s.all[at], false, false
	for i := at + 1; ; i++ {
		if i >= len(s.all) {
			return 0, 0, errMore
		}
		if err := s.within(i); err != nil {
			return 0, 0, err
		}
		long := func(err error) error {
			if err == nil && i-at >= 64 {
				return &Error{Kind: TooLongLine}
			}
			return err
		}
		b := s.all[i]
		switch {
		case b == '-' && i == at+1:
			minus = true
		case b >= '0' && b <= '9':
			digits = true
			if n = 10*n + int(b-'0'); n > 1<<40 {
				err = &Error{Kind: TooMany}
				if strings.IndexByte("$=!", kind) >= 0 {
					err = &Error{Kind: TooLong}
				}
			}
		case b == '\r' && digits:
			if err := long(nil); err != nil {
				return 0, 0, err
			}
			if i+1 >= len(s.all) {
				return 0, 0, errMore
			}
			if err := s.within(i + 1); err != nil {
				return 0, 0, err
			}
			if s.all[i+1] != '\n' || minus && (n != 1 || kind != '$' && kind != '*') {
				return 0, 0, &Error{Kind: NoProtocol}
			}
			if minus {
				n = -1
			}
			return n, i + 2, s.announced(kind, n, i+2, i+1-at >= 64)
		default:
			err = &Error{Kind: NoProtocol}
		}
		if err = long(err); err != nil {
			return 0, 0, err
		}
	}
}

func (s *simple) announced(kind byte, n, end int, long bool) error {
	values := n
	switch kind {
	case '$', '=', '!':
		if n > testMost-end {
			return &Error{Kind: TooLong}
		}
		values = 0
	case '%':
		values = 2 * n
	case '|':
		values = 2*n + 1
	}
	if s.elements += max(0, values); s.elements > testMost/ElementBytes {
		return &Error{Kind: TooMany}
	}
	if long {
		return &Error{Kind: TooLongLine}
	}
	return nil
}

func (s *simple) value(at, depth int) (end int, err error) {
	if at >= len(s.all) {
		return 0, errMore
	}
	if err := s.within(at); err != nil {
		return 0, err
	}
	kind := s.all[at]
	if strings.IndexByte("+-:_,#(", kind) >= 0 {
		return s.lineEnd(at)
	}
	if strings.IndexByte("$=!*~>%|", kind) < 0 {
		return 0, &Error{Kind: NoProtocol}
	}
	n, end, err := s.length(at)
	if err != nil || n < 0 {
		return end, err
	}
	values := n
	switch kind {
	case '$', '=', '!':
		return s.bulk(end, n)
	case '%':
		values = 2 * n
	case '|':
		values = 2*n + 1
	}
	if values > 0 && depth == MaxDepth {
		return 0, &Error{Kind: TooDeep}
	}
	for range values {
		if end, err = s.value(end, depth+1); err != nil {
			return 0, err
		}
	}
	return end, nil
}

func (s *simple) bulk(at, n int) (end int, err error) {
	for i, want := range []byte("\r\n") {
		if at+n+i >= len(s.all) {
			return 0, errMore
		}
		if err := s.within(at + n + i); err != nil {
			return 0, err
		}
		if s.all[at+n+i] != want {
			return 0, &Error{Kind: NoProtocol}
		}
	}
	return at + n + 2, nil
}

// agree compares the checker, over several ways to split the stream, with simple.
func agree(t *testing.T, stream []byte, seed uint64) {
	want := kindOf((&simple{all: stream}).replies())
	rnd := rand.New(rand.NewPCG(seed, 1))
	for i, pieces := range []func(int) int{whole, bytewise, func(left int) int { return 1 + rnd.IntN(left) }, func(left int) int { return min(left, 1+rnd.IntN(7)) }} {
		if i == 1 && len(stream) > 1<<10 {
			continue // dear, and the last way splits finely, too
		}
		if got := kindOf(verdict(t, string(stream), pieces)); got != want {
			t.Fatalf("split %d: %q, and of the whole %q: %.200q", i, got, want, stream)
		}
	}
}

// FuzzReplies holds that how answers are split changes no verdict, and that it is
// the simple one's.
func FuzzReplies(f *testing.F) {
	for _, s := range []string{
		"+OK\r\n", "*2\r\n:1\r\n$3\r\nabc\r\n", "|1\r\n+a\r\n:1\r\n%1\r\n+k\r\n~2\r\n,1\r\n#t\r\n", "$99999999999\r\n", "*-1\r\n$-1\r\n_\r\n",
		">2\r\n+a\r\n=5\r\ntxt:a\r\n", "(12345\r\n!3\r\nERR\r\n", strings.Repeat("*1\r\n", MaxDepth+2), "$000000000000000000000000000000000000000000000000000000000000000000001\r\n",
	} {
		f.Add([]byte(s), uint64(1))
	}
	f.Fuzz(agree)
}

// Random streams that are nearly right: what a fuzzer seldom finds.
func TestRandomReplies(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		var b bytes.Buffer
		for range 1 + rnd.IntN(4) {
			write(&b, rnd, 0)
		}
		stream := b.Bytes()
		if kindOf((&simple{all: stream}).replies()) == "protocol" {
			t.Fatalf("%q should be right", stream)
		}
		for range rnd.IntN(3) {
			stream[rnd.IntN(len(stream))] = "+-$*%|>~!=\r\n019x?"[rnd.IntN(17)]
		}
		agree(t, stream[:rnd.IntN(len(stream)+1)], seed)
	}
}

func write(b *bytes.Buffer, rnd *rand.Rand, depth int) {
	n := rnd.IntN(4)
	kinds := "+-:_,#($=!"
	if depth < MaxDepth+1 {
		kinds += "*~>%|*|"
	}
	switch kind := kinds[rnd.IntN(len(kinds))]; kind {
	case '$', '=', '!':
		if rnd.IntN(20) == 0 {
			n = rnd.IntN(testMost / 2)
		}
		fmt.Fprintf(b, "%c%d\r\n%s\r\n", kind, n, strings.Repeat("y", n))
	case '*', '~', '>', '%', '|':
		values := n
		switch kind {
		case '%':
			values = 2 * n
		case '|':
			values = 2*n + 1
		}
		b.WriteByte(kind)
		b.WriteString(strconv.Itoa(n))
		b.WriteString("\r\n")
		for range values {
			write(b, rnd, depth+2+rnd.IntN(6))
		}
	case '_':
		b.WriteString("_\r\n")
	default:
		fmt.Fprintf(b, "%c%d\r\n", kind, n)
	}
}

// A connection gives its reader nothing of an answer that is out of bounds, ends,
// and says so once. What is written has the answers be counted anew.
func TestConnEnds(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	told := 0
	c := NewConn(client, testMost, func(*Error) { told++ })
	go func() {
		reply := []byte("+" + strings.Repeat("x", 1021) + "\r\n") // 1 KiB
		buf := make([]byte, 64)
		for range 2 {
			_, _ = server.Read(buf)
			for range testMost >> 10 {
				_, _ = server.Write(reply)
			}
		}
		_, _ = server.Write([]byte("$5\r\n"))
	}()
	buf := make([]byte, 1<<10)
	for range 2 {
		if _, err := c.Write([]byte("PING\r\n")); err != nil {
			t.Fatal(err)
		}
		if n, err := io.CopyN(io.Discard, c, testMost); err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
	for range 2 {
		if n, err := c.Read(buf); n != 0 || kindOf(err) != "size" {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	_ = server.SetReadDeadline(time.Now().Add(time.Second))
	if _, err := server.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("the connection goes on: %v", err)
	}
}

// The client looks at idle connections through the socket.
func TestConnKeepsItsSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial := Dialer((&net.Dialer{}).DialContext, testMost, nil)
	c, err := dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, ok := c.(*sysConn)
	if !ok {
		t.Fatalf("%T has no socket", c)
	}
	if _, err := s.SyscallConn(); err != nil {
		t.Error(err)
	}
	l.Close()
	if _, err := dial(t.Context(), "tcp", l.Addr().String()); err == nil {
		t.Error("dialled nobody")
	}
}

var grants = []byte(strings.Repeat("*17\r\n"+strings.Repeat(":1790000000000000\r\n", 17), 100))

func TestFeedAllocatesNothing(t *testing.T) {
	c := NewChecker(MostReply)
	if n := testing.AllocsPerRun(100, func() {
		c.Reset()
		if err := c.Feed(grants); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkFeed(b *testing.B) {
	for name, stream := range map[string][]byte{"grants": grants, "bulk": []byte("$100000\r\n" + strings.Repeat("x", 100_000) + "\r\n")} {
		b.Run(name, func(b *testing.B) {
			c := NewChecker(MostReply)
			b.SetBytes(int64(len(stream)))
			b.ReportAllocs()
			for b.Loop() {
				c.Reset()
				if err := c.Feed(stream); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
