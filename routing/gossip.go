package routing

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// Gossip finds nodes by gossip (memberlist, which follows Das, Gupta and Motivala, "SWIM", 2002). Messages
// are encrypted and authenticated with a key made from the secret. A node needs the address of only one
// other.
//
// Strangers cost at most mostGossipStreams connections of mostGossipBytes at a time. They are counted and
// reported. Holders of the secret can name up to maxPeers addresses.
type Gossip struct {
	list    *memberlist.Memberlist
	seeds   []string
	looks   int // by Find
	known   names
	reports atomic.Pointer[func(from string, err error)] // for refusals
}

const (
	mostGossipStreams = 64
	mostGossipBytes   = 1 << 20 // of one: a thousand nodes take some 150 KB
	// At each so many looks, a node that is not alone asks the seeds, too. Gossip drops a node that was away for more
	// than half a minute, and so do two halves of a fleet.
	seedsAfter = 30
)

// NewGossip listens on bind, so that other nodes find this node's peer address. seeds are gossip addresses of
// others, which need not run yet. The secret must pass CheckSecret.
func NewGossip(bind, peerAddr, secret string, seeds []string) (*Gossip, error) {
	if secret == "" {
		return nil, errors.New("PEERS is gossip and needs PEER_SECRET, from which the key of gossip is derived")
	}
	if err := CheckSecret(secret); err != nil {
		return nil, err
	}
	// This node itself is no seed: to join oneself succeeds, and finds no other node.
	g := &Gossip{seeds: slices.DeleteFunc(slices.Clone(seeds), func(s string) bool { return s == bind })}
	g.known.refuse = g.refuse
	if err := g.listen(bind, peerAddr, secret); err != nil {
		return nil, fmt.Errorf("the gossip address is %q: %w", bind, err)
	}
	return g, nil
}

// listen joins the gossip on bind, as peerAddr. If it returns an error, it has closed its ports.
func (g *Gossip) listen(bind, peerAddr, secret string) error {
	if err := checkAddr(bind); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(bind)
	n, _ := strconv.Atoi(port)
	c := memberlist.DefaultLANConfig()
	bound, err := net.ResolveIPAddr("ip", host)
	seen := bound
	if err == nil && bound.IP.IsUnspecified() { // behind a NAT, others reach this node by its peer address
		name, _, _ := net.SplitHostPort(peerAddr)
		seen, err = net.ResolveIPAddr("ip", name)
	}
	if err != nil {
		return err
	}
	c.AdvertiseAddr, c.AdvertisePort = seen.IP.String(), n
	c.TCPTimeout = findEvery // a look waits for seeds that do not answer
	logger := log.New(gossipLog{g}, "", 0)
	wires, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
		BindAddrs: []string{bound.IP.String()}, BindPort: n, Logger: logger,
	})
	if err != nil {
		return err
	}
	// The text before the secret gives gossip a key of its own. It is none that anything else makes
	// of the same secret (auth.go).
	key := sha256.Sum256([]byte("sluice gossip " + secret))
	// A gossiping node is named by its peer address, the only thing that others need.
	c.Name = peerAddr
	c.SecretKey = key[:]
	c.Logger = logger
	c.Alive = &g.known
	c.Events = &g.known
	c.Transport = boundStreams(wires, g.refuse)
	g.list, err = memberlist.Create(c)
	if err != nil {
		// The ports are open already, and only this call closes them.
		_ = c.Transport.Shutdown()
	}
	return err
}

// Find implements [Discovery]. It waits for a seed that does not answer for TCPTimeout. It is called by one goroutine.
func (g *Gossip) Find(context.Context) ([]string, error) {
	// Nodes may be started in any order, and be cut off from all others for a while: a node that is
	// alone tries the seeds at each look.
	seeds := g.seeds
	if g.list.NumMembers() > 1 && g.looks%seedsAfter != 0 {
		seeds = nil
	}
	g.looks++
	wrong := make([]error, len(seeds))
	var joins sync.WaitGroup
	for i, seed := range seeds {
		joins.Go(func() {
			// Perhaps it is not there yet; but what cannot be decrypted will not be later.
			if _, err := g.list.Join([]string{seed}); err != nil && strings.Contains(err.Error(), "decrypt") {
				wrong[i] = fmt.Errorf("gossip with %s: %w", seed, errGossip)
			}
		})
	}
	joins.Wait()
	var addrs []string
	for _, m := range g.list.Members() {
		addrs = append(addrs, m.Name)
	}
	return addrs, errors.Join(wrong...)
}

// Close announces the departure and stops listening. It blocks for at most a second.
func (g *Gossip) Close() error {
	return errors.Join(g.list.Leave(time.Second), g.list.Shutdown())
}

// errGossip is a wrong secret, as far as that can be detected.
var errGossip = fmt.Errorf("its gossip cannot be decrypted: %w", ErrSecret)

func (g *Gossip) refuse(from string, err error) {
	if f := g.reports.Load(); f != nil {
		(*f)(from, err)
	}
}

// gossipLog handles memberlist's log, the only place where it reports refusals: lines that name the sender.
type gossipLog struct{ *Gossip }

// mostLine is how much of a line of memberlist's is passed on: it may quote what a
// stranger sent.
const mostLine = 200

// Write implements [io.Writer]. A line is one call.
func (l gossipLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	// The texts are memberlist's own. Where a later version words them otherwise nothing is
	// counted, and nothing else depends on them.
	what, from, ok := strings.Cut(text, " from=")
	what, isError := strings.CutPrefix(what, "[ERR] memberlist: ")
	if !ok || !isError {
		return len(line), nil
	}
	err := errGossip
	if !strings.Contains(what, "decrypt") && !strings.Contains(what, "Decrypt") &&
		!strings.Contains(what, "not encrypted") {
		err = fmt.Errorf("its gossip is invalid: %s", strconv.QuoteToASCII(what[:min(len(what), mostLine)]))
	}
	l.refuse("gossip of "+from[:min(len(from), mostLine)], err)
	return len(line), nil
}

// names are the nodes that are there by gossip. Its methods are called under
// memberlist's lock.
type names struct {
	refuse func(from string, err error)

	mu  sync.Mutex
	all map[string]bool // guarded by mu
}

// NotifyAlive implements [memberlist.AliveDelegate].
func (n *names) NotifyAlive(node *memberlist.Node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	// A node with the secret may name any node, and each name is dialled.
	if checkAddr(node.Name) != nil || !n.all[node.Name] && len(n.all) >= maxPeers {
		err := fmt.Errorf("a node is called %q, or is one too many of %d: %w", node.Name[:min(len(node.Name), maxAddr)],
			maxPeers, errAddr)
		n.refuse("gossip of "+node.Address(), err)
		return err
	}
	return nil
}

// NotifyJoin implements [memberlist.EventDelegate].
func (n *names) NotifyJoin(node *memberlist.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		n.all = map[string]bool{}
	}
	n.all[node.Name] = true
}

// NotifyLeave implements [memberlist.EventDelegate].
func (n *names) NotifyLeave(node *memberlist.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.all, node.Name)
}

// NotifyUpdate implements [memberlist.EventDelegate].
func (n *names) NotifyUpdate(*memberlist.Node) {}

// boundedStreams are memberlist's wires with a bound on what strangers can have it
// read: it reads a whole message, of up to 20 MB, before it decrypts it.
type boundedStreams struct {
	*memberlist.NetTransport
	streams chan net.Conn
	shut    sync.Once
	ended   chan struct{} // no reader takes streams any more
	down    chan struct{} // and none comes in
}

func boundStreams(t *memberlist.NetTransport, refuse func(from string, err error)) *boundedStreams {
	b := &boundedStreams{
		NetTransport: t, streams: make(chan net.Conn), ended: make(chan struct{}),
		down: make(chan struct{}),
	}
	go b.pass(refuse)
	return b
}

// pass hands streams on, at most mostGossipStreams at a time, until none comes any more. The wires go down
// only when all their streams have been taken.
func (b *boundedStreams) pass(refuse func(from string, err error)) {
	room := make(chan struct{}, mostGossipStreams)
	for {
		select {
		case <-b.down:
			return
		case conn := <-b.NetTransport.StreamCh():
			select {
			case room <- struct{}{}:
			default:
				refuse("gossip of "+conn.RemoteAddr().String(),
					fmt.Errorf("there are %d streams already", mostGossipStreams))
				_ = conn.Close()
				continue
			}
			bounded := &boundedStream{Conn: conn, left: mostGossipBytes, free: sync.OnceFunc(func() { <-room })}
			select {
			case b.streams <- bounded:
			// Gossip is closing, and takes no streams any more. The listener's goroutine must not wait for
			// that, because Shutdown waits for the listener.
			case <-b.ended:
				_ = bounded.Close()
			}
		}
	}
}

// StreamCh implements [memberlist.Transport].
func (b *boundedStreams) StreamCh() <-chan net.Conn { return b.streams }

// Shutdown implements [memberlist.Transport]. A list that cannot begin calls it twice.
func (b *boundedStreams) Shutdown() (err error) {
	b.shut.Do(func() {
		close(b.ended)
		// After the listener is down: pass goes on to take its streams until then.
		defer close(b.down)
		err = b.NetTransport.Shutdown()
	})
	return err
}

// boundedStream is a connection that ends after so many bytes.
type boundedStream struct {
	net.Conn
	left int // bytes; one goroutine reads
	free func()
}

// Read implements [net.Conn], within the bound.
func (s *boundedStream) Read(b []byte) (int, error) {
	if s.left <= 0 {
		return 0, fmt.Errorf("more than %d bytes", mostGossipBytes)
	}
	n, err := s.Conn.Read(b[:min(len(b), s.left)])
	s.left -= n
	return n, err
}

// Close implements [net.Conn], and counts once.
func (s *boundedStream) Close() error {
	s.free()
	return s.Conn.Close()
}
