package routing_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/transport"
	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
	"github.com/sluice-gate/sluice/routing"
	"github.com/sluice-gate/sluice/routing/wire"
)

// Routers with real ports, and strangers at them.

// known is the secret of the tests' nodes, and guessed another.
const known, guessed = "sixteen bytes or more", "another-secret-of-16"

type creds = credentials.TransportCredentials

// router is a node with a real gRPC server.
type router struct {
	*routing.Router
	addr   string
	clock  ratelimit.Clock
	errs   chan error
	budget *transport.Budget
}

// ports are those of a fleet's nodes, and what the nodes have in common.
type ports struct {
	*testing.T
	clock          ratelimit.Clock
	addrs          []string // of all that there will be
	lis            []net.Listener
	table          int
	budget         int64 // of each node's port for peers; 0: the default
	secret         string
	client, server creds // nil: each node has its own
}

func newPorts(t *testing.T, n int) *ports {
	w := &ports{T: t, clock: ratelimit.MonotonicClock(), table: 100_000, secret: known}
	for range n {
		l := listens(t)
		w.lis, w.addrs = append(w.lis, l), append(w.addrs, l.Addr().String())
	}
	return w
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

// make makes the i-th node, which does not run. It decides by base; nil: by budgets of its own.
func (w *ports) make(i int, base ratelimit.Limiter) *router {
	n := &router{addr: w.addrs[i], clock: w.clock, errs: make(chan error, 1000)}
	if base == nil {
		base = local.New(w.table, w.clock(), time.Now())
	}
	n.Router = routing.New(base, routing.Options{
		Addr: n.addr, Discovery: routing.Static(w.addrs), Secret: w.secret, TLS: w.client,
		OnPeer: func(addr string, err error) {
			select {
			case n.errs <- fmt.Errorf("%s: %w", addr, err):
			default:
			}
		},
	}, w.clock, time.Now())
	return n
}

// run runs a node until the test ends.
func (w *ports) run(n *router, l net.Listener) {
	n.budget = transport.NewBudget(cmp.Or(w.budget, 64<<20))
	listener := n.NewServer(w.server, n.budget)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = listener.Serve(transport.Listen(l, 2000, n.budget)) })
	running.Go(func() { n.Run(ctx) })
	w.Cleanup(func() { cancel(); listener.Stop(); running.Wait() })
}

// start starts the i-th node, which looks for all others.
func (w *ports) start(i int) *router {
	n := w.make(i, nil)
	w.run(n, w.lis[i])
	return n
}

// ring starts nodes, and waits until all have met.
func (w *ports) ring(n int) []*router {
	nodes := make([]*router, n)
	for i := range nodes {
		nodes[i] = w.start(i)
	}
	w.agree(nodes...)
	return nodes
}

func (w *ports) agree(nodes ...*router) {
	w.Helper()
	for _, n := range nodes {
		w.eventually("all know all", func() bool { return n.Ready() && len(n.Stats().Members) == len(nodes) })
	}
}

func (w *ports) eventually(what string, ok func() bool) {
	w.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.Fatal("not within 20 s: ", what)
		}
	}
}

// hears waits until a node reports an error that is what is looked for.
func (w *ports) hears(n *router, what string, is func(err error) bool) {
	w.Helper()
	w.eventually(what, func() bool {
		select {
		case err := <-n.errs:
			return is(err)
		default:
			return false
		}
	})
}

// ask decides on a key that has all the time that there may be.
func (n *router) ask(limit tokens, key []byte, cost tokens) verdict {
	rule, v := routed(limit), make([]verdict, 1)
	rule.Coordination.StoreDeadline = ratelimit.MaxStoreDeadline
	n.Decide(context.Background(), n.clock(), []ask{{Rule: rule, Key: key, Cost: cost}}, v)
	return v[0]
}

// hello is how a peer of a test introduces itself.
func hello(addr string) *wire.Hello {
	return &wire.Hello{Version: routing.Version, Addr: addr, Nonce: bytes.Repeat([]byte("n"), 26), Incarnation: 7}
}

type (
	callerStream = grpc.BidiStreamingClient[wire.Frame, wire.Frame]
	calledStream = grpc.BidiStreamingServer[wire.Frame, wire.Frame]
)

// dialTo opens a stream to an address. It ends with the test.
func dialTo(t *testing.T, addr string, client creds) (callerStream, error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(client))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(func() { cancel(); conn.Close() })
	return wire.NewPeerClient(conn).Exchange(ctx, grpc.WaitForReady(true))
}

// say sends a frame, and returns the next one.
func say(s callerStream, f *wire.Frame) (*wire.Frame, error) {
	if s == nil {
		return nil, io.EOF
	}
	if err := s.Send(f); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return s.Recv()
}

// meet introduces a peer to a node, until a ping is answered. It returns the proofs of both.
func (n *router) meet(t *testing.T, h *wire.Hello, secret string) (s callerStream, own, theirs []byte, err error) {
	t.Helper()
	client, _ := routing.Anonymous()
	s, _ = dialTo(t, n.addr, client)
	f, err := say(s, &wire.Frame{Hello: h})
	if err != nil {
		return nil, nil, nil, err
	}
	welcome := f.GetWelcome()
	bound, err := routing.Binding(s.Context())
	if err != nil {
		return nil, nil, nil, err
	}
	own = routing.Prove(secret, "caller", bound, h, welcome)
	if f, err = say(s, &wire.Frame{Proof: own}); err != nil {
		return nil, nil, nil, err
	}
	if theirs = f.GetProof(); !bytes.Equal(theirs, routing.Prove(secret, "called", bound, h, welcome)) {
		t.Error("the called node has not proved at all")
	}
	f, err = say(s, &wire.Frame{Ping: 7})
	if err == nil && (len(f.GetReplies()) != 1 || f.GetReplies()[0].GetId() != 7) {
		t.Errorf("a ping is answered by %v", f)
	}
	return s, own, theirs, err
}

// server serves an attacker at a port.
type server struct {
	wire.UnimplementedPeerServer
	exchange func(from calledStream) error
}

// Exchange is what nodes call.
func (s server) Exchange(from calledStream) error {
	return s.exchange(from)
}

func serve(t *testing.T, l net.Listener, as creds, exchange func(from calledStream) error) {
	s := grpc.NewServer(grpc.Creds(as))
	wire.RegisterPeerServer(s, server{exchange: exchange})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
}

// Who does not know the secret, or has a certificate of another authority, is refused on both sides, and says so. With
// mutual TLS, peers meet without a secret.
func TestRouterRefusesStrangers(t *testing.T) {
	w := newPorts(t, 2)
	a := w.start(0)
	w.secret = guessed
	for _, n := range []*router{a, w.start(1)} {
		w.hears(n, "it complains", func(err error) bool {
			return errors.Is(err, routing.ErrSecret) && strings.HasPrefix(err.Error(), "127.0.0.1:") &&
				strings.Contains(err.Error(), "which calls itself")
		})
		if s := n.Stats(); len(s.Members) > 1 || s.RejectedBy["secret"] == 0 {
			t.Errorf("in the ring: %v; rejected: %v", s.Members, s.RejectedBy)
		}
	}
	w = newPorts(t, 3)
	w.secret = ""
	w.client, w.server = peerOf(redistest.NewAuthority(t))
	nodes := []*router{w.start(0), w.start(1)}
	w.client, w.server = peerOf(redistest.NewAuthority(t))
	stranger := w.start(2)
	w.agree(nodes...)
	w.hears(stranger, "the stranger complains", func(error) bool { return true })
	if n := len(stranger.Stats().Members); n > 1 || nodes[0].ask(1, keyOf(1), 1).OverLimit {
		t.Errorf("the stranger sees %d members, or the others decide nothing", n)
	}
}

// Introductions that make no sense, or are of another version, another region, another's name or another secret are
// refused and counted, with the reason and a remedy. So is a called node of another version.
func TestRouterBadPeers(t *testing.T) {
	w := newPorts(t, 2)
	n := w.start(0)
	w.eventually("it is ready", n.Ready)
	for _, x := range []struct {
		kind   string
		change func(h *wire.Hello)
	}{
		{"introduction", func(h *wire.Hello) { h.Addr = "" }},
		{"introduction", func(h *wire.Hello) { h.Nonce = nil }},
		{"introduction", func(h *wire.Hello) { h.Incarnation = 0 }},
		{"introduction", func(h *wire.Hello) { h.Region = strings.Repeat("r", 65) }},
		{"version", func(h *wire.Hello) { h.Version = 0 }},
		{"version", func(h *wire.Hello) { h.Version-- }},
		{"version", func(h *wire.Hello) { h.Version++ }},
		{"region", func(h *wire.Hello) { h.Region = "eu" }},
		{"name", func(h *wire.Hello) { h.Addr = n.addr }},
		{"secret", nil},
		{"", func(*wire.Hello) {}},
	} {
		h, secret := hello(w.addrs[1]), known
		if x.change == nil {
			secret = guessed
		} else {
			x.change(h)
		}
		before := n.Stats().RejectedBy[x.kind]
		_, _, _, err := n.meet(t, h, secret)
		if (err == nil) != (x.kind == "") || x.kind != "" && n.Stats().RejectedBy[x.kind] != before+1 {
			t.Errorf("%s: %v is told %v, and %v are counted", x.kind, h, err, n.Stats().RejectedBy)
		}
		says := fmt.Sprintf("it speaks version %d, and this node version %d", h.GetVersion(), routing.Version)
		if x.kind != "version" {
			continue
		}
		if !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "docs/guides/upgrading.md") {
			t.Errorf("another version is told %v", err)
		}
	}
	_, plain := routing.Anonymous()
	serve(t, w.lis[1], plain, func(s calledStream) error {
		_, _ = s.Recv()
		old := hello(w.addrs[1])
		old.Version--
		return s.Send(&wire.Frame{Welcome: old})
	})
	w.hears(n, "it complains of the called node", func(err error) bool { return errors.Is(err, routing.ErrVersion) })
	if s := n.Stats(); len(s.Members) > 1 || s.Refused < 10 {
		t.Errorf("in the ring: %v; %d are refused", s.Members, s.Refused)
	}
}

// peerOf returns a new peer's credentials, for dialling and for serving.
func peerOf(a *redistest.Authority) (client, server creds) {
	pair, pool := []tls.Certificate{a.Leaf("peer", time.Hour)}, a.Pool()
	c := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: pair, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert,
	}
	return credentials.NewTLS(c), credentials.NewTLS(c)
}

// An attacker that relays the messages of two nodes is refused by both, with certificates and without.
func TestRelayIsRefused(t *testing.T) {
	authority := redistest.NewAuthority(t)
	certified, certifiedServer := peerOf(authority)
	insider, insiderServer := peerOf(authority) // has a certificate, not the secret
	plain, plainServer := routing.Anonymous()
	also := &wire.Ask{Id: 9, Key: keyOf(1), Cost: 10, Kind: uint32(refund), Rule: routing.RuleBytes(routed(10))}
	for _, c := range []struct{ client, server, relay, relayedAs creds }{
		{nil, nil, plain, plainServer},
		{certified, certifiedServer, insider, insiderServer},
	} {
		w := newPorts(t, 3)
		w.client, w.server = c.client, c.server
		w.addrs = w.addrs[:2]
		a, victim, real := w.make(0, nil), w.make(1, nil), w.lis[2] // where the second node really is
		var heard atomic.Int64
		serve(t, w.lis[1], c.relayedAs, func(from calledStream) error {
			to, err := dialTo(t, real.Addr().String(), c.relay)
			if err != nil {
				return err
			}
			go func() {
				for i := 0; ; i++ {
					f, err := from.Recv()
					if err != nil {
						return
					}
					if _ = to.Send(f); i == 1 { // behind the introduction
						_ = to.Send(&wire.Frame{Asks: []*wire.Ask{also}})
					}
				}
			}()
			for {
				f, err := to.Recv()
				if err != nil {
					return err
				}
				if f.GetWelcome() == nil {
					heard.Add(1)
				}
				if err := from.Send(f); err != nil {
					return err
				}
			}
		})
		w.run(a, w.lis[0])
		w.run(victim, real)
		w.eventually("the victim refuses", func() bool { return victim.Stats().RejectedBy["secret"] >= 2 })
		if m := len(a.Stats().Members) + len(victim.Stats().Members); m > 2 {
			t.Errorf("they are in one ring: %v, %v", a.Stats().Members, victim.Stats().Members)
		}
		if heard.Load() > 0 || victim.Stats().Received > 0 {
			t.Error("the one in between was answered")
		}
	}
}

// What was proved in one connection is worth nothing in another, and what a node proves as caller nothing when it is
// said back to it.
func TestProofsAreNotPlayedAgain(t *testing.T) {
	w := newPorts(t, 3)
	n := w.start(0)
	client, plain := routing.Anonymous()
	_, own, theirs, err := n.meet(t, hello(w.addrs[2]), known)
	if err != nil {
		t.Fatal(err)
	}
	for what, p := range map[string][]byte{"the caller's": own, "the called one's": theirs, "none": nil} {
		again, _ := dialTo(t, n.addr, client)
		if _, err := say(again, &wire.Frame{Hello: hello(w.addrs[2])}); err != nil {
			t.Fatal(err)
		}
		if f, err := say(again, &wire.Frame{Proof: p}); err == nil {
			t.Errorf("%s proof was taken again: %v", what, f)
		}
	}
	// The node dials a stranger, who says its own proof back to it, as the called one's and as a caller's.
	done := make(chan error, 100)
	serve(t, w.lis[1], plain, func(from calledStream) error {
		_, _ = from.Recv()
		back, _ := dialTo(t, n.addr, client)
		f, err := say(back, &wire.Frame{Hello: hello(w.addrs[1])})
		if err != nil {
			return err
		}
		welcome := f.GetWelcome()
		welcome.Addr = w.addrs[1]
		_ = from.Send(&wire.Frame{Welcome: welcome})
		if f, err = from.Recv(); err != nil {
			return err
		}
		_, err = say(back, &wire.Frame{Proof: f.GetProof()})
		done <- err
		return from.Send(&wire.Frame{Proof: f.GetProof()})
	})
	if err := <-done; err == nil {
		t.Error("a node took its own proof for somebody's")
	}
	w.eventually("it has refused the reflected proof", func() bool { return n.Stats().RejectedBy["secret"] >= 5 })
	if got := n.Stats().Members; len(got) > 1 {
		t.Errorf("in the ring: %v", got)
	}
}

// Everything in an introduction is in its proof, whatever is added to it, and where one part ends.
func TestProofCoversAll(t *testing.T) {
	say := func() *wire.Hello { return hello("a:1") }
	was := string(routing.Prove(known, "caller", []byte("connection"), say(), say()))
	differs := func(what string, secret, role, binding string, caller, called *wire.Hello) {
		if was == string(routing.Prove(secret, role, []byte(binding), caller, called)) {
			t.Errorf("%s is not in the proof", what)
		}
	}
	differs("the secret", known+"x", "caller", "connection", say(), say())
	differs("the role", known, "called", "connection", say(), say())
	differs("the connection", known, "caller", "connectioN", say(), say())
	moved := say()
	moved.Addr, moved.Region = "a:", "1"
	differs("the end of the address", known, "caller", "connection", moved, say())
	fields := say().ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		for side := range 2 {
			both := [2]*wire.Hello{say(), say()}
			m, f := both[side].ProtoReflect(), fields.Get(i)
			switch v := m.Get(f).Interface().(type) {
			case uint32:
				m.Set(f, protoreflect.ValueOf(v+1))
			case uint64:
				m.Set(f, protoreflect.ValueOf(v+1))
			case string:
				m.Set(f, protoreflect.ValueOf(v+"x"))
			case []byte:
				m.Set(f, protoreflect.ValueOf(append(v, 1)))
			case bool:
				m.Set(f, protoreflect.ValueOf(!v))
			default:
				t.Fatalf("%s is of a kind that this test does not know", f.Name())
			}
			differs(fmt.Sprintf("%s of side %d", f.Name(), side), known, "caller", "connection", both[0], both[1])
		}
	}
}

// A connection without TLS, or with what is no TLS, is turned away and counted. One that ends in its handshake is not:
// nothing that was said there was wrong. The certificate that a node makes for itself says nothing of it.
func TestPlainConnectionsAreTurnedAway(t *testing.T) {
	w := newPorts(t, 1)
	n := w.start(0)
	says := func(hello string) net.Conn {
		conn, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, hello); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	says("\x16\x03\x01").Close()
	for what, hello := range map[string]string{
		"plaintext": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "tls": "\x16\x03\x01\x00\x05hello",
	} {
		from, told := says(hello).LocalAddr().String(), (<-n.errs).Error()
		counted := n.Stats().RejectedBy
		if !strings.Contains(told, "TLS") || !strings.HasPrefix(told, from+": ") || counted[what] != 1 {
			t.Errorf("%s: %v, and %v are counted", what, told, counted)
		}
	}
	old := &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // it is what is refused
	if conn, err := tls.Dial("tcp", n.addr, old); err == nil {
		conn.Close()
		t.Error("TLS 1.2 was taken, whose exporter binds nothing")
	}
	own := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // it is what is looked at
	conn, err := tls.Dial("tcp", n.addr, own)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := conn.ConnectionState().PeerCertificates[0]
	if c.Subject.String() != "" || len(c.DNSNames)+len(c.IPAddresses) > 0 {
		t.Errorf("its certificate says %v", c.Subject)
	}
}

// A secret has a least length, and the error says how to make one. A region has a name that peers can read.
func TestSecretHasALeastLength(t *testing.T) {
	plain := insecure.NewCredentials()
	for _, c := range []struct {
		o    routing.Options
		want string
	}{
		{routing.Options{Addr: "a:1", Secret: "fifteen bytes.."}, "openssl rand"},
		{routing.Options{Addr: "a:1"}, "PEER_SECRET has 0 bytes"},
		{routing.Options{Addr: "a:1", Secret: "short", TLS: plain}, "PEER_SECRET has 5 bytes"},
		{routing.Options{Addr: "a", Secret: known}, `PEER_ADDR is "a"`},
		{routing.Options{Addr: "a:1", Secret: known, Region: strings.Repeat("r", 65)}, "REGION"},
		{routing.Options{Addr: "a:1", Secret: known, Region: "\xff"}, "REGION"},
		{routing.Options{Addr: "a:1", Secret: known, Region: strings.Repeat("r", 64)}, ""},
		{routing.Options{Addr: "a:1", TLS: plain}, ""},
	} {
		err := c.o.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}

// A peer whose packets are dropped, from the start or later, is reported, and not as a call that this node has ended:
// such errors are not logged. It is dialled again also while more waits to be sent than a connection takes.
func TestPeersBehindAFirewallAreReported(t *testing.T) {
	w := newPorts(t, 3) // no node answers at the last address
	inner, dropped := listens(t), make(chan struct{})
	n := w.make(0, nil)
	w.run(w.make(1, nil), inner)
	pass := func(to, from net.Conn) {
		t.Cleanup(func() { to.Close() })
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
		for from, err := w.lis[1].Accept(); err == nil; from, err = w.lis[1].Accept() {
			if to, err := net.Dial("tcp", inner.Addr().String()); err == nil {
				go pass(to, from)
				go pass(from, to)
			}
		}
	}()
	w.run(n, w.lis[0])
	told := func(addr string) {
		t.Helper()
		w.hears(n, "it reports "+addr, func(err error) bool {
			if strings.HasPrefix(err.Error(), addr) && !errors.Is(err, routing.ErrSilent) {
				t.Error(err)
			}
			return strings.HasPrefix(err.Error(), addr) && !strings.Contains(err.Error(), context.Canceled.Error())
		})
	}
	told(w.addrs[2])
	w.eventually("the peers meet", func() bool { return len(n.Stats().Members) == 2 })
	close(dropped)
	asks := make([]ask, 4000)
	for i := range asks { // more than a connection takes
		asks[i] = ask{Rule: routed(10), Key: append(keyIn(i, w.addrs[1], n.addr), make([]byte, 100)...), Cost: 1}
	}
	n.Decide(t.Context(), w.clock(), asks, make([]verdict, len(asks)))
	told(w.addrs[1])
}

// Strangers at the peers' port, who never introduce themselves and send the maximum of a first message, cost a bounded
// amount of memory, and peers continue.
func TestStrangersArePutOffInBounds(t *testing.T) {
	w := newPorts(t, 2)
	w.budget = 16 << 20
	nodes := w.ring(2)
	var attack sync.WaitGroup
	for range 12 {
		attack.Go(func() {
			at := hostile.TLS(nodes[0].addr)
			_ = hostile.Unfinished(hostile.PeerMethod, at, 16, 4<<20, 16<<10, 900*time.Millisecond)
		})
	}
	ended := make(chan struct{})
	go func() { attack.Wait(); close(ended) }()
	// The bound holds once a charge has returned. Each connection has at most one under way: a batch of 64 KB, in
	// which its 16 calls begin and are read, at up to 64 KB each. Each stranger has a connection, and one that ends.
	const underWay = 2 * 12 * (16 + 1) * 64 << 10
	for open := true; open; {
		if held := nodes[0].budget.Held(); held > w.budget+underWay {
			t.Fatalf("strangers hold %d bytes, of %d and %d under way", held, w.budget, underWay)
		}
		select {
		case <-ended:
			open = false
		case <-time.After(5 * time.Millisecond):
		}
	}
	if nodes[0].budget.Heaviest.Load() == 0 {
		t.Error("nobody was closed: the attack was too small to show anything")
	}
	w.agree(nodes...)
}

// decides is a limiter whose decisions are a test's.
type decides struct {
	ratelimit.Limiter
	how func(ctx context.Context)
}

func (d decides) Decide(ctx context.Context, _ ratelimit.Instant, _ []ask, _ []verdict) { d.how(ctx) }

// A peer's asks that wait do not hold up what comes behind them, such as the accounts that they wait for. A bug that
// they meet is counted, and ends neither the process nor the peer's conversation.
func TestBugsOfAsksAreContained(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	for _, how := range []func(context.Context){func(context.Context) { <-end }, func(context.Context) { panic("a bug") }} {
		w := newPorts(t, 2)
		n := w.make(0, decides{how: how})
		w.run(n, w.lis[0])
		s, _, _, err := n.meet(t, hello(w.addrs[1]), known)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 1000 { // of any owner
			_ = s.Send(&wire.Frame{Asks: []*wire.Ask{{
				Id: uint64(i) + 1, Key: keyOf(i), Cost: 1, Rule: routing.RuleBytes(routed(10)),
			}}})
		}
		_ = s.Send(&wire.Frame{Ping: 2000})
		for answered := false; !answered; {
			f, err := s.Recv()
			if err != nil {
				t.Fatalf("a ping behind asks is not answered: %v", err)
			}
			answered = slices.ContainsFunc(f.GetReplies(), func(r *wire.Reply) bool { return r.GetId() == 2000 })
		}
	}
}

// A request that the key's owner does not answer is decided here, in the rest of its time. One of an own key has the time
// of its caller.
func TestDecidingHasItsTime(t *testing.T) {
	w, end, rule := newPorts(t, 2), make(chan struct{}), routed(10)
	rule.Coordination.StoreDeadline = ratelimit.MaxStoreDeadline
	var until time.Time
	var bounded bool
	n := w.make(0, decides{how: func(ctx context.Context) { until, bounded = ctx.Deadline() }})
	owner := w.make(1, decides{how: func(context.Context) { <-end }})
	w.run(n, w.lis[0])
	w.run(owner, w.lis[1])
	defer close(end)
	w.agree(n, owner)
	for i, own := range []bool{true, false} {
		key := keyIn(0, w.addrs[i], w.addrs[1-i])
		n.Decide(t.Context(), n.clock(), []ask{{Rule: rule, Key: key, Cost: 1}}, make([]verdict, 1))
		if ahead := time.Until(until); bounded == own || bounded && ahead > ratelimit.MaxStoreDeadline {
			t.Errorf("an own key %v: it has a time of its own %v, until %v from now", own, bounded, ahead)
		}
	}
}

// A node's own keys cost no allocation.
func TestOwnKeysDoNotAllocate(t *testing.T) {
	w := newPorts(t, 1)
	n := w.start(0)
	w.eventually("it is ready", n.Ready)
	a, v := []ask{{Rule: routed(1 << 30), Key: keyOf(1), Cost: 1}}, make([]verdict, 1)
	ctx := context.Background()
	if got := testing.AllocsPerRun(1000, func() { n.Decide(ctx, w.clock(), a, v) }); got > 0 {
		t.Errorf("%v allocations", got)
	}
}

// A reset of a key that another node owns is an error. A leaving node that still has accounts says how many.
func TestResetsAndLeavesSayWhatTheyCannot(t *testing.T) {
	w := newPorts(t, 2)
	nodes := w.ring(2)
	theirs := keyIn(0, w.addrs[1], w.addrs[0])
	nodes[0].ask(10, theirs, 9)
	if err := nodes[0].Reset(t.Context(), w.clock(), &ask{Rule: routed(10), Key: theirs}); err == nil {
		t.Error("it has reset the key of another node")
	}
	if err := nodes[1].Reset(t.Context(), w.clock(), &ask{Rule: routed(10), Key: theirs}); err != nil {
		t.Error(err)
	}
	if v := nodes[0].ask(10, theirs, 10); v.OverLimit {
		t.Errorf("a key that was reset has %+v", v)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := nodes[0].Reset(ended, w.clock(), &ask{Rule: routed(10), Key: theirs}); err == nil {
		t.Error("its caller has left, and it has reset the key")
	}
	nodes[1].Leave(ended)
	w.hears(nodes[1], "it reports the loss", func(err error) bool {
		return errors.Is(err, routing.ErrLost) && strings.Contains(err.Error(), "1 accounts")
	})
}
