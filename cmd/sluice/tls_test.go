package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/leasing/redistest"
)

// Passwords, users, TLS and client certificates reach Redis as the settings say; where one of them is wrong, decisions
// are fallbacks, and the log says why without the secret.
func TestRedisSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	servers, clients := redistest.NewAuthority(t), redistest.NewAuthority(t)
	servers.Sign("server", &x509.Certificate{DNSNames: []string{"server"}, NotAfter: time.Now().Add(time.Hour)}) // not for 127.0.0.1
	servers.Leaf("client", time.Hour)
	clients.Leaf("client", time.Hour)
	clientCert, clientKey, stranger := clients.File("client.crt"), clients.File("client.key"), servers.File("client.crt")
	tlsPort := freePort(t)
	socket := filepath.Join(dir, "redis.sock")
	r := redistest.Start(t, "--tls-port", tlsPort, "--tls-cert-file", servers.File("server.crt"), "--tls-key-file", servers.File("server.key"),
		"--tls-ca-cert-file", clients.File("ca.crt"), "--tls-auth-clients", "yes", "--unixsocket", socket)
	r.Do("ACL", "SETUSER", "me", "on", ">hunter3", "~*", "&*", "+@all")
	r.Do("ACL", "SETUSER", "default", "on", "resetpass", ">hunter2")
	rules := rulesFile(t, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1000}}]\n")
	tlsEnv := []string{
		"REDIS_TLS=true", "REDIS_TLS_CACERT=" + servers.File("ca.crt"), "REDIS_TLS_CLIENT_CERT=" + clientCert, "REDIS_TLS_CLIENT_KEY=" + clientKey,
		"REDIS_AUTH=hunter2",
	}
	overTLS := func(more ...string) []string {
		return slices.Concat([]string{"REDIS_URL=127.0.0.1:" + tlsPort}, tlsEnv, more)
	}
	const anyName = "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true"
	for name, c := range map[string]struct {
		env  []string
		sees string // in the log; "" means that the store works
	}{
		"password":     {[]string{"REDIS_URL=" + r.Addr, "REDIS_AUTH=hunter2"}, ""},
		"user":         {[]string{"REDIS_URL=" + r.Addr, "REDIS_AUTH=me:hunter3"}, ""},
		"uri":          {[]string{"REDIS_URL=redis://me:hunter3@" + r.Addr + "/0"}, ""},
		"socket":       {[]string{"REDIS_URL=" + socket, "REDIS_SOCKET_TYPE=unix", "REDIS_AUTH=hunter2"}, ""},
		"tls":          {overTLS(anyName), ""},
		"tls by uri":   {append([]string{"REDIS_URL=rediss://127.0.0.1:" + tlsPort, anyName}, tlsEnv[1:]...), ""},
		"bad password": {[]string{"REDIS_URL=" + r.Addr, "REDIS_AUTH=hunter9"}, `check REDIS_AUTH: its user is \"\", and it has a password: true`},
		"a colon":      {[]string{"REDIS_URL=" + r.Addr, "REDIS_AUTH=hunter:9"}, `check REDIS_AUTH: it has a user, of 6 bytes before the first colon`},
		"bad uri":      {[]string{"REDIS_URL=redis://me:hunter9@" + r.Addr, "REDIS_AUTH=hunter2"}, `check REDIS_URL: its user is \"me\", and it has a password: true`},
		"no password":  {[]string{"REDIS_URL=" + r.Addr}, `check REDIS_AUTH: its user is \"\", and it has a password: false`},
		"bad name":     {overTLS(), "check REDIS_URL: the server's certificate is for another name"},
		"stranger":     {overTLS("REDIS_TLS_CACERT="+clients.File("ca.crt"), anyName), "check REDIS_TLS_CACERT, which is \\\"" + clients.File("ca.crt")},
		"refused cert": {overTLS("REDIS_TLS_CLIENT_CERT="+stranger, "REDIS_TLS_CLIENT_KEY="+servers.File("client.key"), anyName), "check REDIS_TLS_CLIENT_CERT, which is \\\"" + stranger},
		"no TLS there": {overTLS("REDIS_URL=" + r.Addr), "check REDIS_URL, and REDIS_TLS, which is true"},
		"no cluster":   {[]string{"REDIS_URL=" + r.Addr, "REDIS_AUTH=hunter2", "REDIS_TYPE=CLUSTER"}, `REDIS_TYPE, which is \"CLUSTER\"`},
		"nobody there": {[]string{"REDIS_URL=127.0.0.1:1"}, "check REDIS_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, c.env, "--config", rules)
			if !s.admits(1, "k", name) {
				t.Error("the first request is refused")
			}
			s.eventually("the store is used, or the log says why not", func() bool {
				s.admits(1, "k", name)
				if c.sees != "" {
					return strings.Contains(s.log(), c.sees)
				}
				return s.metric(`sluice_decision_sources_total{source="claim"}`) > 0 // the first may come before a TLS connection
			})
			if strings.Contains(s.log(), "hunter") {
				t.Errorf("a secret is in the log:\n%s", s.log())
			}
		})
	}
}

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
