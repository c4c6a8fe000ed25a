package realenvoy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// authority signs certificates, as files of a directory.
type authority struct {
	*testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{T: t, dir: t.TempDir()}
	a.cert = &x509.Certificate{
		Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = a.write("ca", a.cert)
	return a
}

// leaf makes a certificate for a name, in NAME.crt and NAME.key.
func (a *authority) leaf(name string) {
	a.Helper()
	a.write(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.Helper()
	must := func(err error) {
		a.Helper()
		if err != nil {
			a.Fatal(err)
		}
	}
	now := time.Now()
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(now.UnixNano()), now.Add(-time.Hour), now.Add(time.Hour)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	parent, signer := a.cert, a.key
	if signer == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	must(err)
	secret, err := x509.MarshalECPrivateKey(key)
	must(err)
	crt, pk := &pem.Block{Type: "CERTIFICATE", Bytes: der}, &pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}
	must(os.WriteFile(a.file(name+".crt"), pem.EncodeToMemory(crt), 0o600))
	must(os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(pk), 0o600))
	return c, key
}

// Envoy calls over TLS, and presents a certificate if a node requires one. Without alpn_protocols its calls
// arrive, but its health checks do not: it finds no healthy node, and calls all of them regardless of their
// state.
func TestTLS(t *testing.T) {
	needsLong(t)
	a := newAuthority(t)
	a.leaf("sluice")
	a.leaf("envoy")
	trust := "validation_context: {trusted_ca: {filename: " + a.file("ca.crt") + "}, " +
		"match_typed_subject_alt_names: [{san_type: DNS, matcher: {exact: sluice}}]}"
	own := "tls_certificates: [{certificate_chain: {filename: " + a.file("envoy.crt") + "}, " +
		"private_key: {filename: " + a.file("envoy.key") + "}}], "
	server := []string{
		"--grpc-server-use-tls", "--grpc-server-tls-cert", a.file("sluice.crt"),
		"--grpc-server-tls-key", a.file("sluice.key"),
	}
	mutual := slices.Concat(server, []string{
		"--grpc-client-tls-cacert", a.file("ca.crt"), "--grpc-client-tls-san", "envoy",
	})
	const h2 = "alpn_protocols: [h2], "
	plain := change(t, shipped(t, "envoy/envoy.yaml"),
		"failure_mode_deny: false", "failure_mode_deny: true", "timeout: 0.02s", "timeout: 1s")
	with := func(context string) string {
		return change(t, plain, "      health_checks:", "      transport_socket:\n        name: tls\n"+
			"        typed_config: {\"@type\": "+
			"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, sni: sluice, "+
			"common_tls_context: {"+context+"}}\n      health_checks:")
	}
	for name, at := range map[string]struct {
		text   string
		flags  []string
		status int
		unwell bool
	}{
		"TLS":                  {with(h2 + trust), server, http.StatusOK, false},
		"mTLS":                 {with(h2 + own + trust), mutual, http.StatusOK, false},
		"TLS, no ALPN":         {with(trust), server, http.StatusOK, true},
		"mTLS, none presented": {with(h2 + trust), mutual, http.StatusInternalServerError, true},
		"no TLS":               {plain, server, http.StatusInternalServerError, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{T: t, rules: fleetRules("mode: leasing", 2), config: Config{Text: at.text}, flags: at.flags}
			w.unwell = at.unwell
			w.run()
			if got := w.get("/", "x-api-key", "k").Status; got != at.status {
				t.Errorf("the answer is %d, not %d", got, at.status)
			}
			if at.status == http.StatusOK && w.passes(3, "/", "x-api-key", "k") != 1 {
				t.Error("the limit of 2 does not hold")
			}
		})
	}
}
