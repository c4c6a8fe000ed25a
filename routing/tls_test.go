package routing

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/ratelimit"
)

// certifier signs peers' certificates.
type certifier struct {
	*testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *certifier {
	a := &certifier{T: t}
	a.key, a.cert = a.issue(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	return a
}

func (a *certifier) issue(c, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, *x509.Certificate) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(1), pkix.Name{CommonName: "peer"}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.Fatal(err)
	}
	return key, cert
}

// peer returns a new peer's credentials, for dialling and for serving.
func (a *certifier) peer() (client, server credentials.TransportCredentials) {
	key, cert := a.issue(&x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a.cert, a.key)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	pair := []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: pair, RootCAs: pool}),
		credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: pair, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})
}

// With mutual TLS peers meet without a secret. A certificate of another authority is refused.
func TestRouterTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	w := newRingWorld(t, 3)
	var nodes []*node
	for i := range 2 {
		client, server := ours.peer()
		nodes = append(nodes, w.startTLS(i, "", client, server))
	}
	client, server := theirs.peer()
	stranger := w.startTLS(2, "", client, server)
	w.agree(nodes...)
	w.eventually("the stranger complains", func() bool { return len(stranger.errs) > 0 })
	if n := len(stranger.Stats().Members); n > 1 {
		t.Errorf("the stranger sees %d members", n)
	}
	rule := routed(1)
	rule.Coordination.StoreDeadline = ratelimit.MaxStoreDeadline
	if v := nodes[0].ask(rule, 1, 1); v.OverLimit || v.Err != nil {
		t.Errorf("%+v", v)
	}
}
