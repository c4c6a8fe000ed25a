package routing_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/miekg/dns"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
	"github.com/sluice-gate/sluice/routing"
)

// How nodes find each other.

func TestParsePeers(t *testing.T) {
	for text, want := range map[string]string{
		"static:a:1,b:2,a:1": "[a:1 b:2]", "dns:sluice.svc:8082": "{sluice.svc 8082",
	} {
		if d, err := routing.ParsePeers(text, nil); err != nil || !strings.HasPrefix(fmt.Sprint(d), want) {
			t.Errorf("%s: %v %v", text, d, err)
		}
	}
	bad := []string{"", "static:", "static:a", "static:a:x", "dns:a", "dns::1", "dns:a:x", "dns:a:70000", "raft:a:1"}
	for _, text := range bad {
		if _, err := routing.ParsePeers(text, nil); err == nil || !strings.Contains(err.Error(), "PEERS") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A headless service is found by its addresses, or by its SRV records. Nodes meet by their names, also if the server
// answers no questions for TXT records.
func TestDNS(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	records := []string{
		"sluice.test. 1 IN A 10.0.0.1", "sluice.test. 1 IN A 10.0.0.2", "sluice.test. 1 IN AAAA fd00::1",
		"one.test. 1 IN A 127.0.0.1", "_peer._tcp.sluice.test. 1 IN SRV 1 1 8082 one.test.",
		"_peer._tcp.sluice.test. 1 IN SRV 1 1 9000 two.test.",
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		for _, text := range records {
			r, err := dns.NewRR(text)
			if err == nil && r.Header().Name == q.Question[0].Name && r.Header().Rrtype == q.Question[0].Qtype {
				m.Answer = append(m.Answer, r)
			}
		}
		if q.Question[0].Qtype != dns.TypeTXT {
			_ = w.WriteMsg(m)
		}
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	for name, want := range map[string][]string{
		"sluice.test":            {"10.0.0.1:8082", "10.0.0.2:8082", "[fd00::1]:8082"},
		"_peer._tcp.sluice.test": {"one.test:8082", "two.test:9000"},
		"nobody.test":            nil,
	} {
		got, err := routing.DNS{Name: name, Port: "8082", Resolver: resolver}.Find(t.Context())
		if slices.Sort(got); (err == nil) != (want != nil) || !slices.Equal(got, want) {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	was := net.DefaultResolver
	defer func() { net.DefaultResolver = was }()
	net.DefaultResolver = resolver
	w := newPorts(t, 2)
	w.addrs[1] = strings.Replace(w.addrs[1], "127.0.0.1", "one.test", 1)
	w.ring(2)
}

// gossips is a node that gossips until the test ends, and has the secret.
func gossips(t *testing.T, bind, peerAddr, secret string, seeds ...string) *routing.Gossip {
	t.Helper()
	g, err := routing.NewGossip(bind, peerAddr, secret, seeds)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
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

// Nodes with the address of one of them find all. So they do if it starts last, after the others have met.
func TestGossip(t *testing.T) {
	var nodes []*routing.Gossip
	addrs, w := freeAddrs(t, 3), &ports{T: t}
	for _, i := range []int{1, 2, 0} {
		nodes = append(nodes, gossips(t, addrs[i], fmt.Sprintf("10.0.0.%d:8082", i), known, addrs[:i]...))
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

// The address for gossip must be the node's own. An error names the wrong setting.
func TestGossipNeedsAnAddress(t *testing.T) {
	taken := listens(t).Addr().String()
	for _, c := range []struct{ bind, secret, says string }{
		{"127.0.0.1:7946", "", "PEER_SECRET"},
		{"127.0.0.1:7946", "short", "PEER_SECRET"},
		{"nonsense", known, `the gossip address is "nonsense": `},
		{"127.0.0.1:x", known, `the gossip address is "127.0.0.1:x": `},
		{"127.0.0.1:70000", known, `the gossip address is "127.0.0.1:70000": `},
		{taken, known, `the gossip address is "` + taken + `": `},
	} {
		g, err := routing.NewGossip(c.bind, "10.0.0.1:1", c.secret, nil)
		if g != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v %v", c.bind, g, err)
		}
	}
}

// A node that gossips is found where it says, looks for others and not for itself, and leaves its port when it is
// closed. Seeds that hang keep it from the ring for a second, not for ten each.
func TestGossipListens(t *testing.T) {
	at := freeAddrs(t, 1)[0]
	seeds := slices.Concat(newPorts(t, 4).addrs, []string{at}) // whose connections are not taken
	g, err := routing.NewGossip(at, "10.0.0.1:1", known, seeds)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	found, err := g.Find(t.Context())
	if err != nil || !slices.Equal(found, []string{"10.0.0.1:1"}) || time.Since(began) > 5*time.Second {
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

// A node that is alone looks for its seeds each time; one that has found another leaves them alone.
func TestGossipLooksForSeedsWhileAlone(t *testing.T) {
	l, looked := listens(t), make(chan bool, 10)
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			looked <- true // before Find can see it
			conn.Close()
		}
	}()
	free := freeAddrs(t, 2)
	g := gossips(t, free[1], "10.0.0.1:1", known, l.Addr().String(), free[0])
	for look, want := range []struct{ found, looked int }{{1, 1}, {1, 2}, {2, 3}, {2, 3}} {
		if look == 2 { // it finds the other, and leaves the seeds alone
			gossips(t, free[0], "10.0.0.2:1", known)
		}
		if found, err := g.Find(t.Context()); err != nil || len(found) != want.found || len(looked) != want.looked {
			t.Errorf("look %d: %v, %v: it has looked %d times", look, found, err, len(looked))
		}
	}
}

// A wrong secret in gossip is counted, and told of with the address it came from. So is what is no gossip at all, and a
// name that is no address, also with the secret.
func TestWrongGossipIsCounted(t *testing.T) {
	w, free, told := newPorts(t, 1), freeAddrs(t, 2), make(chan string, 100)
	at := free[0]
	good := gossips(t, at, "10.0.0.1:1", known, at)
	n := routing.New(local.New(10, w.clock(), time.Now()), routing.Options{
		Addr: w.addrs[0], Discovery: good, Secret: known, OnPeer: func(addr string, err error) {
			select {
			case told <- fmt.Sprint(addr, ": ", err, errors.Is(err, routing.ErrSecret)):
			default:
			}
		},
	}, w.clock, time.Now())
	counted := func() uint64 { return n.Stats().RejectedBy["gossip"] }
	bad := gossips(t, free[1], "10.0.0.2:1", guessed, at)
	_, err := bad.Find(t.Context())
	if !errors.Is(err, routing.ErrSecret) || !strings.HasPrefix(err.Error(), "gossip with "+at+": ") {
		t.Errorf("the one who has it wrong is not told: %v", err)
	}
	w.eventually("a wrong secret is counted", func() bool { return counted() > 0 })
	if got := <-told; !strings.HasPrefix(got, "gossip of 127.0.0.1:") || !strings.HasSuffix(got, "true") {
		t.Error(got)
	}
	before := counted()
	udp, err := net.Dial("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	_, _ = udp.Write([]byte("something else that is long enough to be looked at, and is no gossip"))
	w.eventually("garbage is counted", func() bool { return counted() > before })
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
	for !strings.Contains(<-told, "must be host:port") { // other errors may come before
	}
	if addrs, _ := good.Find(t.Context()); !slices.Equal(addrs, []string{"10.0.0.1:1"}) {
		t.Errorf("found %v", addrs)
	}
}
