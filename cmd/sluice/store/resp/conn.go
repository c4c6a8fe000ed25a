package resp

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
)

// Conn is a connection whose answers are bounded. One goroutine at a time may
// read, and others may write meanwhile, as of any net.Conn.
type Conn struct {
	net.Conn
	checker *Checker // the reader's
	seen    uint64   // the reader's: of written
	written atomic.Uint64
	refused func(*Error)
}

// NewConn bounds the answers to the last written commands to most bytes. refused, if not nil, is called once
// with the reason why the connection was ended.
func NewConn(c net.Conn, most int64, refused func(*Error)) net.Conn {
	bounded := &Conn{Conn: c, checker: NewChecker(most), refused: refused}
	if s, ok := c.(syscall.Conn); ok {
		return &sysConn{bounded, s}
	}
	return bounded
}

// Write has the answers be counted anew.
func (c *Conn) Write(p []byte) (int, error) {
	c.written.Add(1)
	return c.Conn.Write(p)
}

// Read returns nothing of what goes beyond the bounds, nor of what comes with it.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if now := c.written.Load(); now != c.seen {
		c.seen = now
		c.checker.Reset()
	}
	before := c.checker.err
	if wrong := c.checker.Feed(p[:n]); wrong != nil {
		if before == nil {
			c.end()
		}
		return 0, wrong
	}
	return n, err
}

func (c *Conn) end() {
	_ = c.Close()
	if c.refused != nil {
		c.refused(c.checker.err)
	}
}

// sysConn lets the client look whether its idle connection has been closed, which
// it does by the socket.
type sysConn struct {
	*Conn
	socket syscall.Conn
}

// SyscallConn implements syscall.Conn.
func (c *sysConn) SyscallConn() (syscall.RawConn, error) { return c.socket.SyscallConn() }

// Dial is how a client makes connections.
type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// Dialer bounds all connections of a client; see NewConn.
func Dialer(dial Dial, most int64, refused func(*Error)) Dial {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return NewConn(c, most, refused), nil
	}
}

// AsError finds the *Error in err.
func AsError(err error) (*Error, bool) { return errors.AsType[*Error](err) }
