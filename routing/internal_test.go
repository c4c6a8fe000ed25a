package routing

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// What strangers can have gossip do, which real sockets show late or not at all, and bounds that no message shows.

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

// nowhere are wires on which nothing arrives.
type nowhere struct{}

func (nowhere) Dial(string, []byte)       {}
func (nowhere) HangUp(string)             {}
func (nowhere) Send(string, bool, []byte) {}

// unheard is a node that has introduced itself to b:1, which owns keys and never answers.
func unheard(now *instant) *Stepped {
	clock := func() instant { return *now }
	s := NewStepped(SteppedOptions{
		Options: Options{Addr: "a:1"}, Incarnation: 1, Clock: clock, Random: func() float64 { return 0 }, Wires: nowhere{},
		After: func(time.Duration, func()) {}, Local: local.New(10, *now, time.Unix(1_800_000_000, 0)),
	})
	s.Found([]string{"b:1"})
	s.opened(*now, s.members()[0], &wire.Hello{Version: version, Addr: "b:1", Incarnation: 7, Changes: 2})
	s.Pump()
	return s
}

// So many accounts are looked for at a time, each once for all who wait. A search keeps no memory of requests that have
// ended, and ends.
func TestMostFetches(t *testing.T) {
	now := instant(time.Second)
	s := unheard(&now)
	key := func(i int) []byte { return fmt.Append(nil, "key ", i) }
	f := s.fetch(key(0), nil)
	if s.fetch(key(0), nil) != f || f == nil || f.open != 1 {
		t.Errorf("it is looked for twice: %+v", f)
	}
	for i := range 2 * maxFetches {
		s.fetch(key(i), make(bell, 1))
	}
	if n := len(s.fetches); n > maxFetches {
		t.Errorf("%d accounts are looked for", n)
	}
	now = now.Add(fetchFor)
	s.endFetches(now)
	if f.state != fetchAgain || len(s.fetches) > 0 {
		t.Errorf("after %v %d accounts are looked for", fetchFor, len(s.fetches))
	}
}

// The lag of another's clock is the minimum over the messages of the last ten to twenty seconds. A lag below the travel
// time of a message counts as 0, but a clock that is ahead always counts. After a long silence it begins again.
func TestClocksAreCompared(t *testing.T) {
	const ms = time.Millisecond
	var in inbox
	at := instant(time.Second) // also in the first seconds of this node
	for i, c := range []struct {
		after       time.Duration
		later, want time.Duration
	}{
		{0, 30 * ms, 30 * ms},
		{0, 20 * ms, 20 * ms},
		{time.Second, 40 * ms, 20 * ms},
		{compareFor - time.Second, 25 * ms, 20 * ms}, // the first stretch goes on to here
		{1, 50 * ms, 20 * ms},                        // in the next one the last still counts
		{compareFor, 60 * ms, 20 * ms},
		{1, 70 * ms, 50 * ms}, // and now not
		{0, 6 * ms, 6 * ms},
		{0, 5 * ms, 0}, // as a message takes
		{0, 0, 0},
		{0, -1, -1},
		{2 * compareFor, 40 * ms, -1},
		{2*compareFor + 1, 60 * ms, 60 * ms}, // it was silent for so long
	} {
		at = at.Add(c.after)
		if got := in.compare(at, c.later); got != c.want {
			t.Errorf("message %d, %v later than sent: %v, want %v", i, c.later, got, c.want)
		}
	}
}

// Of the addresses that are found, as many are used as there may be nodes, and those that can be dialled.
func TestFoundAddressesAreBounded(t *testing.T) {
	var told string
	n := New(local.New(10, 1, time.Now()), Options{Addr: "a:1", OnPeer: func(_ string, err error) { told = err.Error() }},
		ratelimit.MonotonicClock(), time.Now())
	found := []string{"", "a", "a:b", strings.Repeat("x", 300) + ":1"}
	for i := range maxPeers + 10 {
		found = append(found, fmt.Sprintf("10.0.%d.%d:1", i/250, i%250))
	}
	used := n.usable(found)
	if len(used) != maxPeers || used[0] != "10.0.0.0:1" || n.Stats().RejectedBy["address"] != 14 {
		t.Errorf("%d are used, from %q on, and %v rejected", len(used), used[0], n.Stats().RejectedBy)
	}
	if !strings.Contains(told, "of 1014 addresses found, 1000 are used") {
		t.Error(told)
	}
}
