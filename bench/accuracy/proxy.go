package accuracy

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// proxy is a wire that can be slow, or cut. It is safe for concurrent use.
type proxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup
	mu       sync.Mutex
	delay    time.Duration     // guarded by mu: of what comes back
	silent   bool              // guarded by mu: nothing gets through, either way
	conns    map[net.Conn]bool // guarded by mu
}

// newProxy listens at address, "127.0.0.1:0" for any port.
func newProxy(address, target string) (*proxy, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("a wire to %s: %w", target, err)
	}
	p := &proxy{target: target, listener: l, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// slow has answers come so much later.
func (p *proxy) slow(d time.Duration) { p.set(func() { p.delay = d }) }

// part cuts the wire as a firewall does, by silence, or mends it; connections
// that were cut stay dead.
func (p *proxy) part(on bool) {
	p.set(func() {
		p.silent = on
		if !on {
			p.closeAll()
		}
	})
}

// close ends it, and waits until it has.
func (p *proxy) close() {
	p.listener.Close()
	p.set(p.closeAll)
	p.wg.Wait()
}

// closeAll needs mu.
func (p *proxy) closeAll() {
	for c := range p.conns {
		c.Close()
	}
}

func (p *proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.set(func() { p.conns[client], p.conns[server] = true, true })
		p.wg.Go(func() { p.carry(server, client, false) })
		p.wg.Go(func() { p.carry(client, server, true) })
	}
}

func (p *proxy) carry(to, from net.Conn, back bool) {
	defer func() {
		to.Close()
		from.Close()
		p.set(func() { delete(p.conns, from) })
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		delay, silent := time.Duration(0), false
		p.set(func() { delay, silent = p.delay, p.silent })
		if silent {
			continue // it is lost
		}
		if back && delay > 0 {
			time.Sleep(delay)
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
