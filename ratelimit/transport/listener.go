package transport

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
)

// Listener has at most so many connections at once. One more closes that from
// which nothing has come for longest. It is safe for concurrent use.
type Listener struct {
	net.Listener
	most   int
	budget *Budget

	mu sync.Mutex
	// conns has the connections that are open. It is guarded by mu. Invariant: at most most, where
	// most is not 0.
	conns map[*conn]struct{}
}

// Listen bounds the connections of a listener; most 0 means any number. The budget, unless it is nil, counts those that
// are closed.
func Listen(l net.Listener, most int, budget *Budget) *Listener {
	return &Listener{Listener: l, most: most, budget: budget.orAll(), conns: map[*conn]struct{}{}}
}

// conn is a connection that tells when something came last. It is below TLS, so that bytes count which are no complete
// record yet.
type conn struct {
	net.Conn
	of *Listener
	// last is when bytes came last, in nanoseconds since the process began.
	last atomic.Int64
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	// The listener starts the previous connection, and does other ready work, before it takes the next one. Of
	// thousands opened at once, the waiting ones are in the kernel's queue. In the scheduler's queue, all calls
	// would wait behind them.
	runtime.Gosched()
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, of: l}
	// A new connection counts as one from which something has just come; otherwise it would be the
	// first to be closed.
	c.last.Store(nanotime())
	l.mu.Lock()
	var silent *conn
	if l.most > 0 && len(l.conns) >= l.most {
		silent = l.silentLocked()
		// It is taken out here and closed below, for Close takes the lock.
		delete(l.conns, silent)
	}
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	if silent != nil {
		l.budget.Crowded.Add(1)
		_ = silent.Close()
	}
	return c, nil
}

// silentLocked is the connection from which nothing has come for longest. It visits all, and is called only when there
// are as many as the bound.
func (l *Listener) silentLocked() (longest *conn) {
	for c := range l.conns {
		if longest == nil || c.last.Load() < longest.last.Load() {
			longest = c
		}
	}
	return longest
}

// End closes all connections, also those that have not shaken hands: their Port does not have them in its list yet.
func (l *Listener) End() {
	l.mu.Lock()
	all := make([]*conn, 0, len(l.conns))
	for c := range l.conns {
		all = append(all, c)
	}
	l.mu.Unlock() // Close takes it
	for _, c := range all {
		_ = c.Close()
	}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.last.Store(nanotime())
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
