package routing

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// A headless service is found by its addresses, or by its SRV records. Nodes meet by their names, also if the server
// answers no questions for TXT records.
func TestDNS(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	records := []string{
		"sluice.test. 1 IN A 10.0.0.1", "sluice.test. 1 IN A 10.0.0.2", "sluice.test. 1 IN AAAA fd00::1",
		"one.test. 1 IN A 127.0.0.1", "_peer._tcp.sluice.test. 1 IN SRV 1 1 8082 one.test.", "_peer._tcp.sluice.test. 1 IN SRV 1 1 9000 two.test.",
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		for _, text := range records {
			if r, err := dns.NewRR(text); err == nil && r.Header().Name == q.Question[0].Name && r.Header().Rrtype == q.Question[0].Qtype {
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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for name, want := range map[string][]string{
		"sluice.test":            {"10.0.0.1:8082", "10.0.0.2:8082", "[fd00::1]:8082"},
		"_peer._tcp.sluice.test": {"one.test:8082", "two.test:9000"},
	} {
		got, err := DNS{Name: name, Port: "8082", Resolver: resolver}.Find(ctx)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	if _, err := (DNS{Name: "nobody.test", Port: "1", Resolver: resolver}).Find(ctx); err == nil {
		t.Error("nobody was found")
	}
	was := net.DefaultResolver
	defer func() { net.DefaultResolver = was }()
	net.DefaultResolver = resolver
	w := newRingWorld(t, 2)
	w.addrs[1] = strings.Replace(w.addrs[1], "127.0.0.1", "one.test", 1)
	w.ring(2)
}
