package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/cmd/sluice/clienttls"
	"github.com/sluice-gate/sluice/cmd/sluice/pace"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// tlsFlags say whether the gRPC port speaks TLS, and whom it answers. Names are
// envoyproxy/ratelimit's.
type tlsFlags struct {
	Use       bool   `env:"GRPC_SERVER_USE_TLS" name:"grpc-server-use-tls" help:"Serve gRPC over TLS."`
	Cert      string `env:"GRPC_SERVER_TLS_CERT" name:"grpc-server-tls-cert" placeholder:"FILE" help:"Server certificate with its chain, a file. It is read again when it changes."`
	Key       string `env:"GRPC_SERVER_TLS_KEY" name:"grpc-server-tls-key" placeholder:"FILE" help:"Key of the server certificate."`
	ClientCA  string `env:"GRPC_CLIENT_TLS_CACERT" name:"grpc-client-tls-cacert" placeholder:"FILE" help:"Authority of client certificates, a file. If set, clients must present one."`
	ClientSAN string `env:"GRPC_CLIENT_TLS_SAN" name:"grpc-client-tls-san" placeholder:"NAME" help:"Required name, address or URI in a client certificate."`

	loads *metrics.Loads // nil: not counted
}

// reloads counts how often the certificates were read; nil where TLS is off.
func (f *tlsFlags) reloads() *metrics.Loads {
	if !f.Use {
		return nil
	}
	f.loads = new(metrics.Loads)
	return f.loads
}

// counted counts that the files were read.
func (f *tlsFlags) counted(err error) {
	if f.loads == nil {
		return
	}
	f.loads.Attempts.Add(1)
	if err != nil {
		f.loads.Failures.Add(1)
	}
}

// credentials reads the files; nil where TLS is off. Connections check them again, at most once a second:
// good files are used, and bad ones are logged, and the old stay in use. Open connections continue.
func (f *tlsFlags) credentials(log *slog.Logger) (credentials.TransportCredentials, error) {
	if !f.Use {
		if f.ClientCA != "" || f.ClientSAN != "" {
			return nil, errors.New("GRPC_CLIENT_TLS_CACERT or GRPC_CLIENT_TLS_SAN is set, and GRPC_SERVER_USE_TLS is not: clients would not be checked")
		}
		return nil, nil
	}
	if f.Cert == "" || f.Key == "" {
		return nil, errors.New("GRPC_SERVER_USE_TLS is set, and GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY must name the certificate and its key")
	}
	if f.ClientSAN != "" && f.ClientCA == "" {
		return nil, fmt.Errorf("GRPC_CLIENT_TLS_SAN is %q, and needs GRPC_CLIENT_TLS_CACERT: otherwise any client can claim the name", f.ClientSAN)
	}
	c := &serverCertificates{flags: f, clock: time.Now, complain: pace.Seldom(time.Second, func(err error) {
		log.Error("the new TLS certificate is invalid: the old one stays in use", "error", err)
	})}
	if err := c.load(time.Now()); err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.config(), nil },
	}), nil
}

// serverCertificates are what the files say, as of a moment ago.
type serverCertificates struct {
	flags    *tlsFlags
	clock    func() time.Time
	complain func(error)

	mu     sync.Mutex
	now    *tls.Config // guarded by mu
	looked time.Time   // guarded by mu
	seen   []fileState // guarded by mu
}

// fileState is what tells whether a file has changed.
type fileState struct {
	size int64
	mod  time.Time
}

func (f *tlsFlags) states() []fileState {
	var all []fileState
	for _, name := range []string{f.Cert, f.Key, f.ClientCA} {
		all = append(all, stateOf(name))
	}
	return all
}

// stateOf is the zero fileState of a file that is not there.
func stateOf(name string) fileState {
	info, err := os.Stat(name)
	if err != nil {
		return fileState{}
	}
	return fileState{info.Size(), info.ModTime()}
}

// lookEvery is how long the read files count as current.
const lookEvery = time.Second

func (c *serverCertificates) config() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock()
	if now.Sub(c.looked) < lookEvery {
		return c.now
	}
	c.looked = now
	if states := c.flags.states(); slices.Equal(states, c.seen) {
		return c.now
	}
	if err := c.loadLocked(now); err != nil {
		c.complain(err)
	}
	return c.now
}

func (c *serverCertificates) load(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loadLocked(now)
}

func (c *serverCertificates) loadLocked(now time.Time) error {
	states := c.flags.states()
	fresh, err := c.flags.read(now)
	c.flags.counted(err)
	if err != nil {
		return err
	}
	c.now, c.seen, c.looked = fresh, states, now
	return nil
}

// read makes a configuration from the files.
func (f *tlsFlags) read(now time.Time) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("GRPC_SERVER_TLS_CERT %s and GRPC_SERVER_TLS_KEY %s: %w", f.Cert, f.Key, err)
	}
	if err := clienttls.InDate(pair.Leaf, "GRPC_SERVER_TLS_CERT", f.Cert, now); err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}}
	if f.ClientCA == "" {
		return c, nil
	}
	if c.ClientCAs, err = clienttls.Pool(f.ClientCA); err != nil {
		return nil, fmt.Errorf("GRPC_CLIENT_TLS_CACERT: %w", err)
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	if want := f.ClientSAN; want != "" {
		c.VerifyConnection = func(s tls.ConnectionState) error {
			return hasName(s.PeerCertificates[0], want, "the client's", "GRPC_CLIENT_TLS_SAN")
		}
	}
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
