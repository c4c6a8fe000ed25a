package routing

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
)

// Messages of peers are always encrypted and authenticated. Without certificates, each node makes one for
// itself when it starts, which is not verified. TLS 1.3 then protects against listeners. The introduction
// (auth.go), whose proofs are bound to the connection, protects against relays.

// anonymous are credentials with a certificate that proves nothing, for dialling
// and for serving.
func anonymous() (client, server credentials.TransportCredentials) {
	// A new key for each life of the process: none is stored that could be stolen.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(fmt.Sprintf("routing: a key cannot be made: %v", err))
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		panic(fmt.Sprintf("routing: a certificate cannot be made: %v", err))
	}
	client = credentials.NewTLS(&tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // whom this is with, the introduction proves, bound to the connection
	})
	server = credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	})
	return client, server
}

// door handles connections of peers: those that speak TLS. It is safe for concurrent use.
type door struct {
	credentials.TransportCredentials
	refused func(from string, kind rejection, err error)
}

// ServerHandshake implements [credentials.TransportCredentials]. Its caller
// bounds the time.
func (d *door) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := d.TransportCredentials.ServerHandshake(raw)
	if _, plain := errors.AsType[tls.RecordHeaderError](err); plain {
		d.refused(raw.RemoteAddr().String(), rejectedPlain, errPlain)
		return nil, nil, errPlain
	}
	if err != nil && !hungUp(err) {
		d.refused(raw.RemoteAddr().String(), rejectedTLS, fmt.Errorf("its TLS handshake failed: %w", err))
	}
	return conn, info, err
}

// hungUp reports whether a caller closed its connection, or was too slow: nothing that it said was wrong. A node that
// is killed does so, and one without CPU.
func hungUp(err error) bool {
	broken, ok := errors.AsType[*net.OpError](err) // a TLS alert is of another type, and is a message
	return ok && (broken.Op == "read" || broken.Op == "write") ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// Clone implements [credentials.TransportCredentials].
func (d *door) Clone() credentials.TransportCredentials {
	return &door{d.TransportCredentials.Clone(), d.refused}
}
