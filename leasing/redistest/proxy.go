package redistest

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy stands between clients and a server, and disturbs their traffic.
type Proxy struct {
	Addr     string
	target   string
	listener net.Listener
	ended    chan struct{}

	mu      sync.Mutex
	delay   time.Duration // guarded by mu; of each reply
	garbage bool          // guarded by mu; instead of replies
	refuse  bool          // closes connections
	swallow int           // number of replies to lose, with their connection
	conns   map[net.Conn]bool
}

// NewProxy starts a proxy that ends with the test.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{
		Addr: l.Addr().String(), target: target, listener: l, ended: make(chan struct{}),
		conns: map[net.Conn]bool{},
	}
	var wg sync.WaitGroup
	wg.Go(func() { p.accept(&wg) })
	tb.Cleanup(func() {
		close(p.ended)
		l.Close()
		p.Cut()
		wg.Wait()
	})
	return p
}

// Delay delays every reply.
func (p *Proxy) Delay(d time.Duration) { p.set(func() { p.delay = d }) }

// Garbage answers with invalid bytes instead.
func (p *Proxy) Garbage(on bool) { p.set(func() { p.garbage = on }) }

// Refuse closes new connections at once.
func (p *Proxy) Refuse(on bool) { p.set(func() { p.refuse = on }) }

// Swallow loses the next n replies after the server has done the work.
func (p *Proxy) Swallow(n int) { p.set(func() { p.swallow = n }) }

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.set(func() {
		for c := range p.conns {
			c.Close()
		}
	})
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *Proxy) accept(wg *sync.WaitGroup) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		refuse := false
		p.set(func() {
			refuse = p.refuse || err != nil
			if !refuse {
				p.conns[client], p.conns[server] = true, true
			}
		})
		if refuse {
			client.Close()
			if server != nil {
				server.Close()
			}
			continue
		}
		wg.Go(func() {
			_, _ = io.Copy(server, client)
			server.Close()
		})
		wg.Go(func() {
			p.replies(client, server)
			p.set(func() { delete(p.conns, client); delete(p.conns, server) })
		})
	}
}

func (p *Proxy) replies(client, server net.Conn) {
	defer client.Close()
	defer server.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		var delay time.Duration
		garbage, lose := false, false
		p.set(func() {
			delay, garbage = p.delay, p.garbage
			lose = p.swallow > 0
			if lose {
				p.swallow--
			}
		})
		select {
		case <-time.After(delay):
		case <-p.ended:
			return
		}
		switch {
		case lose:
			return
		case garbage:
			_, err = client.Write([]byte("*3\r\n:1\r\n$4\r\nevil\r\n:-7\r\n"))
		default:
			_, err = client.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}
