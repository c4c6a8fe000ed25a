package routing

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// known is the secret of the tests' nodes.
const known = "sixteen bytes or more"

// dialTo opens a stream to an address; it ends with the test.
func dialTo(t *testing.T, addr string, creds credentials.TransportCredentials) callerStream {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(func() { cancel(); conn.Close() })
	s, err := wire.NewPeerClient(conn).Exchange(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// meet introduces a peer to a node, and continues until a ping is answered.
func (n *node) meet(t *testing.T, h *wire.Hello, secret string) (callerStream, error) {
	t.Helper()
	client, _ := anonymous()
	s := dialTo(t, n.addr, client)
	welcome, err := say(s, &wire.Frame{Hello: h})
	if err != nil {
		return nil, err
	}
	bound, err := binding(s.Context())
	if err != nil {
		return nil, err
	}
	f, err := say(s, &wire.Frame{Proof: prove(secret, "caller", bound, h, welcome.GetWelcome())})
	if err != nil {
		return nil, err
	}
	if want := prove(secret, "called", bound, h, welcome.GetWelcome()); string(f.GetProof()) != string(want) {
		t.Error("the called node has not proved at all")
	}
	f, err = say(s, &wire.Frame{Ping: 7})
	if err == nil && (len(f.GetReplies()) != 1 || f.GetReplies()[0].GetId() != 7) {
		t.Errorf("a ping is answered by %v", f)
	}
	return s, err
}

func say(s callerStream, f *wire.Frame) (*wire.Frame, error) {
	if err := s.Send(f); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return s.Recv()
}

// between is an attacker between two nodes: it accepts connections for one in the place of the other, and
// relays their messages.
type between struct {
	wire.UnimplementedPeerServer
	*testing.T
	to     string
	client credentials.TransportCredentials
	also   *wire.Frame // said when the introduction is over
	heard  atomic.Int64
}

// Exchange passes frames on, in both directions.
func (b *between) Exchange(from calledStream) error {
	to := dialTo(b.T, b.to, b.client)
	go func() {
		for i := 0; ; i++ {
			f, err := from.Recv()
			if err != nil {
				return
			}
			_ = to.Send(f)
			if i == 1 {
				_ = to.Send(b.also)
			}
		}
	}()
	for {
		f, err := to.Recv()
		if err != nil {
			return err
		}
		if f.GetWelcome() == nil {
			b.heard.Add(1)
		}
		if err := from.Send(f); err != nil {
			return err
		}
	}
}

// relayed makes two nodes, and the second has the address of another process. They do not run yet.
func relayed(t *testing.T, secret string, client, server credentials.TransportCredentials) (w *ringWorld, a *node, victim *node, run func()) {
	w = newRingWorld(t, 3)
	w.addrs = w.addrs[:2] // the third listener is where the second node really is
	nodes, listeners := []*node{}, []net.Listener{w.lis[0], w.lis[2]}
	for i := range 2 {
		nodes = append(nodes, w.make(i, secret, client))
	}
	return w, nodes[0], nodes[1], func() {
		for i, n := range nodes {
			w.run(n, listeners[i], server)
		}
	}
}

// An attacker that relays the messages of two nodes is refused by both, with certificates and without. A relay
// of bytes that it cannot read does no harm.
func TestRelayIsRefused(t *testing.T) {
	authority := redistest.NewAuthority(t)
	certified, certifiedServer := peerOf(authority)
	insider, insiderServer := peerOf(authority) // has a certificate, not the secret
	plain, plainServer := anonymous()
	for _, c := range []struct {
		name                             string
		client, server, relay, relayedAs credentials.TransportCredentials
	}{
		{"without certificates", nil, nil, plain, plainServer},
		{"with certificates", certified, certifiedServer, insider, insiderServer},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, a, victim, run := relayed(t, known, c.client, c.server)
			refund := &wire.Ask{Id: 9, Key: keyOf(1), Cost: 10, Kind: uint32(ratelimit.Refund), Rule: ruleBytes(routed(10))}
			b := &between{T: t, to: w.lis[2].Addr().String(), client: c.relay, also: &wire.Frame{Asks: []*wire.Ask{refund}}}
			s := grpc.NewServer(grpc.Creds(c.relayedAs))
			wire.RegisterPeerServer(s, b)
			go func() { _ = s.Serve(w.lis[1]) }()
			t.Cleanup(s.Stop)
			run()
			w.eventually("the victim refuses", func() bool { return victim.Stats().RejectedBy["secret"] >= 2 })
			if m := len(a.Stats().Members) + len(victim.Stats().Members); m > 2 {
				t.Errorf("they are in one ring: %v, %v", a.Stats().Members, victim.Stats().Members)
			}
			if b.heard.Load() > 0 || victim.Stats().Received > 0 {
				t.Error("the one in between was answered")
			}
		})
	}
	t.Run("bytes", func(t *testing.T) {
		w, a, victim, run := relayed(t, known, nil, nil)
		go func() {
			for {
				from, err := w.lis[1].Accept()
				if err != nil {
					return
				}
				to, err := net.Dial("tcp", w.lis[2].Addr().String())
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(to, from); to.Close() }()
				go func() { _, _ = io.Copy(from, to); from.Close() }()
			}
		}()
		run()
		w.agree(a, victim)
	})
}

// What was proved in one connection is worth nothing in another, and what a node
// proves as caller nothing when it is said back to it.
func TestProofsAreNotPlayedAgain(t *testing.T) {
	w := newRingWorld(t, 3)
	n := w.start(0, known)
	client, server := anonymous()
	// Of a good introduction, what was said.
	hello := &wire.Hello{Version: version, Addr: w.addrs[2], Nonce: newNonce(), Incarnation: 7}
	first := dialTo(t, n.addr, client)
	f, err := say(first, &wire.Frame{Hello: hello})
	if err != nil {
		t.Fatal(err)
	}
	bound, err := binding(first.Context())
	if err != nil {
		t.Fatal(err)
	}
	proof := prove(known, "caller", bound, hello, f.GetWelcome())
	if f, err = say(first, &wire.Frame{Proof: proof}); err != nil {
		t.Fatal(err)
	}
	for what, p := range map[string][]byte{"the caller's": proof, "the called one's": f.GetProof(), "none": nil} {
		again := dialTo(t, n.addr, client)
		if _, err := say(again, &wire.Frame{Hello: hello}); err != nil {
			t.Fatal(err)
		}
		if f, err := say(again, &wire.Frame{Proof: p}); err == nil {
			t.Errorf("%s proof was taken again: %v", what, f)
		}
	}
	// The node dials a stranger, who returns the node's own proof.
	mirror := &reflector{t: t, to: n.addr, own: w.addrs[1], client: client, done: make(chan error, 100)}
	s := grpc.NewServer(grpc.Creds(server))
	wire.RegisterPeerServer(s, mirror)
	go func() { _ = s.Serve(w.lis[1]) }()
	t.Cleanup(s.Stop)
	if err := <-mirror.done; err == nil {
		t.Error("a node took its own proof for somebody's")
	}
	w.eventually("it has refused the reflected proof", func() bool { return n.Stats().RejectedBy["secret"] >= 5 })
	if got := n.Stats().Members; len(got) > 1 {
		t.Errorf("in the ring: %v", got)
	}
}

// reflector has a node's own proof said back to it, as the called one's proof and as a caller's.
type reflector struct {
	wire.UnimplementedPeerServer
	t       *testing.T
	to, own string
	client  credentials.TransportCredentials
	done    chan error
}

// Exchange reflects.
func (r *reflector) Exchange(from calledStream) error {
	if _, err := from.Recv(); err != nil {
		return err
	}
	back := dialTo(r.t, r.to, r.client)
	f, err := say(back, &wire.Frame{Hello: &wire.Hello{Version: version, Addr: r.own, Nonce: newNonce(), Incarnation: 7}})
	if err != nil {
		return err
	}
	w := f.GetWelcome()
	w.Addr = r.own
	_ = from.Send(&wire.Frame{Welcome: w})
	f, err = from.Recv()
	if err != nil {
		return err
	}
	_, err = say(back, &wire.Frame{Proof: f.GetProof()})
	r.done <- err
	_ = from.Send(&wire.Frame{Proof: f.GetProof()})
	<-from.Context().Done()
	return nil
}

// Everything in an introduction is in its proof, whatever is added to it.
func TestProofCoversAll(t *testing.T) {
	say := func() *wire.Hello {
		return &wire.Hello{Version: 3, Addr: "a:1", Nonce: make([]byte, 16), Incarnation: 5}
	}
	was := string(prove(known, "caller", []byte("connection"), say(), say()))
	differs := func(what string, secret, role, binding string, caller, called *wire.Hello) {
		if was == string(prove(secret, role, []byte(binding), caller, called)) {
			t.Errorf("%s is not in the proof", what)
		}
	}
	differs("the secret", known+"x", "caller", "connection", say(), say())
	differs("the role", known, "called", "connection", say(), say())
	differs("the connection", known, "caller", "connectioN", say(), say())
	fields := say().ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		for side := range 2 {
			both := [2]*wire.Hello{say(), say()}
			change(both[side].ProtoReflect(), fields.Get(i))
			differs(fmt.Sprintf("%s of side %d", fields.Get(i).Name(), side), known, "caller", "connection", both[0], both[1])
		}
	}
}

func change(m protoreflect.Message, f protoreflect.FieldDescriptor) {
	switch v := m.Get(f); f.Kind() {
	case protoreflect.Uint32Kind:
		m.Set(f, protoreflect.ValueOfUint32(uint32(v.Uint())+1))
	case protoreflect.Fixed64Kind, protoreflect.Uint64Kind:
		m.Set(f, protoreflect.ValueOfUint64(v.Uint()+1))
	case protoreflect.StringKind:
		m.Set(f, protoreflect.ValueOfString(v.String()+"x"))
	case protoreflect.BytesKind:
		m.Set(f, protoreflect.ValueOfBytes(append(v.Bytes(), 1)))
	case protoreflect.BoolKind:
		m.Set(f, protoreflect.ValueOfBool(!v.Bool()))
	default:
		panic("a kind of field that this test does not know")
	}
}

// A connection without TLS, or with what is no TLS, is turned away and counted. One that ends in its handshake is not:
// nothing that was said there was wrong.
func TestPlainConnectionsAreTurnedAway(t *testing.T) {
	w := newRingWorld(t, 1)
	n := w.start(0, known)
	near, far := net.Pipe()
	_, credentials := anonymous()
	d := &door{TransportCredentials: credentials, refused: func(from string, kind rejection, err error) { t.Error(from, kind, err) }}
	go func() {
		_, _ = io.WriteString(near, "\x16\x03\x01")
		near.Close()
	}()
	if _, _, err := d.ServerHandshake(far); !hungUp(err) {
		t.Errorf("a handshake that was cut off: %v", err)
	}
	for what, hello := range map[string]string{"plaintext": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "tls": "\x16\x03\x01\x00\x05hello"} {
		conn, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, hello); err != nil {
			t.Fatal(err)
		}
		w.eventually(what+" is counted", func() bool { return n.Stats().RejectedBy[what] == 1 })
		told := <-n.errs
		if !strings.Contains(told.Error(), "TLS") || !strings.HasPrefix(told.Error(), conn.LocalAddr().String()+": ") {
			t.Errorf("%s: %v", what, told)
		}
	}
	old := &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // it is what is refused
	if conn, err := tls.Dial("tcp", n.addr, old); err == nil {
		conn.Close()
		t.Error("TLS 1.2 was taken, whose exporter binds nothing")
	}
}

// Nodes of two versions refuse each other, in both directions, with the reason and a remedy.
func TestOtherVersionsAreRefused(t *testing.T) {
	w := newRingWorld(t, 2)
	n := w.start(0, known)
	for _, other := range []uint32{0, version - 1, version + 1} {
		_, err := n.meet(t, &wire.Hello{Version: other, Addr: w.addrs[1], Nonce: newNonce(), Incarnation: 7}, known)
		says := fmt.Sprintf("it speaks version %d, and this node version %d", other, version)
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "docs/guides/upgrading.md") {
			t.Errorf("version %d is told %v", other, err)
		}
	}
	old := grpc.NewServer(grpc.Creds(n.served))
	wire.RegisterPeerServer(old, &otherVersion{addr: w.addrs[1]})
	go func() { _ = old.Serve(w.lis[1]) }()
	t.Cleanup(old.Stop)
	w.eventually("it complains of the node that it has called", func() bool {
		select {
		case err := <-n.errs:
			return errors.Is(err, errVersion)
		default:
			return false
		}
	})
	if slices.Contains(n.Stats().Members, w.addrs[1]) {
		t.Errorf("it is in a ring with %v", n.Stats().Members)
	}
}

// otherVersion is a node that speaks the version before.
type otherVersion struct {
	wire.UnimplementedPeerServer
	addr string
}

// Exchange is called by the new node.
func (o *otherVersion) Exchange(s calledStream) error {
	if _, err := s.Recv(); err != nil {
		return err
	}
	_ = s.Send(&wire.Frame{Welcome: &wire.Hello{
		Version: version - 1, Addr: o.addr, Nonce: newNonce(), Incarnation: 77,
	}})
	<-s.Context().Done()
	return nil
}

// A secret has a least length, and the error says how to make one.
func TestSecretHasALeastLength(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Addr: "a:1", Secret: "fifteen bytes.."}, "openssl rand"},
		{Options{Addr: "a:1"}, "PEER_SECRET has 0 bytes"},
		{Options{Addr: "a:1", Secret: "short", TLS: insecure.NewCredentials()}, "PEER_SECRET has 5 bytes"},
		{Options{Addr: "a", Secret: known}, `PEER_ADDR is "a"`},
		{Options{Addr: "a:1", Secret: known}, ""},
		{Options{Addr: "a:1", TLS: insecure.NewCredentials()}, ""},
	} {
		switch err := c.o.Validate(); {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", c.o, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}

// Nodes that are found, or introduce themselves, are bounded, and have addresses that can be dialled.
func TestFoundAddressesAreBounded(t *testing.T) {
	w := newRingWorld(t, 1)
	n := w.make(0, known, nil)
	found := []string{"", "a", "a:b", strings.Repeat("x", 300) + ":1"}
	for i := range maxPeers + 10 {
		found = append(found, fmt.Sprintf("10.0.%d.%d:1", i/250, i%250))
	}
	if got := n.usable(found); len(got) != maxPeers || got[0] != "10.0.0.0:1" {
		t.Errorf("%d are used, from %q on", len(got), got[0])
	}
	if got := n.Stats().RejectedBy["address"]; got != 14 {
		t.Errorf("%d are counted, not 14", got)
	}
	if err := <-n.errs; !strings.Contains(err.Error(), "of 1014 addresses found, 1000 are used") {
		t.Error(err)
	}
	n.driver = quiet{}
	n.discovered(n.clock(), found[4:])
	n.applyHello(n.clock(), &wire.Hello{Version: version, Addr: "x:1", Incarnation: 7})
	if len(n.members) != maxPeers || n.members["x:1"] != nil {
		t.Errorf("%d nodes are dialled", len(n.members))
	}
}

// A wrong secret in gossip is counted, and told of with the address it came from. So is what is no gossip at all, and a
// name that is no address, also with the secret.
func TestWrongGossipIsCounted(t *testing.T) {
	w := newRingWorld(t, 1)
	free := freeAddrs(t, 2)
	at := free[0]
	good := gossips(t, at, "10.0.0.1:1", at)
	told := make(chan string, 100)
	o := Options{Addr: w.addrs[0], Discovery: good, Secret: known, OnPeer: func(addr string, err error) {
		select {
		case told <- fmt.Sprint(addr, ": ", err, errors.Is(err, ErrSecret)):
		default:
		}
	}}
	n := New(local.New(10, w.clock(), w.wall), o, w.clock, w.wall)
	bad, err := NewGossip(free[1], "10.0.0.2:1", "another-secret-of-16", []string{at})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bad.Close() })
	if _, err := bad.Find(context.Background()); !errors.Is(err, ErrSecret) || !strings.HasPrefix(err.Error(), "gossip with "+at+": ") {
		t.Errorf("the one who has it wrong is not told: %v", err)
	}
	w.eventually("a wrong secret is counted", func() bool { return n.Stats().RejectedBy["gossip"] > 0 })
	if got := <-told; !strings.HasPrefix(got, "gossip of 127.0.0.1:") || !strings.HasSuffix(got, "true") {
		t.Error(got)
	}
	before := n.Stats().RejectedBy["gossip"]
	udp, err := net.Dial("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	_, _ = udp.Write([]byte("something else that is long enough to be looked at, and is no gossip"))
	w.eventually("garbage is counted", func() bool { return n.Stats().RejectedBy["gossip"] > before })
	key := sha256.Sum256([]byte("sluice gossip " + known))
	c := memberlist.DefaultLANConfig()
	c.Name, c.BindAddr, c.BindPort, c.SecretKey, c.LogOutput = "nonsense", "127.0.0.1", 0, key[:], io.Discard
	named, err := memberlist.Create(c)
	if err != nil {
		t.Fatal(err)
	}
	defer named.Shutdown()
	if _, err := named.Join([]string{at}); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(<-told, errAddr.Error()) { // other errors may come before
	}
	good.known.mu.Lock()
	if len(good.known.all) != 1 || !good.known.all["10.0.0.1:1"] {
		t.Errorf("%v are there", good.known.all)
	}
	good.known.mu.Unlock()
	if addrs, _ := good.Find(context.Background()); len(addrs) != 1 {
		t.Errorf("found %v", addrs)
	}
}

// The certificate that a node makes for itself says nothing of it.
func TestAnonymousCertificateSaysNothing(t *testing.T) {
	_, server := anonymous()
	client, there := net.Pipe()
	go func() { _, _, _ = server.ServerHandshake(there) }()
	c := tls.Client(client, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}) //nolint:gosec // it is what is looked at
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	cert := c.ConnectionState().PeerCertificates[0]
	if cert.Subject.String() != "" || len(cert.DNSNames)+len(cert.IPAddresses) > 0 {
		t.Errorf("it says %v", cert.Subject)
	}
}

// A peer whose packets are dropped, from the start or later, is reported, and not as a call that this node has ended:
// such errors are not logged. It is dialled again also while more waits to be sent than a connection takes.
func TestPeersBehindAFirewallAreReported(t *testing.T) {
	w := newRingWorld(t, 3) // no node answers at the last address
	inner := listens(t)
	n, peer := w.make(0, known, nil), w.make(1, known, nil)
	w.run(peer, inner, nil)
	dropped := make(chan struct{})
	pass := func(to, from net.Conn) {
		for b := make([]byte, 64<<10); ; {
			k, err := from.Read(b)
			select {
			case <-dropped: // both ends stay open
				return
			default:
			}
			if _, failed := to.Write(b[:k]); err != nil || failed != nil {
				to.Close()
				return
			}
		}
	}
	go func() {
		for outer, err := w.lis[1].Accept(); err == nil; outer, err = w.lis[1].Accept() {
			t.Cleanup(func() { outer.Close() })
			if through, err := net.Dial("tcp", inner.Addr().String()); err == nil {
				t.Cleanup(func() { through.Close() })
				go pass(through, outer)
				go pass(outer, through)
			}
		}
	}()
	w.run(n, w.lis[0], nil)
	told := func(addr string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; {
			switch err := <-n.errs; {
			case time.Now().After(end): // errors of the last address go on
				t.Fatal("not told of ", addr)
			case !strings.HasPrefix(err.Error(), addr):
			case errors.Is(err, errSilent) && !strings.Contains(err.Error(), context.Canceled.Error()):
				return
			default:
				t.Fatalf("told of %v", err)
			}
		}
	}
	told(w.addrs[2])
	w.eventually("the peers meet", func() bool { return len(n.Stats().Members) == 2 })
	close(dropped)
	for range peerQueue {
		n.view.Load().peers[w.addrs[1]].post(newCall(func(f *wire.Frame, id uint64) {
			f.Asks = append(f.Asks, &wire.Ask{Id: id, Key: make([]byte, 10<<10)})
		}))
	}
	told(w.addrs[1])
}
