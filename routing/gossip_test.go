package routing

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
)

// Of memberlist's log, only errors caused by a message are reported: with its sender, and whether it could be
// decrypted.
func TestGossipTellsOfStrangers(t *testing.T) {
	for _, c := range []struct {
		line, from string
		secret     bool
		says       string
	}{
		{"[ERR] memberlist: Decrypt packet failed: No installed keys could decrypt the message from=1.2.3.4:5", "gossip of 1.2.3.4:5", true, ""},
		{"[ERR] memberlist: Decrypt failed from=1.2.3.4:5\n", "gossip of 1.2.3.4:5", true, ""},
		{"[ERR] memberlist: failed to decrypt remote state from=1.2.3.4:5", "gossip of 1.2.3.4:5", true, ""},
		{"[ERR] memberlist: remote state is not encrypted from=1.2.3.4:5", "gossip of 1.2.3.4:5", true, ""},
		{"[ERR] memberlist: msg type (9) not supported from=1.2.3.4:5", "gossip of 1.2.3.4:5", false, `"msg type (9) not supported"`},
		{"[ERR] memberlist: " + strings.Repeat("x", 300) + " from=" + strings.Repeat("y", 300), "gossip of " + strings.Repeat("y", 200), false, `"` + strings.Repeat("x", 200) + `"`},
		{"[DEBUG] memberlist: Stream connection from=1.2.3.4:5", "", false, ""},
		{"[ERR] memberlist: nobody is to blame", "", false, ""},
		{"[ERR] another: failed from=1.2.3.4:5", "", false, ""},
	} {
		told := ""
		tell := func(from string, err error) {
			if told = from; errors.Is(err, ErrSecret) != c.secret || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q is told as %v", c.line, err)
			}
		}
		var g Gossip
		if n, err := (gossipLog{&g}).Write([]byte(c.line)); n != len(c.line) || err != nil { // there is no receiver yet
			t.Errorf("%d bytes of %d were written, %v", n, len(c.line), err)
		}
		g.reports.Store(&tell)
		_, _ = gossipLog{&g}.Write([]byte(c.line))
		if told != c.from {
			t.Errorf("%q is told as being from %q, want %q", c.line, told, c.from)
		}
	}
}

// By gossip a node may be known whose name is an address, up to so many nodes. One that has gone makes room.
func TestGossipedNames(t *testing.T) {
	refused := 0
	n := names{refuse: func(from string, err error) {
		if refused++; from != "gossip of 1.2.3.4:5" || !errors.Is(err, errAddr) {
			t.Errorf("told of %s: %v", from, err)
		}
	}}
	node := func(name string) *memberlist.Node {
		return &memberlist.Node{Name: name, Addr: net.IPv4(1, 2, 3, 4), Port: 5}
	}
	long := strings.Repeat("h", maxAddr-2) + ":1"
	expect := func(name string, ok bool) {
		t.Helper()
		before := refused
		err := n.NotifyAlive(node(name))
		if (err == nil) != ok || (refused == before) != ok {
			t.Errorf("%q is let in %v: %v", name, !ok, err)
		}
		if err != nil && len(err.Error()) > maxAddr+200 {
			t.Errorf("%d bytes of log for a name that somebody made up", len(err.Error()))
		}
	}
	expect("10.0.0.1:1", true)
	expect("nonsense", false)
	expect(":1", false)
	expect(long, true)
	expect("h"+long, false)
	expect(strings.Repeat("h", 10_000)+":1", false)
	for i := range maxPeers {
		name := fmt.Sprint("10.0.0.1:", i)
		expect(name, true)
		n.NotifyJoin(node(name))
	}
	expect("10.0.0.1:7", true) // it is known
	expect("10.0.0.2:1", false)
	n.NotifyLeave(node("10.0.0.1:7"))
	expect("10.0.0.2:1", true)
}

// endless is a connection on which a stranger sends for ever.
type endless struct {
	net.Conn
	closed int
}

func (c *endless) Read(b []byte) (int, error) { return len(b), nil }
func (c *endless) Close() error               { c.closed++; return nil }

// Of a stranger's stream at most a megabyte is read.
func TestGossipStreamsAreBounded(t *testing.T) {
	freed, conn := 0, &endless{}
	s := &boundedStream{Conn: conn, left: mostGossipBytes, free: func() { freed++ }}
	n, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{s}, make([]byte, 1000))
	if n != 1<<20 || err == nil {
		t.Errorf("%d bytes were read, %v", n, err)
	}
	if n, err := s.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d more, %v", n, err)
	}
	if err := s.Close(); err != nil || conn.closed != 1 || freed != 1 {
		t.Errorf("closed %d times, freed %d times: %v", conn.closed, freed, err)
	}
}

// The address for gossip must be the node's own. An error names the wrong setting.
func TestGossipNeedsAnAddress(t *testing.T) {
	l := listens(t)
	for _, c := range []struct{ bind, secret, says string }{
		{"127.0.0.1:7946", "", "PEER_SECRET"},
		{"127.0.0.1:7946", "short", "PEER_SECRET"},
		{"nonsense", known, `the gossip address is "nonsense": `},
		{"127.0.0.1:x", known, `the gossip address is "127.0.0.1:x": `},
		{"127.0.0.1:70000", known, `the gossip address is "127.0.0.1:70000": `},
		{l.Addr().String(), known, `the gossip address is "` + l.Addr().String() + `": `},
	} {
		g, err := NewGossip(c.bind, "10.0.0.1:1", c.secret, nil)
		if g != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v", c.bind, err)
			if g != nil {
				_ = g.Close()
			}
		}
	}
}

// A node that gossips is found where it says, looks for others and not for itself, and leaves its port when it is
// closed. Seeds that hang keep it from the ring for a second, not for ten each.
func TestGossipListens(t *testing.T) {
	at := freeAddrs(t, 1)[0]
	hung := newRingWorld(t, 4).addrs // their connections are not taken
	g, err := NewGossip(at, "10.0.0.1:1", known, append(hung, at))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(g.seeds, hung) {
		t.Errorf("it looks for %v", g.seeds)
	}
	began := time.Now()
	if found, err := g.Find(t.Context()); err != nil || len(found) != 1 || found[0] != "10.0.0.1:1" || time.Since(began) > 5*time.Second {
		t.Errorf("%v, %v, after %v", found, err, time.Since(began))
	}
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatalf("it does not listen: %v", err)
	}
	conn.Close()
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatalf("it listens still: %v", err)
	}
	l.Close()
}

// A node behind a NAT listens on all addresses. Others reach it by the address that PEER_ADDR has, or by that of its
// name.
func TestGossipIsReachedAtThePeersAddress(t *testing.T) {
	name, err := net.ResolveIPAddr("ip", "localhost")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ bind, peer, host string }{
		{"0.0.0.0", "192.0.2.1:8082", "192.0.2.1"},
		{"::", "[2001:db8::1]:8082", "2001:db8::1"},
		{"localhost", "localhost:8082", name.String()},
	} {
		_, port, _ := net.SplitHostPort(freeAddrs(t, 1)[0])
		g := gossips(t, net.JoinHostPort(c.bind, port), c.peer)
		if at, want := g.list.LocalNode().Address(), net.JoinHostPort(c.host, port); at != want {
			t.Errorf("others gossip with %s, want %s", at, want)
		}
	}
}

// gossips is a node that gossips until the test ends, and has the secret.
func gossips(t *testing.T, bind, peerAddr string, seeds ...string) *Gossip {
	t.Helper()
	g, err := NewGossip(bind, peerAddr, known, seeds)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// listens is a listener on a free port, until the test ends.
func listens(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// freeAddrs are that many free addresses.
func freeAddrs(t *testing.T, n int) (addrs []string) {
	t.Helper()
	ports, err := freeport.Find(n)
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range ports {
		addrs = append(addrs, "127.0.0.1:"+port)
	}
	return addrs
}

// A node that is alone looks for its seeds each time; one that has found another leaves them alone.
func TestGossipLooksForSeedsWhileAlone(t *testing.T) {
	l := listens(t)
	looked := make(chan bool, 10)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			looked <- true // before Find can see it
			conn.Close()
		}
	}()
	free := freeAddrs(t, 2)
	at := free[0]
	g := gossips(t, free[1], "10.0.0.1:1", l.Addr().String(), at)
	for alone := range 2 {
		if found, err := g.Find(t.Context()); err != nil || len(found) != 1 || len(looked) != alone+1 {
			t.Errorf("%v, %v: it has looked %d times", found, err, len(looked))
		}
	}
	gossips(t, at, "10.0.0.2:1")
	for range 2 { // it finds the other, and leaves the seeds alone
		if found, err := g.Find(t.Context()); err != nil || len(found) != 2 || len(looked) != 3 {
			t.Errorf("%v, %v: it has looked %d times", found, err, len(looked))
		}
	}
}

// strangersAt is where strangers dial, and what bounds their streams.
func strangersAt(t *testing.T, refuse func(from string, err error)) (b *boundedStreams, dial func() net.Conn) {
	wires, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{"127.0.0.1"}, Logger: log.New(io.Discard, "", 0)})
	if err != nil {
		t.Fatal(err)
	}
	return boundStreams(wires, refuse), func() net.Conn {
		conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", wires.GetAutoBindPort()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

// Strangers that connect while a node ends do not delay it: it closes, though their messages are not read.
func TestGossipClosesWithStrangersAtTheDoor(t *testing.T) {
	b, dial := strangersAt(t, func(string, error) {})
	for range 3 {
		dial()
	}
	if err := b.Shutdown(); err != nil {
		t.Error(err)
	}
	<-b.ended
	<-b.down
}

// Strangers have 64 streams at a time, of a megabyte each: who comes then is put off, until one has gone.
func TestGossipStreamsAtATime(t *testing.T) {
	refused := make(chan string, 1)
	b, dial := strangersAt(t, func(from string, _ error) { refused <- from })
	var first net.Conn
	for i := range 64 {
		dial()
		conn := <-b.StreamCh()
		if left := conn.(*boundedStream).left; left != 1<<20 {
			t.Errorf("stream %d may send %d bytes", i, left)
		}
		if first == nil {
			first = conn
		}
	}
	late := dial()
	if from := <-refused; from != "gossip of "+late.LocalAddr().String() {
		t.Errorf("told of %s", from)
	}
	first.Close()
	dial()
	if conn := <-b.StreamCh(); conn == nil {
		t.Error("there is room")
	}
	if err := b.Shutdown(); err != nil {
		t.Error(err)
	}
}
