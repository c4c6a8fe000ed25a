package settings

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// Certificate presents the certificate in two files to the other side. The files are looked at for each new connection,
// so that a renewed certificate is used without a restart. While they cannot be read, or the new one is out
// of date, the last good one is used, and the log says so.
type Certificate struct {
	Cert, Key string       // files
	Setting   string       // with CERT and KEY behind it, they name the files
	Log       *slog.Logger // nil: there is none
}

// Client is for connections to servers. The file ca has the authorities of their certificates; "": those of the system.
func (f *Certificate) Client(ca, caSetting string) (c *tls.Config, err error) {
	c = &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		c.RootCAs, err = CertPool(ca)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", caSetting, err)
		}
	}
	if f.Cert+f.Key == "" {
		return c, nil
	}
	// Each handshake reads the certificate anew. It may be a newer one than at the start.
	own := &upkeep.FileValue[*tls.Certificate]{Files: []string{f.Cert, f.Key}, Read: f.Read, Failed: BadCertificate(f.Log)}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.Get(time.Now()), nil }
	return c, own.Load(time.Now()) // it must be good now
}

// BadCertificate logs at most once a minute why new files are not used.
func BadCertificate(log *slog.Logger) func(error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return upkeep.Seldom(time.Minute, func(err error) {
		log.Error("the new TLS certificate is invalid: the old one stays in use", "error", err)
	})
}

// Read reads the files, which must be good at a time. A certificate out of date is returned with the error, but
// FileValue keeps the last good one.
func (f *Certificate) Read(now time.Time) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("%sCERT %s and %[1]sKEY %[3]s: %[4]w", f.Setting, f.Cert, f.Key, err)
	}
	if c := pair.Leaf; now.After(c.NotAfter) || now.Before(c.NotBefore) {
		err = fmt.Errorf("%sCERT %s is good from %s to %s, not now", f.Setting, f.Cert, c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339))
	}
	return &pair, err
}

// VerifyChain checks a certificate but not the name in it. The first certificate is the peer's own, and the others are
// intermediates, in any order. roots nil means the system's.
func VerifyChain(roots *x509.CertPool, state tls.ConnectionState) error {
	o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, cert := range state.PeerCertificates[1:] {
		o.Intermediates.AddCert(cert)
	}
	_, err := state.PeerCertificates[0].Verify(o)
	return err
}

// CertPool reads the certificates in a file. The file is PEM. A file without a certificate is an error, because an
// empty pool would trust none of the servers.
func CertPool(file string) (*x509.CertPool, error) {
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
