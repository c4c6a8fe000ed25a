package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// Bounds of a Redis' answers to the last written commands.
const (
	// mostReply is in bytes. The answers to a full batch of claims take some 50 KB, and the description of a Cluster
	// with the most scattered slots 1.6 MB.
	mostReply = 4 << 20
	// elementBytes is how many of these bytes an announced element is worth: a client keeps some 40 bytes for each. So
	// at most 262,144 elements may come, for some 10 MB of the client's memory.
	elementBytes = 16
	// mostLine is the longest line: of errors and statuses.
	mostLine = 4 << 10
)

// errReply is why a connection was closed. The likely cause is a port of another program: it answers a Redis command
// with a text, whose first byte is no type.
var errReply = errors.New("the server's reply is out of bounds, and the connection is closed (is it a Redis?)")

// dial is how a client makes connections.
//
// The path of an answer: redisConn.Read gives each piece to replies.feed, which counts its bytes and follows its
// frames. A frame beyond the bounds closes the connection before the client sees its length.
type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// bounded has the connections that next makes checked, and counted in a pool (nil: not at all).
func bounded(next dial, pool *metrics.Pool) dial {
	if pool == nil {
		pool = new(metrics.Pool)
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := next(ctx, network, address)
		if err != nil {
			return nil, err
		}
		pool.Made.Add(1)
		pool.Open.Add(1)
		return &redisConn{Conn: c, replies: replies{left: mostReply}, pool: pool}, nil
	}
}

// redisConn bounds the answers of a Redis before the client reads them. Redis' protocol announces lengths, and client
// libraries allocate them: `$99999999999` ends the process that reads it.
//
// Guarantee: an answer has at most the bounds' bytes and elements; the client reads none beyond. The verdict
// does not depend on the pieces in which answers arrive. The client checks all else.
//
// One goroutine at a time may read, and others may write meanwhile, as of any net.Conn.
type redisConn struct {
	net.Conn
	replies // the reader's
	pool    *metrics.Pool
	seen    uint64 // the reader's: of written
	written atomic.Uint64
	closed  sync.Once
}

// Write has the answers be counted anew.
func (c *redisConn) Write(p []byte) (int, error) {
	c.written.Add(1)
	return c.Conn.Write(p)
}

// Read returns nothing of what goes beyond the bounds, nor of what comes with it.
func (c *redisConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	// A new command begins a new budget. A connection of the pool is used again when all its answers were read, so the
	// budgets of two commands do not mix.
	if now := c.written.Load(); now != c.seen {
		c.seen = now
		c.left = mostReply
		c.elements = 0
	}
	// The first fault closes the connection and counts once. Later reads return the same error.
	before := c.err
	c.feed(p[:n])
	if c.err == nil {
		return n, err
	}
	if before == nil {
		_ = c.Close()
		c.pool.Refused.Add(1)
	}
	return 0, c.err
}

// Close implements [net.Conn]. The client and a fault may both close it. It is counted as closed once.
func (c *redisConn) Close() error {
	c.closed.Do(func() {
		c.pool.Open.Add(-1)
		c.pool.Closed.Add(1)
	})
	return c.Conn.Close()
}

// replies follows the frames of answers (RESP2 and RESP3, Redis' serialization protocol): lines, and strings behind the
// lines that announce them.
type replies struct {
	left     int    // bytes that may still be answered
	elements int    // announced since then
	skip     int    // the rest of a string, with its line end
	line     []byte // so far. Invariant: at most mostLine
	err      error  // an errReply, from the first fault on
}

// feed follows a piece of the answer. It alternates between the rest of a string, which it only counts, and lines,
// which it reads. A piece may end anywhere, also between \r and \n.
func (r *replies) feed(p []byte) {
	for len(p) > 0 && r.err == nil {
		n := min(len(p), r.skip)
		if n == 0 {
			// It looks for the line's end in no more than a line may have. A stream without any end costs mostLine
			// bytes, and not the whole piece.
			n = min(len(p), mostLine-len(r.line))
			if end := bytes.IndexByte(p[:n], '\n'); end >= 0 {
				n = end + 1
			}
		}
		r.left -= n
		if r.left < 0 {
			r.fail("more than %d bytes", mostReply)
			return
		}
		if r.skip > 0 {
			r.skip -= n
		} else {
			r.inLine(p[:n])
		}
		p = p[n:]
	}
}

// inLine handles a part of a line, or all of it.
func (r *replies) inLine(p []byte) {
	// A line that is whole in the piece is read in place. Only a line in parts is copied.
	if len(r.line) > 0 || !bytes.HasSuffix(p, []byte("\r\n")) {
		r.line = append(r.line, p...)
		p = r.line
	}
	if line, ends := bytes.CutSuffix(p, []byte("\r\n")); ends {
		r.announced(line)
		r.line = r.line[:0]
	} else if len(p) >= mostLine {
		r.fail("a line of more than %d bytes", mostLine)
	}
}

// announced handles a line, without its end.
func (r *replies) announced(line []byte) {
	if len(line) == 0 {
		r.fail("the line %q", line)
		return
	}
	// The first byte of a line is the type of RESP. The first case has values that are whole in the line, then come
	// strings with a length, and then aggregates with a number of elements.
	switch kind, text := line[0], line[1:]; {
	case strings.IndexByte("+-:_,#(", kind) >= 0:
	case string(text) == "-1" && (kind == '$' || kind == '*'): // RESP2's nulls
	case strings.IndexByte("$=!", kind) >= 0:
		// A length has at most 32 bits, so that an int holds it, and also twice the number of a map.
		n, err := strconv.ParseUint(string(text), 10, 32)
		if err != nil || int(n) >= r.left {
			r.fail("a string of %.20q bytes", text)
		}
		r.skip = int(n) + len("\r\n")
	case strings.IndexByte("*~>%", kind) >= 0:
		n, err := strconv.ParseUint(string(text), 10, 32)
		// A map announces pairs, and each has two elements.
		if kind == '%' {
			n *= 2
		}
		r.elements += int(n)
		if err != nil || r.elements > mostReply/elementBytes {
			r.fail("%.20q elements", text)
		}
	default:
		r.fail("the type %q", kind)
	}
}

func (r *replies) fail(format string, what any) {
	r.err = fmt.Errorf("%w: %s", errReply, fmt.Sprintf(format, what))
}
