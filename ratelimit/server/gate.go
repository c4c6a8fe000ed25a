package server

import (
	"context"
	"net"
	"sync"

	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// gate is the gRPC port until calls are served. An Envoy without health checks accepts any answer of a node, and
// continues at once if a connection is refused. So the port is closed while the node could only answer by its
// on_store_failure. It was open for a moment, so that an address in use is an error at the start. Its states: opened by
// New, closed by serve, open again, ended. serve is called once.
type gate struct {
	opens chan struct{} // closed by who opens it
	again func() (*transport.Listener, error)
	fixed bool // the address is the same if it is opened again: otherwise callers wait to be accepted

	mu    sync.Mutex
	is    *transport.Listener // guarded by mu
	ended bool                // guarded by mu
}

// serve serves calls from when the port is opened until it ends. It returns nil if ctx is done before.
func (g *gate) serve(ctx context.Context, serve func(net.Listener) error) error {
	l := g.is
	// A listening socket completes handshakes by itself, in the kernel. So the port is really closed, and not only left
	// without accept.
	if g.fixed {
		_ = l.Close() // it is opened again
	}
	select {
	case <-g.opens:
	case <-ctx.Done():
		_ = l.Close()
		return nil
	}
	if g.fixed {
		var err error
		l, err = g.open()
		if err != nil {
			return err
		}
	}
	return serve(l)
}

// The end may come while the port opens. Then the new listener is ended here.
func (g *gate) open() (*transport.Listener, error) {
	l, err := g.again()
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.is = l
	if g.ended {
		l.End()
	}
	return l, nil
}

// end ends connections that have not shaken hands.
func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.is.End()
}
