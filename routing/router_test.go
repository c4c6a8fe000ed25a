package routing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/transport"
	"github.com/sluice-gate/sluice/routing/wire"
)

// node is a router in this process, with a real gRPC server.
type node struct {
	*Router
	addr   string
	end    func() // at once, as a crash would
	errs   chan error
	budget *transport.Budget
}

type ringWorld struct {
	*testing.T
	clock ratelimit.Clock
	wall  time.Time
	addrs []string // of all that there will be
	lis   []net.Listener

	tableSize int
	hotRate   float64
	budget    int64 // of each node's port for peers; 0: the default
}

func newRingWorld(t *testing.T, n int) *ringWorld {
	w := &ringWorld{T: t, clock: ratelimit.MonotonicClock(), wall: time.Now(), tableSize: 100_000}
	for range n {
		l := listens(t)
		w.lis, w.addrs = append(w.lis, l), append(w.addrs, l.Addr().String())
	}
	return w
}

// start starts the i-th node, which looks for all others.
func (w *ringWorld) start(i int, secret string) *node { return w.startTLS(i, secret, nil, nil) }

func (w *ringWorld) startTLS(i int, secret string, client, server credentials.TransportCredentials) *node {
	w.Helper()
	n := w.make(i, secret, client)
	w.run(n, w.lis[i], server)
	return n
}

// run runs a node until the test ends.
func (w *ringWorld) run(n *node, l net.Listener, server credentials.TransportCredentials) {
	n.budget = transport.NewBudget(cmp.Or(w.budget, 64<<20))
	listener := n.NewServer(server, n.budget)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = listener.Serve(transport.Listen(l, 2*maxPeers, n.budget)) })
	running.Go(func() { n.Run(ctx) })
	n.end = sync.OnceFunc(func() { cancel(); listener.Stop(); running.Wait() })
	w.Cleanup(n.end)
}

// make makes a node that does not run.
func (w *ringWorld) make(i int, secret string, client credentials.TransportCredentials) *node {
	n := &node{addr: w.addrs[i], errs: make(chan error, 1000)}
	n.Router = New(local.New(w.tableSize, w.clock(), w.wall), Options{
		Addr: n.addr, Discovery: Static(w.addrs), Secret: secret, TLS: client, HotRate: w.hotRate,
		OnPeer: func(addr string, err error) {
			select {
			case n.errs <- fmt.Errorf("%s: %w", addr, err):
			default:
			}
		},
	}, w.clock, w.wall)
	return n
}

func (w *ringWorld) eventually(what string, ok func() bool) {
	w.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.Fatal("not within 10 s: ", what)
		}
	}
}

// ring starts nodes and waits until all have met.
func (w *ringWorld) ring(n int) []*node {
	nodes := make([]*node, n)
	for i := range nodes {
		nodes[i] = w.start(i, known)
	}
	w.agree(nodes...)
	return nodes
}

func (w *ringWorld) agree(nodes ...*node) {
	w.Helper()
	defer w.show(nodes...)
	for _, n := range nodes {
		w.eventually("all know all", func() bool { return n.Ready() && len(n.Stats().Members) == len(nodes) && n.view.Load().stable.Load() })
	}
}

// show prints the view of nodes, if the test has failed.
func (w *ringWorld) show(nodes ...*node) {
	for _, n := range nodes {
		if w.Failed() {
			n.mu.Lock()
			w.Logf("%s present %v stable %v, was %v, ring %v %x, mover %v full %v, underway %d", n.addr, n.present, n.view.Load().stable.Load(), n.wasStable, n.view.Load().ring, n.view.Load().digest, n.mover.state, n.mover.full != nil, len(n.mover.underway))
			for a, m := range n.members {
				w.Logf("    %s alive %v ready %v failures %v done %x holds %v", a, m.alive, m.ready.Load(), m.failures, m.done, m.holds)
			}
			n.mu.Unlock()
		}
	}
}

func routed(limit ratelimit.Tokens) *ratelimit.Rule {
	r := &ratelimit.Rule{Domain: "d", Limit: ratelimit.Limit{Unit: ratelimit.Year, Requests: limit}, Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{}}
	r.Coordination.Mode, r.Coordination.OnStoreFailure = ratelimit.Routing, ratelimit.FailClosed
	return r
}

func keyOf(i int) []byte {
	b := ratelimit.AppendPrefix(nil, "d", ratelimit.Limit{Unit: ratelimit.Year})
	return ratelimit.AppendEntry(b, "user", fmt.Sprint(i), false)
}

func (n *node) ask(rule *ratelimit.Rule, key int, cost ratelimit.Tokens) verdict {
	v := make([]verdict, 1)
	n.Decide(context.Background(), n.clock(), []ratelimit.Ask{{Rule: rule, Key: keyOf(key), Cost: cost}}, v)
	return v[0]
}

// Who does not know the secret is refused, on both sides, and says so.
func TestRouterRefusesStrangers(t *testing.T) {
	w := newRingWorld(t, 2)
	a, b := w.start(0, known), w.start(1, "another-secret-of-16")
	for _, n := range []*node{a, b} {
		w.eventually("it complains", func() bool {
			select {
			case err := <-n.errs:
				return errors.Is(err, ErrSecret) && strings.HasPrefix(err.Error(), "127.0.0.1:") && strings.Contains(err.Error(), "which calls itself")
			default:
				return false
			}
		})
		if s := n.Stats(); len(s.Members) > 1 || s.RejectedBy["secret"] == 0 {
			t.Errorf("in the ring: %v; rejected: %v", s.Members, s.RejectedBy)
		}
	}
}

// Garbage, old versions, keys of others, replays and nonsense change no budget, and are counted.
func TestRouterBadPeers(t *testing.T) {
	w := newRingWorld(t, 2)
	n := w.start(0, known)
	w.eventually("ready", n.Ready)
	good := &wire.Hello{Version: version, Addr: w.addrs[1], Nonce: newNonce(), Incarnation: 7}
	for what, h := range map[string]*wire.Hello{
		"nothing": nil, "no name": {Version: version, Nonce: newNonce(), Incarnation: 7}, "no nonce": {Version: version, Addr: "x:1", Incarnation: 7},
		"no life": {Version: version, Addr: "x:1", Nonce: newNonce()},
		"old":     {Version: 0, Addr: "x:1", Nonce: newNonce()}, "unbound": {Version: 2, Addr: "x:1", Nonce: newNonce()},
		"the node itself": {Version: version, Addr: n.addr, Nonce: newNonce(), Incarnation: 7},
	} {
		if _, err := n.meet(t, h, known); err == nil {
			t.Errorf("%s: let in", what)
		}
	}
	if _, err := n.meet(t, good, "another-secret-of-16"); err == nil {
		t.Error("a wrong secret was let in")
	}
	if got := n.Stats(); got.Refused != 8 || got.RejectedBy["introduction"] != 4 || got.RejectedBy["version"] != 2 || got.RejectedBy["name"] != 1 || got.RejectedBy["secret"] != 1 {
		t.Errorf("refused %d of 8, by kind %v", got.Refused, got.RejectedBy)
	}
	s, err := n.meet(t, good, known)
	if err != nil {
		t.Fatal(err)
	}
	rule := ruleBytes(routed(10))
	bad := []*wire.Ask{
		{},
		{Key: keyOf(1), Cost: -1, Rule: rule},
		{Key: keyOf(1), Cost: 1},
		{Key: make([]byte, 1000), Cost: 1, Rule: rule},
		{Key: keyOf(1), Cost: 1, Kind: 9, Rule: rule},
		{Key: keyOf(1), Cost: 1, Rule: []byte("not a rule")},
		{Key: keyOf(1), Cost: 0, Rule: rule},
		{Key: keyOf(1), Cost: 1, Kind: undo, Charged: -5, Rule: rule},
		{Key: keyOf(1), Cost: 1, Kind: undo, Charged: 2, Rule: rule},
		{Key: keyOf(1), Cost: 1, Kind: undo, Charged: 1, Window: -1, Rule: rule},
		{Key: keyOf(1), Cost: 1, Rule: make([]byte, maxRuleBytes+1)},
	}
	_ = s.Send(&wire.Frame{Asks: bad})
	_ = s.Send(&wire.Frame{Fetches: []*wire.Fetch{{Id: 3}}})
	_ = s.Send(&wire.Frame{Ping: 8})
	statuses, last := 0, false
	for !last || statuses < len(bad) {
		f, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range f.GetReplies() {
			if r.GetStatus() == malformed && r.GetId() != 3 {
				statuses++
			}
			last = last || r.GetId() == 8
		}
	}
	if m := n.Stats().Malformed; statuses != len(bad) || m != uint64(len(bad)+1) {
		t.Errorf("%d of %d asks were malformed, and %d messages in all", statuses, len(bad), m)
	}
	if v := n.ask(routed(10), 1, 10); v.OverLimit {
		t.Errorf("a budget was touched: %+v", v)
	}
}

func TestParsePeers(t *testing.T) {
	for text, want := range map[string]string{
		"static:a:1,b:2,a:1": "[a:1 b:2]", "dns:sluice.svc:8082": "{sluice.svc 8082",
	} {
		if d, err := ParsePeers(text, nil); err != nil || !strings.HasPrefix(fmt.Sprint(d), want) {
			t.Errorf("%s: %v %v", text, d, err)
		}
	}
	for _, text := range []string{"", "static:", "static:a", "static:a:x", "dns:a", "dns::1", "dns:a:x", "dns:a:70000", "raft:a:1"} {
		if _, err := ParsePeers(text, nil); err == nil || !strings.Contains(err.Error(), "PEERS") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Nodes with the address of one of them find all. So they do if it starts last, after the others have met.
func TestGossip(t *testing.T) {
	var nodes []*Gossip
	addrs, w := freeAddrs(t, 3), &ringWorld{T: t}
	for _, i := range []int{1, 2, 0} {
		nodes = append(nodes, gossips(t, addrs[i], fmt.Sprintf("10.0.0.%d:8082", i), addrs[:i]...))
		w.eventually("all know all", func() bool {
			all := true
			for _, g := range nodes { // each looks
				found, err := g.Find(context.Background())
				all = all && err == nil && len(found) == len(nodes)
			}
			return all
		})
	}
}
