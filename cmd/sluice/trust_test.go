package main

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/leasing/redistest"
)

// A renewed client certificate is used for the next connection to Redis, and a broken one never.
func TestRedisClientCertificateIsRenewed(t *testing.T) {
	i := redistest.NewAuthority(t)
	i.Leaf("server", time.Hour, "localhost")
	i.Leaf("client", time.Hour)
	var log strings.Builder
	own := &settings.Certificate{Cert: i.File("client.crt"), Key: i.File("client.key"), Setting: "OF_", Log: slog.New(slog.NewTextHandler(&log, nil))}
	c, err := own.Client("", "")
	if err != nil {
		t.Fatal(err)
	}
	serial := func() string {
		got, err := c.GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return got.Leaf.SerialNumber.String()
	}
	first := serial()
	i.Leaf("client", time.Hour)
	second := serial()
	if second == first {
		t.Error("the renewed certificate is not used")
	}
	i.Leaf("client", -time.Minute) // out of date
	if serial() != second || !strings.Contains(log.String(), "OF_CERT "+i.File("client.crt")+" is good from") {
		t.Errorf("a certificate that is out of date is used, or the log does not have it: %s", log.String())
	}
	writeFile(t, i.File("client.key"), "half a fi")
	if _, err := own.Client("", ""); err == nil || !strings.Contains(err.Error(), "OF_CERT "+i.File("client.crt")+" and OF_KEY") {
		t.Errorf("at start: %v", err)
	}
}

// Only clients with the right certificate are answered, and a new certificate is served without dropping a call.
func TestServerTLS(t *testing.T) {
	i := redistest.NewAuthority(t)
	i.Leaf("server", time.Hour, "localhost")
	clients := map[string][]tls.Certificate{"envoy": {i.Leaf("envoy", time.Hour, "*.example")}, "stranger": {i.Leaf("stranger", time.Hour, "stranger.example")}, "": nil}
	s := start(t, command(append(freePorts, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+i.File("server.crt"), "GRPC_SERVER_TLS_KEY="+i.File("server.key"),
		"GRPC_CLIENT_TLS_CACERT="+i.File("ca.crt"), "GRPC_CLIENT_TLS_SAN=envoy.example"), "serve", "--log-level=error"))
	// dials makes a connection, and has the certificates that the server presents at each handshake.
	dials := func(client string) (asks func() error, seen *[]string) {
		seen = new([]string)
		conn, err := grpc.NewClient("passthrough:///"+s.rpc, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS12, RootCAs: i.Pool(), Certificates: clients[client],
			VerifyConnection: func(s tls.ConnectionState) error {
				*seen = append(*seen, s.PeerCertificates[0].SerialNumber.String())
				return nil
			},
		})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, asking(descriptor(1, "five", "x")))
			return err
		}, seen
	}
	for _, client := range []string{"", "stranger"} {
		if asks, _ := dials(client); asks() == nil {
			t.Errorf("client %q was answered", client)
		}
	}
	asks, open := dials("envoy")
	if err := asks(); err != nil {
		t.Fatal(err)
	}
	i.Leaf("server", time.Hour, "localhost")
	s.eventually("the new certificate is served", func() bool {
		asksAnew, seen := dials("envoy")
		if err := errors.Join(asks(), asksAnew()); err != nil {
			t.Fatal(err)
		}
		return (*seen)[0] != (*open)[0]
	})
	if err := asks(); err != nil || len(*open) != 1 {
		t.Errorf("a call over the open connection: %v, %d handshakes", err, len(*open))
	}
}

// A ring outlives the certificates of its nodes and their authority, which are read again when they change.
func TestPeersPresentNewCertificates(t *testing.T) {
	i, next := redistest.NewAuthority(t), redistest.NewAuthority(t)
	i.Leaf("peer", time.Hour)
	f := &peerFlags{Peers: "static:127.0.0.1:1", Addr: "127.0.0.1:2", TLSCert: i.File("peer.crt"), TLSKey: i.File("peer.key"), TLSCA: i.File("ca.crt")}
	o, served, err := f.options(nil)
	if err != nil {
		t.Fatal(err)
	}
	l := listens(t)
	meet := func() (caller, called *big.Int) {
		t.Helper()
		seen := make(chan credentials.AuthInfo, 1)
		go func() {
			defer close(seen)
			if conn, err := l.Accept(); err == nil {
				defer conn.Close()
				if _, info, err := served.ServerHandshake(conn); err == nil {
					seen <- info
				}
			}
		}()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, info, err := o.TLS.ClientHandshake(t.Context(), l.Addr().String(), conn)
		other, ok := (<-seen).(credentials.TLSInfo)
		if err != nil || !ok {
			t.Fatalf("the peers do not meet: %v", err)
		}
		return other.State.PeerCertificates[0].SerialNumber, info.(credentials.TLSInfo).State.PeerCertificates[0].SerialNumber
	}
	caller, called := meet()
	renewed := next.Leaf("peer", time.Hour)
	later := time.Now().Add(time.Hour) // the clock of files is a coarse one
	for _, name := range []string{"ca.crt", "peer.crt", "peer.key"} {
		if err := errors.Join(os.Rename(next.File(name), i.File(name)), os.Chtimes(i.File(name), later, later)); err != nil {
			t.Fatal(err)
		}
	}
	want := renewed.Leaf.SerialNumber
	if caller.Cmp(called) != 0 || caller.Cmp(want) == 0 {
		t.Fatalf("certificates %v and %v before there is %v", caller, called, want)
	}
	if caller, called = meet(); caller.Cmp(want) != 0 || called.Cmp(want) != 0 {
		t.Errorf("the peers present %v and %v, want the new certificate %v", caller, called, want)
	}
}

// manager is a management server that serves what snapshots say, over ADS. It has the certificate xds.crt, for clients of
// the authority, and those have node.crt.
type manager struct {
	*redistest.Authority
	*grpc.Server
	snapshots cache.SnapshotCache
	env       []string // of a node
}

func newManager(t *testing.T) *manager {
	t.Helper()
	i := redistest.NewAuthority(t)
	i.Leaf("node", time.Hour, "node")
	certified := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{i.Leaf("xds", time.Hour, "*.example")},
		ClientCAs: i.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}
	l := listens(t)
	m := &manager{i, grpc.NewServer(grpc.Creds(credentials.NewTLS(certified))), cache.NewSnapshotCache(true, cache.IDHash{}, nil), []string{
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + l.Addr().String(), "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + i.File("node.crt"), "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + i.File("node.key"),
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + i.File("ca.crt"), "CONFIG_GRPC_XDS_SERVER_TLS_SAN=xds.example",
		"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=100ms", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=100ms", "DRAIN_TIME=0s",
	}}
	discovery.RegisterAggregatedDiscoveryServiceServer(m.Server, server.NewServer(context.Background(), m.snapshots, nil))
	go func() { _ = m.Serve(l) }()
	t.Cleanup(m.Stop)
	return m
}

// push has a node's rules be these.
func (m *manager) push(t *testing.T, node string, rules ...types.Resource) {
	t.Helper()
	snapshot, err := cache.NewSnapshot(strings.Repeat("1", 1+len(rules)), map[resource.Type][]types.Resource{resource.RateLimitConfigType: rules})
	if err := errors.Join(err, m.snapshots.SetSnapshot(context.Background(), node, snapshot)); err != nil {
		t.Fatal(err)
	}
}

// With rules from a management server over TLS the binary is unhealthy until they come, and by its setting until they
// have a domain. It then keeps them. When the server ends, the log does not blame the settings of a stream that worked.
func TestRulesFromAServer(t *testing.T) {
	m := newManager(t)
	s := serve(t, append(m.env, "CONFIG_GRPC_XDS_NODE_ID=n1", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true"))
	m.push(t, "n1")
	s.eventually("an empty push has come", func() bool { return s.metric("ratelimit_service_config_load_success") == 1 })
	if s.healthy() || !s.admits(1, "five", "x") || s.healthy() {
		t.Error("healthy with rules of no domain")
	}
	m.push(t, "n1", &rlsconf.RateLimitConfig{Name: "d", Domain: "d", Descriptors: []*rlsconf.RateLimitDescriptor{
		{Key: "five", RateLimit: &rlsconf.RateLimitPolicy{Unit: rlsconf.RateLimitUnit_DAY, RequestsPerUnit: 5}},
	}})
	s.eventually("the rules have come", s.healthy)
	for i := range 8 {
		if admitted := s.admits(1, "five", "x"); admitted != (i < 5) {
			t.Errorf("request %d of 5 was admitted: %t", i+1, admitted)
		}
	}
	m.push(t, "n1")
	s.eventually("unhealthy without a domain again", func() bool { return !s.healthy() })
	m.Stop()
	s.logs("an earlier stream worked")
	if strings.Contains(s.log(), "CONFIG_GRPC_XDS_CLIENT_TLS_CERT") {
		t.Errorf("the log blames the client's certificate:\n%s", s.log())
	}
}

// After its management server listens again, a node asks it within two seconds, however long it was away.
func TestBackoffOfTheManagementServer(t *testing.T) {
	var f xdsFlags
	if _, err := kong.Must(&f).Parse(nil); err != nil {
		t.Fatal(err)
	}
	if b := f.backoff(); b.First > b.Longest || time.Duration(float64(b.Longest)*(1+b.Spread)) > 2*time.Second || b.Spread == 0 {
		t.Errorf("pauses: %+v", b)
	}
}

// The end of a stream that worked is not the fault of this node's settings.
func TestAdviceOnStreams(t *testing.T) {
	f := &xdsFlags{UseTLS: true, Cert: "node.crt"}
	for _, c := range []struct {
		text   string
		worked bool
		want   string
	}{
		{"error reading from server: EOF", false, `CONFIG_GRPC_XDS_CLIENT_TLS_CERT, which is "node.crt": the server may refuse it`},
		{"error reading from server: EOF", true, "the management server: an earlier stream worked, and it may be restarting"},
		{"read: connection reset by peer", true, "the management server: an earlier stream worked, and it may be restarting"},
		{"error reading server preface: EOF", true, "the management server: an earlier stream worked, and it may be restarting"},
		{"dial tcp 10.0.0.1:18001: connect: connection refused", true, "the management server: an earlier stream worked, and it may be restarting"},
		{"dial tcp 10.0.0.1:18001: connect: connection refused", false, "CONFIG_GRPC_XDS_SERVER_URL"},
		{"remote error: tls: bad certificate", true, `CONFIG_GRPC_XDS_CLIENT_TLS_CERT, which is "node.crt": the server refuses it`},
	} {
		if got := f.advise(errors.New(c.text), c.worked); got != c.want {
			t.Errorf("%s, worked %t: %s", c.text, c.worked, got)
		}
	}
}

func TestMetadataOfANode(t *testing.T) {
	for text, want := range map[string]any{`{"a":1}`: 1.0, "a:b,c=d": "b", "a=b": "b"} {
		m, err := (&xdsFlags{Metadata: text}).metadata()
		if err != nil || m["a"] != want {
			t.Errorf("%s: %v %v", text, m, err)
		}
	}
}

// A management server that cannot be trusted, or does not trust this node, is
// named with the setting to check; no rules come from it.
func TestBadXDSCertificates(t *testing.T) {
	m, stranger := newManager(t), redistest.NewAuthority(t)
	stranger.Leaf("node", time.Hour, "node")
	m.push(t, "default", &rlsconf.RateLimitConfig{Name: "d", Domain: "d"})
	const of = "CONFIG_GRPC_XDS_"
	for name, c := range map[string]struct {
		bad  []string
		want string
	}{
		"unknown authority": {[]string{of + "SERVER_TLS_CACERT=" + stranger.File("ca.crt"), of + "SERVER_TLS_SAN="}, of + `SERVER_TLS_CACERT, which is "` + stranger.File("ca.crt")},
		"another name":      {[]string{of + "SERVER_TLS_SAN=other.test"}, of + "SERVER_TLS_SAN is other.test"},
		"a stranger":        {[]string{of + "CLIENT_TLS_CERT=" + stranger.File("node.crt"), of + "CLIENT_TLS_KEY=" + stranger.File("node.key")}, of + `CLIENT_TLS_CERT, which is "` + stranger.File("node.crt")},
		"a large push":      {[]string{"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=10"}, "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES, which is 10"},
		"no TLS":            {[]string{of + "SERVER_USE_TLS=false"}, of + "SERVER_USE_TLS, which is false"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, append(m.env[:len(m.env):len(m.env)], c.bad...))
			s.eventually("the log names "+c.want, func() bool {
				return strings.Contains(strings.ReplaceAll(s.log(), `\"`, `"`), c.want)
			})
			if s.healthy() {
				t.Error("healthy without rules")
			}
		})
	}
}
