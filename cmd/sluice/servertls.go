package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// tlsFlags say whether the gRPC port speaks TLS, and whom it answers. Names are
// envoyproxy/ratelimit's.
type tlsFlags struct {
	Use       bool   `env:"GRPC_SERVER_USE_TLS" name:"grpc-server-use-tls" help:"Serve gRPC over TLS."`
	Cert      string `env:"GRPC_SERVER_TLS_CERT" name:"grpc-server-tls-cert" placeholder:"FILE" help:"File with the server certificate and its chain. It is read again when it changes."`
	Key       string `env:"GRPC_SERVER_TLS_KEY" name:"grpc-server-tls-key" placeholder:"FILE" help:"File with the key of the server certificate."`
	ClientCA  string `env:"GRPC_CLIENT_TLS_CACERT" name:"grpc-client-tls-cacert" placeholder:"FILE" help:"File with the authority of client certificates. If set, clients must present a certificate."`
	ClientSAN string `env:"GRPC_CLIENT_TLS_SAN" name:"grpc-client-tls-san" placeholder:"NAME" help:"Required name, address or URI in a client certificate."`
}

// credentials reads the files; nil where TLS is off. Connections check them again, at most once a second: good files
// are used, and bad ones are logged, and the old stay in use. Open connections continue. Each reading counts. Checks of
// clients without TLS are refused: an operator who sets them expects that strangers are refused.
func (f *tlsFlags) credentials(count *metrics.Loads, log *slog.Logger) (credentials.TransportCredentials, error) {
	switch {
	case !f.Use && (f.ClientCA != "" || f.ClientSAN != ""):
		return nil, errors.New("GRPC_CLIENT_TLS_CACERT or GRPC_CLIENT_TLS_SAN is set, and GRPC_SERVER_USE_TLS is not: clients would not be checked")
	case !f.Use:
		return nil, nil
	case f.Cert == "" || f.Key == "":
		return nil, errors.New("GRPC_SERVER_USE_TLS is set, and GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY must name the certificate and its key")
	case f.ClientSAN != "" && f.ClientCA == "":
		return nil, fmt.Errorf("GRPC_CLIENT_TLS_SAN is %q, and needs GRPC_CLIENT_TLS_CACERT: otherwise any client can claim the name", f.ClientSAN)
	}
	files := &upkeep.FileValue[*tls.Config]{
		Files: []string{f.Cert, f.Key, f.ClientCA}, Least: time.Second, Failed: settings.BadCertificate(log),
		Read: func(now time.Time) (*tls.Config, error) {
			count.Attempts.Add(1)
			c, err := f.read(now)
			if err != nil {
				count.Failures.Add(1)
			}
			return c, err
		},
	}
	if err := files.Load(time.Now()); err != nil {
		return nil, err
	}
	return credentials.NewTLS(serverConfig(tls.VersionTLS12, files)), nil
}

// serverConfig has each connection use the files as they are then. Each handshake reads the configuration anew, so a
// renewed certificate serves the next connection.
func serverConfig(least uint16, files *upkeep.FileValue[*tls.Config]) *tls.Config {
	return &tls.Config{MinVersion: least, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return files.Get(time.Now()), nil
	}}
}

// read makes a configuration of the files. A client's name is checked after its chain, when PeerCertificates is not
// empty.
func (f *tlsFlags) read(now time.Time) (*tls.Config, error) {
	own := settings.Certificate{Cert: f.Cert, Key: f.Key, Setting: "GRPC_SERVER_TLS_"}
	c, err := eitherSide(own, now, tls.VersionTLS12, f.ClientCA, "GRPC_CLIENT_TLS_CACERT")
	if want := f.ClientSAN; want != "" && err == nil {
		c.VerifyConnection = func(s tls.ConnectionState) error {
			return hasName(s.PeerCertificates[0], want, "the client's", "GRPC_CLIENT_TLS_SAN")
		}
	}
	return c, err
}

// eitherSide is for servers and clients. The file ca has the authorities of the other side's certificates; "" on a
// server: clients show none. One value serves both sides, because a node is a server for some peers and a client of
// others: RootCAs is read by clients, ClientCAs by servers.
func eitherSide(own settings.Certificate, now time.Time, least uint16, ca, caSetting string) (*tls.Config, error) {
	pair, err := own.Read(now)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: least, Certificates: []tls.Certificate{*pair}, NextProtos: []string{"h2"}}
	if ca == "" {
		return c, nil
	}
	c.ClientCAs, err = settings.CertPool(ca)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", caSetting, err)
	}
	// A file of authorities means that the other side must show a certificate.
	c.RootCAs, c.ClientAuth = c.ClientCAs, tls.RequireAndVerifyClientCert
	return c, nil
}

// alternativeNames are all that a certificate is for.
func alternativeNames(c *x509.Certificate) []string {
	names := slices.Concat(c.DNSNames, c.EmailAddresses)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	for _, uri := range c.URIs {
		names = append(names, uri.String())
	}
	return names
}

// hasName reports whether a certificate is for a name. VerifyHostname reads only DNS names and addresses. URIs, as
// SPIFFE has them, and mail addresses are compared as they are.
func hasName(c *x509.Certificate, want, whose, setting string) error {
	if names := alternativeNames(c); c.VerifyHostname(want) != nil && !slices.Contains(names, want) {
		return fmt.Errorf("%s certificate is for %s, and %s is %s", whose, strings.Join(names, ", "), setting, want)
	}
	return nil
}
