package routing

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
)

// What strangers can have gossip do, which real sockets show late or not at all.

// Of memberlist's log, only errors caused by a message are reported: with its sender, and whether it could be decrypted.
func TestGossipTellsOfStrangers(t *testing.T) {
	const at = " from=1.2.3.4:5"
	long := strings.Repeat("y", 300)
	for _, c := range []struct {
		line, from, says string
		secret           bool
	}{
		{"[ERR] memberlist: Decrypt packet failed: No installed keys could decrypt the message" + at, "1.2.3.4:5", "", true},
		{"[ERR] memberlist: failed to decrypt remote state" + at + "\n", "1.2.3.4:5", "", true},
		{"[ERR] memberlist: remote state is not encrypted" + at, "1.2.3.4:5", "", true},
		{"[ERR] memberlist: msg type (9) not supported" + at, "1.2.3.4:5", `"msg type (9) not supported"`, false},
		{"[ERR] memberlist: " + long + " from=" + long, long[:200], `"` + long[:200] + `"`, false},
		{"[DEBUG] memberlist: Stream connection" + at, "", "", false},
		{"[ERR] memberlist: nobody is to blame", "", "", false},
		{"[ERR] another: failed" + at, "", "", false},
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
		if strings.TrimPrefix(told, "gossip of ") != c.from {
			t.Errorf("%q is told as being from %q, want %q", c.line, told, c.from)
		}
	}
}

// By gossip a node may be known whose name is an address, up to so many nodes. One that has gone makes room. A name
// without an end takes a bounded part of the log.
func TestGossipedNames(t *testing.T) {
	refused := 0
	n := names{refuse: func(from string, err error) {
		if refused++; from != "gossip of 1.2.3.4:5" || !errors.Is(err, errAddr) || len(err.Error()) > maxAddr+200 {
			t.Errorf("told of %s: %v", from, err)
		}
	}}
	node := func(name string) *memberlist.Node {
		return &memberlist.Node{Name: name, Addr: net.IPv4(1, 2, 3, 4), Port: 5}
	}
	expect := func(name string, ok bool) {
		t.Helper()
		before := refused
		if err := n.NotifyAlive(node(name)); (err == nil) != ok || (refused == before) != ok {
			t.Errorf("%q is let in %v: %v", name, !ok, err)
		}
	}
	long := strings.Repeat("h", maxAddr-2) + ":1"
	for name, ok := range map[string]bool{
		"10.0.0.1:1": true, "nonsense": false, ":1": false, long: true, "h" + long: false,
		strings.Repeat("h", 10_000) + ":1": false,
	} {
		expect(name, ok)
	}
	for i := range maxPeers {
		n.NotifyJoin(node(fmt.Sprint("10.0.0.1:", i)))
	}
	expect("10.0.0.1:7", true) // it is known
	expect("10.0.0.2:1", false)
	n.NotifyLeave(node("10.0.0.1:7"))
	expect("10.0.0.2:1", true)
}

// endless is a connection on which a stranger sends for ever.
type endless struct{ net.Conn }

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// Strangers have 64 streams at a time, of a megabyte each: who comes then is put off, until one has gone. They do not
// delay a node that ends, though their messages are not read.
func TestGossipStreamsAreBounded(t *testing.T) {
	wires, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
		BindAddrs: []string{"127.0.0.1"}, Logger: log.New(io.Discard, "", 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan string, 1)
	b := boundStreams(wires, func(from string, _ error) { refused <- from })
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", wires.GetAutoBindPort()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	var first *boundedStream
	for range 64 {
		dial()
		first = (<-b.StreamCh()).(*boundedStream)
	}
	late := dial()
	if from := <-refused; from != "gossip of "+late.LocalAddr().String() {
		t.Errorf("told of %s", from)
	}
	real := first.Conn
	first.Conn = endless{}
	if n, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{first}, make([]byte, 1000)); n != 1<<20 || err == nil {
		t.Errorf("%d bytes of one stream were read, %v", n, err)
	}
	first.Conn = real
	first.Close()
	dial()
	if conn := <-b.StreamCh(); conn == nil {
		t.Error("there is room")
	}
	dial() // which no reader takes
	if err := b.Shutdown(); err != nil {
		t.Error(err)
	}
	<-b.ended
	<-b.down
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
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(free.Addr().String())
		free.Close()
		g, err := NewGossip(net.JoinHostPort(c.bind, port), c.peer, "sixteen bytes or more", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = g.Close() })
		if at, want := g.list.LocalNode().Address(), net.JoinHostPort(c.host, port); at != want {
			t.Errorf("others gossip with %s, want %s", at, want)
		}
	}
}
