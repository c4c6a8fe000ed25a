package store

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// fed is the verdict on a stream that arrives in pieces.
func fed(stream string, piece int) error {
	r := replies{left: mostReply}
	for p := []byte(stream); len(p) > 0; {
		n := min(piece, len(p))
		r.feed(p[:n])
		p = p[n:]
	}
	return r.err
}

// Redis' answers pass under both protocols. Those that announce or hold more than the bounds do not.
func TestRepliesAreBounded(t *testing.T) {
	for stream, want := range map[string]string{
		"+OK\r\n-NOSCRIPT No matching script.\r\n+a\rb\r\n": "",
		"*4\r\n:0\r\n:-7\r\n$3\r\nabc\r\n$-1\r\n":           "",
		"$-1\r\n*-1\r\n_\r\n$0\r\n\r\n*0\r\n%0\r\n~0\r\n":   "",
		"%2\r\n+a\r\n~1\r\n,1.5\r\n#t\r\n(34928903284\r\n":  "",
		"=15\r\ntxt:Some string\r\n!3\r\nERR\r\n":           "",
		"+OK\r\n>2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n*2":   "",
		"$4\r\n\r\n$9\r\n:1\r\n":                            "", // a length in a string is none
		"$99999999999\r\n":                                  "a string of",
		"$" + strings.Repeat("9", 30) + "\r\n":              "a string of",
		"=4194304\r\n":                                      "a string of",
		"!99999999\r\n":                                     "a string of",
		"$-2\r\n":                                           "a string of",
		"$?\r\n":                                            "a string of",
		"*2000000000\r\n":                                   "elements",
		"%131073\r\n":                                       "elements",
		"~262145\r\n":                                       "elements",
		">262145\r\n":                                       "elements",
		strings.Repeat("*100000\r\n", 3):                    "elements",
		"%-1\r\n":                                           "elements",
		"*\r\n":                                             "elements",
		"+" + strings.Repeat("x", mostLine):                 "a line of more than",
		"+OK\n" + strings.Repeat("+OK\n", mostLine):         "a line of more than",
		strings.Repeat("+a\r\n", mostReply/4+1):             "more than",
		"|0\r\n":                                            "the type", ";4\r\n": "the type", ".\r\n": "the type", "HTTP/1.1 400 Bad Request\r\n": "the type",
		"$2\r\nabc\r\n\r\n": "the type", "\r\n": "the line", "$0\r\n\r\n\r\n": "the line",
	} {
		for _, piece := range []int{1, 7, 1 << 30} {
			err := fed(stream, piece)
			if want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want) && errors.Is(err, errReply) {
				continue
			}
			t.Errorf("%.60q in pieces of %d: %v, want %q", stream, piece, err, want)
		}
	}
}

// The pieces in which answers arrive change no verdict.
func FuzzReplies(f *testing.F) {
	for _, s := range []string{"*2\r\n$3\r\nabc\r\n:1\r\n", "%1\r\n+a\r\n$9999999\r\n", "+a\r\n$1\r\nab\r\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		whole := fed(s, len(s)+1)
		for _, piece := range []int{1, 2, 5} {
			if err := fed(s, piece); (err == nil) != (whole == nil) || err != nil && err.Error() != whole.Error() {
				t.Errorf("in pieces of %d: %v, as a whole: %v", piece, err, whole)
			}
		}
	})
}

// A connection with a bad answer gives its reader none of it, ends, and is counted once. A command has answers be
// counted anew.
func TestBadRepliesEndConnections(t *testing.T) {
	server, client := net.Pipe()
	pool := new(metrics.Pool)
	c, err := bounded(func(context.Context, string, string) (net.Conn, error) { return client, nil }, pool)(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	half := "$3000000\r\n" + strings.Repeat("x", 3_000_000) + "\r\n"
	go func() {
		command := make([]byte, 1)
		for _, answer := range []string{half, half, half + half} {
			_, _ = io.ReadFull(server, command)
			_, _ = io.WriteString(server, answer)
		}
	}()
	got := make([]byte, len(half))
	for range 2 {
		if _, err := c.Write([]byte("c")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, got); err != nil || string(got) != half {
			t.Fatalf("an answer within the bounds ends with %v", err)
		}
	}
	if _, err := c.Write([]byte("c")); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, c)
	if n > int64(len(half)) || !errors.Is(err, errReply) {
		t.Errorf("%d bytes of a long answer are read, and then %v", n, err)
	}
	_, again := c.Read(got)
	_ = c.Close()
	if !errors.Is(again, errReply) || pool.Refused.Load() != 1 || pool.Open.Load() != 0 || pool.Made.Load() != 1 || pool.Closed.Load() != 1 {
		t.Errorf("then %v, with the pool %+v", again, pool)
	}
}

func TestRepliesAllocateNothing(t *testing.T) {
	r := replies{left: mostReply}
	answer := []byte("*3\r\n:17\r\n$3\r\nabc\r\n+OK\r\n")
	if n := testing.AllocsPerRun(100, func() {
		r.left, r.elements = mostReply, 0
		r.feed(answer)
	}); n > 0 || r.err != nil {
		t.Errorf("an answer allocates %v times (%v)", n, r.err)
	}
}
