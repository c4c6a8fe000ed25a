package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/cmd/sluice/clienttls"
)

// issuer signs certificates into a directory.
type issuer struct {
	*testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{T: t, dir: t.TempDir()}
	i.key, i.cert = i.sign("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)})
	return i
}

func (i *issuer) file(name string) string { return filepath.Join(i.dir, name) }

// sign writes name.crt and name.key.
func (i *issuer) sign(name string, c *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	i.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		i.Fatal(err)
	}
	c.SerialNumber, c.Subject, c.NotBefore = serial, pkix.Name{CommonName: name}, time.Now().Add(-2*time.Hour)
	parent, signer := i.cert, i.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		i.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		i.Fatal(err)
	}
	writeFile(i.T, i.file(name+".key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	writeFile(i.T, i.file(name+".crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		i.Fatal(err)
	}
	return key, cert
}

func (i *issuer) leaf(name string, lasts time.Duration, dns ...string) {
	i.sign(name, &x509.Certificate{
		DNSNames: dns, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(lasts),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	})
}

// call dials with a client certificate, if one is named, and asks once.
func (i *issuer) call(address, client string) (serial *big.Int, err error) {
	i.Helper()
	pool, err := clienttls.Pool(i.file("ca.crt"))
	if err != nil {
		i.Fatal(err)
	}
	conn := i.dial(address, client, pool, func(s tls.ConnectionState) { serial = s.PeerCertificates[0].SerialNumber })
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = rls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request("five", "x"))
	return serial, err
}

// dial makes a connection that tells seen of each handshake.
func (i *issuer) dial(address, client string, pool *x509.CertPool, seen func(tls.ConnectionState)) *grpc.ClientConn {
	i.Helper()
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	c.VerifyConnection = func(s tls.ConnectionState) error {
		seen(s)
		return nil
	}
	if client != "" {
		pair, err := tls.LoadX509KeyPair(i.file(client+".crt"), i.file(client+".key"))
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

// Only clients with the right certificate are answered, and a new certificate
// is served without dropping a call.
func TestServerTLS(t *testing.T) {
	i := newIssuer(t)
	i.leaf("server", time.Hour, "localhost")
	i.leaf("envoy", time.Hour, "envoy.example")
	i.leaf("stranger", time.Hour, "stranger.example")
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	writeFile(t, rules, fleetRules)
	s := serve(t, []string{
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + i.file("server.crt"), "GRPC_SERVER_TLS_KEY=" + i.file("server.key"),
		"GRPC_CLIENT_TLS_CACERT=" + i.file("ca.crt"), "GRPC_CLIENT_TLS_SAN=envoy.example",
	}, "--config", rules, "--log-level=error")
	before, err := i.call(s.rpc, "envoy")
	if err != nil {
		t.Fatal(err)
	}
	for _, client := range []string{"", "stranger"} {
		if _, err := i.call(s.rpc, client); err == nil {
			t.Errorf("client %q was answered", client)
		}
	}
	pool, err := clienttls.Pool(i.file("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	handshakes := 0
	open := i.dial(s.rpc, "envoy", pool, func(tls.ConnectionState) { handshakes++ })
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
	i.leaf("server", time.Hour, "localhost")
	s.eventually("the new certificate is served", func() bool {
		ask()
		after, err := i.call(s.rpc, "envoy")
		if err != nil {
			t.Fatal(err)
		}
		return after.Cmp(before) != 0
	})
	ask()
}

// Bad files are refused at the start, and later the old ones are kept.
func TestBadCertificates(t *testing.T) {
	i := newIssuer(t)
	i.leaf("server", time.Hour, "localhost")
	i.leaf("old", -time.Hour, "localhost")
	i.leaf("other", time.Hour, "localhost")
	writeFile(t, i.file("empty"), "")
	good := tlsFlags{Use: true, Cert: i.file("server.crt"), Key: i.file("server.key")}
	for want, change := range map[string]func(*tlsFlags){
		"old.crt is good from":                    func(f *tlsFlags) { f.Cert, f.Key = i.file("old.crt"), i.file("old.key") },
		"GRPC_SERVER_TLS_KEY " + i.file("other"):  func(f *tlsFlags) { f.Key = i.file("other.key") },
		"must name the certificate":               func(f *tlsFlags) { f.Cert = "" },
		"no such file":                            func(f *tlsFlags) { f.Cert = i.file("nothing") },
		"GRPC_CLIENT_TLS_CACERT: " + i.file("em"): func(f *tlsFlags) { f.ClientCA = i.file("empty") },
		"any client can claim the name":           func(f *tlsFlags) { f.ClientSAN = "envoy" },
		"clients would not be checked":            func(f *tlsFlags) { f.Use, f.ClientCA = false, i.file("ca.crt") },
	} {
		f := good
		change(&f)
		if _, err := f.credentials(slog.Default()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	now, complaints := time.Now(), 0
	c := good.certificates(slog.Default())
	c.Failed = func(error) { complaints++ }
	if err := c.Load(now); err != nil {
		t.Fatal(err)
	}
	served := c.Get(now)
	writeFile(t, good.Cert, "nonsense")
	now = now.Add(2 * time.Second)
	if c.Get(now) != served || complaints != 1 {
		t.Errorf("a bad new certificate: %d complaints", complaints)
	}
	if err := os.Remove(good.Cert); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Second)
	if c.Get(now) != served || complaints != 2 {
		t.Errorf("no certificate: %d complaints", complaints)
	}
}
