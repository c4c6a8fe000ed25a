package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates, as files of a directory: NAME.crt and NAME.key. Its own is ca.crt.
type Authority struct {
	testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes one, for an hour.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{TB: tb, dir: tb.TempDir()}
	ca := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	ca.NotAfter = time.Now().Add(time.Hour)
	pair := a.Sign("ca", ca)
	a.cert, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// File is the path of a file of the directory.
func (a *Authority) File(name string) string { return filepath.Join(a.dir, name) }

// Leaf signs a certificate of a client, or a server on this machine with these names, that ends after a time.
func (a *Authority) Leaf(name string, lasts time.Duration, dns ...string) tls.Certificate {
	a.Helper()
	return a.Sign(name, &x509.Certificate{
		DNSNames: dns, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(lasts),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	})
}

// Sign signs any certificate, with a new key.
func (a *Authority) Sign(name string, c *x509.Certificate) tls.Certificate {
	a.Helper()
	must := func(err error) {
		a.Helper()
		if err != nil {
			a.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	must(err)
	c.Subject, c.NotBefore = pkix.Name{CommonName: name}, time.Now().Add(-2*time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	must(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	must(os.WriteFile(a.File(name+".crt"), chain, 0o600))
	must(os.WriteFile(a.File(name+".key"), secret, 0o600))
	pair, err := tls.X509KeyPair(chain, secret)
	must(err)
	return pair
}

// Pool trusts the authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}
