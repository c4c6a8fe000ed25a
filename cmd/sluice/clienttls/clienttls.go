// Package clienttls is how this service makes itself known to servers and peers by TLS, and checks who they are.
package clienttls

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/cmd/sluice/reread"
)

// Certificate presents the certificate in two files to the other side. The files are looked at for each new connection,
// so that a renewed certificate is used without a restart. While they cannot be read, or the new one is out
// of date, the last good one is used.
type Certificate struct {
	Cert, Key               string // files
	CertSetting, KeySetting string // that name them
}

// Use has c present the certificate, which must be good now.
func (f *Certificate) Use(c *tls.Config) error {
	if f.Cert == "" && f.Key == "" {
		return nil
	}
	own := &reread.Value[*tls.Certificate]{Files: []string{f.Cert, f.Key}, Read: f.read}
	if err := own.Load(time.Now()); err != nil {
		return err
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.Get(time.Now()), nil }
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.Get(time.Now()), nil }
	return nil
}

func (f *Certificate) read(now time.Time) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("%s %s and %s %s: %w", f.CertSetting, f.Cert, f.KeySetting, f.Key, err)
	}
	return &pair, InDate(pair.Leaf, f.CertSetting, f.Cert, now)
}

// InDate is an error if a certificate is not good at a time.
func InDate(c *x509.Certificate, setting, file string, now time.Time) error {
	if now.After(c.NotAfter) || now.Before(c.NotBefore) {
		return fmt.Errorf("%s %s is good from %s to %s, not now", setting, file, c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// VerifyChain checks a certificate but not the name in it.
func VerifyChain(roots *x509.CertPool, state tls.ConnectionState) error {
	o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, cert := range state.PeerCertificates[1:] {
		o.Intermediates.AddCert(cert)
	}
	_, err := state.PeerCertificates[0].Verify(o)
	return err
}

// CutOff reports whether the other side ended a connection without a message. With TLS 1.3, the refusal of a
// client's certificate may look like that.
func CutOff(text string) bool {
	return slices.ContainsFunc([]string{"broken pipe", "connection reset", "EOF"}, func(part string) bool { return strings.Contains(text, part) })
}

// Pool reads the certificates in a file.
func Pool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return pool, nil
}
