package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// clientCertificate presents the certificate in two files to a server. They are
// read at each new connection, so that a renewed one is used without a restart;
// while they cannot be read, or the new one is out of date, the last good one is.
type clientCertificate struct {
	cert, key               string // files
	certSetting, keySetting string

	mu   sync.Mutex
	good *tls.Certificate // guarded by mu
}

// use has c present the certificate, which must be good now.
func (f *clientCertificate) use(c *tls.Config) error {
	if f.cert == "" && f.key == "" {
		return nil
	}
	good, err := f.read()
	if err != nil {
		return err
	}
	f.good = good
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.current(), nil }
	return nil
}

func (f *clientCertificate) current() *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if good, err := f.read(); err == nil {
		f.good = good
	}
	return f.good
}

func (f *clientCertificate) read() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("%s %s and %s %s: %w", f.certSetting, f.cert, f.keySetting, f.key, err)
	}
	return &pair, inDate(pair.Leaf, f.certSetting, f.cert, time.Now())
}

// inDate is an error if a certificate is not good at a time.
func inDate(c *x509.Certificate, setting, file string, now time.Time) error {
	if now.After(c.NotAfter) || now.Before(c.NotBefore) {
		return fmt.Errorf("%s %s is good from %s to %s, not now", setting, file, c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// verifyChain checks a certificate but not the name in it.
func verifyChain(roots *x509.CertPool, state tls.ConnectionState) error {
	o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, cert := range state.PeerCertificates[1:] {
		o.Intermediates.AddCert(cert)
	}
	_, err := state.PeerCertificates[0].Verify(o)
	return err
}

// cutOff tells whether the other side ended a connection without a word: with TLS
// 1.3 a server that refuses a client's certificate may be heard so.
func cutOff(text string) bool {
	return slices.ContainsFunc([]string{"broken pipe", "connection reset", "EOF"}, func(part string) bool { return strings.Contains(text, part) })
}
