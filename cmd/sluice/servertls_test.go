package main

import (
	"context"
	"crypto/tls"
	"errors"
	"math/big"
	"net"
	"os"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// callTLS dials with a client certificate, if one is named, and asks once.
func callTLS(i *redistest.Authority, address, client string) (serial *big.Int, err error) {
	i.Helper()
	conn := dialTLS(i, address, client, func(s tls.ConnectionState) { serial = s.PeerCertificates[0].SerialNumber })
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = rls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request("five", "x"))
	return serial, err
}

// dialTLS makes a connection that tells seen of each handshake.
func dialTLS(i *redistest.Authority, address, client string, seen func(tls.ConnectionState)) *grpc.ClientConn {
	i.Helper()
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: i.Pool()}
	c.VerifyConnection = func(s tls.ConnectionState) error {
		seen(s)
		return nil
	}
	if client != "" {
		pair, err := tls.LoadX509KeyPair(i.File(client+".crt"), i.File(client+".key"))
		if err != nil {
			i.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(c)))
	if err != nil {
		i.Fatal(err)
	}
	return conn
}

// Only clients with the right certificate are answered, and a new certificate is served without dropping a call.
func TestServerTLS(t *testing.T) {
	i := redistest.NewAuthority(t)
	i.Leaf("server", time.Hour, "localhost")
	i.Leaf("envoy", time.Hour, "*.example")
	i.Leaf("stranger", time.Hour, "stranger.example")
	rules := rulesFile(t, fleetRules)
	s := serve(t, []string{
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + i.File("server.crt"), "GRPC_SERVER_TLS_KEY=" + i.File("server.key"),
		"GRPC_CLIENT_TLS_CACERT=" + i.File("ca.crt"), "GRPC_CLIENT_TLS_SAN=envoy.example",
	}, "--config", rules, "--log-level=error")
	before, err := callTLS(i, s.rpc, "envoy")
	if err != nil {
		t.Fatal(err)
	}
	for _, client := range []string{"", "stranger"} {
		if _, err := callTLS(i, s.rpc, client); err == nil {
			t.Errorf("client %q was answered", client)
		}
	}
	handshakes := 0
	open := dialTLS(i, s.rpc, "envoy", func(tls.ConnectionState) { handshakes++ })
	defer open.Close()
	ask := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if _, err := rls.NewRateLimitServiceClient(open).ShouldRateLimit(ctx, request("five", "x")); err != nil || handshakes != 1 {
			t.Errorf("a call over the open connection: %v, %d handshakes", err, handshakes)
		}
	}
	ask()
	i.Leaf("server", time.Hour, "localhost")
	s.eventually("the new certificate is served", func() bool {
		ask()
		after, err := callTLS(i, s.rpc, "envoy")
		if err != nil {
			t.Fatal(err)
		}
		return after.Cmp(before) != 0
	})
	ask()
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
