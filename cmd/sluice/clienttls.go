package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/leasing/resp"
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

// advise names the settings that an error of Redis speaks of, with what they
// say; passwords are left out.
func (f *redisFlags) advise(err error) string {
	text := err.Error()
	says := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
	tlsSetting := func(name string) string { return "REDIS_TLS_" + name } // the other Redis has no certificates of its own
	switch unknown, _ := errors.AsType[x509.UnknownAuthorityError](err); {
	case says("WRONGPASS", "NOAUTH", "unauthenticated", "invalid username-password", "without any password configured"):
		user, password := userAndPassword(f.Auth)
		return fmt.Sprintf("check %s: its user is %q, and it has a password: %t", f.setting("AUTH"), user, password != "")
	case errors.Is(err, resp.ErrReply):
		return fmt.Sprintf("check %s: what it names answers as no Redis does, or more than REDIS_MAX_REPLY, which is %d", f.setting("URL"), f.maxReply())
	case says("NOPERM"):
		return fmt.Sprintf("check what the user of %s may do", f.setting("AUTH"))
	case unknown.Cert != nil || says("unknown authority"):
		return fmt.Sprintf("check %s, which is %q: it must have who signed the server's certificate", tlsSetting("CACERT"), f.TLSCACert)
	case says("x509: certificate has expired"):
		return "the certificate of the server that " + f.setting("URL") + " names must be renewed"
	case says("x509: certificate is valid for", "doesn't contain any IP SANs", "x509: certificate is not valid for any names"):
		return fmt.Sprintf("check %s: the server's certificate is for another name (%s leaves the name unchecked)", f.setting("URL"), tlsSetting("SKIP_HOSTNAME_VERIFICATION"))
	case says("tls: bad certificate", "certificate required", "tls: expired certificate", "tls: unknown certificate", "handshake failure"):
		return fmt.Sprintf("check %s, which is %q: the server refuses it", tlsSetting("CLIENT_CERT"), f.TLSCert)
	case says("sentinels specified in configuration are unreachable"):
		return fmt.Sprintf("check %s and %s", f.setting("URL"), f.setting("SENTINEL_AUTH"))
	case f.TLS && cutOff(text):
		return fmt.Sprintf("check %s, which is %q: the server may refuse it", tlsSetting("CLIENT_CERT"), f.TLSCert)
	case f.TLS: // a server without TLS waits for the end of a line
		return fmt.Sprintf("check %s, and %s, which is true", f.setting("URL"), f.setting("TLS"))
	default:
		return fmt.Sprintf("check %s, and %s, which is false", f.setting("URL"), f.setting("TLS"))
	}
}
