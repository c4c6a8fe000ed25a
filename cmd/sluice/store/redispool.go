package store

import (
	"context"
	"net"
	"sync"

	"github.com/sluice-gate/sluice/cmd/sluice/store/resp"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// countedDial has the connections that dial makes counted in a pool; nil: not at all.
func countedDial(dial resp.Dial, p *metrics.Pool) resp.Dial {
	if p == nil {
		return dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		p.Made.Add(1)
		p.Open.Add(1)
		return &countedConn{Conn: c, pool: p}, nil
	}
}

// countedConn is one connection of a pool.
type countedConn struct {
	net.Conn
	pool *metrics.Pool
	once sync.Once
}

// Close implements [net.Conn].
func (c *countedConn) Close() error {
	c.once.Do(func() {
		c.pool.Open.Add(-1)
		c.pool.Closed.Add(1)
	})
	return c.Conn.Close()
}
